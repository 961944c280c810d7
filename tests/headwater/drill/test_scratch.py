"""The scratch directory: made, bounded, removed, found again."""

import os
import shutil
from pathlib import Path

import pytest

from headwater.admin.operations import new_operation_id
from headwater.drill import scratch as scratch_module
from headwater.drill.scratch import open_scratch
from headwater_core.clock import SystemClock
from headwater_core.errors import DiskFull, Locked, UsageError
from tests.events import written_events

ONE, OTHER = "20260131T120000.123Z-00000001", "20260131T120000.123Z-00000002"


def left(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir() if path.name != scratch_module.LOCK)


def test_it_is_ours_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    with open_scratch(tmp_path / "drills", ONE) as scratch:
        assert scratch.directory.stat().st_mode & 0o077 == 0
        (scratch.work_dir / "file").write_bytes(b"x")
        scratch.log_dir.mkdir()
    assert left(tmp_path / "drills") == []


def test_it_goes_when_the_drill_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_scratch(tmp_path, ONE):
        raise ZeroDivisionError
    assert left(tmp_path) == []


def killed(base: Path, drill_id: str) -> Path:
    """What a drill leaves that is killed while it restores."""
    with open_scratch(base, drill_id) as scratch:
        (scratch.log_dir / "orders-0").mkdir(parents=True)
        (scratch.log_dir / "meta.properties").write_text("version=1\n")
        (scratch.log_dir / "orders-0" / "00000000000000000000.log").write_bytes(b"x" * 100)
        scratch.keep("failure")
    (scratch.directory / scratch_module.KEPT).unlink()
    return scratch.directory


def test_what_a_killed_drill_has_left_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    before = killed(tmp_path, OTHER)
    with open_scratch(tmp_path, ONE):
        assert left(tmp_path) == [f"scratch-{ONE}"]
    assert not before.exists()


@pytest.mark.parametrize("removed", [["log"], ["log", "work"], ["log", "work", "scratch.json"]])
def test_what_a_killed_drill_had_begun_to_remove_goes_too(removed: list[str], tmp_path: Path) -> None:
    before = killed(tmp_path, OTHER)
    for name in removed:
        if (before / name).is_dir():
            shutil.rmtree(before / name)
        else:
            (before / name).unlink()
    with open_scratch(tmp_path, ONE):
        assert left(tmp_path) == [f"scratch-{ONE}"]


def test_one_that_was_killed_before_its_mark_was_whole_goes_too(tmp_path: Path) -> None:
    (tmp_path / f"scratch-{OTHER}").mkdir()
    (tmp_path / f"scratch-{OTHER}" / "scratch.json.partial").write_bytes(b"{")
    with open_scratch(tmp_path, ONE):
        assert left(tmp_path) == [f"scratch-{ONE}"]


@pytest.mark.parametrize(
    "name", ["scratch-experiments", "scratch-kafka-logs-1", "scratch-x", "other", f"scratch-{ONE}.old", f"scratch-{OTHER}"]
)
@pytest.mark.parametrize("file", ["meta.properties", "log/00000000000000000000.log", "thesis/only-copy.txt"])
def test_what_no_drill_has_made_stays_whatever_its_name(name: str, file: str, tmp_path: Path) -> None:
    (tmp_path / name / file).parent.mkdir(parents=True)
    (tmp_path / name / file).write_text("x")
    with open_scratch(tmp_path, ONE):
        pass
    assert (tmp_path / name / file).read_text() == "x"


@pytest.mark.parametrize("file", ["meta.properties", "notes.txt"])
def test_what_somebody_has_put_into_a_scratch_directory_stays(file: str, tmp_path: Path) -> None:
    before = killed(tmp_path, OTHER)
    (before / file).write_text("x")
    with written_events(SystemClock()) as written, open_scratch(tmp_path, ONE):
        pass
    assert [(each["event"], each["path"]) for each in written] == [("drill_scratch_not_removed", str(before))]
    assert (before / file).read_text() == "x"
    assert (before / "log" / "meta.properties").exists()


@pytest.mark.parametrize("how", ["another name", "damaged mark"])
def test_a_mark_is_of_one_directory_and_whole(how: str, tmp_path: Path) -> None:
    before = killed(tmp_path, OTHER)
    if how == "another name":
        before = before.rename(tmp_path / "scratch-20260131T120000.123Z-00000003")
    else:
        raw = (before / scratch_module.MARK).read_bytes()
        (before / scratch_module.MARK).write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    with open_scratch(tmp_path, ONE):
        pass
    assert (before / "log" / "orders-0").exists()


def test_a_link_to_a_scratch_directory_stays(tmp_path: Path) -> None:
    before = killed(tmp_path / "elsewhere", OTHER)
    os.symlink(before, tmp_path / before.name)
    with open_scratch(tmp_path, ONE):
        pass
    assert (tmp_path / before.name / "log" / "orders-0").exists()


def test_the_ids_of_operations_are_those_that_are_known_again(tmp_path: Path) -> None:
    for _ in range(2):
        killed(tmp_path, new_operation_id())
    with open_scratch(tmp_path, ONE):
        assert left(tmp_path) == [f"scratch-{ONE}"]


def test_what_a_failure_kept_stays_until_the_next_drill_and_what_was_requested_stays(tmp_path: Path) -> None:
    with open_scratch(tmp_path, ONE) as scratch:
        scratch.keep("failure")
    with open_scratch(tmp_path, OTHER) as scratch:
        assert left(tmp_path) == [f"scratch-{OTHER}"]
        scratch.keep("request")
    with open_scratch(tmp_path, ONE):
        pass
    assert left(tmp_path) == [f"scratch-{OTHER}"]


def test_one_at_a_time(tmp_path: Path) -> None:
    with open_scratch(tmp_path, ONE) as scratch:
        with pytest.raises(Locked), open_scratch(tmp_path, OTHER):
            pass
        assert scratch.directory.exists()


@pytest.mark.parametrize("below", ["", "drills", "a/b"])
def test_never_in_a_log_directory(tmp_path: Path, below: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with pytest.raises(UsageError, match="may not be in"), open_scratch(logs / below, ONE, [logs]):
        pass
    (logs / "meta.properties").write_text("version=1\n")
    with pytest.raises(UsageError, match="log directory"), open_scratch(logs / below, ONE):
        pass
    assert [path.name for path in logs.iterdir()] == ["meta.properties"]


@pytest.mark.parametrize("below", ["", "scratch-kafka-logs-1", "a/b"])
def test_never_above_a_log_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match="may not"), open_scratch(tmp_path, ONE, [tmp_path / below]):
        pass
    assert not (tmp_path / scratch_module.LOCK).exists()


def test_not_through_a_link_either(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.symlink(tmp_path / "logs", tmp_path / "elsewhere")
    with pytest.raises(UsageError), open_scratch(tmp_path / "elsewhere", ONE, [tmp_path / "logs"]):
        pass


def test_without_room_nothing_is_begun(tmp_path: Path) -> None:
    with open_scratch(tmp_path, ONE) as scratch:
        scratch.check_room(1)
        with pytest.raises(DiskFull, match="nothing was restored"):
            scratch.check_room(1 << 60)
