"""Has the broker delete what is archived, by DeleteRecords (design §4, Release).

The request names a topic and an offset, neither a topic id nor a leader epoch. So everything that it rests on is read over the connection
that it goes over: the same broker led the partition in the same leader epoch when it said what its log holds. Every assigned
replica held what is deleted, so no election in between can put other records in its place. The topic id is read right before and after: in
between lies the only moment in which a topic that is deleted and created again could be met.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from archival.broker.broker_view import Broker, PinnedBroker
from archival.partition.archiver import PartitionArchiver
from archival.partition.release import Release, ReleaseLimit, no_limit, plan_release
from archival.partition.source import LocalLogs
from archival.plan.role import Acting, archiving_role
from headwater_core import milestones
from headwater_core.clock import time_text
from headwater_core.counts import count_text
from headwater_core.errors import HeadwaterError, SourceChanged, TransientError
from headwater_core.files import disk_errors
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import Leadership, LocalLog, LocalSegment
from manifests.repository import ManifestRepository

PAUSE_S, PAUSE_MAX_S = 0.5, 60.0  # before a release that failed is tried again
REFUSED_S = 600.0  # the same, where the topic's policy or our rights forbid it
BLOCKED_S, BLOCKED_MAX_S = 5.0, 300.0  # the same, where a group has not read what may go otherwise; 5 s: consumers commit as often
_METADATA_LOOKS = 6  # at the broker's own copy of the metadata log, which is some milliseconds behind the quorum's
_METADATA_PAUSE_S = 0.05

_log = structlog.get_logger()


class Choice(NamedTuple):
    """Segments that may go, chosen before their groups are listed.

    end       they lie below this offset
    listings  of groups that had begun by then: one that counts begins later
    """

    end: int
    listings: int


class Blocked(NamedTuple):
    """A group that has not read what may go otherwise.

    offset    the first that it has not read
    since_ms  when that was first seen to block a release here
    segments  so many wait for it, from the first one on that it has not read to the end
    """

    group: str
    offset: int
    since_ms: int
    segments: int
    size_bytes: int

    @property
    def reason(self) -> str:
        waiting = f"{count_text(self.segments, 'segment')} of {self.size_bytes} bytes"
        return f"group {self.group} has not read from offset {self.offset} on: {waiting} wait for it since {time_text(self.since_ms)}"


@dataclass(slots=True)
class ReleaseRecord:
    """What was released of one partition since the agent started, in the leader epoch that it was last tried in.

    end       offsets before it were deleted
    reason    why not more; "" before the first try
    again_s   not to be tried before, after one that failed
    failures  in a row, or tries that the same commit of a group blocked
    choice    of the try that is under way
    blocked   by which group the last try was
    reported  the group and its commit that a warning has named
    """

    leader_epoch: int = -1
    end: int = 0
    size_bytes: int = 0
    reason: str = ""
    again_s: float = 0.0
    failures: int = 0
    choice: Choice | None = None
    blocked: Blocked | None = None
    reported: tuple[str, int] | None = None

    def tried_in(self, leader_epoch: int) -> None:
        """Another leader may not have deleted what was deleted on this one."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch, self.end, self.choice, self.blocked = leader_epoch, 0, None, None

    def released(self, release: Release) -> None:
        self.reason, self.failures, self.again_s, self.blocked = release.reason, 0, 0.0, None
        self.end = max(self.end, release.local_start)
        self.size_bytes += release.size_bytes

    def failed(self, error: HeadwaterError, now_s: float, refused_s: float = REFUSED_S) -> float:
        """How long to wait before the next try: longer each time, and `refused_s` where a person must act first."""
        self.reason = str(error)
        self.failures += 1
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self.failures - 1, 20)) if isinstance(error, TransientError) else refused_s
        self.again_s = now_s + pause_s
        return pause_s

    def is_overdue(self, now_ms: int, report_ms: int) -> bool:
        """Return whether a group has blocked it for `report_ms`, once for each commit of a group."""
        if self.blocked is None or self.blocked[:2] == self.reported or now_ms - self.blocked.since_ms < report_ms:
            return False
        self.reported = self.blocked[:2]
        return True

    def block(self, blocked: Blocked, now_s: float) -> float:
        """Return how long to wait for the group: longer each time while its commit stays the same."""
        before = self.blocked
        is_same = before is not None and before[:2] == blocked[:2]
        self.failures = self.failures + 1 if is_same else 1
        self.blocked = blocked._replace(since_ms=before.since_ms) if before is not None and is_same else blocked
        self.reason = self.blocked.reason
        pause_s = min(BLOCKED_MAX_S, BLOCKED_S * 2.0 ** min(self.failures - 1, 20))
        self.again_s = now_s + pause_s
        return pause_s


