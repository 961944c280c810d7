"""What was published through a control node survives kill -9, compaction and restart."""

import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from archival.partition.announcer import advanced_of
from headwater_core.control.config import ControlConfig
from headwater_core.control.journal import Journal
from headwater_core.control.node import ControlNode
from headwater_core.control.snapshot import write_snapshot
from headwater_core.control.state import EMPTY, apply_all
from headwater_core.errors import HeadwaterError, TransientError, UnknownOutcome
from manifests.repository import ManifestRepository
from tests.headwater_core.control.builders import advanced, claim
from tests.headwater_core.control.nodes import a_node, last_offset, run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.manifests.builders import a_head, an_entry


def publish_for_ever(node: ControlNode) -> None:
    while True:
        node.publish(advanced(2))


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
