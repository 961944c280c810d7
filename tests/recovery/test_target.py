"""The directory that a recovery writes, its mark, its plan and its lock."""

import errno
import fcntl
import gzip
import os
from dataclasses import replace as replace_mark
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headwater_core.errors import CorruptData, Locked, TransientError, UsageError
from headwater_core.objectstore.digest import digest_of
from manifests.document import seal, seal_lines
from recovery import plan_document, target
from recovery.recovery_plan import RecoveryPlan
from recovery.target import LOCK, MARK, Mark, awaits_broker, locked, locked_mark, plan_name, read_mark, write_mark
from tests.recovery.plans import a_head, a_topic, an_entry, planned

PLAN = planned(a_topic(a_head(*(an_entry(base * 10, base * 10 + 9) for base in range(200)))))


def mark(plan: RecoveryPlan = PLAN) -> Mark:
    return Mark(plan, "", "A" * 22, 5)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_mark_is_small_however_large_the_plan_and_reads_back(tmp_path: Path) -> None:
    written = write_mark(tmp_path, mark())
    assert read_mark(tmp_path) == written
    assert (tmp_path / MARK).stat().st_size < 1000
    plan = tmp_path / plan_name(written.plan_digest)
    assert plan.stat().st_size < 100 * len(PLAN.topics[0].partitions[0].entries)
    before = plan.stat()
    finished = write_mark(tmp_path, Mark(written.plan, written.plan_digest, written.directory_id, written.started_ms, 9))
    assert read_mark(tmp_path) == finished
    assert (plan.stat().st_ino, plan.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_plan_that_takes_anothers_place_leaves_nothing_of_it(tmp_path: Path) -> None:
    first = write_mark(tmp_path, mark())
    second = write_mark(tmp_path, mark(replace(PLAN, notes=("changed",))))
    assert second.plan_digest != first.plan_digest
    assert names(tmp_path) == sorted([MARK, plan_name(second.plan_digest)])
    assert read_mark(tmp_path) == second


def test_a_mark_of_an_earlier_version_holds_its_plan_and_is_read(tmp_path: Path) -> None:
    body = msgspec.to_builtins(target._Document(directory_id="A" * 22, started_ms=5))
    (tmp_path / MARK).write_bytes(seal_lines({**body, "plan": msgspec.to_builtins(PLAN, enc_hook=list)}, {}))
    found = read_mark(tmp_path)
    assert found == mark()
    assert found is not None
    written = write_mark(tmp_path, found)
    assert read_mark(tmp_path) == written
    assert names(tmp_path) == sorted([MARK, plan_name(written.plan_digest)])


def test_a_plan_as_an_earlier_version_wrote_it_is_read(tmp_path: Path) -> None:
    raw = msgspec.json.encode(PLAN, enc_hook=list)
    digest = digest_of(raw)
    (tmp_path / plan_name(digest)).write_bytes(gzip.compress(raw, 1, mtime=0))
    (tmp_path / MARK).write_bytes(seal(target._Document(plan_digest=digest, directory_id="A" * 22, started_ms=5)))
    assert read_mark(tmp_path) == replace_mark(mark(), plan_digest=digest)
    (tmp_path / plan_name(digest)).write_bytes(gzip.compress(raw[:-1] + b" }", 1, mtime=0))
    with pytest.raises(CorruptData, match="digest"):
        read_mark(tmp_path)


@pytest.mark.parametrize("change", ["gone", "cut", "flipped", "other"])
def test_a_plan_that_is_not_the_marks_is_damage(tmp_path: Path, change: str) -> None:
    written = write_mark(tmp_path, mark())
    path = tmp_path / plan_name(written.plan_digest)
    raw = bytearray(path.read_bytes())
    if change == "gone":
        path.unlink()
    elif change == "cut":
        path.write_bytes(raw[:-20])
    elif change == "flipped":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    else:
        (tmp_path / "other").mkdir()
        other = write_mark(tmp_path / "other", mark(replace(PLAN, notes=("changed",))))
        path.write_bytes((tmp_path / "other" / plan_name(other.plan_digest)).read_bytes())
    with pytest.raises(CorruptData):
        read_mark(tmp_path)


def test_a_plan_too_large_to_be_read_back_is_refused_before_there_is_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_document, "WHOLE_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="fewer topics"):
        write_mark(tmp_path, mark())
    assert names(tmp_path) == []


def test_a_lock_is_on_a_file_for_some_file_systems_take_none_on_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def like_nfs(fd: int, operation: int) -> None:
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", like_nfs)
    with locked(tmp_path / "log"), pytest.raises(Locked), locked(tmp_path / "log"):
        pass
    assert names(tmp_path / "log") == [LOCK]
    with locked(tmp_path / "log"):
        pass


def test_a_recovery_that_begins_while_another_one_looks_is_running_there_and_no_foreign_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one sees the directory before the first one's mark, and its files after that."""
    looked = os.listdir

    def late(path: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", looked)
        write_mark(tmp_path, mark())
        (tmp_path / "orders-0").mkdir()
        return looked(path)

    with locked(tmp_path):
        monkeypatch.setattr(os, "listdir", late)
        with pytest.raises(Locked), locked(tmp_path):
            pass


def test_no_lock_is_left_where_no_recovery_was_begun(tmp_path: Path) -> None:
    with locked_mark(tmp_path) as found:
        assert found is None
    with locked_mark(tmp_path / "nothing") as found:
        assert found is None
    assert names(tmp_path) == []
    written = write_mark(tmp_path, mark())
    with locked_mark(tmp_path) as found:
        assert found == written


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(TransientError, match="lock"), locked(tmp_path):
        pass


def test_a_directory_awaits_its_broker_until_one_leaves_a_trace(tmp_path: Path) -> None:
    assert not awaits_broker(tmp_path)
    write_mark(tmp_path, mark())
    assert awaits_broker(tmp_path)
    (tmp_path / ".lock").touch()
    assert not awaits_broker(tmp_path)
