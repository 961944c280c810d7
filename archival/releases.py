"""The releases of local copies: in an owned directory by this agent, beside a broker by the broker at this agent's request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from archival.broker.broker_release import REFUSED_S, Blocked, BrokerReleaser, Choice, ReleaseRecord
from archival.broker.broker_view import Broker, GroupOffset
from archival.broker.disk_forecast import DiskForecast
from archival.broker.lagging_groups import LaggingGroups
from archival.config import ArchivalConfig
from archival.members import Member
from archival.partition.archiver import PartitionArchiver
from archival.partition.release import NO_LIMIT, Release, ReleaseLimit, Releaser, kept_from, plan_release
from archival.partition.source import LocalLogs
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.segments.local_log import LocalLog
from manifests.repository import ManifestRepository

REPORT_MS = 600_000  # a release that waits so long for the same commit of a group is reported

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Released:
    """What one try came to.

    size_bytes  what was deleted
    again_s     after so long it is to be tried again, though nothing may happen to the log until then; None: it need not
    """

    size_bytes: int = 0
    again_s: float | None = None


class Releases:
    """Of all partitions of one agent.

    owned   no broker works on the log directories
    broker  the one whose directories these are; None where it is not asked
    wait    sleeps for so many seconds
    data_dir  where what was seen of groups outlives the process
    free_bytes  see DiskForecast, which measures while releases wait
    """

    def __init__(
        self,
        *,
        logs: LocalLogs,
        repository: ManifestRepository,
        writer: str,
        owned: bool,
        broker: Broker | None,
        clock: Clock,
        wait: Callable[[float], object],
        data_dir: Path,
        free_bytes: Callable[[], Sequence[int]],
    ) -> None:
        self._writer, self._owned, self._clock = writer, owned, clock
        self.disk_forecast = DiskForecast(free_bytes, clock)
        self._releaser = Releaser(logs=logs, repository=repository, writer=writer, owned=owned)
        self._broker_releaser, self._lagging_groups = None, None
        if broker is not None:
            self._broker_releaser = BrokerReleaser(logs=logs, broker=broker, repository=repository, writer=writer, wait=wait)
            self._lagging_groups = LaggingGroups(broker, clock, data_dir / "groups")

    def are_wanted(self, settings: ArchivalConfig) -> bool:
        """Beside a broker only where that is requested: consumers may not know yet where to read what it has deleted."""
        return settings.release is not False if self._owned else bool(settings.release)

    def are_made(self, settings: ArchivalConfig) -> bool:
        """Are they wanted, and is there somebody who can delete?"""
        return self.are_wanted(settings) and (self._owned or self._broker_releaser is not None)

    def is_complete(self, member: Member, log: LocalLog, next_offset: int, settings: ArchivalConfig) -> bool:
        """Is nothing left to release of what is archived up to `next_offset`, as far as a look shows?"""
        next_offset = min(next_offset, self._kept(settings, log).offset)
        if self._owned:
            return not _is_beyond_first(log, next_offset)
        led = log.leadership
        if led is None or not led.is_ours or not led.all_in_sync or log.compacted_only:
            return True  # there may be, but not now
        end = member.released.end if member.released.leader_epoch == led.leader_epoch else 0
        return not any(end < following.base_offset <= next_offset for following in log.segments[1:])

    def _kept(self, settings: ArchivalConfig, log: LocalLog, limit: ReleaseLimit = NO_LIMIT) -> ReleaseLimit:
        """limit: of the groups"""
        keep_bytes, keep_ms = settings.release_keep_bytes, settings.release_keep_ms
        return min(limit, kept_from(log, keep_bytes=keep_bytes, keep_ms=keep_ms, now_ms=self._clock.now_ms()))

    def release(
        self, member: Member, archiver: PartitionArchiver, log: LocalLog, settings: ArchivalConfig, *, at_once: bool = False
    ) -> Released:
        """Release what is archived of `log`, where `are_made`. Raises what Releaser.release does for an owned directory; what fails at the
        broker is tried again later: neither this partition's archiving nor any other waits for it.

        at_once  look at groups now, instead of together with other partitions a moment later
        """
        if not self._owned:
            return self._release_at_broker(member, archiver, log, settings, at_once)
        if not self._may_release(member, archiver, log, settings):
            return Released()
        return Released(self._releaser.release(archiver, lambda log: self._kept(settings, log)).size_bytes)

    def _may_release(self, member: Member, archiver: PartitionArchiver, log: LocalLog, settings: ArchivalConfig) -> bool:
        """Is it worth asking the bucket? Not for an idle log, apart from the first time: side files may be left from a crash."""
        if not member.is_swept:
            member.is_swept = True
            return True
        head = archiver.head
        if head is None or self.is_complete(member, log, head.next_offset, settings):
            return False
        return bool(plan_release(log, head, self._writer, self._kept(settings, log)).segments)

    def _release_at_broker(
        self, member: Member, archiver: PartitionArchiver, log: LocalLog, settings: ArchivalConfig, at_once: bool
    ) -> Released:
        assert self._broker_releaser is not None
        assert self._lagging_groups is not None
        record, head, now_s = member.released, archiver.head, self._clock.monotonic_s()
        if log.compacted_only:
            record.reason = "cleanup.policy is compact alone: the broker deletes no records on request"
        if head is None or head.writer != self._writer or self.is_complete(member, log, head.next_offset, settings):
            return Released()
        if now_s < record.again_s:
            return Released(again_s=record.again_s - now_s)
        record.tried_in(log.leadership.leader_epoch if log.leadership is not None else -1)
        planned = plan_release(log, head, self._writer, self._kept(settings, log))
        if planned.local_start <= record.end or not planned.segments:
            record.reason, record.choice, record.blocked = planned.reason, None, None
            return Released()
        limit, blocked, listing = NO_LIMIT, None, None
        try:
            if settings.release_past_groups:
                self._lagging_groups.warn(log.partition, planned.local_start)
            else:
                if record.choice is None or at_once:
                    record.choice = Choice(planned.local_start, self._lagging_groups.begun)
                choice = record.choice
                listing = self._lagging_groups.newer_than(choice.listings, at_once=at_once)
                if listing is None:
                    return Released(again_s=self._lagging_groups.wait_s)
                record.choice = None  # the next try needs groups as they are then
                limit = ReleaseLimit(choice.end, "what follows is released next")
                lowest = listing.lowest(log.partition.topic_partition, settings.release_ignore_groups_after_s)
                if lowest is not None:
                    limit = min(limit, ReleaseLimit(lowest.offset, f"group {lowest.group} has not read the rest"))
                    blocked = self._blocked(planned, max(lowest.offset, record.end, log.start_offset), lowest)
                read = plan_release(log, head, self._writer, self._kept(settings, log, limit))
                if blocked is not None and read.local_start <= max(record.end, log.start_offset):
                    return self._wait_for(blocked, record, log)
            release = self._broker_releaser.release(archiver, lambda log: self._kept(settings, log, limit))
        except HeadwaterError as error:
            is_listed = settings.release_past_groups or listing is not None
            record.choice = None
            pause_s = record.failed(error, now_s, REFUSED_S if is_listed else self._lagging_groups.wait_s)
            (_log.warning if isinstance(error, TransientError) else _log.error)(
                "release_postponed", partition=str(log.partition), reason=str(error)
            )
            return Released(again_s=pause_s)
        record.released(release)
        if blocked is not None:
            return replace(self._wait_for(blocked, record, log), size_bytes=release.size_bytes)
        return Released(release.size_bytes, 0.0 if limit.offset < planned.local_start else None)

    def _blocked(self, planned: Release, end: int, lowest: GroupOffset) -> Blocked | None:
        """Return what of `planned` the group has not read, and is not deleted; None for nothing. end: of what it has read, or is deleted"""
        ends = (*(segment.base_offset for segment in planned.segments[1:]), planned.local_start)
        unread = [segment.size_bytes for segment, next_offset in zip(planned.segments, ends, strict=True) if next_offset > end]
        return Blocked(*lowest, self._clock.now_ms(), len(unread), sum(unread)) if unread else None

    def _wait_for(self, blocked: Blocked, record: ReleaseRecord, log: LocalLog) -> Released:
        self.disk_forecast.measure()
        again_s = record.block(blocked, self._clock.monotonic_s())
        if record.blocked is not None and record.is_overdue(self._clock.now_ms(), REPORT_MS):
            _log.warning("release_blocked", partition=str(log.partition), group=blocked.group, offset=blocked.offset, reason=record.reason)
        return Released(again_s=again_s)


def _is_beyond_first(log: LocalLog, next_offset: int) -> bool:
    """Is the first segment sealed, and archived up to its end?"""
    return len(log.segments) > 1 and log.segments[1].base_offset <= next_offset
