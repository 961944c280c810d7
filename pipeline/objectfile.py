"""One archived run as a file that is read from front to back, with the next piece under way while this one is looked at."""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from manifests.archivedrun import ArchivedRun
from manifests.head import Entry
from objectstore.store import ObjectStore

PIECE_BYTES = 8 << 20  # one ranged GET
_KEPT = 2  # pieces: a walk steps back by less than one batch window, which may lie across a border


class ObjectFile(ArchivedRun):
    """The same with fewer, larger GETs. Holds three pieces: two to read from and one on its way.

    Reads go forward, or back within the piece before the newest. For one thread at a time; close it, or a GET may still be
    running when its owner has moved on.
    """

    def __init__(self, store: ObjectStore, entry: Entry, *, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(store, entry)
        self._piece_bytes = piece_bytes
        self._pieces: deque[tuple[int, memoryview]] = deque(maxlen=_KEPT)
        self._free: list[memoryview] = []
        self._next: Future[memoryview] | None = None
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="object-file") if entry.size_bytes > piece_bytes else None
        self._fetched_to = 0

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._entry.size_bytes:
            return 0
        while self._position >= self._fetched_to:
            self._advance()
        for start, piece in self._pieces:
            if start <= self._position < start + len(piece):
                found = piece[self._position - start :][: len(buffer)]
                buffer[: len(found)] = found
                self._position += len(found)
                return len(found)
        raise io.UnsupportedOperation(f"byte {self._position} of {self._entry.key} has been dropped")

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.shutdown(cancel_futures=True)
        self._pieces.clear()
        super().close()

    def _advance(self) -> None:
        """Take the next piece, and ask for the one behind it."""
        if len(self._pieces) == _KEPT:
            self._free.append(self._pieces.popleft()[1])
        piece = self._next.result() if self._next else self._fetch(self._fetched_to)
        self._pieces.append((self._fetched_to, piece))
        self._fetched_to += len(piece)
        self._next = None
        if self._fetcher and self._fetched_to < self._entry.size_bytes:
            self._next = self._fetcher.submit(self._fetch, self._fetched_to)

    def _fetch(self, start: int) -> memoryview:
        size_bytes = self._entry.size_bytes
        whole = self._free.pop() if self._free else memoryview(bytearray(min(self._piece_bytes, size_bytes)))
        piece = whole[: min(self._piece_bytes, size_bytes - start)]
        self.fetch(piece, start)
        return piece
