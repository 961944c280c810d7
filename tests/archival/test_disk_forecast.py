"""When the disk of a log directory is full: by what it lost of its free space lately."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.broker.disk_forecast import INTERVAL_S, OLD_S, SPAN_MIN_S, WINDOW_S, DiskForecast, FreeSpace, full_in_s
from tests.headwater_core.manual_clock import ManualClock


class Disks:
    def __init__(self, *free_bytes: int) -> None:
        self.free_bytes: Sequence[int] | OSError = free_bytes
        self.looks = 0

    def __call__(self) -> Sequence[int]:
        self.looks += 1
        if isinstance(self.free_bytes, OSError):
            raise self.free_bytes
        return self.free_bytes


@given(st.integers(1, 10**15), st.integers(1, 10**9), st.integers(1, 10**6))
def test_at_an_even_pace_it_is_full_when_nothing_is_left(free: int, pace: int, span_s: int) -> None:
    left_s = full_in_s(FreeSpace(0, (free + pace * span_s, 5)), FreeSpace(span_s, (free, 7)))
    assert left_s == pytest.approx(free / pace)


def test_the_disk_that_is_full_first_counts_and_one_that_empties_does_not() -> None:
    assert full_in_s(FreeSpace(0, (1000, 500, 10)), FreeSpace(100, (900, 400, 20))) == pytest.approx(400)
    assert full_in_s(FreeSpace(0, (10, 10)), FreeSpace(100, (10, 20))) is None


def test_it_rests_on_the_last_hour_and_on_nothing_short() -> None:
    clock, disks = ManualClock(), Disks(10_000_000)
    forecast = DiskForecast(disks, clock)
    forecast.measure()
    assert forecast.full_in_s() is None
    clock.advance(round(1000 * (SPAN_MIN_S - 1)))
    disks.free_bytes = (9_000_000,)
    forecast.measure()
    assert forecast.full_in_s() is None
    for _ in range(round(2 * WINDOW_S / INTERVAL_S)):  # what was before the last hour counts no more
        clock.advance(round(1000 * INTERVAL_S))
        (free,) = disks.free_bytes
        disks.free_bytes = (free - 600,)
        forecast.measure()
    (free,) = disks.free_bytes
    assert forecast.full_in_s() == pytest.approx(free / 10)
    clock.advance(round(1000 * (INTERVAL_S / 2)))
    looks = disks.looks
    forecast.measure()
    assert disks.looks == looks
    assert forecast.full_in_s() == pytest.approx(free / 10 - INTERVAL_S / 2)


def test_nothing_is_foreseen_from_looks_that_are_old_or_fail() -> None:
    clock, disks = ManualClock(), Disks(10_000)
    forecast = DiskForecast(disks, clock)
    for free in (10_000, 9000):
        disks.free_bytes = (free,)
        forecast.measure()
        clock.advance(round(1000 * SPAN_MIN_S))
    assert forecast.full_in_s() is not None
    clock.advance(round(1000 * OLD_S))
    assert forecast.full_in_s() is None
    disks.free_bytes = OSError("gone")
    forecast.measure()
    assert forecast.full_in_s() is None
    disks.free_bytes = (8000,)
    forecast.measure()  # a pause is no pace
    assert forecast.full_in_s() is None
