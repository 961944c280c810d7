"""Work in threads has the context of its submitter."""

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
