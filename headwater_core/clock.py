"""Time, passed in so that tests and the simulation own it."""

import time
from typing import Protocol


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
