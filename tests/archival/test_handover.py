"""What one agent leaves the next is taken once, whole or not at all."""

from pathlib import Path

import pytest

from archival.collection.handover import CollectionLook, Handover, settings_digest
from archival.config import ArchivalConfig
from headwater_core.control.state import PartitionState
from headwater_core.errors import DiskFull
from headwater_core.partition import PartitionId
from tests.headwater.broker import CLUSTER, topic_id

LOOKS = {
    PartitionId(CLUSTER, topic_id("soup"), 0, "soup"): CollectionLook(7, settings_digest(ArchivalConfig()), None),
    PartitionId(CLUSTER, topic_id("stew"), 31, "stew"): CollectionLook(
        1, settings_digest(ArchivalConfig(retention_s=1)), 1_700_000_000_000
    ),
}


def test_it_is_taken_once(tmp_path: Path) -> None:
    handover = Handover(tmp_path / "collected.json")
    assert handover.take() == {}
    handover.leave(LOOKS)
    assert [(each, each.topic, look) for each, look in handover.take().items()] == [
        (each, each.topic, look) for each, look in LOOKS.items()
    ]
    assert handover.take() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_look_at_a_lost_commit_is_none_at_the_one_that_replaced_it() -> None:
    known = PartitionState(manifest_version=7, fence=1, owner="a", start_offset=0, last_offset=9, commit_id="b")
    assert CollectionLook(7, "", None, "b").is_at(known)
    assert CollectionLook(7, "", None).is_at(known), "a document of before"
    assert not CollectionLook(7, "", None, "a").is_at(known)
    assert not CollectionLook(6, "", None, "b").is_at(known)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"format":2,"looks":[]}', b'{"format":1,"looks":[["c","t",-1,"../x",{}]]}', b"\xff", b'{"format":1,"looks":[['],
)
def test_what_is_damaged_counts_for_nothing_and_goes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "collected.json"
    path.write_bytes(content)
    assert Handover(path).take() == {}
    assert not path.exists()


def test_a_hostile_name_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "collected.json"
    Handover(path).leave(LOOKS)
    path.write_bytes(path.read_bytes().replace(b'"soup"', b'"../soup"'))
    assert Handover(path).take() == {}


def test_what_cannot_be_removed_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "collected.json"
    path.mkdir()
    assert Handover(path).take() == {}


def test_what_could_not_be_removed_is_not_believed_later_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that could not remove it works on, and may be killed."""
    handover = Handover(tmp_path / "collected.json")
    handover.leave(LOOKS)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert handover.take() == {}
    assert handover.take() == {}


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handover = Handover(tmp_path / "collected.json")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFull):
        handover.leave(LOOKS)
    assert list(tmp_path.iterdir()) == []


def test_settings_differ_in_anything() -> None:
    digests = {settings_digest(each) for each in (ArchivalConfig(), ArchivalConfig(release=True), ArchivalConfig(retention_s=5))}
    assert len(digests) == 3
    assert settings_digest(ArchivalConfig()) == settings_digest(ArchivalConfig())
