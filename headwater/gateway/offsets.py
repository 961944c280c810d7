"""Positions in one log that ListOffsets asks for: by time, or by what a negative timestamp means."""

from time import monotonic
from typing import Any, NamedTuple

from headwater.gateway.apis import Code
from headwater.gateway.messages import Fields
from hydration.partition_log import Bounds, Isolation, PartitionLog
from hydration.scope import Scope
from hydration.times import RecordTime

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
STABLE_S = 1.0  # for the scan of a local tail, where the archive is not searched
_ISOLATIONS = {each.value: each for each in Isolation}


class Position(NamedTuple):
    """As ListOffsets has it; -1 is unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


UNKNOWN = Position(-1, -1, -1)  # there is no such record


def known_position(log: PartitionLog, scope: Scope, timestamp_ms: int, isolation: Isolation, deadline_s: float) -> Position | None:
    """What `find` answers, from what is known; None where that does not suffice."""
    match timestamp_ms:
        case _ if timestamp_ms == EARLIEST:
            epoch = scope.epochs.epoch_at(scope.log_start)
            return Position(scope.log_start, -1, -1 if epoch is None else epoch)
        case _ if timestamp_ms == LATEST and isolation is Isolation.READ_UNCOMMITTED:
            return Position(scope.high_watermark, -1, scope.leader_epoch)
        case _ if timestamp_ms == LATEST:
            with log.read(scope.high_watermark, 1, isolation, timeout_s=min(STABLE_S, left(deadline_s))) as at_end:
                end = at_end.last_stable_offset
            return None if end is None else Position(end, -1, scope.leader_epoch)
        case _:
            return None


def left(deadline_s: float) -> float:
    """Seconds from now to `deadline_s` of the monotonic clock; 0 when it has passed."""
    return max(0.0, deadline_s - monotonic())


def find(log: PartitionLog, bounds: Bounds, timestamp_ms: int, deadline_s: float) -> Position:
    """The first record at or after a time, or what one of the negative timestamps means. Raises what reading the log does, and
    TransientError after `deadline_s`."""
    end = bounds.high_watermark if bounds.last_stable_offset is None else bounds.last_stable_offset
    match timestamp_ms:
        case _ if timestamp_ms == LATEST:
            return Position(end, -1, bounds.leader_epoch)
        case _ if timestamp_ms == EARLIEST:
            return _at(log, bounds, bounds.log_start, deadline_s)
        case _ if timestamp_ms == EARLIEST_LOCAL:
            start = bounds.log_start if bounds.local_start is None else max(bounds.log_start, bounds.local_start)
            return _at(log, bounds, start, deadline_s)
        case _ if timestamp_ms == LATEST_TIERED:
            return UNKNOWN if bounds.last_offset is None else _at(log, bounds, bounds.last_offset, deadline_s)
        case _ if timestamp_ms == EARLIEST_PENDING_UPLOAD:
            next_offset = bounds.log_start if bounds.last_offset is None else bounds.last_offset + 1
            return _at(log, bounds, next_offset, deadline_s)
        case _ if timestamp_ms == MAX_TIMESTAMP:
            found = newest(log, deadline_s)
        case _ if timestamp_ms < 0:
            return UNKNOWN
        case _:
            found = log.offset_for_time(timestamp_ms, timeout_s=left(deadline_s))
    if found is None or found.offset >= end:
        return UNKNOWN
    return Position(found.offset, found.timestamp_ms, epoch_at(log, bounds, found.offset, deadline_s))


def _at(log: PartitionLog, bounds: Bounds, offset: int, deadline_s: float) -> Position:
    return Position(offset, -1, epoch_at(log, bounds, offset, deadline_s))


def newest(log: PartitionLog, deadline_s: float) -> RecordTime | None:
    """The first record with the largest timestamp; None in an empty log. Raises as `find` does.

    The look-up "first at or after T" answers for every T up to that timestamp and for none beyond it, so the largest is
    found by halving; each answer jumps ahead to a timestamp that exists. About 40 look-ups in an index.
    """
    found = log.offset_for_time(0, timeout_s=left(deadline_s))
    if found is None:
        return None
    low, high = found.timestamp_ms, 2**63 - 1  # there is one at `low`; none is known at `high`
    step = 1
    while low + step < high:  # gallop, because the largest is near the others and far from 2^63
        later = log.offset_for_time(low + step, timeout_s=left(deadline_s))
        if later is None:
            high = low + step
            break
        found, low, step = later, later.timestamp_ms, step * 16
    while low + 1 < high:
        middle = (low + high) // 2
        later = log.offset_for_time(middle, timeout_s=left(deadline_s))
        if later is None:
            high = middle
        else:
            found, low = later, later.timestamp_ms
    return found


def epoch_at(log: PartitionLog, bounds: Bounds, offset: int, deadline_s: float) -> int:
    """The leader epoch that wrote `offset`, by halving over the epochs' ends; -1 where no history has it. Raises as `find` does."""
    low, high = 0, bounds.leader_epoch
    answer = -1
    while low <= high:
        middle = (low + high) // 2
        epoch, end = log.epoch_end(middle, timeout_s=left(deadline_s))
        if epoch < 0:  # no leader of this epoch, or of a later one, has written
            high = middle - 1
        elif end > offset:
            answer, high = epoch, min(epoch, middle) - 1
        else:
            low = middle + 1
    return answer


def check_leader_epoch(claimed: int, advertised: int) -> Code:
    """A client that knows an older leader epoch than Metadata advertises must request Metadata again.

    Only what is advertised counts: librdkafka claims 0 when that was -1, and must not be sent to request what is not there.
    One that knows a newer epoch is served: a broker would refuse it until it has caught up itself, but an archive may never
    do so, and a fetch at a retained offset must end.
    """
    return Code.FENCED_LEADER_EPOCH if 0 <= claimed < advertised else Code.NONE


def isolation_of(level: int) -> Isolation:
    return _ISOLATIONS.get(level, Isolation.READ_UNCOMMITTED)


def once_each(topics: list[dict[str, Any]], name: str, partition: str) -> dict[Any, dict[int, Fields]]:
    """What is requested by topic and partition, in that order. A repeated one is answered once, so that a request costs
    no more than the partitions there are."""
    requested: dict[Any, dict[int, Fields]] = {}
    for topic in topics:
        of_topic = requested.setdefault(topic[name], {})
        for each in topic["partitions"]:
            of_topic[each[partition]] = each
    return requested
