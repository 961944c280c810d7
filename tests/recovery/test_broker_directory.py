"""A stopped broker's log directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, Locked, Unauthorised, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from recovery.broker_directory import broker_lock, change_checkpoints, changed_lines, give_to_owner, identity_of
from tests.recovery.running import Running

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return Running().make_directories(tmp_path / "log")


def test_a_broker_that_runs_keeps_others_out(log_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(log_dir / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout
        assert broker.stdout.readline() == "held\n"
        with pytest.raises(Locked, match="a broker runs on"), broker_lock(log_dir):
            pass
        broker.communicate()
    with broker_lock(log_dir):
        pass
    assert (log_dir / ".lock").exists()  # the broker's own stays


def test_no_broker_starts_meanwhile_and_the_lock_goes_with_us(log_dir: Path) -> None:
    attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with broker_lock(log_dir):
        done = subprocess.run([sys.executable, "-c", attempt, str(log_dir / ".lock")], stderr=subprocess.PIPE, check=False)
        assert b"BlockingIOError" in done.stderr
    assert not (log_dir / ".lock").exists()


def test_files_never_get_another_owner_than_the_brokers(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with pytest.raises(Unauthorised, match="run this as user"), broker_lock(log_dir):
        pass
    asked: list[tuple[str, int, int]] = []
    monkeypatch.setattr("os.chown", lambda path, uid, gid: asked.append((Path(path).name, uid, gid)))
    (log_dir / "menu-0").mkdir()
    give_to_owner(log_dir / "menu-0", log_dir)
    assert asked == []  # it is the owner's already


def test_what_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no log directory of a broker"):
        identity_of(tmp_path)
    (tmp_path / checkpoints.META_PROPERTIES).write_text("version=1\ncluster.id=../etc\nnode.id=1\n")
    with pytest.raises(CorruptData):
        identity_of(tmp_path)


ONE, TWO, OTHER = TopicPartition("menu", 0), TopicPartition("menu", 1), TopicPartition("own", 0)


def test_lines_of_other_partitions_stay_and_of_these_only_what_is_wanted() -> None:
    assert changed_lines({ONE: 1, TWO: 2, OTHER: 3}, {ONE: 9, OTHER: 8}, {ONE, TWO}) == {ONE: 9, OTHER: 3}


def test_each_checkpoint_gets_what_is_its_own(log_dir: Path) -> None:
    names = checkpoints.LOG_STARTS, checkpoints.CLEANED, checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS
    for name in names[1:]:
        (log_dir / name).write_bytes(checkpoints.encode_offsets({ONE: 0, OTHER: 3}))
    change_checkpoints(log_dir, {checkpoints.LOG_STARTS: {ONE: 5}, checkpoints.HIGH_WATERMARKS: {ONE: 9}}, {ONE})
    found = [checkpoints.decode_offsets((log_dir / name).read_bytes(), where=name) for name in names]
    assert found == [{ONE: 5}, {OTHER: 3}, {ONE: 9, OTHER: 3}, {OTHER: 3}]


def test_a_checkpoint_that_cannot_be_read_is_not_replaced(log_dir: Path) -> None:
    (log_dir / checkpoints.CLEANED).write_text("0\n7\nmenu 0 5\n")
    with pytest.raises(CorruptData):
        change_checkpoints(log_dir, {}, {ONE})
