"""The memory that chunks arrive in: a few blocks, used again and again.

Touching a page for the first time can cost more than everything else that happens to its bytes, and a page of the page cache
that a chunk fills is one that a broker on the same machine loses. So a chunk is received and verified in a block, written
past the page cache, and sent from the block for as long as no other chunk needs it: readers mostly want what just came.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections import OrderedDict
from typing import BinaryIO

from hydration.runfile import RunFile

PAGE_BYTES = mmap.PAGESIZE  # blocks begin at one, as writes past the page cache want it


class Blocks:
    """Up to `limit_bytes` of memory in blocks of `block_bytes`, made when they are first wanted. For many threads."""

    def __init__(self, block_bytes: int, limit_bytes: int) -> None:
        self.block_bytes = -(-block_bytes // PAGE_BYTES) * PAGE_BYTES
        self._blocks = self._unmade = limit_bytes // self.block_bytes
        self.taken = 0  # blocks, neither given back nor lent
        self._free: list[memoryview] = []
        self._lent: OrderedDict[RunFile, memoryview] = OrderedDict()  # the longest lent first
        self._lock = threading.Lock()

    def take(self) -> memoryview | None:
        """A block, taken back from a file that is not in use if need be; None when all are in use."""
        with self._lock:
            block = self._find()
            self.taken += block is not None
            return block

    def take_some(self, count: int) -> list[memoryview]:
        """Up to `count` blocks, as long as half of all are left for others."""
        taken: list[memoryview] = []
        with self._lock:
            while len(taken) < count and self.taken < self._blocks // 2 and (block := self._find()) is not None:
                self.taken += 1
                taken.append(block)
        return taken

    def _find(self) -> memoryview | None:
        if self._free:
            return self._free.pop()
        if self._unmade:
            self._unmade -= 1
            # private: shared, as it would be else, a block in a forked child would be the parent's block
            block = mmap.mmap(-1, self.block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a kernel may have none
                block.madvise(mmap.MADV_HUGEPAGE)  # cheaper to touch
            return memoryview(block)
        for file in self._lent:
            if file.forget_memory():
                return self._lent.pop(file)
        return None

    def give_back(self, block: memoryview) -> None:
        with self._lock:
            self.taken -= 1
            self._free.append(block)

    def lend(self, block: memoryview, file: RunFile, size_bytes: int) -> None:
        """Let `file` be read from `block`, which begins with the file's `size_bytes`, until take() wants it back."""
        file.memory = block[:size_bytes]
        with self._lock:
            self.taken -= 1
            self._lent[file] = block


def write_past_page_cache(file: BinaryIO, block: memoryview, size_bytes: int) -> None:
    """Write the block's first `size_bytes` to `file`, new and empty, where the file system can without the page cache."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    written = 0
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        try:
            written = os.write(file.fileno(), block[: size_bytes // PAGE_BYTES * PAGE_BYTES])
        finally:
            fcntl.fcntl(file, fcntl.F_SETFL, flags)
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs for one, and file systems with larger sectors
            raise
    write_all(file, block[written:size_bytes])  # less than a page; or, when the disk is full, let the ordinary way say so


def write_all(file: BinaryIO, data: memoryview) -> None:
    """All of `data`: an unbuffered file may take less at a time."""
    while data:
        data = data[file.write(data) :]
