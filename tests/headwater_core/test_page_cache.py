"""Writing past the page cache, where the file system can."""

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest

from headwater_core.page_cache import PAGE_BYTES, pages, write_past_page_cache


def test_memory_is_as_long_as_whole_pages() -> None:
    assert [len(pages(size_bytes)) for size_bytes in (1, PAGE_BYTES, PAGE_BYTES + 1)] == [PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES]


@pytest.mark.parametrize("size_bytes", [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES])
def test_a_file_has_its_bytes_and_its_length(tmp_path: Path, size_bytes: int) -> None:
    block = pages(3 * PAGE_BYTES)
    block[:] = os.urandom(len(block))
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        write_past_page_cache(file, block[:size_bytes])
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
    assert (tmp_path / "file").read_bytes() == block[:size_bytes]


def test_a_file_system_without_direct_writes_is_written_the_ordinary_way() -> None:
    block = pages(PAGE_BYTES)
    block[:] = os.urandom(len(block))
    with os.fdopen(os.memfd_create("memory"), "w+b", buffering=0) as file:
        write_past_page_cache(file, block[:100])
        assert os.pread(file.fileno(), 200, 0) == block[:100]


def test_no_room_for_all_of_it_is_said(tmp_path: Path) -> None:
    block = pages(3 * PAGE_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES, hard))  # stands in for a disk that takes one page more
        try:
            with pytest.raises(OSError) as caught:
                write_past_page_cache(file, block)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
