"""Work in threads has the context of its submitter."""

import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context

import pytest

from headwater_core.threads import ContextThreads, DaemonThreads

NAMED: ContextVar[str] = ContextVar("named", default="nobody")


@pytest.mark.parametrize("threads", [ContextThreads(1), DaemonThreads(1, "test")], ids=lambda each: type(each).__name__)
def test_each_piece_of_work_has_its_own_context_in_one_thread(threads: Executor) -> None:
    def submitted(name: str) -> str:
        NAMED.set(name)
        return threads.submit(NAMED.get).result(30)

    assert [copy_context().run(submitted, each) for each in ("first", "second")] == ["first", "second"]
    assert threads.submit(NAMED.get).result(30) == "nobody"
    assert list(copy_context().run(lambda: (NAMED.set("third"), list(threads.map(lambda _: NAMED.get(), range(3))))[1])) == ["third"] * 3
    threads.shutdown()


def test_what_work_sets_stays_with_it() -> None:
    with ContextThreads(1) as threads:
        threads.submit(NAMED.set, "inside").result(30)
        assert threads.submit(NAMED.get).result(30) == "nobody"


def test_few_items_are_taken_before_their_time_and_none_after_an_error() -> None:
    taken: list[int] = []
    done: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            assert len(taken) - len(done) < 20
            yield number

    def work(number: int) -> None:
        if number == 500:
            raise ValueError("the 500th")
        done.append(number)

    with ContextThreads(2) as threads:
        threads.run_each(done.append, range(100))
        assert sorted(done) == list(range(100))
        done.clear()
        with pytest.raises(ValueError, match="500th"):
            threads.run_each(work, items())
    assert 500 < len(taken) < 530


def test_one_slow_item_keeps_no_other_from_its_thread() -> None:
    others_done = threading.Event()
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            assert others_done.wait(30)
        done.append(number)
        if len(done) == 99:
            others_done.set()

    with ContextThreads(2) as threads:
        threads.run_each(work, range(100))
    assert done[-1] == 0
