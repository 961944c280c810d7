"""ListOffsets (key 2), versions 1 to 11: a position by time, or by what a negative timestamp means.

v2  isolation level
v4  current leader epoch (KIP-320)
v6  flexible
v7  -3, the largest time (KIP-734)
v8  -4, the local start (KIP-405)
v9  -5, the newest archived offset (KIP-1005)
v10 a time-out of remote look-ups (KIP-1075)
v11 -6, the first offset that is not archived (KIP-1023)

Not here: v0, which Kafka 4 has no more; the time-out of v10, for a request has LOOK_UP_S; what a replica id means.
"""

from typing import Any, NamedTuple

from headwater.gateway.lookups import Lookups, Question, left
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import isolation_of, once_each
from hydration.partition_log import Bounds, Isolation, PartitionLog
from hydration.scope import Scope
from hydration.times import RecordTime

VERSIONS = range(1, 12)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
STABLE_S = 1.0  # for the scan of a local tail, where the archive is not searched


class Position(NamedTuple):
    """As ListOffsets has it; -1 is unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


UNKNOWN = Position(-1, -1, -1)  # there is no such record


async def respond(lookups: Lookups, body: Fields) -> Fields:
    """The response; each partition has its own error code."""
    isolation = isolation_of(body.get("isolation_level", 0))

    def from_log(log: PartitionLog, bounds: Bounds, requested: Fields, deadline_s: float) -> Position:
        return find(log, bounds, requested["timestamp"], deadline_s)

    def from_known(log: PartitionLog, scope: Scope, requested: Fields, deadline_s: float) -> Position | None:
        return known_position(log, scope, requested["timestamp"], isolation, deadline_s)

    topics: dict[Any, list[Fields]] = {}
    requested = once_each(body["topics"], "name", "partition_index")
    for each in await lookups.all(requested, Question("ListOffsets", isolation, from_log, from_known)):
        offset, timestamp_ms, epoch = each.found or UNKNOWN
        topics.setdefault(each.topic, []).append(
            {
                "partition_index": each.partition,
                "error_code": each.code,
                "timestamp": timestamp_ms,
                "offset": offset,
                "leader_epoch": epoch,
            }
        )
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}


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
