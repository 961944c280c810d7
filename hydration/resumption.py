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
Resumable = Generator[Future[Any], Any, T]


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """An answer on its way: await asyncio.wrap_future(pending.future). When that is cancelled, the work ends at its next wait."""

    future: Future[T]


def run_blocking(work: Resumable[T], timeout_s: float | None) -> T:
    """What `work` returns, run to its end in this thread. Raises what it does, and TransientError when `timeout_s` seconds are over
    before that; None is no limit."""
    deadline = None if timeout_s is None else monotonic() + timeout_s
    try:
        waits_for = next(work)
        while True:
            remaining_s = None if deadline is None else max(0.0, deadline - monotonic())
            wait((waits_for,), remaining_s)
            if not waits_for.done():
                raise TransientError(f"not there after {timeout_s:g} s; ask again")
            waits_for = _resume(work, waits_for)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        work.close()


def start(work: Resumable[T], discard: Callable[[T], None] | None = None) -> T | Pending[T]:
    """Run `work` as far as it goes without waiting, and the rest in the threads that complete what it waits for. Raises what `work` does
    before it first waits; later errors are the future's.

    discard   what to do with the answer when the future was cancelled
    """
    try:
        waits_for = next(work)
    except StopIteration as end:
        answer: T = end.value
        return answer
    pending: Pending[T] = Pending(Future())
    waits_for.add_done_callback(lambda done: _resume_on(work, done, pending.future, discard))
    return pending


def _resume_on(work: Resumable[T], done: Future[Any], answer: Future[T], discard: Callable[[T], None] | None) -> None:
    try:
        while True:
            if answer.cancelled():
                work.close()
                return
            done = _resume(work, done)
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
    waits_for.add_done_callback(lambda next_done: _resume_on(work, next_done, answer, discard))


def _resume(work: Resumable[T], done: Future[Any]) -> Future[Any]:
    """Hand a completed future's outcome to `work`; what it waits for next."""
    if done.cancelled():
        return work.throw(CancelledError())
    error = done.exception()
    return work.throw(error) if error is not None else work.send(done.result())
