"""A topic that an owned log directory lacks, downloaded once from a topic manifest."""

import errno
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater_core import milestones
from headwater_core.clock import SystemClock
from headwater_core.control.control_records import RecoveryFinished, RecoveryStarted
from headwater_core.errors import HeadwaterError, NotFound, TransientError, UnknownOutcome, UsageError, VerificationFailed
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests import keys
from manifests.repository import ManifestRepository
from recovery import MILESTONES, DownloadOutcome, Options, RecoveryPlan, TopicDownload, bring_back
from recovery.topic_download import MILESTONES as MOVES
from recovery.topic_download import parse_topic_manifest
from tests.fixtures import unpack
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive as archive_log
from tests.recovery.archived import batches, bounds
from tests.recovery.interrupted import Failing
from tests.recovery.written_archive import Archive, batches_in, plain

CLUSTER = "mPtQxumzSB6UIzXMtmWVUg"
MENU = "0\n1\nmenu 0 5\n"


class Killed(BaseException):
    pass


@pytest.fixture
def archive() -> Archive:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], [plain(4, 3)], **{"retention.ms": "600"})
    return archive


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return a_log_dir(tmp_path / "log")


@pytest.fixture
def other_log_dir(tmp_path: Path) -> Path:
    """Of another host of the cluster, or of the same one."""
    return a_log_dir(tmp_path / "other")


def a_log_dir(root: Path) -> Path:
    """With another topic, on which nothing changes."""
    (root / "menu-0").mkdir(parents=True)
    properties = checkpoints.MetaProperties(cluster_id=CLUSTER, node_id=1, directory_id="x" * 22)
    (root / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(properties))
    (root / checkpoints.HIGH_WATERMARKS).write_text(MENU)
    return root


def wanted(archive: Archive, topic: str = "orders", **changes: Any) -> TopicDownload:
    """No retention of the topic's own: its records are years old."""
    key = keys.topic_manifest("orders", archive.ids["orders"])
    return TopicDownload(topic, key, CLUSTER, 1, retention_bytes=1 << 30)._replace(**changes)


def download(archive: Archive, *log_dirs: Path, asked: TopicDownload | None = None, control: LocalControl | None = None) -> DownloadOutcome:
    def plan(names: Sequence[str], options: Options) -> RecoveryPlan:
        return recovery.plan(ManifestRepository(archive.store), names, options, clock=ManualClock())

    return bring_back(asked or wanted(archive), log_dirs, archive.store, plan, clock=ManualClock(), control=control)


def offsets(log_dir: Path, topic: str = "orders") -> list[int]:
    return [header.base_offset for header, _ in batches_in(log_dir / f"{topic}-0")]


def everything(log_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}


def test_a_topic_comes_into_a_log_directory_beside_what_is_there(archive: Archive, log_dir: Path) -> None:
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED
    assert offsets(log_dir) == [0, 4]
    assert (log_dir / checkpoints.HIGH_WATERMARKS).read_text() == "0\n2\nmenu 0 5\norders 0 7\n"
    [log] = [each for each in LogDirs([log_dir], owned=True).partitions() if each.partition.topic == "orders"]
    assert (log.partition.topic_id, log.start_offset, log.high_watermark) == (archive.ids["orders"], 0, 7)
    assert log.epochs.starts == ((0, 0), (4, 7))  # the archive has followed epoch 4: without it the log would be behind
    assert not [path for path in log_dir.iterdir() if path.name.startswith(".headwater")]


@pytest.mark.parametrize("has_broker", [True, False])
def test_as_many_partitions_come_as_the_manifest_has_the_empty_ones_too(has_broker: bool, log_dir: Path) -> None:
    """Also where no broker ever said how many there are, as in an archive of an owned log directory."""
    source, store = unpack("kitchen"), MemoryStore(SystemClock())
    repository = archive_log(source, store, {"orders.in"})
    manifest = repository.resolve("orders.in")
    key = keys.topic_manifest(manifest.topic, manifest.topic_id)
    if not has_broker:
        store.delete(key)
        repository.ensure_topic(replace(manifest, version=0, configs=None))
    asked = TopicDownload("orders.in", key, CLUSTER, 1, retention_bytes=1 << 30)
    archive = Archive(store=store)
    assert download(archive, log_dir, asked=asked) is DownloadOutcome.DOWNLOADED
    shutil.rmtree(log_dir / "menu-0")
    assert bounds(log_dir) == {place: found for place, found in bounds(source).items() if place[0] == "orders.in"}
    assert [each.name for each in sorted(log_dir.glob("orders.in-*"))] == [f"orders.in-{number}" for number in range(4)]
    assert list(batches(log_dir)) == [each for each in batches(source) if each[0] == "orders.in"]


