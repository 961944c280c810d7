"""What a control node was told survives kill -9, compaction and restart; damaged files end in a rebuild, never in a crash."""

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from archival.announcer import advanced_of
from archival.control_rebuild import rebuild_control, rebuild_control_if_needed
from headwater_core.control.config import ControlConfig
from headwater_core.control.control_records import RecoveryStarted
from headwater_core.control.journal import Journal
from headwater_core.control.node import ControlNode, check_config
from headwater_core.control.snapshot import read_snapshot, write_snapshot
from headwater_core.control.state import EMPTY, apply_all
from headwater_core.errors import CorruptData, HeadwaterError, TransientError, UnknownOutcome, UsageError
from headwater_core.objectstore.meter import MeteredStore
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from tests.headwater_core.control.builders import PARTITION, TOPIC_ID, advanced, claim, settings
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import a_head, an_entry


def a_node(data_dir: Path, config: ControlConfig | None = None) -> ControlNode:
    node = ControlNode(data_dir, config)
    assert node.ready(20)
    return node


def last_offset(node: ControlNode) -> int | None:
    state = node.state().partition(PARTITION)
    return state.last_offset if state else None


def publish_for_ever(node: ControlNode) -> None:
    while True:
        node.publish(advanced(2))


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_what_is_published_is_known_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        assert node.needs_rebuild
        node.publish(advanced(1))
        node.publish(advanced(2), claim(3, fence=2))
        assert last_offset(node) == 29
        node.rebuilt()
        digest = node.state().digest()
    with a_node(tmp_path) as node:
        assert node.state().digest() == digest
        assert not node.needs_rebuild


def test_it_survives_many_restarts_and_compactions(tmp_path: Path) -> None:
    for version in range(1, 9):
        with a_node(tmp_path) as node:
            assert last_offset(node) == (None if version == 1 else version * 10 - 11)
            node.publish(advanced(version))
            if version % 2:
                node.compact()
                node.publish(advanced(version))
    assert (tmp_path / "control" / "snapshot").exists()


def test_the_journal_stays_short(tmp_path: Path) -> None:
    with a_node(tmp_path) as node, ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(node.publish, advanced(version)) for version in range(1, 2501)]:
            done.result(timeout=60)
    assert len(Journal(tmp_path / "control" / "journal")) < 1000
    with a_node(tmp_path) as node:
        assert last_offset(node) == 24_999


_PUBLISH_AND_DIE = """
import os, sys, threading
from pathlib import Path
from headwater_core.control.node import ControlNode
from headwater_core.control.control_records import Advanced
def advanced(version):
    facts = {"cluster_id": "cluster-1", "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partition": 0, "topic": "orders", "writer": "agent-a"}
    return Advanced(**facts, version=version, fence=1, start_offset=0, last_offset=version * 10 - 1)
node = ControlNode(Path(sys.argv[1]))
assert node.ready(20)
start = int(sys.argv[2])
for version in range(start, start + 100_000):
    if sys.argv[3] == "compact" and version % 20 == 0:
        node.compact()
    node.publish(advanced(version))
    print(version, flush=True)
    if version == start + int(sys.argv[4]):
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("compact", ["keep", "compact"])
def test_what_was_acknowledged_survives_kill_9(compact: str, tmp_path: Path) -> None:
    acknowledged = 0
    for round_ in range(2):
        killed = run(_PUBLISH_AND_DIE, tmp_path, acknowledged + 1, compact, 37 + round_ * 11)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        acknowledged = int(killed.stdout.split()[-1])
    with a_node(tmp_path) as node:
        assert last_offset(node) == acknowledged * 10 - 1


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_kill_9_at_any_moment(seed: int, tmp_path: Path) -> None:
    """The parent kills, so the moment lies anywhere: in a write, in a snapshot, between snapshot and compaction."""
    rng = random.Random(seed)
    acknowledged = 0
    for _ in range(2):
        command = [sys.executable, "-c", _PUBLISH_AND_DIE, str(tmp_path), str(acknowledged + 1), "compact", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(rng.randint(1, 120)):
                acknowledged = int(child.stdout.readline())
            child.kill()
            acknowledged = max([acknowledged, *(int(line) for line in child.stdout.read().splitlines() if line)])
        with a_node(tmp_path) as node:
            found = last_offset(node)
            assert found is not None
            assert acknowledged * 10 - 1 <= found <= acknowledged * 10 + 9  # one may have been on its way
            assert not (tmp_path / "control" / "journal.damaged").exists()


def test_a_crash_between_snapshot_and_compaction_loses_nothing(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        for version in range(1, 21):
            node.publish(advanced(version))
    files = tmp_path / "control"
    entries: Any = Journal(files / "journal")[:]
    upto = [entry for entry in entries if entry[1] <= 12]
    state = apply_all(EMPTY, [advanced(version) for version in range(1, upto[-1][1] - 1)])
    write_snapshot(files / "snapshot", state, upto[-2], upto[-1])
    with a_node(tmp_path) as node:
        assert last_offset(node) == 199
    assert not (files / "journal.damaged").exists()


def test_a_lone_node_keeps_its_log_whatever_its_address_and_opens_no_port(tmp_path: Path) -> None:
    listening = set(threading.enumerate())
    with a_node(tmp_path, ControlConfig(listen="127.0.0.1:0")) as node:
        node.publish(advanced(1))
        node.compact()
        node.publish(advanced(2))
        with a_node(tmp_path / "other", ControlConfig(listen="127.0.0.1:0")):
            pass
    with a_node(tmp_path, ControlConfig(listen="10.1.2.3:9291")) as node:
        assert last_offset(node) == 19
    assert not set(threading.enumerate()) - listening


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
    """What is in no bucket: recoveries and settings, some in the snapshot, some in the journal behind it."""
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


def test_a_journal_goes_on_before_its_damage(tmp_path: Path) -> None:
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


def test_last_offset_is_learned_without_touching_the_bucket(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore())
    repository = ManifestRepository(store)
    committed = repository.commit(None, a_head(an_entry(0, 9)))
    with a_node(tmp_path) as node:
        node.publish(advanced_of(committed.head))
    calls = sum(store.calls.values())
    with a_node(tmp_path) as node:
        state = node.state().partition(committed.head.partition_id)
        assert state is not None
        assert state.last_offset == 9
    assert sum(store.calls.values()) == calls


def test_a_full_disk_ends_the_node_with_a_clear_error_and_nothing_lost(tmp_path: Path) -> None:
    """A file size limit stands in for the full disk."""
    script = """
