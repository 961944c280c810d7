"""Local logs whose high watermark comes from the broker where its checkpoint is too old to show that a sealed segment is committed.

The checkpoint is up to 5 s old. So the broker is asked about partitions that have a sealed segment which the checkpoint does not cover, and
about no others: an idle partition costs nothing. What it said counts in the leader epoch in which it said it. When it does not
answer, the checkpoint counts.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from archival.broker.broker_view import Broker, CommittedEnd
from archival.partition.source import LocalLogs
from archival.plan.role import Acting, archiving_role
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import LocalLog

PLACES_MAX = 1000  # that one request names
FRESH_S = 0.4  # a log that is followed while it is written is asked about so often at most: with all others that are


class Watermark(NamedTuple):
    """A partition's high watermark, as its broker gave it when it was asked `age_s` ago."""

    offset: int
    age_s: float


class _Answer(NamedTuple):
    end: CommittedEnd
    asked_s: float


class BrokerLogs:
    """Safe to use from many threads: while one request is in flight those who wait are gathered for the next one."""

    def __init__(self, logs: LocalLogs, broker: Broker, clock: Clock, follows: Callable[[str], bool] = lambda topic: False) -> None:
        """follows  is what a topic has committed archived while it is written? Then the checkpoint is always too old"""
        self._logs, self._broker, self._clock, self._follows = logs, broker, clock, follows
        self._followed: set[TopicPartition] = set()
        self._lock = threading.Lock()  # of the tables, held for moments
        self._request = threading.Lock()
        self._known: dict[TopicPartition, _Answer] = {}
        self._asked_s: dict[TopicPartition, float] = {}  # when the broker was last asked about each
        self._expected: dict[TopicPartition, None] = {}

    def look(self, partition: TopicPartition) -> LocalLog:
        """As LogDirs.look, with the broker's high watermark where it matters."""
        began_s = self._clock.monotonic_s()
        log = self._as_known(self._logs.look(partition))
        if _is_acting(log) and self._follows(partition.topic):
            self._followed.add(partition)
            self.expect(self._followed.copy())
            self._ask(partition, began_s - FRESH_S)
        elif awaits_commit(log):
            self._ask(partition, began_s)
        else:
            self._followed.discard(partition)
            return log
        return self._as_known(log)

    def expect(self, places: Iterable[TopicPartition]) -> None:
        """Something happened to them: the next request may as well name them too."""
        with self._lock:
            self._expected.update(dict.fromkeys(places))

    def learn(self, places: Collection[TopicPartition]) -> dict[TopicPartition, Watermark]:
        """Ask the broker about all of them now, and keep what it says of those that it leads. Nothing where it does not answer."""
        found = self._asked_about(list(places))
        with self._lock:
            for place, answer in found.items():
                known = self._known.get(place)
                if known is None or known.asked_s <= answer.asked_s:
                    self._known[place] = answer
        now_s = self._clock.monotonic_s()
        return {place: Watermark(answer.end.high_watermark, now_s - answer.asked_s) for place, answer in found.items()}

    def retain(self, places: Collection[TopicPartition]) -> None:
        """All others are gone."""
        with self._lock:
            for place in self._known.keys() - set(places):
                del self._known[place]
            for place in self._asked_s.keys() - set(places):
                del self._asked_s[place]
            self._followed &= set(places)

    def _as_known(self, log: LocalLog) -> LocalLog:
        """`log` with the high watermark that the broker has said, where that is newer and still counts. Asks nobody."""
        with self._lock:
            known = self._known.get(log.partition.topic_partition)
        if known is None or known.end.high_watermark <= (log.high_watermark or 0) or not _counts(log, known.end):
            return log
        return replace(log, high_watermark=known.end.high_watermark)

    def watermarks(self, logs: Collection[LocalLog], *, ask: bool) -> dict[PartitionId, Watermark]:
        """What the broker says of those that it leads, where that is not older than the look's checkpoint.

        ask  ask it about all of them now, for a person: nobody else waits for that, and nothing of it is kept; where it does not answer,
             what it said last counts
        """
        now = self._asked_about([log.partition.topic_partition for log in logs if _is_acting(log)]) if ask else {}
        with self._lock:
            kept = {place: answer for log in logs if (answer := self._known.get(place := log.partition.topic_partition)) is not None}
        now_s, found = self._clock.monotonic_s(), {}
        for log in logs:
            answers = (now.get(log.partition.topic_partition), kept.get(log.partition.topic_partition))
            for answer in answers:
                if answer is not None and _counts(log, answer.end):
                    found[log.partition] = Watermark(answer.end.high_watermark, now_s - answer.asked_s)
                    break
        return found

    def _asked_about(self, places: list[TopicPartition]) -> dict[TopicPartition, _Answer]:
        found: dict[TopicPartition, _Answer] = {}
        for first in range(0, len(places), PLACES_MAX):
            asked_s = self._clock.monotonic_s()
            try:
                ends = self._broker.committed(places[first : first + PLACES_MAX])
            except HeadwaterError:
                break  # the broker's client has logged it
            found.update({place: _Answer(end, asked_s) for place, end in ends.items()})
        return found

    def _ask(self, place: TopicPartition, began_s: float) -> None:
        with self._lock:
            self._expected[place] = None
        with self._request:
            with self._lock:
                if self._asked_s.get(place, -1.0) >= began_s:
                    return  # by the caller who was in flight when this one came
                self._expected.pop(place, None)
                places = [place, *list(self._expected)[: PLACES_MAX - 1]]
                for each in places[1:]:
                    del self._expected[each]
            asked_s = self._clock.monotonic_s()
            try:
                found = self._broker.committed(places)
            except HeadwaterError:
                found = {}  # the broker's client has logged it
            with self._lock:
                self._known.update({each: _Answer(end, asked_s) for each, end in found.items()})
                self._asked_s.update(dict.fromkeys(places, asked_s))


def awaits_commit(log: LocalLog) -> bool:
    """Is there a sealed segment of a log that this broker leads, of which it is not known whether it is committed?"""
    return _is_acting(log) and len(log.segments) > 1 and log.segments[-1].base_offset > (log.high_watermark or 0)


def _is_acting(log: LocalLog) -> bool:
    return log.leadership is not None and log.leadership.is_ours and isinstance(archiving_role(log), Acting)


def _counts(log: LocalLog, said: CommittedEnd) -> bool:
    """Is it of this log, in its present leader epoch, and not older than the checkpoint?"""
    return (
        log.leadership is not None
        and log.leadership.is_ours
        and said.topic_id == log.partition.topic_id
        and said.leader_epoch == log.leadership.leader_epoch
        and archiving_role(log) == Acting(said.leader_epoch)
        and said.high_watermark >= (log.high_watermark or 0)
    )