def test_without_the_head_of_one_partition_nothing_of_the_topic_comes(log_dir: Path) -> None:
    """Nobody knows whether it was never archived, or is lost."""
    store = MemoryStore(SystemClock())
    manifest = archive_log(unpack("kitchen"), store, {"orders.in"}).resolve("orders.in")
    store.delete(keys.head(manifest.partition_id(2)))
    asked = TopicDownload("orders.in", keys.topic_manifest(manifest.topic, manifest.topic_id), CLUSTER, 1, retention_bytes=1 << 30)
    with pytest.raises(VerificationFailed, match="of partitions 2 there is no manifest"):
        download(Archive(store=store), log_dir, asked=asked)
    assert not list(log_dir.glob("orders.in-*"))


def test_it_is_downloaded_once_and_never_again_even_when_it_is_gone(archive: Archive, log_dir: Path) -> None:
    control = LocalControl()
    download(archive, log_dir, control=control)
    assert download(archive, log_dir, control=control) is DownloadOutcome.PRESENT
    shutil.rmtree(log_dir / "orders-0")
    before = everything(log_dir)
    assert download(archive, log_dir, control=control) is DownloadOutcome.DONE
    assert download(archive, log_dir) is DownloadOutcome.DONE  # the bucket knows it without the control log
    for key in (keys.recovery(wanted(archive).recovery_id), keys.download(wanted(archive).recovery_id)):
        archive.store.delete(key)
    assert download(archive, log_dir, control=control) is DownloadOutcome.DONE  # and the control log without the bucket
    assert everything(log_dir) == before
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED


def test_a_topic_that_is_there_is_left_alone(archive: Archive, log_dir: Path) -> None:
    (log_dir / "orders-3").mkdir()
    assert download(archive, log_dir) is DownloadOutcome.PRESENT
    with pytest.raises(NotFound):
        archive.store.stat(keys.recovery(wanted(archive).recovery_id))


def test_retention_bounds_it_the_given_one_before_the_topics_own(archive: Archive, log_dir: Path) -> None:
    assert download(archive, log_dir, asked=wanted(archive, retention_bytes=1)) is DownloadOutcome.DOWNLOADED
    assert offsets(log_dir) == [4]


def test_the_topic_s_own_retention_holds_where_none_is_given(archive: Archive, log_dir: Path) -> None:
    asked = wanted(archive, retention_bytes=None)
    ages = [each.last_timestamp_ms or 0 for each in archive.plan().topics[0].partitions[0].entries]

    def plan(names: Sequence[str], options: Options) -> RecoveryPlan:
        assert options.apply_retention
        return recovery.plan(ManifestRepository(archive.store), names, options, clock=ManualClock(ages[0] + 601))

    assert bring_back(asked, [log_dir], archive.store, plan, clock=ManualClock()) is DownloadOutcome.DOWNLOADED
    assert offsets(log_dir) == [4]


def test_under_another_name_it_is_another_topic(archive: Archive, log_dir: Path) -> None:
    assert download(archive, log_dir, asked=wanted(archive, "again")) is DownloadOutcome.DOWNLOADED
    assert offsets(log_dir, "again") == [0, 4]
    [log] = [each for each in LogDirs([log_dir], owned=True).partitions() if each.partition.topic == "again"]
    assert log.partition.topic_id != archive.ids["orders"]
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED


STEPS = [*MILESTONES, *MOVES]


