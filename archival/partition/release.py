"""Deletes local segments that are archived, in a directory that Headwater owns (design §4, Release).

Nothing here trusts the control log or what an archiver remembers: the head is read again, and compared with a fresh look.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from archival.partition.archiver import PartitionArchiver
from archival.partition.source import LocalLogs
from archival.plan.lineage import branches_at, may_lack
from archival.plan.role import Acting, Standby, archiving_role
from headwater_core import milestones
from headwater_core.errors import SourceChanged, UsageError
from headwater_core.files import disk_errors, sync_path
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests.head import Head
from manifests.repository import ManifestRepository

MILESTONES = ("release.head_read", "release.planned", "release.log_unlinked", "release.unlinked")

_SIDE_FILES = (".index", ".timeindex", ".txnindex", ".snapshot")
_SIDE_FILE = re.compile(r"(\d{20})(\.index|\.timeindex|\.txnindex|\.snapshot)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What may go, or went, and why not more.

    local_start  base of the first segment that stays
    """

    segments: tuple[LocalSegment, ...]
    local_start: int
    reason: str

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


class ReleaseLimit(NamedTuple):
    """The first offset that stays, and why."""

    offset: int
    reason: str


NO_LIMIT = ReleaseLimit(1 << 63, "")


def no_limit(log: LocalLog) -> ReleaseLimit:
    return NO_LIMIT


def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
    """The first offset that must stay, and why. Pure.

    It requires our own fence and the partition's current leader epoch in the head, every assigned replica in sync (so that
    no election can overtake the check), nothing local that the archive may lack, and stops at the first live entry that is a gap
    over offsets the log still holds, that was not confirmed, or that does not lie on the log's epoch history.
    """
    start, nothing = log.start_offset, log.local_start
    acting = archiving_role(log)
    if isinstance(acting, Standby):
        return nothing, acting.reason
    if not log.settled or log.high_watermark is None:
        return nothing, "the log is not settled, or has no high watermark"
    if log.leadership_unread:
        return nothing, "the metadata log, which says who leads, cannot be read"
    if head is None:
        return nothing, "nothing is archived"
    refusal = _refusal(log, head, writer, acting)
    if refusal:
        return nothing, refusal
    if not head.entries or head.entries.base_offset > start:
        return nothing, f"the archive begins at {head.start_offset}, the log at {start}"
    if lacking := may_lack(log.epochs, head.entries, start):
        return nothing, f"what is archived from {lacking[0].base_offset} on may lack records that the log holds"
    branch = branches_at(log.epochs, head.entries)
    bound = start
    for entry in head.entries.within(start, log.high_watermark):
        if entry.gap and entry.last_offset >= start:
            return bound, f"offsets from {max(entry.base_offset, start)} on are a gap in the archive"
        if not entry.gap and not entry.digest:
            return bound, f"the object of offsets from {entry.base_offset} on was never verified"
        if branch is not None and branch <= entry.last_offset:
            return max(bound, min(branch, log.high_watermark)), f"offsets from {branch} on are a dead branch in the archive"
        bound = min(max(bound, entry.next_offset), log.high_watermark)
    return bound, "the rest is not archived"


def _refusal(log: LocalLog, head: Head, writer: str, acting: Acting) -> str:
    if head.writer != writer:
        return f"{head.writer} holds the partition"
    if head.leader_epoch != acting.leader_epoch:
        return f"the head follows leader epoch {head.leader_epoch}, the log acts under {acting.leader_epoch}"
    if log.leadership and len(log.leadership.replicas) > 1 and not log.leadership.all_in_sync:
        return "not every replica is in sync"
    return ""


def kept_from(log: LocalLog, *, keep_bytes: int, keep_ms: int, now_ms: int) -> ReleaseLimit:
    """Return the base of the first segment among the newest `keep_bytes`, or written to within `keep_ms`. Pure.

    When a segment was written to is its file's time: the times of its records are its producers'.
    """
    newer_bytes = sum(segment.size_bytes for segment in log.segments)
    for segment in log.segments:
        newer_bytes -= segment.size_bytes
        if newer_bytes < keep_bytes:
            return ReleaseLimit(segment.base_offset, f"the newest {keep_bytes} bytes are kept (release_keep_bytes)")
        if keep_ms and now_ms - segment.generation.modified_ns // 1_000_000 < keep_ms:  # else a clock that is behind keeps nothing
            return ReleaseLimit(segment.base_offset, f"what was written within {keep_ms} ms is kept (release_keep_ms)")
    return NO_LIMIT


