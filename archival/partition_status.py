"""The status of one partition: what is local, what is archived, how far the archive is behind the log, and why."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from archival.partition.source import open_segment
from archival.plan.lineage import Behind, verdict
from archival.plan.offload_trigger import LocalRetention, bounded, misfit
from archival.plan.policy import Policy
from archival.plan.replacement import irreplaceable
from archival.plan.role import Standby, Unfit, archiving_role
from archival.plan.step_plan import may_be_empty, next_steps
from archival.plan.steps import ClaimPartition, CutEntries, Follow, Idle, RecordGap, Replace, Revive, Step, Stop, Upload
from archival.plan.stream_plan import NO_ROOM, OpenStream
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batch_walk import headers, locate
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head

CHECKPOINTS = "by default it writes one every 5 s"

NEEDS = ("needs replacement", "needs upgrade")  # what such an error begins with
_NEXT: dict[type[Step], str] = {
    ClaimPartition: "this agent claims it next",
    CutEntries: "what another branch of the log had archived is superseded next",
    Replace: "it is archived again next",
    Revive: "a superseded run becomes live again next",
    RecordGap: "a gap is recorded next",
    Follow: "newly committed records are streamed next",
    Upload: "a segment is uploaded next",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLag:
    """What is committed in the local log and not yet in the archive.

    oldest_ms  timestamp of the first of it, as its producer or broker wrote it, or when its segment was last written to, if that is
               earlier; None when it has none
    """

    size_bytes: int
    oldest_ms: int | None

    def age_s(self, now_ms: int) -> float | None:
        """How long the oldest of it has waited; 0 when there is nothing, None when it does not say."""
        if self.size_bytes == 0:
            return 0.0
        return None if self.oldest_ms is None else max(0.0, (now_ms - self.oldest_ms) / 1000)


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head as the agent last saw it, loaded or committed, `age_s` ago."""

    head: Head
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One line of `headwater status`; offsets as in the glossary, None where there is nothing to say.

    released_end    what its broker was asked to delete ends before this offset; None: nothing, since this agent started
    released_bytes  how much that was
    release_reason  why it was not more; "" where nothing is released, or nothing was tried yet
    release_group   which group the release waits for; "" for none. release_group_offset: the first that it has not read;
                    release_blocked_ms: since when that is so; release_blocked_bytes: how much waits
    trigger_trouble  why a trigger that is set for it is not applied; "" where none is, or it is
    stream_trouble  why streaming offload takes nothing more of it for now; "" where it does, or it is not streamed
    known_age_s  how long ago the bucket last said what this line says of the archive; 0 when it was read just now
    merge_trouble  why what is to become one object does not; "" where it does, or where that is not known
    collection_trouble  why nothing that is not listed is deleted, or not all, until a person acts; "" where that is not so, or not known
    damage   which of its objects are known to be damaged, and what to do; "" where none is
    store_try_ms  when the agent tries the store again, which it leaves alone until then; None while the store answers
    high_watermark_source  who says how far the log is committed: `broker` (its own answer), `checkpoint` (the file that it writes); ""
                    where nobody does. high_watermark_age_s: how long ago; None: that is not known
    """

    topic: str
    partition: int
    topic_id: str
    archive_start: int | None
    local_start: int | None
    last_offset: int | None
    high_watermark: int | None
    lag_bytes: int | None
    lag_s: float | None
    archived_bytes: int
    objects: int
    cached_bytes: int
    known_age_s: float | None
    state: str
    reason: str
    released_end: int | None = None
    released_bytes: int = 0
    release_reason: str = ""
    release_group: str = ""
    release_group_offset: int | None = None
    release_blocked_ms: int | None = None
    release_blocked_bytes: int = 0
    trigger_trouble: str = ""
    stream_trouble: str = ""
    merge_trouble: str = ""
    collection_trouble: str = ""
    damage: str = ""
    store_try_ms: int | None = None
    high_watermark_source: str = ""
    high_watermark_age_s: float | None = None

    @classmethod
    def unknown(cls, place: TopicPartition, state: str, reason: str) -> "PartitionStatus":
        """Of a partition of which no more is known."""
        return cls(
            topic=place.topic,
            partition=place.partition,
            topic_id="",
            archive_start=None,
            local_start=None,
            last_offset=None,
            high_watermark=None,
            lag_bytes=None,
            lag_s=None,
            archived_bytes=0,
            objects=0,
            cached_bytes=0,
            known_age_s=None,
            state=state,
            reason=reason,
        )


def status_of(
    partition: PartitionId,
    log: LocalLog | None,
    head: Head | None,
    *,
    policy: Policy,
    tail_age_ms: int,
    now_ms: int,
    cached_bytes: int = 0,
    trouble: str = "",
    origin: WatermarkOrigin | None = None,
    stream: OpenStream | None = None,
    progressed: Callable[[], object] = lambda: None,
) -> PartitionStatus:
    """state: `archived` (nothing is left to do), `due` (a pass would do something), `waiting` (for a seal, or for time), `paused` (by
    command), `excluded` (by archive = "off": no lag), `standby` (another replica archives),
    `behind` (the archive has followed a newer leader epoch than this log),
    `archive-only` (no local log here), `stopped` (`trouble`, or what looking at the log found), and of that `needs replacement` and
    `needs upgrade` by name.

    origin  of the log's high watermark; None: its broker's checkpoint, of unknown age
    stream  what streaming offload has taken, as far as that is known
    progressed  see backlog

    Raises TransientError when the log changes while it is looked at, or its disk does not answer: that says nothing of its archiving.
    """
    lag: ArchiveLag | None = None
    state, reason = "archive-only", "no local log here"
    origin = origin or WatermarkOrigin(WatermarkSource.CHECKPOINT, None)
    if log is not None and policy.is_excluded:
        state, reason = "excluded", policy.off
    elif log is not None:
        policy = bounded(policy, log, now_ms)
        try:
            lag = backlog(log, head.next_offset if head else 0, progressed)
            state, reason = _state(log, head, lag, policy, tail_age_ms, origin, stream)
        except TransientError:
            raise
        except HeadwaterError as error:
            trouble = trouble or str(error)
    acts = state not in ("archive-only", "excluded", "standby", "behind")
    if acts and not trouble and log and head and (lacking := irreplaceable(log, head)):
        trouble = (
            f"needs replacement: what is archived from {lacking[0].base_offset} to {lacking[-1].last_offset} may lack records that "
            f"compaction had dropped for others, which an unclean election then took. The log begins at {log.start_offset}, so this "
            "cannot be archived again; it stays as it is, and archiving continues. A replica with these offsets repairs it when it leads"
        )
    if trouble:
        state, reason = stopped_by(trouble), trouble
    return PartitionStatus(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=partition.topic_id,
        archive_start=head.start_offset if head else None,
        local_start=log.start_offset if log else None,
        last_offset=head.last_offset if head and head.last_offset >= 0 else None,
        high_watermark=log.high_watermark if log else None,
        lag_bytes=lag.size_bytes if lag else None,
        lag_s=lag.age_s(now_ms) if lag else None,
        archived_bytes=head.entries.live_bytes if head else 0,
        objects=head.entries.objects if head else 0,
        cached_bytes=cached_bytes,
        known_age_s=0.0,
        state=state,
        reason=reason,
        trigger_trouble=misfit(policy.triggers, LocalRetention.of(log)) if log else "",
        stream_trouble=NO_ROOM if stream is not None and stream.lacks_room else "",
        high_watermark_source=origin.source.value if log and log.high_watermark is not None else "",
        high_watermark_age_s=origin.age_s if log and log.high_watermark is not None else None,
    )


def stopped_by(trouble: str) -> str:
    """The state of a partition that this has stopped."""
    return next((name for name in NEEDS if trouble.startswith(f"{name}: ")), "stopped")


def _state(
    log: LocalLog,
    head: Head | None,
    lag: ArchiveLag | None,
    policy: Policy,
    tail_age_ms: int,
    origin: WatermarkOrigin,
    stream: OpenStream | None,
) -> tuple[str, str]:
    """What the one who holds the claim would do next."""
    acting = archiving_role(log)
    if isinstance(acting, Standby):
        return "stopped" if isinstance(acting, Unfit) else "standby", acting.reason
    if head and isinstance(found := verdict(log.epochs, acting.leader_epoch, head), Behind):
        return "behind", found.reason
    held_to = stream.next_offset if stream is not None else 0
    steps = next_steps(log, head, writer=head.writer if head else "", policy=policy, tail_age_ms=tail_age_ms, held_to=held_to)
    step = next(each for each in steps if not may_be_empty(each))
    done = head is not None and lag is not None and lag.size_bytes == 0
    if done and isinstance(step, Upload) and step.refills is None:  # offsets without a batch: the step will find that out
        return "archived", _caught_up(origin)
    if isinstance(step, Idle):
        if policy.is_paused:
            return "paused", step.reason
        return ("archived", _caught_up(origin) if log.leadership else step.reason) if done else ("waiting", step.reason)
    if isinstance(step, Stop):
        return "stopped", str(step.error)
    limits = policy.stream_limits
    if isinstance(step, Follow) and stream is not None and limits is not None and stream.next_offset >= step.end:
        reason = stream.waits_for(limits, tail_age_ms)
        return ("waiting", reason) if reason else ("due", "an open stream is closed next")
    return "due", _NEXT[type(step)]


def _caught_up(origin: WatermarkOrigin) -> str:
    """Without its age, which grows while this is remembered."""
    return f"caught up with {origin._replace(age_s=None)}" + (f"; {CHECKPOINTS}" if origin.source is WatermarkSource.CHECKPOINT else "")


def backlog(log: LocalLog, archive_end: int, progressed: Callable[[], object] = lambda: None) -> ArchiveLag | None:
    """What is committed at or past offset `archive_end`; None while nothing says what is committed.

    Read from batch headers and file sizes alone; a file that changes meanwhile is counted as it was seen. `progressed` is called while
    its disk answers. Raises SourceChanged,
    CorruptData and what open_segment raises.
    """
    if log.high_watermark is None:
        return None
    first = max(archive_end, log.start_offset)
    if first >= log.high_watermark:
        return ArchiveLag(size_bytes=0, oldest_ms=None)
    size_bytes, oldest_ms = 0, None
    for segment, next_base in log.segments_from(first):
        if segment.base_offset >= log.high_watermark:
            break
        start, end = 0, segment.size_bytes  # positions in the file
        with open_segment(segment) as file:
            where = str(segment.path)
            if segment.base_offset < first:
                start = locate(file, first, 0, end, where=where, progressed=progressed)
            if next_base is None or next_base > log.high_watermark:
                end = locate(file, log.high_watermark, start, end, where=where, progressed=progressed)
            if oldest_ms is None and start < end:
                _, header = next(headers(file, start, end, where=where))
                written_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000  # a record that is dated later says nothing
                oldest_ms = min(header.first_timestamp_ms, written_ms) if header.first_timestamp_ms >= 0 else None
        size_bytes += end - start
        progressed()
    return ArchiveLag(size_bytes=size_bytes, oldest_ms=oldest_ms)
