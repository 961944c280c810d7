"""Objects that grow in a directory: private files, which a failing disk or somebody else may take away."""

import os
from pathlib import Path

import pytest

from headwater_core.errors import DiskFull, NotFound, TransientError
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory import DirectoryStore


def private_files(root: Path) -> list[Path]:
    return list((root / "+partial").iterdir())


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_file_is_opened_with_the_first_part_and_gone_at_the_end(store: DirectoryStore, tmp_path: Path) -> None:
    growing, other = store.grow("a"), store.grow("b")
    assert not (tmp_path / "+partial").exists()
    growing.send(1, b"first", start=0)
    other.send(1, b"other", start=0)
    assert len(private_files(tmp_path)) == 2
    other.abort()
    assert growing.complete(b" and last") == digest_of(b"first and last")
    assert private_files(tmp_path) == []
    assert (tmp_path / "a").read_bytes() == b"first and last"


def test_a_file_that_was_removed_cannot_be_completed(store: DirectoryStore, tmp_path: Path) -> None:
    growing = store.grow("a")
    growing.send(1, b"first", start=0)
    private_files(tmp_path)[0].unlink()
    for use in (lambda: growing.send(2, b"second", start=5), lambda: growing.complete(b"rest")):
        with pytest.raises(NotFound):
            use()
    assert not (tmp_path / "a").exists()


def test_after_a_sync_that_failed_all_is_written_again(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = store.grow("a")
    growing.send(1, b"first", start=0)

    def fail(fd: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(TransientError):
            growing.complete(b"rest")
    with pytest.raises(NotFound):
        growing.complete(b"rest")
    assert private_files(tmp_path) == []
    assert not (tmp_path / "a").exists()


def test_a_full_disk_takes_the_part_when_there_is_room_again(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = store.grow("a")
    write, left = os.pwrite, [3]

    def write_little(fd: int, view: memoryview, position: int) -> int:
        if not left[0]:
            raise OSError(28, "no space left on device")
        count = write(fd, view[: left[0]], position)
        left[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_little)
        with pytest.raises(DiskFull):
            growing.send(1, b"first", start=0)
    growing.send(1, b"first", start=0)
    assert growing.complete(b"") == digest_of(b"first")
