"""Which groups have not read what release would delete at the broker, and which of them count as gone.

A group counts as gone when it had no members and the same commits for long enough. Only time between two listings counts, at most an hour
apart, that the same process made, by a clock that nobody sets: an agent that was down saw nothing, and a clock that jumps changes nothing.
What was seen outlives the process in a file; losing it makes every group begin again.
"""

import hashlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from archival import state_file
from archival.broker.broker_view import Broker, Group, GroupOffset
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.files import replace_file, with_checksum
from headwater_core.partition import PartitionId, TopicPartition

INTERVAL_S, INTERVAL_MAX_S = 10.0, 300.0  # between the begins of two listings; the longer one after failures: each asks all brokers
APART_MAX_S = 3600.0  # of two listings between which a group was seen without members: nobody knows what it did in a longer time
SAVE_S = 60.0  # of time that passed, and nothing else: a crash makes it count again
RECENT_S = 3600.0  # as old may be what only warns

_log = structlog.get_logger()


class IdleTime(msgspec.Struct, frozen=True):
    """How long a group was seen without members and with the same commits.

    commits  their fingerprint; "" while the group has members
    """

    commits: str
    idle_s: float


class IdleGroup(NamedTuple):
    group: Group
    idle_s: float


@dataclass(frozen=True, slots=True)
class GroupListing:
    """All groups of the cluster. number: of the listings that one process has begun"""

    number: int
    groups: Sequence[IdleGroup]

    def lowest(self, partition: TopicPartition, ignore_after_s: float) -> GroupOffset | None:
        """Return the group that has read least of `partition`, of those that do not count as gone; None where no group reads it. Pure."""
        offsets = (
            GroupOffset(group.name, offset)
            for group, idle_s in self.groups
            if idle_s < ignore_after_s and (offset := group.unread_from(partition)) is not None
        )
        return min(offsets, key=lambda found: (found.offset, found.group), default=None)


class LaggingGroups:
    """Safe to use from many threads.

    path  where what was seen outlives the process
    """

    def __init__(self, broker: Broker, clock: Clock, path: Path) -> None:
        self._broker, self._clock, self._path = broker, clock, path
        self._listing = threading.Lock()
        self._times = self._saved = _load(path)
        self._begun, self._failures = 0, 0
        self._next_s = float("-inf")  # no listing begins before
        self._completed_s = float("-inf")  # the last one that succeeded
        self._last: GroupListing | None = None
        self._failure: HeadwaterError | None = None
        self._warned: dict[TopicPartition, GroupOffset] = {}

    @property
    def begun(self) -> int:
        """The number of listings that have begun until now: one with a higher number is newer than all that is known now."""
        return self._begun

    @property
    def wait_s(self) -> float:
        """Return how long to wait before another listing may begin, or one that is under way may have ended."""
        return max(1.0, self._next_s - self._clock.monotonic_s())

    def newer_than(self, number: int, *, at_once: bool = False) -> GroupListing | None:
        """Return a complete listing that began after `number` others had; None where there is none yet.

        at_once  wait for one that is under way, and begin one now

        Raises what Broker.groups raises, and DiskFull and TransientError; so does every call after that until the next listing is due.
        What was seen is on disk when this returns: a group that came back must not be found as idle as it was.
        """
        if not self._listing.acquire(blocking=at_once):
            return None
        try:
            if self._last is not None and self._last.number > number:
                return self._last
            if self._clock.monotonic_s() >= self._next_s or (at_once and self._failure is None):
                return self._list()
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return None
        finally:
            self._listing.release()

    def warn(self, partition: PartitionId, end: int) -> None:
        """Report a group that has not read records before offset `end`, which are deleted all the same, once for that offset of it."""
        try:
            is_recent = self._clock.monotonic_s() < self._completed_s + RECENT_S
            listing = self.newer_than(0 if is_recent else self._begun, at_once=True)
        except HeadwaterError:
            return  # it was logged
        lowest = listing.lowest(partition.topic_partition, float("inf")) if listing is not None else None
        if lowest is None or lowest.offset >= end or self._warned.get(partition.topic_partition) == lowest:
            return
        self._warned[partition.topic_partition] = lowest
        _log.warning(
            "consumers_behind_release",
            partition=str(partition),
            group=lowest.group,
            offset=lowest.offset,
            next_offset=end,
            reason="records that this group has not read are deleted at the broker: it must read them from Headwater's endpoint",
        )

    def _list(self) -> GroupListing:
        self._begun += 1
        began_s = self._clock.monotonic_s()
        try:
            groups = self._broker.groups(self._times.keys())
            passed_s = began_s - self._completed_s
            self._times = idle_times(self._times, groups, passed_s if passed_s <= APART_MAX_S else 0.0)
            self._completed_s = self._clock.monotonic_s()
            self._save()
        except HeadwaterError as error:
            if self._failure is None:  # once, until one succeeds
                _log.warning("consumer_groups_unknown", reason=str(error), consequence="nothing is released that waits for groups")
            self._failures += 1
            self._next_s = self._clock.monotonic_s() + min(INTERVAL_MAX_S, INTERVAL_S * 2.0 ** min(self._failures - 1, 10))
            self._failure = error
            raise
        if self._failure is not None:
            _log.info("consumer_groups_known")
        self._failures, self._failure, self._next_s = 0, None, began_s + INTERVAL_S
        self._last = GroupListing(self._begun, [IdleGroup(group, self._times[group.name].idle_s) for group in groups])
        return self._last

    def _save(self) -> None:
        if not _is_worth_saving(self._saved, self._times):
            return
        replace_file(self._path, with_checksum(msgspec.json.encode(self._times)))
        self._saved = self._times


def idle_times(before: Mapping[str, IdleTime], groups: Collection[Group], passed_s: float) -> dict[str, IdleTime]:
    """Return the times of `groups`, which were listed `passed_s` after `before`. Pure.

    A time grows only where a group had no members at both ends, and committed nothing in between.
    """
    times: dict[str, IdleTime] = {}
    for group in groups:
        commits = "" if group.has_members else _fingerprint(group)
        last = before.get(group.name)
        is_idle = last is not None and last.commits == commits != ""
        times[group.name] = IdleTime(commits, last.idle_s + passed_s if last is not None and is_idle else 0.0)
    return times


def _fingerprint(group: Group) -> str:
    commits = sorted((committed.topic, committed.partition, offset) for committed, offset in group.commits.items())
    return hashlib.sha256(msgspec.json.encode(commits)).hexdigest()[:16]


def _is_worth_saving(saved: Mapping[str, IdleTime], times: Mapping[str, IdleTime]) -> bool:
    return saved.keys() != times.keys() or any(
        saved[name].commits != time.commits or time.idle_s < saved[name].idle_s or time.idle_s >= saved[name].idle_s + SAVE_S
        for name, time in times.items()
    )


def _load(path: Path) -> dict[str, IdleTime]:
    return state_file.load(path, dict[str, IdleTime], "groups that are gone hold releases back for longer") or {}
