"""How long what a client waits for has not been there, over all the requests that asked for it."""

from collections import OrderedDict
from typing import NamedTuple

PLACES_MAX = 10_000  # beyond it the longest unasked place begins to wait anew


class Place(NamedTuple):
    partition: str
    offset: int


class Patience:
    """A place is waited for from the first request that did not get it to the first that does; a client that does not ask for
    `limit_s` has given it up."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._asked_s: OrderedDict[Place, tuple[float, float]] = OrderedDict()  # for the first time, and lately

    def is_over(self, place: Place, now_s: float) -> bool:
        """Ask where `place` is still waited for."""
        first_s, lately_s = self._asked_s.pop(place, (now_s, now_s))
        if now_s - lately_s >= self._limit_s:
            first_s = now_s
        self._asked_s[place] = first_s, now_s
        if len(self._asked_s) > PLACES_MAX:
            self._asked_s.popitem(last=False)
        return now_s - first_s >= self._limit_s

    @property
    def has_places(self) -> bool:
        """Whether anything is waited for."""
        return bool(self._asked_s)

    def got(self, place: Place) -> None:
        self._asked_s.pop(place, None)
