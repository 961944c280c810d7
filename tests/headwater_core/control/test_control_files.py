"""Damaged files end in a rebuild, never in a crash."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival.control_rebuild import rebuild_control, rebuild_control_if_needed
from headwater_core.control.control_files import ControlFiles
from headwater_core.control.control_records import RecoveryStarted
from headwater_core.control.node import ControlNode
from headwater_core.errors import DiskFull, UsageError
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from tests.headwater_core.control.builders import PARTITION, TOPIC_ID, advanced, settings
from tests.headwater_core.control.nodes import a_node, last_offset
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import a_head, an_entry


@pytest.mark.parametrize("file", ["journal", "snapshot"])
@pytest.mark.parametrize("damage", ["delete", "empty", "cut", "flip", "noise", "tail"])
def test_damaged_files_are_kept_aside_and_the_state_is_rebuilt_from_the_bucket(file: str, damage: str, tmp_path: Path) -> None:
    repository = a_bucket(partitions=3)
    with a_node(tmp_path) as node:
        rebuild_control_if_needed(repository, node)
        node.compact()
        node.publish(advanced(1))
        known = node.state().digest()
        node.publish(advanced(1))
    path = tmp_path / "control" / file
    damaged(path, damage)
    with capture_logs() as events, a_node(tmp_path) as node:
        if node.needs_rebuild:
            rebuild_control_if_needed(repository, node)
        elif damage == "tail":
            rebuild_control(repository, node)  # a cut at the end of a frame looks like an older file
        assert not node.needs_rebuild
        assert node.state().digest() == known
        node.publish(advanced(9))
        assert last_offset(node) == 89
    kept_aside = {str(each.with_suffix("")) for each in path.parent.glob("*.damaged")}
    assert {each["path"] for each in events if each["event"] in ("control_file_set_aside", "control_journal_cut")} == kept_aside


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "delete":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flip":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :])
        case "noise":
            path.write_bytes(random.Random(1).randbytes(len(content)))
        case "tail":
            path.write_bytes(content[:-3])


def a_node_with_marks(tmp_path: Path) -> None:
    """What is in no bucket: recoveries and settings, some in the snapshot, some in the journal after it."""
    with a_node(tmp_path) as node:
        node.rebuilt()
        node.publish(RecoveryStarted(recovery_id="in the snapshot", at_ms=1, summary=""), settings(1, read_priority="local-only"))
        node.publish(advanced(1))
        node.compact()
        node.publish(RecoveryStarted(recovery_id="in the journal", at_ms=1, summary=""))
        for version in range(2, 5):
            node.publish(advanced(version))


@pytest.mark.parametrize(
    "left", [lambda raw: raw[:-7], lambda raw: raw + bytes(64), lambda raw: raw[:-40] + bytes(40), lambda raw: raw + b"\xff" * 9]
)
def test_an_end_that_a_power_loss_tore_costs_nothing_but_the_end(left: Callable[[bytes], bytes], tmp_path: Path) -> None:
    a_node_with_marks(tmp_path)
    journal = tmp_path / "control" / "journal"
    journal.write_bytes(left(journal.read_bytes()))
    with a_node(tmp_path) as node:
        assert set(node.state().recoveries) == {"in the snapshot", "in the journal"}
        assert node.needs_rebuild
        node.publish(advanced(9))
    assert not (tmp_path / "control" / "journal.damaged").exists()


@pytest.mark.parametrize("damage", ["delete", "empty", "noise", "first entry"])
def test_a_snapshot_outlives_its_journal(damage: str, tmp_path: Path) -> None:
    a_node_with_marks(tmp_path)
    path = tmp_path / "control" / "journal"
    if damage == "first entry":
        raw = path.read_bytes()
        at = raw.index(b"E", 60)
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    else:
        damaged(path, damage)
    with a_node(tmp_path) as node:
        assert "in the snapshot" in node.state().recoveries
        topic = node.state().topic("cluster-1", TOPIC_ID)
        assert topic is not None
        assert topic.settings == {"read_priority": "local-only"}
        assert node.needs_rebuild
        node.publish(advanced(7))
        node.compact()
        node.publish(advanced(8))
    with a_node(tmp_path) as node:
        assert last_offset(node) == 79
        assert "in the snapshot" in node.state().recoveries


def test_a_journal_keeps_what_lies_before_its_damage(tmp_path: Path) -> None:
    a_node_with_marks(tmp_path)
    path = tmp_path / "control" / "journal"
    raw = path.read_bytes()
    at = raw.rindex(b"advanced", 0, raw.rindex(b"advanced"))  # the last but one
    path.write_bytes(raw[:at] + b"ADVANCED" + raw[at + 8 :])
    with a_node(tmp_path) as node:
        assert set(node.state().recoveries) == {"in the snapshot", "in the journal"}
        assert last_offset(node) == 19
        assert node.needs_rebuild
    assert (tmp_path / "control" / "journal.damaged").exists()


def test_both_files_gone_is_a_fresh_start_that_says_so(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        node.publish(advanced(1))
        node.rebuilt()
    shutil.rmtree(tmp_path / "control")
    with a_node(tmp_path) as node:
        assert node.needs_rebuild
        assert last_offset(node) is None


def test_a_rebuild_that_was_not_finished_is_still_needed(tmp_path: Path) -> None:
    a_node(tmp_path).close()
    with a_node(tmp_path) as node:
        assert node.needs_rebuild


def a_bucket(partitions: int) -> ManifestRepository:
    repository = ManifestRepository(MemoryStore())
    repository.ensure_topic(TopicManifest(cluster_id="cluster-1", topic="orders", topic_id=TOPIC_ID, partitions=partitions))
    for number in range(partitions):
        partition = PartitionId("cluster-1", TOPIC_ID, number, "orders")
        repository.commit(None, a_head(an_entry(0, 9 + number, partition=partition), partition=partition))
    return repository


def test_a_rebuild_announces_every_head_and_keeps_what_is_known_better(tmp_path: Path) -> None:
    repository = a_bucket(partitions=3)
    with a_node(tmp_path) as node:
        node.publish(advanced(5))
        rebuilt = rebuild_control_if_needed(repository, node)
        assert rebuilt is not None
        assert (rebuilt.partitions, rebuilt.unreadable) == (3, ())
        assert {partition.partition: state.last_offset for partition, state in node.state().partitions()} == {0: 49, 1: 10, 2: 11}
        assert rebuild_control_if_needed(repository, node) is None


def test_one_unreadable_head_does_not_stop_a_rebuild(tmp_path: Path) -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    repository.ensure_topic(TopicManifest(cluster_id="cluster-1", topic="orders", topic_id=TOPIC_ID, partitions=2))
    good = PartitionId("cluster-1", TOPIC_ID, 1, "orders")
    repository.commit(None, a_head(an_entry(0, 9, partition=good), partition=good))
    store.create(keys.head(PARTITION), b"rubbish")
    store.create(f"meta/lost/{TOPIC_ID}/0/manifest.json", b"{}")
    with a_node(tmp_path) as node:
        rebuilt = rebuild_control(repository, node)
        assert rebuilt.partitions == 1
        assert [name for name, _ in rebuilt.unreadable] == ["lost", "orders:0"]
        assert node.state().partition(good) is not None


def test_a_data_directory_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"")
    with pytest.raises(UsageError):
        ControlNode(tmp_path)


def test_at_no_moment_is_there_a_journal_without_the_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_node_with_marks(tmp_path)
    files = ControlFiles(tmp_path)
    journal, _ = files.open(with_peers=True)
    term = journal.getCurrentTerm() + 1
    journal.setCurrentTerm(term, "node-a")
    journal._destroy()

    def full(*_: object) -> None:
        raise DiskFull("no space")

    with monkeypatch.context() as patched:
        patched.setattr("headwater_core.control.journal.replace_file", full)
        with pytest.raises(DiskFull):
            files.begin_again(term, "node-a")
    for attempt in ("after a full disk", "begun again"):
        journal, _ = files.open(with_peers=True)
        assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (term, "node-a"), attempt
        journal._destroy()
        files.begin_again(term, "node-a")