def plan_release(log: LocalLog, head: Head | None, writer: str, kept: ReleaseLimit = NO_LIMIT) -> Release:
    """The oldest sealed segments that lie wholly below the bound and below what is kept. Pure."""
    bound, reason = min(release_bound(log, head, writer), kept, key=lambda limit: limit[0])
    gone: list[LocalSegment] = []
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if segment.is_active or following.base_offset > bound:
            break
        gone.append(segment)
    local_start = log.segments[len(gone)].base_offset if log.segments else log.local_start
    return Release(segments=tuple(gone), local_start=local_start, reason=reason)


class Releaser:
    """Deletes archived segments of owned directories; refuses all others."""

    def __init__(self, *, logs: LocalLogs, repository: ManifestRepository, writer: str, owned: bool) -> None:
        self._logs, self._repository, self._writer, self._owned = logs, repository, writer, owned

    def release(
        self, archiver: PartitionArchiver, kept: Callable[[LocalLog], ReleaseLimit] = no_limit, *, dry_run: bool = False
    ) -> Release:
        """One round over `archiver`'s partition; its lock keeps the two apart.

        Raises UsageError for a directory that is a broker's, SourceChanged when the log changes meanwhile, and what the repository raises.
        """
        if not self._owned:
            raise UsageError("the log directory is not owned (log.owned = false): its broker deletes there, not headwater")
        with archiver.lock, disk_errors(archiver.partition):
            head = self._load(archiver)
            milestones.reached("release.head_read")
            log = self._logs.look(archiver.partition.topic_partition)
            if log.partition != archiver.partition:
                raise SourceChanged(f"{archiver.partition} is another incarnation now: {log.partition.topic_id}")
            release = plan_release(log, head, self._writer, kept(log))
            self._look_again(log, release)
            milestones.reached("release.planned")
            if not dry_run:
                for segment in release.segments:
                    delete_segment(segment)
                sweep(log.directory, release.local_start)
        if release.segments and not dry_run:
            structlog.get_logger().info(
                "segments_released",
                partition=str(archiver.partition),
                topic_id=archiver.partition.topic_id,
                segments=len(release.segments),
                size_bytes=release.size_bytes,
                local_start=release.local_start,
            )
        return release

    def _look_again(self, log: LocalLog, release: Release) -> None:
        """One look is not atomic: what was decided from it counts only when a second one shows the same."""
        again = self._logs.look(log.partition.topic_partition)
        seen, now = ((each.partition, each.epochs, each.start_offset, archiving_role(each)) for each in (log, again))
        if seen != now or not again.settled or not set(release.segments) <= set(again.segments):
            raise SourceChanged(f"{log.partition}: the log changed while its release was decided")

    def _load(self, archiver: PartitionArchiver) -> Head | None:
        held = self._repository.load(archiver.partition)
        return held.head if held else None


def delete_segment(segment: LocalSegment) -> None:
    """Remove one segment's files, the log first: a log without its transaction index would show aborted records.

    Side files that a crash leaves are `sweep`'s. The directory is flushed before the next segment goes, so that
    after a power loss the local log is still one piece. Raises SourceChanged for another file under the name, and OSError.
    """
    try:
        status = segment.path.stat()
    except FileNotFoundError:
        return
    if (status.st_ino, status.st_mtime_ns) != segment.generation:
        raise SourceChanged(f"{segment.path} was replaced meanwhile")
    segment.path.unlink(missing_ok=True)
    sync_path(segment.path.parent)
    milestones.reached("release.log_unlinked")
    _unlink(segment.path.with_suffix(suffix) for suffix in _SIDE_FILES)
    milestones.reached("release.unlinked")


def sweep(directory: Path, local_start: int) -> None:
    """Remove side files below the local start whose log is gone. Raises OSError."""
    names = sorted(entry.name for entry in os.scandir(directory))
    logs = {name[:20] for name in names if name.endswith(".log")}
    _unlink(
        directory / name for name in names if (match := _SIDE_FILE.fullmatch(name)) and int(match[1]) < local_start and match[1] not in logs
    )


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
