"""The memory that chunks arrive in: a few blocks, used again and again.

Touching a page for the first time can cost more than everything else that happens to its bytes, and a page of the page cache
that a chunk fills is one that a broker on the same machine loses. So a chunk is received and verified in a block, written
past the page cache, and sent from the block for as long as no other chunk needs it: readers mostly want what just came.
"""

import threading
from collections import OrderedDict

from headwater_core.page_cache import PAGE_BYTES, new_pages
from hydration.runfile import RunFile


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
            return new_pages(self.block_bytes)
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
