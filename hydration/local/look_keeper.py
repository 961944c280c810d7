"""A thread that looks once a second at every partition that is read, so that readers need not wait for looks."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from headwater_core.clock import Clock
from hydration.local.local_tier import KEPT_S, LOOK_S, LocalTier

READ_S = 60.0  # a partition that was read no longer ago is looked at without a request
_STOP_S = 1.0


class LookKeeper:
    """Use as a context."""

    def __init__(self, tiers: Callable[[], Iterable[LocalTier]], clock: Clock) -> None:
        """tiers   those that there are at the moment"""
        self._tiers, self._clock = tiers, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)  # its disk may hang

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S / 2):
            self.step()
        for tier in self._tiers():
            tier.max_age_s = LOOK_S

    def step(self) -> None:
        """One look at each tier in use, until it is stopped."""
        active_s = self._clock.monotonic_s() - READ_S
        for tier in self._tiers():
            if tier.used_s < active_s:
                tier.max_age_s = LOOK_S
                continue
            with suppress(Exception):  # a reader meets it and reports it
                tier.log(LOOK_S / 2)
            tier.max_age_s = KEPT_S
            if self._stop.is_set():
                break