import resource, signal, sys
from pathlib import Path
from headwater_core.control.node import ControlNode
from headwater_core.errors import DiskFull
from tests.headwater_core.control.builders import advanced
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
node = ControlNode(Path(sys.argv[1]))
assert node.ready(20)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
version = 0
try:
    while version < 100_000:
        node.publish(advanced(version + 1), timeout_s=20)
        version += 1
except DiskFull as error:
    assert "journal" in str(error), error
else:
    raise SystemExit("never full")
for again in range(2):
    try:
        node.publish(advanced(version + 1))
    except DiskFull:
        pass
node.close()
print(version)
"""
    ended = run(script, tmp_path)
    assert ended.returncode == 0, ended.stderr
    with a_node(tmp_path) as node:
        found = last_offset(node)
        assert found is not None
        assert found >= int(ended.stdout) * 10 - 1
        node.publish(advanced(10**6))


def test_a_snapshot_that_cannot_be_written_ends_the_node(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        node.publish(advanced(1))
        (tmp_path / "control" / "snapshot.tmp.partial").mkdir()
        node.compact()
        with pytest.raises(HeadwaterError, match="snapshot"):
            publish_for_ever(node)
    (tmp_path / "control" / "snapshot.tmp.partial").rmdir()
    with a_node(tmp_path) as node:
        assert (last_offset(node) or 0) >= 9


def test_a_closed_node_answers_at_once(tmp_path: Path) -> None:
    node = a_node(tmp_path)
    node.publish(advanced(1))
    node.close()
    node.close()
    with pytest.raises(TransientError, match="closed"):
        node.publish(advanced(2))
    assert last_offset(node) == 9


def test_a_call_has_its_own_time_out(tmp_path: Path) -> None:
    with a_node(tmp_path) as node, pytest.raises(UnknownOutcome):
        node.publish(advanced(1), timeout_s=0)


def test_it_refuses_to_run_without_asserts(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from headwater_core.control.node import ControlNode; ControlNode(Path(sys.argv[1]))"
    refused = subprocess.run([sys.executable, "-O", "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "UsageError" in refused.stderr
    assert "python -O" in refused.stderr


def test_a_data_directory_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"")
    with pytest.raises(UsageError):
        ControlNode(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        ControlConfig(listen="127.0.0.1:0", peers=("127.0.0.1:9000",)),
        ControlConfig(listen="nonsense", peers=("127.0.0.1:9000",)),
        ControlConfig(listen="127.0.0.1:9001", peers=("127.0.0.1:99999",)),
        ControlConfig(listen="127.0.0.1:9001", peers=("10.0.0.2:9001",)),
        ControlConfig(listen="0.0.0.0:9001", peers=("127.0.0.1:9002",)),
        ControlConfig(listen="10.0.0.1:9001", peers=("10.0.0.2:9001",), password="short"),
    ],
)
def test_peers_that_cannot_be_trusted_or_reached_are_refused(config: ControlConfig) -> None:
    with pytest.raises(UsageError, match="control"):
        check_config(config)


def test_the_password_stays_out_of_messages() -> None:
    assert "hunter2" not in repr(ControlConfig(password="hunter2" * 5))


def test_a_snapshot_reads_back_and_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    state = apply_all(EMPTY, [advanced(1), claim(2, topic="payments")])
    write_snapshot(path, state, (b"a", 4, 1), (b"b", 5, 1))
    assert read_snapshot(path) == (state, (b"a", 4, 1), (b"b", 5, 1))
    raw = path.read_bytes()
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1 << position % 8]) + raw[position + 1 :])
        with pytest.raises(CorruptData):
            read_snapshot(path)
        path.write_bytes(raw[:position])
        with pytest.raises(CorruptData):
            read_snapshot(path)
