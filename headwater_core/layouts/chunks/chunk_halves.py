"""Chunks of which a read needs a part: who comes first fetches the rest with it, and keeps that for the read that comes next.

Ranges of a run are cut where batches end, chunks are not: so two neighbouring ranges share a chunk, and a reader that goes on would get it
twice, once by each. A range that ends within a chunk gets all of it, and what it does not need waits in memory for the next; one that
begins within a chunk that another one is about to end in does that for both. What was kept is handed out once, and nothing depends on it.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

HALVES_BYTES = 32 << 20  # readaheadChunkNum of the proposal's chunks: 8 of 4 MiB
WAIT_S = 5.0  # for what another read is getting; after that it is got again


class HalfChunk(NamedTuple):
    """A chunk of a run: what identifies the run's bytes, and the chunk's number."""

    run: str
    digest: str
    number: int


class _Kept(NamedTuple):
    start: int
    content: memoryview

    def holds(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.start + len(self.content)


class ChunkHalves:
    """For many threads.

    bytes_max  of all that is kept, and of what is being fetched to be kept; it takes at most twice as much memory, see _remainder
    """

    def __init__(self, bytes_max: int = HALVES_BYTES, wait_s: float = WAIT_S) -> None:
        self.bytes_max, self._wait_s = bytes_max, wait_s
        self._changed = threading.Condition()
        self._kept: OrderedDict[HalfChunk, list[_Kept]] = OrderedDict()
        self._fetching: dict[HalfChunk, tuple[int, int]] = {}  # with what begins and ends where
        self._ends: dict[HalfChunk, dict[int, int]] = {}  # where reads in progress will end in a chunk, and how many
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @contextmanager
    def expected(self, chunk: HalfChunk, end: int) -> Iterator[None]:
        """While a read goes on that will need the chunk up to `end`, and is not there yet."""
        with self._changed:
            ends = self._ends.setdefault(chunk, {})
            ends[end] = ends.get(end, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                ends[end] -= 1
                if not ends[end]:
                    del ends[end]
                if not ends and self._ends.get(chunk) is ends:
                    del self._ends[chunk]

    def take(self, chunk: HalfChunk, start: int, end: int) -> memoryview | None:
        """Its bytes from `start` to `end`, waited for where another read is getting them; they are not kept any more. None: fetch them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._covers(self._fetching.get(chunk), start, end), self._wait_s)
            kept = next((each for each in self._kept.get(chunk, ()) if each.holds(start, end)), None)
            if kept is None:
                return None
            self._remove(chunk, kept)
            at = start - kept.start
            content = kept.content[at : at + end - start]
            self._put(chunk, _Kept(kept.start, _remainder(kept.content[:at])), _Kept(end, _remainder(kept.content[at + end - start :])))
            return content

    def begin(self, chunk: HalfChunk, start: int, end: int, size_bytes: int) -> tuple[int, int]:
        """What to fetch, where a read needs [start, end) of a chunk of `size_bytes`: as much around it as another read is expected to need,
        and as there is room for. `done` or `failed` follows."""
        with self._changed:
            if chunk in self._fetching:
                return start, end
            first = 0 if start in self._ends.get(chunk, ()) else start
            last = size_bytes
            if self._used_bytes + (start - first) + (last - end) > self.bytes_max:
                return start, end
            if (first, last) != (start, end):
                self._used_bytes += (start - first) + (last - end)
                self._fetching[chunk] = first, last
            return first, last

    def done(self, chunk: HalfChunk, needed: tuple[int, int], fetched: tuple[int, int], before: memoryview, rest: memoryview) -> None:
        """It was fetched: what nobody needed yet is kept."""
        with self._changed:
            self._forget(chunk, needed, fetched)
            self._put(chunk, _Kept(fetched[0], before), _Kept(needed[1], rest))
            self._changed.notify_all()

    def failed(self, chunk: HalfChunk, needed: tuple[int, int], fetched: tuple[int, int]) -> None:
        with self._changed:
            self._forget(chunk, needed, fetched)
            self._changed.notify_all()

    def _forget(self, chunk: HalfChunk, needed: tuple[int, int], fetched: tuple[int, int]) -> None:
        if fetched != needed and self._fetching.pop(chunk, None) is not None:
            self._used_bytes -= (needed[0] - fetched[0]) + (fetched[1] - needed[1])

    def _put(self, chunk: HalfChunk, *halves: _Kept) -> None:
        for each in halves:
            if each.content:
                self._kept.setdefault(chunk, []).append(each)
                self._kept.move_to_end(chunk)
                self._used_bytes += len(each.content)
        while self._used_bytes > self.bytes_max and self._kept:
            oldest = next(iter(self._kept))
            self._remove(oldest, self._kept[oldest][0])

    def _remove(self, chunk: HalfChunk, kept: _Kept) -> None:
        self._kept[chunk].remove(kept)
        self._used_bytes -= len(kept.content)
        if not self._kept[chunk]:
            del self._kept[chunk]

    @staticmethod
    def _covers(fetching: tuple[int, int] | None, start: int, end: int) -> bool:
        return fetching is not None and fetching[0] <= start and end <= fetching[1]


def _remainder(content: memoryview) -> memoryview:
    """`content`, copied where it is less than half of its buffer: as long as there is a view of it, a buffer is held as a whole."""
    return memoryview(bytes(content)) if 2 * content.nbytes < memoryview(content.obj).nbytes else content
