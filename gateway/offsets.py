"""ListOffsets and OffsetForLeaderEpoch: where things are in a log. Both may read the archive, so both run in a worker thread."""

from collections.abc import Callable
from typing import Any

from gateway.apis import Code, code_for
from gateway.complaints import Complaints
from gateway.messages import Facts
from hydration.logs import Logs
from hydration.partition_log import Bounds, Isolation, PartitionLog
from model.errors import HeadwaterError

ToldEpoch = Callable[[str, int], int]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
LOOK_UP_S = 10.0  # then the client is told to try again; its own patience is usually 30 s
UNKNOWN = (-1, -1, -1)  # offset, timestamp, leader epoch: there is no such record


def list_offsets(logs: Logs, told_epoch: ToldEpoch, complaints: Complaints, body: Facts) -> Facts:
    isolation = isolation_of(body.get("isolation_level", 0))
    topics = []
    for name, partitions in once_each(body["topics"], "name", "partition_index").items():
        answers = []
        for partition, asked in partitions.items():
            code, (offset, timestamp, epoch) = Code.NONE, UNKNOWN
            try:
                log = logs.partition(name, partition)
                code = check_leader_epoch(asked.get("current_leader_epoch", -1), told_epoch(name, partition))
                if code is Code.NONE:
                    offset, timestamp, epoch = find(log, asked["timestamp"], isolation)
            except HeadwaterError as error:
                complaints.tell("list_offsets_failed", f"{name}:{partition}", error)
                code = code_for(error)
            answers.append(
                {"partition_index": partition, "error_code": code, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}
            )
        topics.append({"name": name, "partitions": answers})
    return {"topics": topics}


def find(log: PartitionLog, timestamp: int, isolation: Isolation) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) for a time in ms, or for one of the negative ones that mean a place. -1 is unknown."""
    bounds = log.bounds(isolation, timeout_s=LOOK_UP_S)
    end = bounds.high_watermark if bounds.last_stable_offset is None else bounds.last_stable_offset
    match timestamp:
        case _ if timestamp == LATEST:
            return end, -1, bounds.leader_epoch
        case _ if timestamp == EARLIEST:
            return bounds.log_start, -1, epoch_at(log, bounds, bounds.log_start)
        case _ if timestamp == EARLIEST_LOCAL:
            start = bounds.log_start if bounds.local_start is None else max(bounds.log_start, bounds.local_start)
            return start, -1, epoch_at(log, bounds, start)
        case _ if timestamp == LATEST_TIERED:
            return UNKNOWN if bounds.last_offset is None else (bounds.last_offset, -1, epoch_at(log, bounds, bounds.last_offset))
        case _ if timestamp == EARLIEST_PENDING_UPLOAD:
            next_offset = bounds.log_start if bounds.last_offset is None else bounds.last_offset + 1
            return next_offset, -1, epoch_at(log, bounds, next_offset)
        case _ if timestamp == MAX_TIMESTAMP:
            found = newest(log)
        case _ if timestamp < 0:
            return UNKNOWN
        case _:
            found = log.offset_for_time(timestamp, timeout_s=LOOK_UP_S)
    if found is None or found[0] >= end:
        return UNKNOWN
    return *found, epoch_at(log, bounds, found[0])


def newest(log: PartitionLog) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the largest timestamp.

    The look-up "first at or after T" answers for every T up to that timestamp and for none beyond it, so the largest is
    found by halving; each answer jumps ahead to a timestamp that exists. About 40 look-ups in an index.
    """
    found = log.offset_for_time(0, timeout_s=LOOK_UP_S)
    if found is None:
        return None
    low, high = found[1], 2**63 - 1  # there is one at `low`; none is known at `high`
    step = 1
    while low + step < high:  # gallop, because the largest is near the others and far from 2^63
        later = log.offset_for_time(low + step, timeout_s=LOOK_UP_S)
        if later is None:
            high = low + step
            break
        found, low, step = later, later[1], step * 16
    while low + 1 < high:
        middle = (low + high) // 2
        later = log.offset_for_time(middle, timeout_s=LOOK_UP_S)
        if later is None:
            high = middle
        else:
            found, low = later, later[1]
    return found


def epoch_at(log: PartitionLog, bounds: Bounds, offset: int) -> int:
    """The leader epoch that wrote `offset`, by halving over the epochs' ends; -1 where no history says it."""
    low, high = 0, bounds.leader_epoch
    answer = -1
    while low <= high:
        middle = (low + high) // 2
        epoch, end = log.epoch_end(middle, timeout_s=LOOK_UP_S)
        if end > offset:
            answer, high = epoch, min(epoch, middle) - 1
        else:
            low = middle + 1
    return answer


def offset_for_leader_epoch(logs: Logs, told_epoch: ToldEpoch, complaints: Complaints, body: Facts) -> Facts:
    topics = []
    for name, partitions in once_each(body["topics"], "topic", "partition").items():
        answers = []
        for partition, asked in partitions.items():
            code, epoch, end = Code.NONE, -1, -1
            try:
                log = logs.partition(name, partition)
                code = check_leader_epoch(asked.get("current_leader_epoch", -1), told_epoch(name, partition))
                if code is Code.NONE:
                    epoch, end = log.epoch_end(asked["leader_epoch"], timeout_s=LOOK_UP_S)
            except HeadwaterError as error:
                complaints.tell("epoch_look_up_failed", f"{name}:{partition}", error)
                code = code_for(error)
            answers.append({"error_code": code, "partition": partition, "leader_epoch": epoch, "end_offset": end})
        topics.append({"topic": name, "partitions": answers})
    return {"topics": topics}


def check_leader_epoch(asked: int, told: int) -> Code:
    """A client that knows an older leader epoch than Metadata tells of must ask Metadata again.

    Only what was told counts: librdkafka says 0 when it was told -1, and must not be sent to ask for what is not there.
    One that knows a newer epoch is served: a broker would send it away until it has caught up, but nothing says that an
    archive ever will, and a fetch at a retained offset must end.
    """
    return Code.FENCED_LEADER_EPOCH if 0 <= asked < told else Code.NONE


def isolation_of(level: int) -> Isolation:
    return Isolation.READ_COMMITTED if level == Isolation.READ_COMMITTED.value else Isolation.READ_UNCOMMITTED


def once_each(topics: list[dict[str, Any]], name: str, partition: str) -> dict[Any, dict[int, dict[str, Any]]]:
    """What is asked by topic and partition, in the order asked. A repeated one is answered once, so that a request costs
    no more than the partitions there are."""
    asked: dict[Any, dict[int, dict[str, Any]]] = {}
    for topic in topics:
        asked.setdefault(topic[name], {}).update({each[partition]: each for each in topic["partitions"]})
    return asked
