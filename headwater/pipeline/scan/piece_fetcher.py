"""The GETs of one task: indexes, pieces, and the next pieces while one is decoded."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from headwater.pipeline.scan.buffers import PIECE_BYTES, Buffer
from headwater.pipeline.scan.pieces import Piece, fetch, read_index
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.runindex import RunIndex
from manifests.entry import Entry

AHEAD_BYTES = 2 * PIECE_BYTES  # in flight while a piece is decoded
AHEAD_GETS = 4  # of small pieces, for which the store's latency counts


class MissingObject(Exception):
    """The object `key` of an entry is not in the store."""

    def __init__(self, entry: Entry, key: str) -> None:
        super().__init__(key)
        self.entry, self.key = entry, key


class PieceFetcher:
    """Fetches from `store` and counts it. Each method raises MissingObject for an object that is gone, and what the store raises.

    A context manager: at its end no download is in flight.
    """

    def __init__(self, store: ObjectStore, counters: ScanCounters) -> None:
        self._store, self._counters = store, counters
        self._pool = ThreadPoolExecutor(AHEAD_GETS, "fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def index(self, entry: Entry) -> RunIndex:
        """Raises CorruptData for a damaged index."""
        self._count(entry.index_bytes)
        try:
            return read_index(self._store, entry)
        except NotFound as error:
            raise MissingObject(entry, entry.index_place) from error

    def piece(self, piece: Piece) -> Buffer:
        """For the caller to release. Raises CorruptData when the object is shorter than the manifest says."""
        self._count(piece.size_bytes)
        try:
            return fetch(self._store, piece)
        except NotFound as error:
            raise MissingObject(piece.entry, piece.entry.key) from error

    def in_order(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, memoryview | CorruptData]]:
        """Each piece with its bytes, good until the next one is requested, or with the CorruptData that `piece` would raise.

        What `pieces` raises is raised after the pieces before it.
        """
        in_flight: deque[tuple[Piece, Future[Buffer]]] = deque()
        failure: HeadwaterError | MissingObject | None = None
        try:
            while True:
                ahead_bytes = sum(piece.size_bytes for piece, _ in in_flight)
                while failure is None and len(in_flight) < AHEAD_GETS and (ahead_bytes < AHEAD_BYTES or not in_flight):
                    try:
                        piece = next(pieces)
                    except StopIteration:
                        break
                    except (HeadwaterError, MissingObject) as error:
                        failure = error
                        break
                    self._count(piece.size_bytes)
                    in_flight.append((piece, self._pool.submit(fetch, self._store, piece)))
                    ahead_bytes += piece.size_bytes
                if not in_flight:
                    break
                piece, future = in_flight.popleft()
                try:
                    buffer = future.result()
                except NotFound as error:
                    raise MissingObject(piece.entry, piece.entry.key) from error
                except CorruptData as error:
                    yield piece, error
                else:
                    with buffer as content:
                        yield piece, content
            if failure is not None:
                raise failure
        finally:
            for _, future in in_flight:
                if not future.cancel():
                    future.add_done_callback(_release)

    def _count(self, size_bytes: int) -> None:
        self._counters.gets += 1
        self._counters.bytes_fetched += size_bytes


def _release(done: Future[Buffer]) -> None:
    if done.exception() is None:
        done.result().release()
