"""One archived run as a file that is read from front to back. The next piece is in flight while this one is examined."""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from headwater.pipeline.scan.buffers import PIECE_BYTES, Buffer
from headwater_core.objectstore.store import ObjectStore
from manifests.archivedrun import ArchivedRun
from manifests.entry import Entry

_KEPT = 2  # pieces: a walk steps back by less than one batch window, which may span two pieces


class ObjectFile(ArchivedRun):
    """The same with fewer, larger GETs. Holds three pieces: two to read from and one in flight.

    Reads go forward, or back within the piece before the newest. For one thread at a time. Close it, or a GET may still run after
    its owner has finished.
    """

    def __init__(self, store: ObjectStore, entry: Entry, *, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(store, entry)
        self._piece_bytes = piece_bytes
        self._pieces: deque[tuple[int, Buffer]] = deque()
        self._next: Future[Buffer] | None = None
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="object-file") if entry.run_bytes > piece_bytes else None
        self._fetched_to = 0

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._entry.run_bytes:
            return 0
        while self._position >= self._fetched_to:
            self._advance()
        for start, piece in self._pieces:
            if start <= self._position < start + len(piece.content):
                found = piece.content[self._position - start :][: len(buffer)]
                buffer[: len(found)] = found
                self._position += len(found)
                return len(found)
        raise io.UnsupportedOperation(f"byte {self._position} of {self._entry.key} has been dropped")

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.shutdown(cancel_futures=True)
        if self._next is not None and not self._next.cancelled() and self._next.exception() is None:
            self._next.result().release()
        self._next = None
        while self._pieces:
            self._pieces.popleft()[1].release()
        super().close()

    def _advance(self) -> None:
        """Take the next piece, and start to fetch the one after it."""
        if len(self._pieces) == _KEPT:
            self._pieces.popleft()[1].release()
        piece = self._next.result() if self._next else self._fetch(self._fetched_to)
        self._pieces.append((self._fetched_to, piece))
        self._fetched_to += len(piece.content)
        self._next = None
        if self._fetcher and self._fetched_to < self._entry.run_bytes:
            self._next = self._fetcher.submit(self._fetch, self._fetched_to)

    def _fetch(self, start: int) -> Buffer:
        piece = Buffer(min(self._piece_bytes, self._entry.run_bytes - start))
        try:
            self.fetch(piece.content, start)
        except BaseException:
            piece.release()
            raise
        return piece