def kill_at(step: str, patched: pytest.MonkeyPatch, archive: Archive, log_dir: Path, control: LocalControl | None = None) -> None:
    def kill(name: str) -> None:
        if name == step:
            raise Killed

    with patched.context() as context:
        context.setattr(milestones, "observer", kill)
        with pytest.raises(Killed):
            download(archive, log_dir, control=control)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_finished_by_the_next_start(
    step: str, archive: Archive, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = LocalControl()
    kill_at(step, monkeypatch, archive, log_dir, control)
    assert download(archive, log_dir, control=control) is DownloadOutcome.DOWNLOADED
    assert offsets(log_dir) == [0, 4]
    assert (log_dir / checkpoints.HIGH_WATERMARKS).read_text() == "0\n2\nmenu 0 5\norders 0 7\n"
    assert not [path for path in log_dir.iterdir() if path.name.startswith(".headwater")]
    shutil.rmtree(log_dir / "orders-0")
    assert download(archive, log_dir) is DownloadOutcome.DONE
    assert control.state().recoveries[wanted(archive).recovery_id].finished_ms is not None


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_and_lost_another_host_takes_it_over_when_it_is_let(
    step: str, archive: Archive, log_dir: Path, other_log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = LocalControl()
    begun = keys.recovery(wanted(archive).recovery_id)
    kill_at(step, monkeypatch, archive, log_dir, control)
    if step == "download.recorded":
        assert download(archive, other_log_dir, control=control) is DownloadOutcome.DONE
        return
    before = everything(log_dir)
    if step != "recover.locked":  # it is not in the bucket that one has begun
        with pytest.raises(TransientError, match=f"{log_dir}.*{socket.gethostname()}.*{begun}"):
            download(archive, other_log_dir, control=control)
        assert not (other_log_dir / "orders-0").exists()
        archive.store.delete(begun)
    assert download(archive, other_log_dir, control=control) is DownloadOutcome.DOWNLOADED
    assert offsets(other_log_dir) == [0, 4]
    if step in ("recover.locked", "recover.recorded"):  # nothing was begun there that somebody could miss
        assert download(archive, log_dir, control=control) is DownloadOutcome.DONE
        assert not [path for path in log_dir.iterdir() if path.name.startswith(".headwater")]
    else:
        with pytest.raises(UsageError, match=f"{other_log_dir}.*has taken it over.*remove {log_dir}"):
            download(archive, log_dir, control=control)
        assert everything(log_dir) == before


def test_the_lost_host_that_comes_back_before_another_one_begins_continues(
    archive: Archive, log_dir: Path, other_log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at("recover.finished", monkeypatch, archive, log_dir)
    archive.store.delete(keys.recovery(wanted(archive).recovery_id))
    kill_at("download.checkpoints", monkeypatch, archive, log_dir)
    with pytest.raises(TransientError, match=str(log_dir)):
        download(archive, other_log_dir)
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED


def test_what_was_taken_over_while_it_was_downloaded_is_not_moved_in(
    archive: Archive, log_dir: Path, other_log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over(name: str) -> None:
        if name == "recover.verified":
            monkeypatch.setattr(milestones, "observer", lambda name: None)
            archive.store.delete(keys.recovery(wanted(archive).recovery_id))
            assert download(archive, other_log_dir) is DownloadOutcome.DOWNLOADED

    monkeypatch.setattr(milestones, "observer", take_over)
    with pytest.raises(UsageError, match="has taken it over"):
        download(archive, log_dir)
    assert not (log_dir / "orders-0").exists()


def test_of_two_that_begin_at_once_one_waits(archive: Archive, log_dir: Path, other_log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_elsewhere(name: str) -> None:
        if name == "recover.locked":
            kill_at("recover.directories", monkeypatch, archive, other_log_dir)

    monkeypatch.setattr(milestones, "observer", begin_elsewhere)
    with pytest.raises(TransientError, match=str(other_log_dir)):
        download(archive, log_dir)


def test_a_host_that_lost_what_it_had_fetched_begins_again_in_the_same_directory(
    archive: Archive, log_dir: Path, other_log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at("recover.fetched", monkeypatch, archive, log_dir)
    for path in log_dir.glob(".headwater*"):
        shutil.rmtree(path)
    for dirs in ([log_dir, other_log_dir], [other_log_dir, log_dir]):
        assert download(archive, *dirs) is (DownloadOutcome.DOWNLOADED if dirs[0] is log_dir else DownloadOutcome.PRESENT)
    assert offsets(log_dir) == [0, 4]


def test_a_broker_of_another_node_id_does_not_continue(archive: Archive, log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may have the same host name and paths."""
    kill_at("recover.fetched", monkeypatch, archive, log_dir)
    for path in log_dir.glob(".headwater*"):
        shutil.rmtree(path)
    with pytest.raises(TransientError, match="by node 1"):
        download(archive, log_dir, asked=wanted(archive, node_id=2))


class Unanswered(MemoryStore):
    """Creates what it is told to, and says nothing."""

    def __init__(self, other: MemoryStore, prefix: str) -> None:
        self.__dict__ = dict(other.__dict__)
        self.prefix = prefix

    def create(self, key: str, data: bytes) -> str:
        tag = super().create(key, data)
        if key.startswith(self.prefix):
            raise UnknownOutcome(f"no answer for {key}")
        return tag


def test_a_record_that_was_written_without_an_answer_counts(archive: Archive, log_dir: Path) -> None:
    archive.store = Unanswered(archive.store, "cluster/")
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED
    shutil.rmtree(log_dir / "orders-0")
    assert download(archive, log_dir) is DownloadOutcome.DONE


def test_what_the_store_does_not_give_is_tried_again(archive: Archive, log_dir: Path) -> None:
    whole, archive.store = archive.store, Failing(archive.store, TransientError("timed out"), 1)
    with pytest.raises(TransientError):
        download(archive, log_dir)
    archive.store = whole
    assert download(archive, log_dir) is DownloadOutcome.DOWNLOADED


@pytest.mark.parametrize("damage", ["data", "head"])
def test_what_is_damaged_is_not_downloaded_in_part(damage: str, archive: Archive, log_dir: Path) -> None:
    for info in list(archive.store.list("data/" if damage == "data" else "meta/orders/")):
        if info.key.endswith((".log", "/manifest.json")):
            archive.store.delete(info.key)
    with pytest.raises(VerificationFailed):
        download(archive, log_dir)
    assert not (log_dir / "orders-0").exists()


def test_what_the_control_log_calls_begun_is_not_done_and_what_it_calls_finished_is(archive: Archive, log_dir: Path) -> None:
    control = LocalControl()
    name = wanted(archive).recovery_id
    control.publish(RecoveryStarted(recovery_id=name, at_ms=1, summary="elsewhere"))
    control.publish(RecoveryFinished(recovery_id=name, at_ms=2, outcome="finished"))
    assert download(archive, log_dir, control=control) is DownloadOutcome.DONE
    begun = LocalControl()
    begun.publish(RecoveryStarted(recovery_id=name, at_ms=1, summary="elsewhere"))
    assert download(archive, log_dir, control=begun) is DownloadOutcome.DOWNLOADED


@pytest.mark.parametrize("call", ["disk_usage", "rmtree"])
def test_what_the_operating_system_refuses_is_an_error_of_ours(
    call: str, archive: Archive, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, call, refuse)
        with pytest.raises(TransientError, match="Input/output error"):
            download(archive, log_dir)
    download(archive, log_dir)
    assert offsets(log_dir) == [0, 4]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("meta/orders/le4ruHkrRAmAJUx9PH5t3A/topic.json", NotFound),
        ("meta/orders/le4ruHkrRAmAJUx9PH5t3A/0/manifest.json", UsageError),
        ("orders", UsageError),
    ],
)
def test_a_manifest_that_is_none(key: str, error: type[HeadwaterError], archive: Archive, log_dir: Path) -> None:
    with pytest.raises(error):
        download(archive, log_dir, asked=wanted(archive, manifest_key=key))
    assert not (log_dir / "orders-0").exists()


def test_what_names_a_topic_manifest() -> None:
    assert parse_topic_manifest("meta/orders/le4ruHkrRAmAJUx9PH5t3A/topic.json") == ("orders", "le4ruHkrRAmAJUx9PH5t3A")
