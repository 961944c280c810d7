"""One process per data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_core.control.lock import DataDirLock
from headwater_core.errors import Locked, UsageError

_WAIT = "import sys; print(flush=True); sys.stdin.read()"
_LOCK = "from headwater_core.control.lock import DataDirLock; lock = DataDirLock(Path(sys.argv[1]))"
_HOLD = f"import sys; from pathlib import Path; {_LOCK}; {_WAIT}"


def test_the_second_learns_who_is_first(tmp_path: Path) -> None:
    with DataDirLock(tmp_path / "new" / "data"), pytest.raises(Locked, match=str(os.getpid())):
        DataDirLock(tmp_path / "new" / "data")
    DataDirLock(tmp_path / "new" / "data").close()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Locked, match=str(holder.pid)):
            DataDirLock(tmp_path)
        holder.kill()
        holder.wait(timeout=30)
        DataDirLock(tmp_path).close()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        lock.close()
        lock.close()
        DataDirLock(tmp_path).close()
        child.kill()


def test_a_place_that_is_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="data directory"):
        DataDirLock(tmp_path / "file")


def test_a_lock_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "headwater.lock").mkdir()
    with pytest.raises(UsageError, match=r"headwater\.lock: Is a directory"):
        DataDirLock(tmp_path)


def test_a_new_data_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DataDirLock(tmp_path / "data").close()
    finally:
        os.umask(before)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
