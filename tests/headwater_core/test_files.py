import errno
import os
from pathlib import Path

import pytest

from headwater_core.errors import DiskFull, HeadwaterError, TransientError, Unauthorised, UsageError
from headwater_core.files import disk_errors, error_kind, partial_of, rename_synced, replace_file, sync_path
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk


@pytest.mark.parametrize(
    ("number", "kind", "exit_code"),
    [
        (errno.ENOSPC, DiskFull, 5),
        (errno.EDQUOT, DiskFull, 5),
        (errno.EFBIG, DiskFull, 5),
        (errno.EROFS, Unauthorised, 8),
        (errno.EACCES, Unauthorised, 8),
        (errno.EPERM, Unauthorised, 8),
        (errno.ENAMETOOLONG, UsageError, 2),
        (errno.ENOTDIR, UsageError, 2),
        (errno.EIO, TransientError, 5),
        (errno.ESTALE, TransientError, 5),
        (errno.EMFILE, TransientError, 5),
    ],
)
def test_an_error_of_the_system_has_one_meaning_and_one_exit_code(number: int, kind: type[HeadwaterError], exit_code: int) -> None:
    with pytest.raises(kind, match=f"the file: {os.strerror(number)}") as raised, disk_errors("the file"):
        raise OSError(number, os.strerror(number))
    assert raised.value.exit_code == exit_code


def test_what_the_table_does_not_name_is_the_callers_choice() -> None:
    assert error_kind(OSError("no number at all")) is TransientError
    assert error_kind(FileNotFoundError(errno.ENOENT, "gone"), UsageError) is UsageError
    assert error_kind(OSError(errno.ENOSPC, "full"), UsageError) is DiskFull


def test_a_full_disk_is_reported_with_what_to_do() -> None:
    with pytest.raises(DiskFull, match="nothing is lost: make room"), disk_errors("the file"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.mark.parametrize("was_there", [False, True])
def test_a_replaced_file_survives_a_power_loss(was_there: bool, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "state.json"
    if was_there:
        path.write_bytes(b"old")
    disk = VolatileDisk(tmp_path / "disk")
    with disk.watching():
        replace_file(path, b"new")
    left = disk.after_power_loss(tmp_path / "left")
    assert {each.name: each.read_bytes() for each in left.iterdir()} == {"state.json": b"new"}


def test_until_its_bytes_are_on_disk_the_old_file_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    disk = VolatileDisk(tmp_path)
    disk.fails = Path.is_file
    with disk.watching(), pytest.raises(TransientError, match=f"{path}: {os.strerror(errno.EIO)}"):
        replace_file(path, b"new")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"state.json": b"old"}


def test_a_name_that_cannot_be_synced_is_an_error(tmp_path: Path) -> None:
    disk = VolatileDisk(tmp_path)
    disk.fails = Path.is_dir
    with disk.watching(), pytest.raises(UsageError, match=r"state\.json"):
        replace_file(tmp_path / "state.json", b"new", UsageError)


def test_a_directory_takes_its_place_under_a_synced_name(tmp_path: Path) -> None:
    (tmp_path / "disk" / "staging").mkdir(parents=True)
    disk = VolatileDisk(tmp_path / "disk")
    with disk.watching():
        (tmp_path / "disk" / "staging" / "file").touch()
        sync_path(tmp_path / "disk" / "staging" / "file")
        sync_path(tmp_path / "disk" / "staging")
        rename_synced(tmp_path / "disk" / "staging", tmp_path / "disk" / "table")
    left = disk.after_power_loss(tmp_path / "left")
    assert sorted(each.relative_to(left).as_posix() for each in left.rglob("*")) == ["table", "table/file"]


def test_a_secret_file_is_readable_by_its_owner_alone_though_a_killed_writer_left_another(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    partial_of(path).write_bytes(b"left")
    partial_of(path).chmod(0o666)
    replace_file(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
