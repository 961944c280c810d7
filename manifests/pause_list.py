"""paused.json: what an operator has paused, for all agents of the archive, until it is resumed.

It is in the bucket because the next leader of a partition must be paused too, and because an agent that cannot read the bucket cannot
archive either: so no pause is ever overlooked for want of an answer. Values in, values out; the repository does the compare-and-swap.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name
from manifests.document import FORMAT, prepared, seal, unseal

PAUSES_MAX = 10_000  # those in force and those that are over; of these the oldest are forgotten first
KEPT_MS = 7 * 24 * 3600 * 1000  # those that are over: they explain gaps of a day after
_TEXT_CHARS_MAX = 100
_TIME_MS_MAX = 253_402_300_799_000  # the end of the year 9999


class PauseScope(NamedTuple):
    """What one pause is about: a partition, a topic, or, without a topic, everything."""

    topic: str | None = None
    partition: int | None = None

    def covers(self, place: TopicPartition) -> bool:
        return self.topic in (None, place.topic) and self.partition in (None, place.partition)

    def __str__(self) -> str:
        return "everything" if self.topic is None else self.topic if self.partition is None else f"{self.topic}:{self.partition}"


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of them. by: which node or person; until_ms: when it was over; None while it is in force."""

    topic: str | None = None
    partition: int | None = None
    since_ms: int
    by: str
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.topic is not None:
            check_topic_name(self.topic)
        if self.partition is not None:
            TopicPartition(self.topic or "", self.partition)
        if not 0 <= self.since_ms <= (self.until_ms or self.since_ms) <= _TIME_MS_MAX or len(self.by) > _TEXT_CHARS_MAX:
            raise ValueError(f"impossible pause: {self}")

    @property
    def selection(self) -> PauseScope:
        return PauseScope(self.topic, self.partition)

    @property
    def in_force(self) -> bool:
        return self.until_ms is None


@prepared
class PauseList(msgspec.Struct, frozen=True, kw_only=True):
    """version: rises with every change."""

    format: tuple[int, int] = FORMAT
    version: int = 0
    pauses: tuple[Pause, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.version < 2**63 or len(self.pauses) > PAUSES_MAX:
            raise ValueError(f"version {self.version}, {len(self.pauses)} pauses")

    def of(self, place: TopicPartition) -> Pause | None:
        """The pause in force that began first; None when `place` may be archived."""
        found = [each for each in self.pauses if each.in_force and each.selection.covers(place)]
        return min(found, key=lambda each: each.since_ms, default=None)

    def last_of(self, place: TopicPartition) -> Pause | None:
        """The one that was over last; None when no such pause is remembered."""
        found = [each for each in self.pauses if not each.in_force and each.selection.covers(place)]
        return max(found, key=lambda each: each.until_ms or 0, default=None)

    def paused(self, selection: PauseScope, *, now_ms: int, by: str) -> "PauseList":
        """With a pause of `selection`; itself when there is one."""
        if any(each.in_force and each.selection == selection for each in self.pauses):
            return self
        pause = Pause(topic=selection.topic, partition=selection.partition, since_ms=now_ms, by=by)
        return self._with((*self.pauses, pause), now_ms)

    def resumed(self, selection: PauseScope, *, now_ms: int) -> "PauseList":
        """Without those pauses in force that `selection` covers; itself when there is none. Raises UsageError when one in force is wider:
        it would still hold."""
        wider = [each for each in self.pauses if each.in_force and _is_wider(each.selection, selection)]
        if wider:
            raise UsageError(f"{wider[0].selection} is paused as a whole: resume that")
        over = [replace(each, until_ms=max(now_ms, each.since_ms)) if _covers(selection, each) else each for each in self.pauses]
        return self if tuple(over) == self.pauses else self._with(tuple(over), now_ms)

    def _with(self, pauses: tuple[Pause, ...], now_ms: int) -> "PauseList":
        pauses = tuple(each for each in pauses if each.until_ms is None or now_ms - each.until_ms <= KEPT_MS)
        excess = len(pauses) - PAUSES_MAX
        if excess > 0:
            oldest = sorted((each.until_ms, at) for at, each in enumerate(pauses) if each.until_ms is not None)[:excess]
            if len(oldest) < excess:
                raise UsageError(f"{PAUSES_MAX} pauses are in force; pause whole topics, or everything")
            pauses = tuple(each for at, each in enumerate(pauses) if at not in {place for _, place in oldest})
        return replace(self, version=self.version + 1, pauses=pauses, format=FORMAT)


def _covers(selection: PauseScope, pause: Pause) -> bool:
    return pause.in_force and (pause.selection == selection or _is_wider(selection, pause.selection))


def _is_wider(one: PauseScope, other: PauseScope) -> bool:
    """Is `other` a part of `one`?"""
    if one.topic is None:
        return other.topic is not None
    return one.topic == other.topic and one.partition is None and other.partition is not None


def encode_pauses(pauses: PauseList) -> bytes:
    return seal(pauses)


def decode_pauses(raw: bytes, where: str) -> PauseList:
    """Raises CorruptData, and UnsupportedFormat for another major version."""
    return unseal(raw, PauseList, where)
