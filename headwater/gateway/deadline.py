"""A time limit that is moved far more often than it passes."""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def when(self) -> float: ...
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What an event loop has of it."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Deadline:
    """Calls `on_passed` once it has not been moved in time. Moving it costs next to nothing: its one timer stays as it is, and is set
    again when it fires too early.
    """

    def __init__(self, timers: Timers, on_passed: Callable[[], None]) -> None:
        self._timers, self._on_passed = timers, on_passed
        self._timer: Timer | None = None
        self._at_s = 0.0
        self.has_passed = False

    def move(self, in_s: float) -> None:
        """It passes `in_s` seconds from now, whatever it was before."""
        self.has_passed = False
        self._at_s = self._timers.time() + in_s
        if self._timer is not None and self._timer.when() > self._at_s:
            self.close()
        if self._timer is None:
            self._timer = self._timers.call_at(self._at_s, self._look)

    def close(self) -> None:
        """It does not pass any more, until it is moved."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._timers.time() < self._at_s:
            self._timer = self._timers.call_at(self._at_s, self._look)
        else:
            self.has_passed = True
            self._on_passed()
