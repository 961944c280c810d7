"""One piece of work, driven from a thread or to be awaited."""

import asyncio
from concurrent.futures import Future

import pytest

from headwater_core.errors import NotFound, TransientError
from hydration.resumption import Pending, Resumable, run_blocking, start


def adding(*futures: "Future[int]", closed: list[str] | None = None) -> Resumable[int]:
    total = 0
    try:
        for future in futures:
            try:
                total += yield future
            except NotFound:
                total += 100
    finally:
        if closed is not None:
            closed.append("closed")
    return total


def done(value: int) -> "Future[int]":
    future: Future[int] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> "Future[int]":
    future: Future[int] = Future()
    future.set_exception(error)
    return future


def test_work_that_need_not_wait_answers_at_once() -> None:
    assert run_blocking(adding(), 0.0) == 0
    assert start(adding()) == 0


def test_outcomes_and_errors_reach_the_work() -> None:
    assert run_blocking(adding(done(1), failed(NotFound("x")), done(2)), 1.0) == 103
    with pytest.raises(ZeroDivisionError):
        run_blocking(adding(failed(ZeroDivisionError())), 1.0)


def test_a_deadline_ends_the_work() -> None:
    closed: list[str] = []
    with pytest.raises(TransientError):
        run_blocking(adding(done(1), Future(), closed=closed), 0.01)
    assert closed


def test_pending_work_continues_where_its_future_completes() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    pending = start(adding(first, second, done(3)))
    assert isinstance(pending, Pending)
    first.set_result(1)
    assert not pending.future.done()
    second.set_result(2)
    assert pending.future.result(0) == 6


def test_pending_work_can_be_awaited() -> None:
    first: Future[int] = Future()

    async def wait() -> int:
        pending = start(adding(first))
        assert isinstance(pending, Pending)
        asyncio.get_running_loop().call_later(0.01, first.set_result, 7)
        return await asyncio.wrap_future(pending.future)

    assert asyncio.run(wait()) == 7


def test_an_error_in_pending_work_is_the_waiters() -> None:
    first: Future[int] = Future()
    pending = start(adding(first))
    assert isinstance(pending, Pending)
    first.set_exception(ZeroDivisionError())
    assert isinstance(pending.future.exception(0), ZeroDivisionError)


def test_a_cancelled_answer_ends_the_work_or_is_discarded() -> None:
    for futures in (1, 2):
        closed: list[str] = []
        discarded: list[int] = []
        first: Future[int] = Future()
        pending = start(adding(*[first, done(1)][:futures], closed=closed), discard=discarded.append)
        assert isinstance(pending, Pending)
        assert pending.future.cancel()
        first.set_result(5)
        assert closed
        assert not discarded


def test_a_long_chain_of_completed_futures_does_not_grow_the_stack() -> None:
    first: Future[int] = Future()
    pending = start(adding(first, *(done(1) for _ in range(5_000))))
    assert isinstance(pending, Pending)
    first.set_result(0)
    assert pending.future.result(0) == 5_000
