"""Notices a store that is silent: calls are in flight, and for a while none was answered and no byte has moved."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, TransientError

SILENCE_S = 10.0
REPEAT_S = 30.0
_LOOK_S = 1.0


@runtime_checkable
class ReportsProgress(Protocol):
    """A store that calls `progressed`, which may be set, while bytes of a call move."""

    progressed: Callable[[], object]


class SilenceWatch:
    """`calling` goes around each call, `progressed` is called as bytes move. Safe to use from many threads.

    report  called once a silence has lasted SILENCE_S, and every REPEAT_S while it lasts
    over    called when it is over; `report` when there is none

    `look` is one look at the clock. Between the first call and `close` a thread takes them, when `start` has been called.
    """

    def __init__(self, url: str, report: Callable[[str], object], clock: Clock, *, over: Callable[[str], object] | None = None) -> None:
        self._url, self._report, self._over, self._clock = url, report, over or report, clock
        self._lock = threading.Lock()
        self._began_s: dict[object, float] = {}
        self._heard_s = float("-inf")
        self._silent_since_s: float | None = None  # as reported
        self._report_at_s = 0.0
        self._called, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around one call."""
        call = object()
        with self._lock:
            self._began_s[call] = self._clock.monotonic_s()
        self._called.set()
        answered = True
        try:
            yield
        except TransientError:
            answered = False  # the call gave up waiting, most likely; anything else is an answer
            raise
        except HeadwaterError:
            raise
        except BaseException:
            answered = False
            raise
        finally:
            with self._lock:
                del self._began_s[call]
            if answered:
                self.progressed()

    def progressed(self) -> None:
        """Bytes have moved."""
        self._heard_s = self._clock.monotonic_s()

    def silent_s(self) -> float:
        """How long the calls in flight have heard nothing, in seconds; 0 while there are none."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            oldest_s = min(self._began_s.values(), default=now_s)
        return max(0.0, now_s - max(self._heard_s, oldest_s))

    def look(self) -> None:
        """Report a silence that is due, or its end."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            waiting, oldest_s = len(self._began_s), min(self._began_s.values(), default=now_s)
        heard_s, since_s = self._heard_s, self._silent_since_s
        if since_s is not None and heard_s > since_s:
            self._silent_since_s = None
            self._over(f"{self._url} answers again, after {heard_s - since_s:.0f} s")
        silent_since_s = max(heard_s, oldest_s)
        if not waiting or now_s - silent_since_s < SILENCE_S:
            return
        if self._silent_since_s is None:
            self._silent_since_s, self._report_at_s = silent_since_s, now_s
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + REPEAT_S
            requests = "request" if waiting == 1 else "requests"
            self._report(f"no answer from {self._url} for {now_s - self._silent_since_s:.0f} s, {waiting} {requests} waiting")

    def start(self) -> None:
        """Start the thread that looks."""
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._stop.set()
        self._called.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        """Sleeps while there is nothing to watch."""
        while not self._stop.is_set():
            self._called.wait()
            self._called.clear()
            while not self._stop.wait(_LOOK_S):
                self.look()
                if not self._began_s and self._silent_since_s is None:
                    break