class BrokerReleaser:
    """Deletes archived segments at the broker beside this agent.

    wait  sleeps for so many seconds
    """

    def __init__(
        self, *, logs: LocalLogs, broker: Broker, repository: ManifestRepository, writer: str, wait: Callable[[float], object]
    ) -> None:
        self._logs, self._broker, self._repository, self._writer, self._wait = logs, broker, repository, writer, wait

    def release(
        self, archiver: PartitionArchiver, kept: Callable[[LocalLog], ReleaseLimit] = no_limit, *, dry_run: bool = False
    ) -> Release:
        """One round over `archiver`'s partition; its lock keeps archiving and release apart.

        Raises DeletionRefused when the topic's policy or our rights do not allow it; SourceChanged when the log, its leader or its replicas
        changed meanwhile; TransientError when the broker does not answer; and what the repository raises.
        """
        partition = archiver.partition
        with archiver.lock, disk_errors(partition):
            held = self._repository.load(partition)
            milestones.reached("release.head_read")
            first = self._look(partition)
            led = _own_leadership(first)
            if led is None:
                return _nothing(first, "this broker does not lead the partition, or it is not known who does")
            with self._broker.pinned() as broker:
                log, log_start = self._described(broker, first, led)
                if log_start < log.local_start:
                    return _nothing(log, f"the broker holds offsets from {log_start} on elsewhere: in remote storage, most likely")
                release = plan_release(log, held.head if held else None, self._writer, kept(log))
                release = replace(release, segments=_not_deleted(release, log_start))
                milestones.reached("release.planned")
                if not release.segments or dry_run:
                    return release
                self._delete(broker, partition, release.local_start)
        _log.info(
            "segments_released",
            partition=str(partition),
            topic_id=partition.topic_id,
            segments=len(release.segments),
            size_bytes=release.size_bytes,
            local_start=release.local_start,
        )
        return release

    def _described(self, broker: PinnedBroker, first: LocalLog, led: Leadership) -> tuple[LocalLog, int]:
        """The log as its leader describes it, with who is in sync at that moment or later; and where it says that it begins.

        The high watermark must not be newer than what is known of the replicas: one that has left the in-sync set would lack records
        below it. So the metadata log is looked at afterwards, up to where the quorum had committed it by then.
        """
        partition = first.partition
        said = broker.leader_log(partition.topic_partition, led.leader_epoch, first.epochs)
        metadata_end = broker.metadata_end()
        for looks in range(_METADATA_LOOKS):
            log = self._look(partition)
            if log.metadata_end is not None and log.metadata_end >= metadata_end:
                break
            if looks + 1 == _METADATA_LOOKS:
                raise SourceChanged(f"{partition}: the broker's metadata log ends at {log.metadata_end}, the quorum's at {metadata_end}")
            self._wait(_METADATA_PAUSE_S)
        now = _own_leadership(log)
        if now is None or now.leader_epoch != led.leader_epoch or log.epochs != first.epochs:
            raise SourceChanged(f"{partition}: an election came in between")
        if said.topic_id != partition.topic_id:
            raise SourceChanged(f"{partition}: the name means topic {said.topic_id} now")
        if not said.confirms(log.epochs):
            raise SourceChanged(f"{partition}: the broker knows another leader epoch history than its files show")
        return replace(log, high_watermark=said.high_watermark, log_start=said.log_start), said.log_start

    def _delete(self, broker: PinnedBroker, partition: PartitionId, end: int) -> None:
        if (now := broker.topic_id(partition.topic)) != partition.topic_id:
            raise SourceChanged(f"{partition}: the name means {f'topic {now}' if now else 'no topic that we may see'} now")
        broker.delete_records(partition.topic_partition, end)
        milestones.reached("release.requested")
        now = broker.topic_id(partition.topic)
        if now is not None and now != partition.topic_id:  # None: deleted since, or not ours to see any more; there is no other topic
            _log.error(
                "release_met_another_topic",
                partition=str(partition),
                topic_id=partition.topic_id,
                next_offset=end,
                reason=f"the name means topic {now} since: it may have lost records below this offset that were not archived",
            )

    def _look(self, partition: PartitionId) -> LocalLog:
        log = self._logs.look(partition.topic_partition)
        if log.partition != partition:
            raise SourceChanged(f"{partition} is another incarnation now: {log.partition.topic_id}")
        return log


def _own_leadership(log: LocalLog) -> Leadership | None:
    """Where this broker leads, in the newest epoch of its log."""
    role, led = archiving_role(log), log.leadership
    if led is None or not led.is_ours or log.leadership_unread or role != Acting(led.leader_epoch):
        return None
    return led


def _not_deleted(release: Release, log_start: int) -> tuple[LocalSegment, ...]:
    """Without those that the broker has deleted already, whose files it removes some minutes later."""
    ends = (*(each.base_offset for each in release.segments[1:]), release.local_start)
    return tuple(each for each, end in zip(release.segments, ends, strict=False) if end > log_start)


def _nothing(log: LocalLog, reason: str) -> Release:
    return Release(segments=(), local_start=log.local_start, reason=reason)
