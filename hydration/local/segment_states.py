"""What reading the segments of a local log has found: once for each file, a budget at a time, for as long as the file stays the same."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from headwater_core.errors import CorruptData, SourceChanged, UnsupportedFormat
from headwater_core.segments.batches import HEADER_BYTES, read_batch_header
from headwater_core.segments.local_log import LocalLog, LocalSegment
from hydration.local.file_version import FileVersion
from hydration.local.header_walk import HeaderWalk
from hydration.local.local_tier import LocalTier
from hydration.local.scan_budget import ScanBudget, ScanBudgetExceeded
from hydration.ranges import Boundary
from hydration.runfile import RunFile


class State(Protocol):
    """What is known of one segment file."""

    version: FileVersion


S = TypeVar("S", bound=State)


class SegmentStates(Generic[S]):
    """By base offset: what is known of each segment of one log. Of a new file, or one that a new leader may have cut, nothing is."""

    def __init__(self, make: Callable[[FileVersion], S]) -> None:
        self._make = make
        self._states: dict[int, S] = {}
        self._current: LocalLog | None = None
        self._lock = threading.Lock()

    @contextmanager
    def undisturbed(self, log: LocalLog, budget: ScanBudget) -> Iterator[None]:
        """For one thread at a time. With a budget of nothing it does not wait: raises ScanBudgetExceeded."""
        if not self._lock.acquire(blocking=budget.left_bytes != 0):
            raise ScanBudgetExceeded
        try:
            if self._current is not log:
                current = {segment.base_offset for segment in log.segments}
                self._states = {base: state for base, state in self._states.items() if base in current}
                self._current = log
            yield
        finally:
            self._lock.release()

    def of(self, log: LocalLog, number: int) -> S:
        segment = log.segments[number]
        version = FileVersion.of(segment, log)
        state = self._states.get(segment.base_offset)
        if state is None or state.version != version:
            state = self._states[segment.base_offset] = self._make(version)
        return state

    def forget(self, segment: LocalSegment) -> None:
        self._states.pop(segment.base_offset, None)

    def clear(self) -> None:
        """Forget all. Within `undisturbed`."""
        self._states.clear()

    def grow(self, walk: HeaderWalk, tier: LocalTier, log: LocalLog, number: int, budget: ScanBudget, *, end: int | None = None) -> None:
        """Continue `walk` to where the segment ends, or the high watermark, or only to the offset `end`. Raises SourceChanged for a file
        that was cut since the look, or since the walk was there, and what HeaderWalk raises.
        """
        segment, end_offset = log.segments[number], end_of(log, number) if end is None else end
        if walk.done_to >= end_offset:
            return
        budget.take(HEADER_BYTES)
        file = tier.open(segment)
        try:
            size_bytes = file.size_bytes
            if size_bytes < max(walk.position, segment.size_bytes) or not _is_there(walk.last, file):
                self.forget(segment)
                raise SourceChanged(f"{segment.path} was cut")
            walk.advance(file, size_bytes, end_offset=end_offset, budget=budget, epoch_check=tier.epoch_check(log))
            if end_offset == end_of(log, number) and is_whole(log, number) and walk.position < size_bytes:
                raise CorruptData(file.where, walk.position, f"what follows is no batch below offset {end_offset}")
        finally:
            file.release()


def _is_there(batch: Boundary | None, file: RunFile) -> bool:
    if batch is None:
        return True
    with suppress(CorruptData, UnsupportedFormat):
        return read_batch_header(file.read(batch.position, HEADER_BYTES), where=file.where).base_offset == batch.offset
    return False


def segment_at(log: LocalLog, offset: int) -> int | None:
    """Which segment `offset` falls into; None when it lies before the first or there is none."""
    at = bisect_right(log.segments, offset, key=lambda segment: segment.base_offset)
    return at - 1 if at else None


def is_whole(log: LocalLog, number: int) -> bool:
    """Whether all of a segment lies below the high watermark, and nothing will be appended."""
    assert log.high_watermark is not None
    return number + 1 < len(log.segments) and log.segments[number + 1].base_offset <= log.high_watermark


def end_of(log: LocalLog, number: int) -> int:
    """The offset before which a segment's batches count."""
    assert log.high_watermark is not None
    return log.segments[number + 1].base_offset if is_whole(log, number) else log.high_watermark
