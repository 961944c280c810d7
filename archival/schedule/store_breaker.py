"""Whether the store answers at all: when it does not, for anybody, one partition at a time tries it until it does (decision 0011)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random

from headwater_core.errors import ENVIRONMENT_ERRORS, HeadwaterError, SourceChanged, UploadStopped
from headwater_core.partition import TopicPartition

OPENS_AT = 4  # partitions; with fewer their own pauses are few enough tries
PROBE_S = 1.0  # from the opening to the first probe; it doubles with each one that fails
PROBE_MAX_S = 30.0  # how long everybody may wait after the store has come back


class StoreContact:
    """What a step hears of the store. answered: to one call at least. failed: some call got no answer, or was refused whatever it said."""

    def __init__(self) -> None:
        self.answered = self.failed = False


_contact: ContextVar[StoreContact | None] = ContextVar("store_contact", default=None)


@contextmanager
def listening() -> Iterator[StoreContact]:
    """What this thread hears of the store until the end of the block."""
    contact = StoreContact()
    before = _contact.set(contact)
    try:
        yield contact
    finally:
        _contact.reset(before)


@contextmanager
def heard() -> Iterator[None]:
    """Around each call of the store: see GuardedStore."""
    contact = _contact.get()
    try:
        yield
    except HeadwaterError as error:
        if contact:
            if isinstance(error, ENVIRONMENT_ERRORS) and not isinstance(error, (SourceChanged, UploadStopped)):
                contact.failed = True
            else:
                contact.answered = True
        raise
    if contact:
        contact.answered = True


class StoreBreaker:
    """Closed as long as the store answers to anybody. Not safe to use from many threads. Times are seconds of one monotonic clock.

    It opens when steps of OPENS_AT different partitions in a row have failed with the store. Then a step is a probe, and begins only
    when no other is in hand, after a pause that grows. The first step to which the store answers closes it.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failing: set[TopicPartition] = set()  # since the last answer, while it is closed
        self._probe_at_s: float | None = None
        self._pause_s = PROBE_S

    @property
    def is_open(self) -> bool:
        return self._probe_at_s is not None

    def probe_in_s(self, now_s: float) -> float | None:
        """When the next probe may begin; None while it is closed."""
        return None if self._probe_at_s is None else max(0.0, self._probe_at_s - now_s)

    def may_begin(self, now_s: float, in_hand: int) -> bool:
        """May a step begin while so many others are in hand?"""
        return self._probe_at_s is None or (in_hand == 0 and now_s >= self._probe_at_s)

    def failed(self, place: TopicPartition, now_s: float) -> None:
        """The store has failed a step of `place`."""
        if self._probe_at_s is None:
            self._failing.add(place)
            if len(self._failing) < OPENS_AT:
                return
            self._pause_s = PROBE_S
        elif now_s < self._probe_at_s:
            return  # it began before the breaker opened
        else:
            self._pause_s = min(PROBE_MAX_S, 2 * self._pause_s)
        self._probe_at_s = now_s + self._pause_s * self._random.uniform(0.5, 1.0)

    def answered(self) -> None:
        """The store has answered a step, whatever came of it."""
        self._failing.clear()
        self._probe_at_s = None
