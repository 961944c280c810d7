"""ListOffsets and OffsetForLeaderEpoch: where things are in a log. Both may read the archive, so both look in worker threads."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from headwater.gateway.apis import Code, code_for
from headwater.gateway.failures import report_failure
from headwater.gateway.messages import Fields
from headwater_core.errors import TransientError
from hydration.logs import Logs
from hydration.partition_log import Bounds, Isolation, PartitionLog, Pending
from hydration.scope import Scope, epoch_end

ToldEpoch = Callable[[str, int], int]
Place = tuple[int, int, int]  # offset, timestamp, leader epoch; -1 is unknown
T = TypeVar("T")

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
LOOK_UP_S = 10.0  # for a whole request; then the client is told to try again. Its own patience is usually 30 s
NEWS_S = 2.0  # for a fresh look, before what was known is told
STABLE_S = 1.0  # for the scan of a local tail, where the archive is not asked
AT_ONCE = 4  # of the workers, for one request
TURN = 64  # look-ups in one of them, before other requests have their turn
_ISOLATIONS = {each.value: each for each in Isolation}
UNKNOWN = (-1, -1, -1)  # there is no such record


@dataclass(slots=True)
class _LookUp(Generic[T]):
    """One partition of a request, and what has become of it. `bounds` are as of now; None where they could not be got."""

    topic: Any
    asked: Fields
    log: PartitionLog | None = None
    bounds: "Bounds | Pending[Bounds] | None" = None
    code: Code = Code.NONE
    found: T | None = None


class LookUps:
    """Answers within LOOK_UP_S per request, however many partitions it asks for and whatever the store does.

    All bounds are asked for before any is waited for. When they do not come, a place that follows from what was known
    before is told, and everything else is to be asked again.
    """

    def __init__(self, logs: Logs, advertised_epoch: ToldEpoch, executor: Executor) -> None:
        self._logs, self._advertised_epoch, self._executor = logs, advertised_epoch, executor

    async def list_offsets(self, body: Fields) -> Fields:
        isolation = isolation_of(body.get("isolation_level", 0))

        def from_log(log: PartitionLog, bounds: Bounds, asked: Fields, deadline_s: float) -> Place:
            return find(log, bounds, asked["timestamp"], deadline_s)

        def from_known(log: PartitionLog, scope: Scope, asked: Fields, deadline_s: float) -> Place | None:
            return known_place(log, scope, asked["timestamp"], isolation, deadline_s)

        topics: dict[Any, list[Fields]] = {}
        asked = once_each(body["topics"], "name", "partition_index")
        for each in await self._all("ListOffsets", asked, isolation, from_log, from_known):
            offset, timestamp, epoch = each.found or UNKNOWN
            answer = {"error_code": each.code, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}
            topics.setdefault(each.topic, []).append({"partition_index": each.asked["partition_index"], **answer})
        return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}

    async def offset_for_leader_epoch(self, body: Fields) -> Fields:
        def from_log(log: PartitionLog, bounds: Bounds, asked: Fields, deadline_s: float) -> tuple[int, int]:
            return log.epoch_end(asked["leader_epoch"], timeout_s=left(deadline_s))

        def from_known(log: PartitionLog, scope: Scope, asked: Fields, _: float) -> tuple[int, int]:
            return epoch_end(scope.epochs, asked["leader_epoch"], scope.high_watermark)

        topics: dict[Any, list[Fields]] = {}
        asked = once_each(body["topics"], "topic", "partition")
        for each in await self._all("OffsetForLeaderEpoch", asked, Isolation.READ_UNCOMMITTED, from_log, from_known):
            epoch, end = each.found or (-1, -1)
            answer = {"error_code": each.code, "leader_epoch": epoch, "end_offset": end}
            topics.setdefault(each.topic, []).append({"partition": each.asked["partition"], **answer})
        return {"topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]}

    async def _all(
        self,
        api: str,
        asked: dict[Any, dict[int, dict[str, Any]]],
        isolation: Isolation,
        from_log: Callable[[PartitionLog, Bounds, Fields, float], T],
        from_known: Callable[[PartitionLog, Scope, Fields, float], T | None],
    ) -> list[_LookUp[T]]:
        deadline_s = monotonic() + LOOK_UP_S
        lookups: list[_LookUp[T]] = [_LookUp(topic, fields) for topic, each in asked.items() for fields in each.values()]
        numbers = [number for each in asked.values() for number in each]
        loop = asyncio.get_running_loop()

        def fail(each: _LookUp[T], number: int, error: Exception) -> None:
            report_failure(api, f"{each.topic}:{number}", error)
            each.code = code_for(error)

        def begin() -> None:
            for each, number in zip(lookups, numbers, strict=True):
                try:
                    each.log = self._logs.partition(each.topic, number)
                    each.code = check_leader_epoch(each.asked.get("current_leader_epoch", -1), self._advertised_epoch(each.topic, number))
                    if each.code is Code.NONE:
                        each.bounds = each.log.try_bounds(isolation)
                except Exception as error:
                    fail(each, number, error)

        def work(each: _LookUp[T], number: int) -> None:
            assert each.log is not None
            try:
                try:
                    if isinstance(each.bounds, Pending):
                        each.bounds = None if each.bounds.future.cancel() else each.bounds.future.result(timeout=0)
                    if each.bounds is None:
                        raise TransientError("the store does not answer; ask again")
                    each.found = from_log(each.log, each.bounds, each.asked, deadline_s)
                except TransientError:
                    scope = each.log.known_scope()
                    each.found = from_known(each.log, scope, each.asked, deadline_s) if scope is not None else None
                    if each.found is None:
                        raise
            except Exception as error:
                fail(each, number, error)

        def work_some() -> None:
            for _ in range(TURN):
                try:
                    work(*unfinished.popleft())
                except IndexError:
                    return

        async def finish() -> None:
            while unfinished:
                await loop.run_in_executor(self._executor, work_some)

        await loop.run_in_executor(self._executor, begin)
        await self._news(lookups, deadline_s)
        unfinished = deque((each, at) for each, at in zip(lookups, numbers, strict=True) if each.log is not None and each.code is Code.NONE)
        await asyncio.gather(*(finish() for _ in range(min(AT_ONCE, len(unfinished)))))
        return lookups

    @staticmethod
    async def _news(lookups: "list[_LookUp[T]]", deadline_s: float) -> None:
        """Wait for the bounds: NEWS_S where something is known already, to the deadline where nothing is."""
        for patience_s, needs_news in ((NEWS_S, False), (LOOK_UP_S, True)):
            waiting = [
                each.bounds.future
                for each in lookups
                if isinstance(each.bounds, Pending) and not (needs_news and each.log is not None and each.log.known_scope() is not None)
            ]
            if not waiting or await _are_done(waiting, min(patience_s, left(deadline_s))):
                return


async def _are_done(futures: "list[Future[Bounds]]", timeout_s: float) -> bool:
    """Whether all are before the time is over. One call into the loop for all of them: there may be ten thousand."""
    loop, done, lock, undone = asyncio.get_running_loop(), asyncio.Event(), threading.Lock(), len(futures)

    def count(_: "Future[Bounds]") -> None:
        nonlocal undone
        with lock:
            undone -= 1
        if not undone:
            with suppress(RuntimeError):  # the loop has ended; so has whoever waited
                loop.call_soon_threadsafe(done.set)

    for each in futures:
        each.add_done_callback(count)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await done.wait()
    return done.is_set()


def known_place(log: PartitionLog, scope: Scope, timestamp: int, isolation: Isolation, deadline_s: float) -> Place | None:
    """What `find` answers for a place, from what is known; None where that does not say it."""
    match timestamp:
        case _ if timestamp == EARLIEST:
            epoch = scope.epochs.epoch_at(scope.log_start)
            return scope.log_start, -1, -1 if epoch is None else epoch
        case _ if timestamp == LATEST and isolation is Isolation.READ_UNCOMMITTED:
            return scope.high_watermark, -1, scope.leader_epoch
        case _ if timestamp == LATEST:
            with log.read(scope.high_watermark, 1, isolation, timeout_s=min(STABLE_S, left(deadline_s))) as at_end:
                end = at_end.last_stable_offset
            return None if end is None else (end, -1, scope.leader_epoch)
        case _:
            return None


def left(deadline_s: float) -> float:
    return max(0.0, deadline_s - monotonic())


def find(log: PartitionLog, bounds: Bounds, timestamp: int, deadline_s: float) -> Place:
    """The place of a time in ms, or of one of the negative ones that mean a place."""
    end = bounds.high_watermark if bounds.last_stable_offset is None else bounds.last_stable_offset
    match timestamp:
        case _ if timestamp == LATEST:
            return end, -1, bounds.leader_epoch
        case _ if timestamp == EARLIEST:
            return bounds.log_start, -1, epoch_at(log, bounds, bounds.log_start, deadline_s)
        case _ if timestamp == EARLIEST_LOCAL:
            start = bounds.log_start if bounds.local_start is None else max(bounds.log_start, bounds.local_start)
            return start, -1, epoch_at(log, bounds, start, deadline_s)
        case _ if timestamp == LATEST_TIERED:
            return (
                UNKNOWN if bounds.last_offset is None else (bounds.last_offset, -1, epoch_at(log, bounds, bounds.last_offset, deadline_s))
            )
        case _ if timestamp == EARLIEST_PENDING_UPLOAD:
            next_offset = bounds.log_start if bounds.last_offset is None else bounds.last_offset + 1
            return next_offset, -1, epoch_at(log, bounds, next_offset, deadline_s)
        case _ if timestamp == MAX_TIMESTAMP:
            found = newest(log, deadline_s)
        case _ if timestamp < 0:
            return UNKNOWN
        case _:
            found = log.offset_for_time(timestamp, timeout_s=left(deadline_s))
    if found is None or found[0] >= end:
        return UNKNOWN
    return *found, epoch_at(log, bounds, found[0], deadline_s)


def newest(log: PartitionLog, deadline_s: float) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the largest timestamp.

    The look-up "first at or after T" answers for every T up to that timestamp and for none beyond it, so the largest is
    found by halving; each answer jumps ahead to a timestamp that exists. About 40 look-ups in an index.
    """
    found = log.offset_for_time(0, timeout_s=left(deadline_s))
    if found is None:
        return None
    low, high = found[1], 2**63 - 1  # there is one at `low`; none is known at `high`
    step = 1
    while low + step < high:  # gallop, because the largest is near the others and far from 2^63
        later = log.offset_for_time(low + step, timeout_s=left(deadline_s))
        if later is None:
            high = low + step
            break
        found, low, step = later, later[1], step * 16
    while low + 1 < high:
        middle = (low + high) // 2
        later = log.offset_for_time(middle, timeout_s=left(deadline_s))
        if later is None:
            high = middle
        else:
            found, low = later, later[1]
    return found


