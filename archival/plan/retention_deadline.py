"""When the broker's retention will delete what is still to be archived: an estimate, by which partitions are put in order."""

import threading

from headwater_core.segments.index_hints import largest_timestamp
from headwater_core.segments.local_log import LocalLog, LocalSegment

NEAR_MIN_MS, NEAR_MAX_MS = 60_000, 3_600_000
_KNOWN_MAX = 1 << 18  # sealed segments whose newest timestamp is remembered, of all partitions together


def deadline_ms(log: LocalLog, next_offset: int) -> int | None:
    """When the segment that holds `next_offset`, the first offset not archived, is expected to be deleted, in milliseconds of the wall
    clock; None when that is not known, or never.

    A segment's age counts as `counted_from_ms` says. By size it is due when as much as retention allows lies after it, at the pace at
    which the log was written so far. What is overdue already is due in the past.
    """
    waiting = [segment for segment, _ in log.segments_from(next_offset)]
    if log.retention is None or not waiting:
        return None
    due: list[int] = []
    if log.retention.age_ms is not None:
        due.append(counted_from_ms(waiting[0]) + log.retention.age_ms)
    if log.retention.size_bytes is not None:
        newest_ms = _written_ms(log.segments[-1].generation.modified_ns)
        span_ms = max(0, newest_ms - _written_ms(log.segments[0].generation.modified_ns))
        log_bytes = max(1, sum(each.size_bytes for each in log.segments))
        to_come_bytes = log.retention.size_bytes - sum(each.size_bytes for each in waiting[1:])
        due.append(newest_ms + to_come_bytes * span_ms // log_bytes)
    return min(due, default=None)


def too_near_ms(log: LocalLog, next_offset: int, now_ms: int) -> int | None:
    """How long until the broker's retention takes what is committed and not archived, where that is a tenth of the retention time or less,
    and an hour at most; None where there is more time, or nothing to lose. Negative when it is overdue."""
    if log.retention is None or next_offset >= (log.high_watermark or 0):
        return None
    due_ms = deadline_ms(log, next_offset)
    if due_ms is None:
        return None
    margin_ms = NEAR_MAX_MS if log.retention.age_ms is None else max(NEAR_MIN_MS, min(NEAR_MAX_MS, log.retention.age_ms // 10))
    return due_ms - now_ms if due_ms - now_ms <= margin_ms else None


def counted_from_ms(segment: LocalSegment) -> int:
    """From when the broker's retention counts a segment's age, at the earliest: its newest record's timestamp, which on a replica that was
    copied lies long before the file was written. The file's own stamp, as the broker does, where there is no such timestamp; and where
    that is earlier. Its .timeindex is read once for each sealed segment."""
    written_ms = _written_ms(segment.generation.modified_ns)
    if segment.is_active:
        return written_ms
    try:
        return min(written_ms, _newest_record_ms(segment))
    except LookupError:
        return written_ms


class _KnownTimes:
    """The newest timestamps of segments. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[LocalSegment, int] = {}
        self._places: list[LocalSegment] = []

    def of(self, segment: LocalSegment) -> int | None:
        return self._times.get(segment)

    def remember(self, segment: LocalSegment, timestamp_ms: int) -> None:
        """Where all places are taken any one gives way, as its hash has it: if that were the one used longest ago, rounds over some more
        segments than there are places would find none of them."""
        with self._lock:
            if segment in self._times:
                return
            if len(self._places) < _KNOWN_MAX:
                self._places.append(segment)
            else:
                at = hash(segment) % len(self._places)
                del self._times[self._places[at]]
                self._places[at] = segment
            self._times[segment] = timestamp_ms


_known = _KnownTimes()


def _newest_record_ms(segment: LocalSegment) -> int:
    """Raises LookupError where the broker's index says nothing, which is not remembered."""
    if (known := _known.of(segment)) is not None:
        return known
    found = largest_timestamp(segment.path.with_suffix(".timeindex"), segment.base_offset)
    if found is None or found.timestamp_ms < 0:
        raise LookupError(segment.path)
    _known.remember(segment, found.timestamp_ms)
    return found.timestamp_ms


def _written_ms(modified_ns: int) -> int:
    return modified_ns // 1_000_000
