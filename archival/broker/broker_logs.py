"""Local logs whose high watermark comes from the broker where its checkpoint is too old to show that a sealed segment is committed.

The checkpoint is up to 5 s old. So the broker is asked about partitions that have a sealed segment which the checkpoint does not cover, and
about no others: an idle partition costs nothing. What it said counts in the leader epoch in which it said it. When it does not
answer, the checkpoint counts.
"""

import threading
from collections.abc import Collection, Iterable
from dataclasses import replace

from archival.broker.broker_view import Broker, CommittedEnd
from archival.partition.source import LocalLogs
from archival.plan.role import Acting, archiving_role
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog

PLACES_MAX = 1000  # that one request names


class BrokerLogs:
    """Safe to use from many threads: while one request is in flight those who wait are gathered for the next one."""

    def __init__(self, logs: LocalLogs, broker: Broker, clock: Clock) -> None:
        self._logs, self._broker, self._clock = logs, broker, clock
        self._lock = threading.Lock()  # of the tables, held for moments
        self._request = threading.Lock()
        self._known: dict[TopicPartition, CommittedEnd] = {}
        self._asked_s: dict[TopicPartition, float] = {}  # when the broker was last asked about each
        self._expected: dict[TopicPartition, None] = {}

    def look(self, partition: TopicPartition) -> LocalLog:
        """As LogDirs.look, with the broker's high watermark where it matters."""
        began_s = self._clock.monotonic_s()
        log = self.as_known(self._logs.look(partition))
        if not awaits_commit(log):
            return log
        self._ask(partition, began_s)
        return self.as_known(log)

    def expect(self, places: Iterable[TopicPartition]) -> None:
        """Something happened to them: the next request may as well name them too."""
        with self._lock:
            self._expected.update(dict.fromkeys(places))

    def retain(self, places: Collection[TopicPartition]) -> None:
        """All others are gone."""
        with self._lock:
            for place in self._known.keys() - set(places):
                del self._known[place]
            for place in self._asked_s.keys() - set(places):
                del self._asked_s[place]

    def as_known(self, log: LocalLog) -> LocalLog:
        """`log` with the high watermark that the broker has said, where that is newer and still counts. Asks nobody."""
        with self._lock:
            known = self._known.get(log.partition.topic_partition)
        if known is None or known.high_watermark <= (log.high_watermark or 0) or not _is_led(log, known):
            return log
        return replace(log, high_watermark=known.high_watermark)

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
                self._known.update(found)
                self._asked_s.update(dict.fromkeys(places, asked_s))


def awaits_commit(log: LocalLog) -> bool:
    """Is there a sealed segment of a log that this broker leads, of which it is not known whether it is committed?"""
    led = log.leadership is not None and log.leadership.is_ours and isinstance(archiving_role(log), Acting)
    return led and len(log.segments) > 1 and log.segments[-1].base_offset > (log.high_watermark or 0)


def _is_led(log: LocalLog, known: CommittedEnd) -> bool:
    led = log.leadership
    role = archiving_role(log)
    return (
        led is not None
        and led.is_ours
        and known.topic_id == log.partition.topic_id
        and known.leader_epoch == led.leader_epoch
        and isinstance(role, Acting)
        and role.leader_epoch == known.leader_epoch
    )