def epoch_at(log: PartitionLog, bounds: Bounds, offset: int, deadline_s: float) -> int:
    """The leader epoch that wrote `offset`, by halving over the epochs' ends; -1 where no history says it."""
    low, high = 0, bounds.leader_epoch
    answer = -1
    while low <= high:
        middle = (low + high) // 2
        epoch, end = log.epoch_end(middle, timeout_s=left(deadline_s))
        if end > offset:
            answer, high = epoch, min(epoch, middle) - 1
        else:
            low = middle + 1
    return answer


def check_leader_epoch(asked: int, told: int) -> Code:
    """A client that knows an older leader epoch than Metadata tells of must ask Metadata again.

    Only what was told counts: librdkafka says 0 when it was told -1, and must not be sent to ask for what is not there.
    One that knows a newer epoch is served: a broker would send it away until it has caught up, but nothing says that an
    archive ever will, and a fetch at a retained offset must end.
    """
    return Code.FENCED_LEADER_EPOCH if 0 <= asked < told else Code.NONE


def isolation_of(level: int) -> Isolation:
    return _ISOLATIONS.get(level, Isolation.READ_UNCOMMITTED)


def once_each(topics: list[dict[str, Any]], name: str, partition: str) -> dict[Any, dict[int, dict[str, Any]]]:
    """What is asked by topic and partition, in the order asked. A repeated one is answered once, so that a request costs
    no more than the partitions there are."""
    asked: dict[Any, dict[int, dict[str, Any]]] = {}
    for topic in topics:
        of_topic = asked.setdefault(topic[name], {})
        for each in topic["partitions"]:
            of_topic[each[partition]] = each
    return asked
