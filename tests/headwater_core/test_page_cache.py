"""Writing past the page cache, where the file system can."""

import errno
import fcntl
import io
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from headwater_core.page_cache import PAGE_BYTES, new_pages, write_direct


def test_memory_is_as_long_as_whole_pages() -> None:
    assert [len(new_pages(size_bytes)) for size_bytes in (1, PAGE_BYTES, PAGE_BYTES + 1)] == [PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES]


class Noting(io.FileIO):
    """Notes of each write how long it is, and whether it goes past the page cache; those may fail."""

    def __init__(self, path: object, *, fails: int = 0) -> None:
        super().__init__(path, "w+")  # type: ignore[arg-type]
        self.writes: list[tuple[int, bool]] = []
        self._fails = fails

    def write(self, data: Any) -> int:
        is_direct = bool(fcntl.fcntl(self, fcntl.F_GETFL) & os.O_DIRECT)
        self.writes.append((len(data), is_direct))
        if is_direct and self._fails:
            raise OSError(self._fails, os.strerror(self._fails))
        return super().write(data)


@pytest.mark.parametrize("pages", [0, 1, 3])
@pytest.mark.parametrize("rest_bytes", [0, 1, PAGE_BYTES - 1])
def test_whole_pages_go_past_the_page_cache_and_the_rest_does_not(pages: int, rest_bytes: int, tmp_path: Path) -> None:
    block, size_bytes = new_pages(4 * PAGE_BYTES), pages * PAGE_BYTES + rest_bytes
    block[:] = os.urandom(len(block))
    with Noting(tmp_path / "file") as file:
        write_direct(file, block[:size_bytes])
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
    assert (tmp_path / "file").read_bytes() == block[:size_bytes]
    if can_write_direct(tmp_path):
        assert file.writes == [(pages * PAGE_BYTES, True)] * bool(pages) + [(rest_bytes, False)] * bool(rest_bytes)


def can_write_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_a_file_system_without_direct_writes_is_written_the_ordinary_way(tmp_path: Path) -> None:
    block, size_bytes = new_pages(2 * PAGE_BYTES), PAGE_BYTES + 100
    block[:] = os.urandom(len(block))
    with os.fdopen(os.memfd_create("memory"), "w+b", buffering=0) as memory:  # which does not take the flag
        write_direct(memory, block[:size_bytes])
        assert os.pread(memory.fileno(), 2 * size_bytes, 0) == block[:size_bytes]
    with Noting(tmp_path / "file", fails=errno.EINVAL) as file:  # whose sectors are larger
        write_direct(file, block[:size_bytes])
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
    assert (tmp_path / "file").read_bytes() == block[:size_bytes]
    with Noting(tmp_path / "full", fails=errno.ENOSPC) as file, pytest.raises(OSError, match="No space"):
        write_direct(file, block[:size_bytes])


def test_no_room_for_all_of_it_is_said(tmp_path: Path) -> None:
    block = new_pages(3 * PAGE_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES, hard))  # stands in for a disk that takes one page more
        try:
            with pytest.raises(OSError) as caught:
                write_direct(file, block)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
