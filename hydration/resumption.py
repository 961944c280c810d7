"""Work that may have to wait: written once, as a generator that yields the futures it waits for; run from threads and coroutines.

A generator that never yields costs its caller no thread, no future and no switch: that is the cached read.
"""

from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from headwater_core.errors import TransientError

T = TypeVar("T")
Steps = Generator[Future[Any], Any, T]


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """An answer on its way: await asyncio.wrap_future(pending.future). A cancelled one is dropped as soon as the work rests."""

    future: Future[T]


def finish(steps: Steps[T], timeout_s: float | None) -> T:
    """Run `steps` to their end in this thread. Raises TransientError when `timeout_s` is over before that."""
    deadline = None if timeout_s is None else monotonic() + timeout_s
    try:
        waits_for = next(steps)
        while True:
            remaining_s = None if deadline is None else max(0.0, deadline - monotonic())
            wait((waits_for,), remaining_s)
            if not waits_for.done():
                raise TransientError(f"not there after {timeout_s:g} s; ask again")
            waits_for = _resume(steps, waits_for)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        steps.close()


def begin(steps: Steps[T], discard: Callable[[T], None] | None = None) -> T | Pending[T]:
    """Run `steps` as far as they go without waiting, and the rest in the threads that complete what they wait for.

    discard   what to do with an answer that nobody waits for any more
    """
    try:
        waits_for = next(steps)
    except StopIteration as end:
        answer: T = end.value
        return answer
    pending: Pending[T] = Pending(Future())
    waits_for.add_done_callback(lambda done: _carry_on(steps, done, pending.future, discard))
    return pending


def _carry_on(steps: Steps[T], done: Future[Any], answer: Future[T], discard: Callable[[T], None] | None) -> None:
    try:
        while True:
            if answer.cancelled():
                steps.close()
                return
            done = _resume(steps, done)
            if not done.done():
                break
    except StopIteration as end:
        if answer.set_running_or_notify_cancel():
            answer.set_result(end.value)
        elif discard is not None:
            discard(end.value)
        return
    except BaseException as error:  # it is the waiter's now
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)
        return
    waits_for = done
    waits_for.add_done_callback(lambda next_done: _carry_on(steps, next_done, answer, discard))


def _resume(steps: Steps[T], done: Future[Any]) -> Future[Any]:
    """Hand a completed future's outcome to `steps`; what they wait for next."""
    if done.cancelled():
        return steps.throw(CancelledError())
    error = done.exception()
    return steps.throw(error) if error is not None else steps.send(done.result())
