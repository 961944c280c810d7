"""Work under keys, joined: what is not urgent delays no caller that waits."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headwater_core.errors import TransientError
from hydration.archive.single_flight import Attempt, SingleFlight
from hydration.runfile import RunFile


class Line:
    """Errands in the order they were begun; a test runs them."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    def __call__(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def run(self) -> None:
        self.attempts.pop(0).run()


@pytest.fixture
def ahead() -> Line:
    return Line()


@pytest.fixture
def demand() -> Line:
    return Line()


def values(keys: Sequence[object]) -> Iterator[object]:
    return iter([f"{key} ahead" for key in keys])


def failing(_: Sequence[object]) -> Iterator[object]:
    raise TransientError("ahead failed")


def test_nothing_is_started_when_one_of_several_is_in_flight(ahead: Line) -> None:
    flights = SingleFlight()
    one = flights.join("b", ahead, lambda: 7)
    flights.start_each(["a", "b"], ahead, lambda _: iter((1, 2)))
    assert len(ahead.attempts) == 1
    ahead.run()
    assert one.result(0) == 7
    flights.start_each(["a", "b", "c"], ahead, lambda _: iter((1, TransientError("two"))))
    joined = [flights.join(key, ahead, lambda: 0, urgent=False) for key in "abc"]
    ahead.run()
    assert joined[0].result(0) == 1
    assert isinstance(joined[1].exception(0), TransientError)
    assert isinstance(joined[2].exception(0), AssertionError), "an outcome is missing: no caller waits forever"
    assert not any(flights.is_in_flight(key) for key in "abc")


def test_what_has_not_begun_is_started_at_once_for_a_caller_that_waits(ahead: Line, demand: Line) -> None:
    flights = SingleFlight()
    flights.start_each("abc", ahead, values)
    waited = flights.join("b", demand, lambda: "b for me")
    demand.run()
    assert waited.result(0) == "b for me"
    others = [flights.join(key, ahead, lambda: None, urgent=False) for key in "ac"]
    ahead.run()
    assert [each.result(0) for each in others] == ["a ahead", "c ahead"]
    assert not ahead.attempts


def test_what_has_begun_is_shared(ahead: Line, demand: Line) -> None:
    flights = SingleFlight()

    def work(keys: Sequence[object]) -> Iterator[object]:
        joined.append(flights.join("b", demand, lambda: "b for me"))
        return values(keys)

    joined = []  # type: ignore[var-annotated]
    flights.start_each("ab", ahead, work)
    ahead.run()
    assert joined[0].result(0) == "b ahead"
    assert not demand.attempts


def test_a_caller_that_waits_shares_no_failure_of_work_that_was_not_urgent(ahead: Line, demand: Line) -> None:
    flights = SingleFlight()

    def work(keys: Sequence[object]) -> Iterator[object]:
        joined.append(flights.join("b", demand, lambda: "b for me"))
        return failing(keys)

    joined = []  # type: ignore[var-annotated]
    flights.start_each("ab", ahead, work)
    ahead.run()
    assert not joined[0].done()
    assert not flights.is_in_flight("a")
    demand.run()
    assert joined[0].result(0) == "b for me"


def test_late_work_is_started_again_for_a_caller_that_waits_and_the_first_outcome_counts(ahead: Line, demand: Line, tmp_path: Path) -> None:
    flights = SingleFlight()
    (tmp_path / "run").write_bytes(b"x")
    files = [RunFile.open(tmp_path / "run") for _ in range(2)]

    def work(_: Sequence[object]) -> Iterator[object]:
        joined.append(flights.join("a", demand, lambda: files[0], holders=1))
        ahead_attempt.on_late()
        demand.run()
        assert joined[0].result(0) is files[0]
        yield files[1]

    joined = []  # type: ignore[var-annotated]
    flights.start_each("a", ahead, work)
    ahead_attempt = ahead.attempts[0]
    ahead.run()
    assert joined[0].result(0) is files[0]
    files[0].release()
    assert [each.fileno() for each in files] == [-1, -1], "every hold was given back"


def test_who_comes_when_it_is_late_already_does_not_wait_for_it(ahead: Line, demand: Line) -> None:
    flights = SingleFlight()

    def work(keys: Sequence[object]) -> Iterator[object]:
        ahead_attempt.on_late()
        joined.append(flights.join("a", demand, lambda: "a for me"))
        return values(keys)

    joined = []  # type: ignore[var-annotated]
    flights.start_each("a", ahead, work)
    ahead_attempt = ahead.attempts[0]
    ahead.run()
    assert joined[0].result(0) == "a ahead", "it came first after all"
    demand.run()
    assert not flights.is_in_flight("a")


def test_closing_answers_callers_that_wait(ahead: Line) -> None:
    flights = SingleFlight()
    waiting = flights.join("a", ahead, lambda: 1)
    flights.close()
    assert isinstance(waiting.exception(0), TransientError)
    ahead.run()
    assert isinstance(waiting.exception(0), TransientError)


def test_what_can_no_longer_be_started_is_answered() -> None:
    def closed(_: Attempt) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    flights = SingleFlight()
    assert isinstance(flights.join("a", closed, lambda: 1).exception(0), TransientError)
    flights.start_each("ab", closed, values)
    assert not flights.is_in_flight("b")
