"""How long an offset has been waited for, over all the requests for it."""

from collections import OrderedDict
from typing import NamedTuple

OFFSETS_MAX = 10_000  # beyond it the one that was requested longest ago starts again


class WantedOffset(NamedTuple):
    partition: str
    offset: int


class Patience:
    """An offset is waited for from the first request that did not get it to the first that does; after `limit_s` without a request its
    clients have given up."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._requested_s: OrderedDict[WantedOffset, tuple[float, float]] = OrderedDict()  # for the first time, and lately

    def is_over(self, wanted: WantedOffset, now_s: float) -> bool:
        """Whether `wanted`, which a request has not got now, has been waited for too long."""
        first_s, lately_s = self._requested_s.pop(wanted, (now_s, now_s))
        if now_s - lately_s >= self._limit_s:
            first_s = now_s
        self._requested_s[wanted] = first_s, now_s
        if len(self._requested_s) > OFFSETS_MAX:
            self._requested_s.popitem(last=False)
        return now_s - first_s >= self._limit_s

    @property
    def has_any(self) -> bool:
        """Whether any offset is waited for."""
        return bool(self._requested_s)

    def got(self, wanted: WantedOffset) -> None:
        """A request got it: the wait is over."""
        self._requested_s.pop(wanted, None)
