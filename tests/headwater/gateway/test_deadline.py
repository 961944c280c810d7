"""A deadline passes exactly when it was not moved on in time, and sets a timer about as rarely as it could."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.deadline import Deadline


@dataclass(eq=False)
class ATimer:
    at_s: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class ManualTimers:
    """An event loop's timers on a clock that is turned by hand."""

    now_s: float = 100.0
    timers: list[ATimer] = field(default_factory=list)
    times_set: int = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> ATimer:
        self.timers.append(ATimer(when, callback))
        self.times_set += 1
        return self.timers[-1]

    def pending(self) -> list[ATimer]:
        return sorted((each for each in self.timers if not each.is_cancelled), key=ATimer.when)

    def go_to(self, now_s: float) -> None:
        while (due := self.pending()) and due[0].at_s <= now_s:
            self.now_s = due[0].at_s
            self.timers.remove(due[0])
            due[0].callback()
        self.now_s = now_s


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1))
def test_it_passes_when_it_was_not_moved_on_in_time_and_not_before(moves: list[tuple[int, int]]) -> None:
    """Each move: how long after the one before, and how far on."""
    timers = ManualTimers()
    passed_s: list[float] = []
    deadline = Deadline(timers, lambda: passed_s.append(timers.now_s))
    expected: list[float] = []
    at_s: float | None = None
    for pause_s, in_s in moves:
        now_s = timers.now_s + pause_s
        timers.go_to(now_s)
        if at_s is not None and at_s <= now_s:
            expected.append(at_s)
        assert deadline.has_passed == (at_s is not None and at_s <= now_s)
        assert passed_s == expected
        deadline.move(in_s)
        at_s = now_s + in_s
        assert not deadline.has_passed
        assert len(timers.pending()) == 1
    timers.go_to(timers.now_s + 100)
    assert passed_s == [*expected, at_s]
    assert not timers.pending()


def test_one_that_is_moved_on_often_hardly_ever_sets_a_timer() -> None:
    timers = ManualTimers()
    deadline = Deadline(timers, lambda: None)
    for _ in range(10_000):
        timers.go_to(timers.now_s + 0.1)
        deadline.move(600.0)
    assert timers.times_set <= 3


def test_one_that_is_closed_leaves_no_timer() -> None:
    timers = ManualTimers()
    deadline = Deadline(timers, lambda: None)
    deadline.move(5.0)
    deadline.close()
    assert not timers.pending()
