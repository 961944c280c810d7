"""Records of a local log by their time."""

from collections import deque
from dataclasses import dataclass
from functools import partial

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.segments.batches import HEADER_BYTES, read_batch_header
from headwater_core.segments.index_hints import hint_by_offset, hint_by_time, largest_timestamp
from headwater_core.segments.local_log import LocalLog, LocalSegment
from hydration.local.file_version import FileVersion
from hydration.local.header_walk import HeaderWalk
from hydration.local.local_tier import LocalTier
from hydration.local.recovery_point import RecoveryPoint
from hydration.local.scan_budget import ScanBudget
from hydration.local.segment_states import SegmentStates, end_of, is_whole, segment_at
from hydration.ranges import first_at, headers
from hydration.runfile import RunFile
from hydration.scope import Span
from hydration.times import RecordTime, first_not_older

HINTED_BYTES = 1 << 20  # scanned from where Kafka's index points to; it has an entry for every 4 KiB
WALKS_MAX = 32  # whole segments whose walk is kept, per partition; one takes 24 bytes for every MiB


@dataclass(slots=True)
class _Segment:
    """What is known of one.

    newest_ms  no record of a whole segment is younger; None is not known
    indexed    that comes from the broker's own index, which also says where to begin; None while it was not read
    walk       over its headers, where no index does
    """

    version: FileVersion
    newest_ms: int | None = None
    indexed: bool | None = None
    walk: HeaderWalk | None = None


class LocalTimes:
    """Safe to use from many threads. Raises ScanBudgetExceeded: what was met is kept, ask again."""

    def __init__(self, tier: LocalTier) -> None:
        self._tier = tier
        self._segments = SegmentStates(_Segment)
        self._recovery_point = RecoveryPoint()
        self._walked: deque[_Segment] = deque()  # to their ends; the oldest first

    def first_not_older(
        self, log: LocalLog, timestamp_ms: int, span: Span, budget: ScanBudget, latest_ms: int | None = None
    ) -> RecordTime | None:
        """The first record in `span` that is not older than `timestamp_ms`. Raises SourceChanged, CorruptData, UnsupportedFormat.

        latest_ms  a record that is dated later is passed over; None: none is
        """
        with self._segments.undisturbed(log, budget):
            for number in range(segment_at(log, span.start) or 0, len(log.segments)):
                if log.segments[number].base_offset >= span.end:
                    break
                found = self._first_in(log, number, timestamp_ms, span, budget, latest_ms)
                if found is not None:
                    return found
            return None

    def _first_in(
        self, log: LocalLog, number: int, timestamp_ms: int, span: Span, budget: ScanBudget, latest_ms: int | None
    ) -> RecordTime | None:
        state, segment = self._segments.of(log, number), log.segments[number]
        if state.indexed is None and is_whole(log, number):
            state.newest_ms = self._indexed_newest_ms(log, number, budget)
            state.indexed = state.newest_ms is not None
        if state.newest_ms is not None and state.newest_ms < timestamp_ms:
            return None
        if state.indexed:
            budget.take(HINTED_BYTES)
            file = self._tier.open(segment)
            try:
                found = _first_by_index(file, segment, timestamp_ms, span, latest_ms)
            finally:
                file.release()
            if found is not None:
                return found
            state.indexed = False
        return self._first_by_walk(log, number, timestamp_ms, span, budget, latest_ms)

    def _indexed_newest_ms(self, log: LocalLog, number: int, budget: ScanBudget) -> int | None:
        """The last entry of the broker's .timeindex; None where that is not to be trusted.

        Nothing protects it, and a record that it does not know of would not be found. It counts below the recovery point, to where
        it was flushed with its segment, when the batch it names has the timestamp; not in a compacted log, whose segments are
        replaced file by file.
        """
        segment = log.segments[number]
        if log.topic_policy_proves_compaction or not self._recovery_point.covers(log, end_of(log, number), budget):
            return None
        budget.take(1)
        newest = largest_timestamp(segment.path.with_suffix(".timeindex"), segment.base_offset)
        if newest is None:
            return None
        file = self._tier.open(segment)
        try:
            start = _start(file, segment, newest.last_offset)
            batch = first_at(partial(headers, file), newest.last_offset, start, min(start + HINTED_BYTES, file.size_bytes))
            return newest.timestamp_ms if batch is not None and batch[1].max_timestamp_ms == newest.timestamp_ms else None
        except (CorruptData, UnsupportedFormat):
            return None
        finally:
            file.release()

    def _first_by_walk(
        self, log: LocalLog, number: int, timestamp_ms: int, span: Span, budget: ScanBudget, latest_ms: int | None
    ) -> RecordTime | None:
        state, segment = self._segments.of(log, number), log.segments[number]
        if state.walk is None:
            state.walk = HeaderWalk(segment.base_offset)
        walk = state.walk
        self._segments.grow(walk, self._tier, log, number, budget)
        if is_whole(log, number) and state not in self._walked:
            state.newest_ms = walk.newest_ms
            self._walked.append(state)
            if len(self._walked) > WALKS_MAX:
                self._walked.popleft().walk = None
        for piece in walk.pieces(span.start, span.end, timestamp_ms):
            budget.take(piece.end - piece.start)
            file = self._tier.open(segment)
            try:
                found = first_not_older(file, piece.start, piece.end, timestamp_ms, span, latest_ms)
            finally:
                file.release()
            if found is not None:
                return found
        return None


def _first_by_index(file: RunFile, segment: LocalSegment, timestamp_ms: int, span: Span, latest_ms: int | None) -> RecordTime | None:
    """Near the position that Kafka's indexes point to; None when it is not there."""
    older = hint_by_time(segment.path.with_suffix(".timeindex"), segment.base_offset, timestamp_ms)
    since = span.start if older is None else max(span.start, older)
    try:
        start = _start(file, segment, since)
        return first_not_older(file, start, min(start + HINTED_BYTES, file.size_bytes), timestamp_ms, span, latest_ms)
    except (CorruptData, UnsupportedFormat):
        return None


def _start(file: RunFile, segment: LocalSegment, offset: int) -> int:
    """The position of a batch at or before the one that holds `offset`."""
    hint = hint_by_offset(segment.index_path, segment.base_offset, offset)
    if hint is None:
        return 0
    last_offset, position = hint
    header = read_batch_header(file.read(position, HEADER_BYTES), where=file.where)
    return position if header.last_offset == last_offset else 0
