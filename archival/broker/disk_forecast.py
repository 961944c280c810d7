"""When the disk of a log directory is full, at the pace at which it became fuller lately."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headwater_core.clock import Clock

INTERVAL_S = 60.0  # between two measurements
WINDOW_S = 3600.0  # long enough for segments that come and go
SPAN_MIN_S = 600.0  # of the measurements that a forecast rests on
OLD_S = 900.0  # releases that wait are tried again within 300 s, so nobody has measured since because none waits


class FreeSpace(NamedTuple):
    """free_bytes: of the file system of each log directory, in their order"""

    at_s: float
    free_bytes: Sequence[int]


def full_in_s(first: FreeSpace, last: FreeSpace) -> float | None:
    """Return how long after `last` the first of the disks is full if all go on as between the two; None where none becomes fuller."""
    span_s = last.at_s - first.at_s
    remaining_s = [now / (before - now) * span_s for before, now in zip(first.free_bytes, last.free_bytes, strict=True) if now < before]
    return min(remaining_s, default=None)


class DiskForecast:
    """Safe to use from many threads. free_bytes: of each log directory's file system; raises OSError, which is no news."""

    def __init__(self, free_bytes: Callable[[], Sequence[int]], clock: Clock) -> None:
        self._free_bytes, self._clock = free_bytes, clock
        self._measured, self._lock = deque[FreeSpace](), threading.Lock()

    def measure(self) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._measured and now_s - self._measured[-1].at_s < INTERVAL_S:
                return
            try:
                found = FreeSpace(now_s, tuple(self._free_bytes()))
            except OSError:
                return
            if self._measured and (now_s - self._measured[-1].at_s > OLD_S or len(found.free_bytes) != len(self._measured[-1].free_bytes)):
                self._measured.clear()
            self._measured.append(found)
            while now_s - self._measured[0].at_s > WINDOW_S:
                self._measured.popleft()

    def full_in_s(self) -> float | None:
        """Return the time until a disk is full; None where none becomes fuller, or too little was seen."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if not self._measured or now_s - self._measured[-1].at_s > OLD_S:
                return None
            first, last = self._measured[0], self._measured[-1]
        if last.at_s - first.at_s < SPAN_MIN_S:
            return None
        remaining_s = full_in_s(first, last)
        return None if remaining_s is None else max(0.0, remaining_s - (now_s - last.at_s))
