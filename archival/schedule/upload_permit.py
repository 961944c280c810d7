"""Whether the next piece of an upload may go: at once, after a pause, or not at all because nobody wants the upload any more."""

import threading
from collections.abc import Callable

from headwater_core.clock import Clock
from headwater_core.errors import UploadStopped

SLICE_S = 0.25  # of a pause, between two looks whether the upload is still wanted
BURST_S = 0.25  # what was not used of the rate is kept for so long


class UploadRate:
    """The rate of all uploads together. Safe to use from many threads, whose pieces go in the order in which they come.

    bytes_per_s  the limit as it is now; None: there is none
    """

    def __init__(self, bytes_per_s: Callable[[], int | None], clock: Clock) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._lock = threading.Lock()
        self._free_s = clock.monotonic_s()  # when all that was reserved will have gone

    def reserve(self, size_bytes: int) -> float:
        """How long the next piece has to wait, in seconds. It counts as sent."""
        rate = self._bytes_per_s()
        with self._lock:
            now_s = self._clock.monotonic_s()
            if rate is None:
                self._free_s = now_s
                return 0.0
            starts_s = max(self._free_s, now_s - BURST_S)
            self._free_s = starts_s + size_bytes / rate
            return max(0.0, starts_s - now_s)


class UploadPermit:
    """Called before each piece of one upload, from any thread.

    unwanted  why the upload is not wanted any more; "" while it is
    wait      sleeps for so many seconds
    """

    def __init__(self, rate: UploadRate, unwanted: Callable[[], str], wait: Callable[[float], object]) -> None:
        self._rate, self._unwanted, self._wait = rate, unwanted, wait

    def __call__(self, size_bytes: int) -> None:
        """Return when a piece of `size_bytes` may go; at once where nothing does. Raises UploadStopped."""
        self.check()
        if not size_bytes:
            return
        left_s = self._rate.reserve(size_bytes)
        while left_s > 0:
            self._wait(min(left_s, SLICE_S))
            left_s -= SLICE_S
            self.check()

    def check(self) -> None:
        """Raises UploadStopped when the upload is not wanted any more."""
        if reason := self._unwanted():
            raise UploadStopped(reason)


class StepWatch:
    """One step in hand, as the one who has given it out sees it.

    ends   why everything in hand has to end; "" while it has not
    waits  what waits for this one to end, as far as it may be begun again; "" while nothing does
    """

    def __init__(self, clock: Clock, ends: Callable[[], str] = lambda: "", waits: Callable[[], str] = lambda: "") -> None:
        self._clock, self.ends, self.waits = clock, ends, waits
        self._moved_s = clock.monotonic_s()

    def moved(self) -> None:
        """Something has happened: the step does not hang."""
        self._moved_s = self._clock.monotonic_s()

    @property
    def silent_s(self) -> float:
        """For how long nothing has happened."""
        return self._clock.monotonic_s() - self._moved_s
