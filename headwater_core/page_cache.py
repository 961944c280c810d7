"""Writing past the page cache: a page of it that is written is one that a broker on the same machine loses, and copying into it costs more
than everything else that happens to the bytes."""

import contextlib
import errno
import fcntl
import mmap
import os
from typing import BinaryIO

PAGE_BYTES = mmap.PAGESIZE  # where memory has to begin, and what its length is a multiple of


def new_pages(size_bytes: int) -> memoryview:
    """New memory that can be written past the page cache: so many bytes, and what the last page has beyond them."""
    # private: shared, as it would be else, memory in a forked child would be the parent's
    memory = mmap.mmap(-1, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel may have none
        memory.madvise(mmap.MADV_HUGEPAGE)  # cheaper to touch
    return memoryview(memory)


def write_direct(file: BinaryIO, data: memoryview) -> None:
    """Write `data`, which begins at a page, past the page cache where the file system can: all but less than a page at its end.

    file  unbuffered, and so far as long as whole pages

    Raises OSError.
    """
    whole = data[: len(data) // PAGE_BYTES * PAGE_BYTES]
    written = _written_direct(file, whole) if whole else 0
    write_all(file, data[written:])  # less than a page; or, when the disk is full, let the ordinary way say so


def _written_direct(file: BinaryIO, whole: memoryview) -> int:
    """How many bytes of these pages; 0 where the file system cannot."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        try:
            return file.write(whole)
        finally:
            fcntl.fcntl(file, fcntl.F_SETFL, flags)
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs for one, and file systems with larger sectors
            raise
    return 0


def write_all(file: BinaryIO, data: memoryview) -> None:
    """All of `data`: an unbuffered file may take less at a time."""
    while data:
        data = data[file.write(data) :]
