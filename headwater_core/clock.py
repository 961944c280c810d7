"""Time, passed in so that tests and the simulation own it; and how a time is shown, whoever gave it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000  # 0001-01-01 and 10000-01-01: what a datetime holds lies between


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. For people and policies; safety never rests on it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back, for durations."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


def time_text(time_ms: int) -> str:
    """Milliseconds since the epoch as UTC, as in "2026-01-31T12:00:00Z". Producers write any int64 into a record, some of them
    microseconds, and what lies beyond the year 9999, or before the year 1, is shown as the number that it is."""
    return _time_text(time_ms, "seconds")


def exact_time_text(time_ms: int) -> str:
    """The same to the millisecond, as in "2026-01-31T12:00:00.250Z": what is given back to `parse_time_ms` is that very time."""
    return _time_text(time_ms, "milliseconds")


def _time_text(time_ms: int, unit: str) -> str:
    if not _FIRST_MS <= time_ms < _END_MS:
        return str(time_ms)
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec=unit).replace("+00:00", "Z")
