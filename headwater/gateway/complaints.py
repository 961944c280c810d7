"""Errors for the operator: each told once in a while, not once per retry of every client."""

from collections import OrderedDict

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, NotFound, OffsetOutOfRange, TransientError

QUIET_S = 10.0
REMEMBERED_MAX = 1000  # beyond it the longest forgotten complaint may be repeated early

log = structlog.get_logger()


class Complaints:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_s: OrderedDict[tuple[str, type], float] = OrderedDict()

    def tell(self, event: str, partition: str, error: Exception) -> None:
        """A client's own mistakes are not told; what mends itself is a warning; the rest is for a person, and what is no error of
        ours comes with its traceback: it is a mistake in here."""
        if isinstance(error, OffsetOutOfRange | NotFound):
            return
        key = (partition, type(error))
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s.get(key, float("-inf")) < QUIET_S:
            return
        self._told_s[key] = now_s
        self._told_s.move_to_end(key)
        if len(self._told_s) > REMEMBERED_MAX:
            self._told_s.popitem(last=False)
        if not isinstance(error, HeadwaterError):
            log.error(event, partition=partition, reason=repr(error), exc_info=error)
            return
        tell = log.warning if isinstance(error, TransientError) else log.error
        tell(event, partition=partition, reason=str(error))
