"""What ListOffsets and OffsetForLeaderEpoch have in common: both may read the archive, so both look in worker threads."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from headwater.gateway.failures import report_failure
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code, check_leader_epoch, code_for
from headwater_core.errors import TransientError
from hydration.logs import Logs
from hydration.partition_log import Bounds, Isolation, PartitionLog, Pending
from hydration.scope import Scope

LOOK_UP_S = 10.0  # for a whole request; then the client is to retry. Its own limit is usually 30 s
FRESH_S = 2.0  # for a fresh look, before the answer is what was known
WORKERS_MAX = 4  # at once, for one request
SLICE = 64  # look-ups in one of them, before other requests have their turn
AdvertisedEpoch = Callable[[str, int], int]
T = TypeVar("T")


@dataclass(slots=True)
class _Lookup(Generic[T]):
    """One partition of a request, and what has become of it. `bounds` are as of now; None where they could not be got."""

    topic: Any
    partition: int
    requested: Fields
    log: PartitionLog | None = None
    bounds: "Bounds | Pending[Bounds] | None" = None
    code: Code = Code.NONE
    found: T | None = None


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What one API asks of each partition: from its log, with a deadline; where that is not to be had in time, from its known scope."""

    api: str
    isolation: Isolation
    from_log: Callable[[PartitionLog, Bounds, Fields, float], T]
    from_known: Callable[[PartitionLog, Scope, Fields, float], T | None]


class Lookups:
    """Answers within LOOK_UP_S per request, however many partitions it names and whatever the store does.

    All bounds are requested before any is waited for. When they do not come, the answer is what follows from the last look; where
    nothing does, the client retries.
    """

    def __init__(self, logs: Logs, advertised_epoch: AdvertisedEpoch, executor: Executor) -> None:
        self._logs, self._advertised_epoch, self._executor = logs, advertised_epoch, executor

    async def all(self, requested: dict[Any, dict[int, Fields]], question: Question[T]) -> list[_Lookup[T]]:
        deadline_s = monotonic() + LOOK_UP_S
        loop = asyncio.get_running_loop()
        lookups: list[_Lookup[T]] = [
            _Lookup(topic, number, fields) for topic, partitions in requested.items() for number, fields in partitions.items()
        ]
        await loop.run_in_executor(self._executor, self._begin, question, lookups)
        await _wait_for_bounds(lookups, deadline_s)
        unfinished = deque(each for each in lookups if each.log is not None and each.code is Code.NONE)

        def finish_some() -> None:
            for _ in range(SLICE):
                try:
                    _finish(question, unfinished.popleft(), deadline_s)
                except IndexError:
                    return

        async def finish_all() -> None:
            while unfinished:
                await loop.run_in_executor(self._executor, finish_some)

        await asyncio.gather(*(finish_all() for _ in range(min(WORKERS_MAX, len(unfinished)))))
        return lookups

    def _begin(self, question: Question[T], lookups: list[_Lookup[T]]) -> None:
        """Request the bounds of each."""
        for each in lookups:
            try:
                each.log = self._logs.partition(each.topic, each.partition)
                advertised = self._advertised_epoch(each.topic, each.partition)
                each.code = check_leader_epoch(each.requested.get("current_leader_epoch", -1), advertised)
                if each.code is Code.NONE:
                    each.bounds = each.log.try_bounds(question.isolation)
            except Exception as error:
                _fail(question, each, error)


def left(deadline_s: float) -> float:
    """Seconds from now to `deadline_s` of the monotonic clock; 0 when it has passed."""
    return max(0.0, deadline_s - monotonic())


def _finish(question: Question[T], each: _Lookup[T], deadline_s: float) -> None:
    assert each.log is not None
    try:
        try:
            if isinstance(each.bounds, Pending):
                each.bounds = None if each.bounds.future.cancel() else each.bounds.future.result(timeout=0)
            if each.bounds is None:
                raise TransientError("the store does not answer; ask again")
            each.found = question.from_log(each.log, each.bounds, each.requested, deadline_s)
        except TransientError:
            scope = each.log.known_scope()
            each.found = question.from_known(each.log, scope, each.requested, deadline_s) if scope is not None else None
            if each.found is None:
                raise
    except Exception as error:
        _fail(question, each, error)


def _fail(question: Question[T], each: _Lookup[T], error: Exception) -> None:
    report_failure(question.api, f"{each.topic}:{each.partition}", error)
    each.code = code_for(error)


async def _wait_for_bounds(lookups: "list[_Lookup[T]]", deadline_s: float) -> None:
    """FRESH_S where something is known already, to the deadline where nothing is."""
    for limit_s, unknown_only in ((FRESH_S, False), (LOOK_UP_S, True)):
        waiting = [
            each.bounds.future
            for each in lookups
            if isinstance(each.bounds, Pending) and not (unknown_only and each.log is not None and each.log.known_scope() is not None)
        ]
        if not waiting or await _are_done(waiting, min(limit_s, left(deadline_s))):
            return


async def _are_done(futures: "list[Future[Bounds]]", timeout_s: float) -> bool:
    """Whether all are before the time is over. One call into the loop for all of them: there may be ten thousand."""
    loop, done, lock, undone = asyncio.get_running_loop(), asyncio.Event(), threading.Lock(), len(futures)

    def count(_: "Future[Bounds]") -> None:
        nonlocal undone
        with lock:
            undone -= 1
        if not undone:
            with suppress(RuntimeError):  # the loop has ended, and with it the wait
                loop.call_soon_threadsafe(done.set)

    for each in futures:
        each.add_done_callback(count)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await done.wait()
    return done.is_set()
