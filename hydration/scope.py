"""Which offsets can be read, and from which tier: decided here from plain values. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.segments.local_log import LocalLog
from hydration.archive.manifest_view import Extent, GapSpan
from hydration.config import ReadPriority


class Tier(Enum):
    LOCAL = "local"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"offsets out of order: {self.start} to {self.end}")

    @classmethod
    def between(cls, start: int, end: int) -> "Span":
        """Empty where `end` is not past `start`."""
        return cls(start, max(start, end))

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What one look at both tiers found. A span is None where a tier has no offsets.

    local, archive   what each tier may serve; None when that is nothing
    epochs           which leadership wrote which offsets, over both
    compacted        the log is compacted, as far as the broker's files show
    is_local_behind  the archive has followed a newer leadership than the local log
    """

    local: Span | None
    archive: Span | None
    log_start: int
    high_watermark: int
    epochs: EpochHistory
    leader_epoch: int
    compacted: bool
    is_local_behind: bool = False

    def holds(self, offset: int) -> bool:
        return (self.local is not None and offset in self.local) or (self.archive is not None and offset in self.archive)

    @property
    def has_gap(self) -> bool:
        """The local log begins after what the archive is known to hold: segments may have been archived and dropped just now."""
        return self.local is not None and self.local.start > (self.archive.end if self.archive is not None else 0)

    def stable(self, open_from: int | None) -> int:
        """The last stable offset, when the oldest open transaction begins at `open_from`; before the log start nothing counts."""
        return self.high_watermark if open_from is None else max(min(open_from, self.high_watermark), self.log_start)

    @property
    def keeps_scans_in_archive(self) -> bool:
        """See `order`."""
        return self.compacted and self.local is not None and self.archive is not None and self.archive.start < self.local.start

    def order(self, priority: ReadPriority, offset: int) -> tuple[Tier, ...]:
        """The tiers that hold `offset`, the one to ask first in front.

        A compacted log whose local part begins after its archive is read from the archive as far as that reaches: a scan
        that began there must still meet the deletions that the broker has since removed.
        """
        holders = [tier for tier, span in ((Tier.LOCAL, self.local), (Tier.ARCHIVE, self.archive)) if span is not None and offset in span]
        archive_first = priority.prefers_archive or self.keeps_scans_in_archive
        return tuple(reversed(holders)) if archive_first else tuple(holders)

    def next_held(self, offset: int) -> int:
        """The first offset at or past `offset` that some tier holds; the high watermark when none does."""
        starts = [max(span.start, offset) for span in (self.local, self.archive) if span is not None and max(span.start, offset) < span.end]
        return min(starts, default=self.high_watermark)


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after its last record."""

    leader_epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)  # no history has the epoch


def scope_of(log: LocalLog | None, extent: Extent | None, priority: ReadPriority) -> Scope:
    """
    log     None when there is no local log
    extent  None when there is no archive, or none that is known
    """
    log = log if priority.uses_local else None
    extent = extent if priority.uses_archive else None
    local = Span.between(log.start_offset, log.high_watermark) if log is not None and log.high_watermark is not None else None
    archive = Span(extent.start_offset, extent.next_offset) if extent is not None else None
    epochs = log.epochs if log is not None else EpochHistory()
    if log is not None and extent is not None:
        local, archive = _without_dead_branch(local, archive, log, extent)
        epochs = joined(extent.epochs, log.epochs)
    elif extent is not None:
        epochs = extent.epochs
    local = local if local is not None and local.start < local.end else None
    archive = archive if archive is not None and archive.start < archive.end else None
    ends = [span.end for span in (local, archive) if span is not None]
    starts = [span.start for span in (local, archive) if span is not None]
    if log is not None:
        if log.start_offset != log.high_watermark or not starts:  # an empty log does not count: a follower's disk may be new
            starts.append(log.start_offset)
        if log.high_watermark is None or not ends:
            ends.append(max(log.high_watermark or 0, log.start_offset))  # a checkpoint from before the log start moved offers nothing
    newest = [epochs.newest, extent.leader_epoch if extent else None, log.leadership.leader_epoch if log and log.leadership else None]
    return Scope(
        local=local,
        archive=archive,
        log_start=min(starts, default=extent.start_offset if extent is not None else 0),
        high_watermark=max(ends, default=extent.next_offset if extent is not None else 0),
        epochs=epochs,
        leader_epoch=max((epoch for epoch in newest if epoch is not None), default=-1),
        compacted=log is not None and log.topic_policy_proves_compaction,
        is_local_behind=log is not None and extent is not None and _is_behind(log, extent),
    )


def _acting(log: LocalLog) -> int:
    """The newest leadership that the broker knows."""
    return max(-1 if log.epochs.newest is None else log.epochs.newest, log.leadership.leader_epoch if log.leadership else -1)


def _followed(extent: Extent) -> int:
    """The newest leadership that the archive has followed."""
    return max(extent.leader_epoch, -1 if extent.epochs.newest is None else extent.epochs.newest)


def _is_behind(log: LocalLog, extent: Extent) -> bool:
    """A follower that knows of the leadership may not have cut its log for it. A log without a history shows nothing."""
    newest, followed = log.epochs.newest, _followed(extent)
    leads = log.leadership is not None and log.leadership.is_ours
    return newest is not None and (_acting(log) < followed or (newest < followed and not leads))


def _without_dead_branch(local: Span | None, archive: Span | None, log: LocalLog, extent: Extent) -> tuple[Span | None, Span | None]:
    """Where both tiers know the same offsets under different leaderships, the one with the older leadership is cut there.

    A leadership without a batch of its own is on no history yet; the broker's metadata log knows it all the same. But a follower that
    does may not have cut its log for it: an archive that has followed that leadership is right against such a log.
    """
    history = log.epochs
    if history.newest is None or extent.epochs.newest is None or archive is None:
        return local, archive
    if _acting(log) > _followed(extent):
        parting = parting_offset(extent.epochs, history, archive.end, extent.gaps, compacted=log.topic_policy_proves_compaction)
        return local, Span.between(archive.start, min(archive.end, parting))
    if local is not None and _is_behind(log, extent):
        end = min(local.end, archive.end)
        parting = parting_offset(extent.epochs, history, end, extent.gaps, compacted=log.topic_policy_proves_compaction)
        return Span.between(local.start, min(local.end, parting)), archive
    return local, archive


def parting_offset(archived: EpochHistory, other: EpochHistory, end: int, gaps: Sequence[GapSpan] = (), *, compacted: bool = False) -> int:
    """The first offset before `end` that the two histories ascribe to different leaderships; `end` when there is none.

    They are compared only from where both have begun.

    gaps   of the archive: one of the two has nothing there
    compacted  one of them may put the beginning of an epoch too late
    """
    if archived.first_offset is None or other.first_offset is None:
        return end
    begin = max(archived.first_offset, other.first_offset)
    for offset in sorted({begin, *(first for _, first in (*archived.starts, *other.starts)), *(gap.end for gap in gaps)}):
        is_compared = begin <= offset < end and not any(gap.start <= offset < gap.end for gap in gaps)
        if is_compared and archived.epoch_at(offset) != other.epoch_at(offset) and not (compacted and _began_late(archived, other, offset)):
            return offset
    return end


def _began_late(archived: EpochHistory, other: EpochHistory, offset: int) -> bool:
    """May compaction have left one of them no record of the epoch that the other has there? Not the archive, where it has a record of an
    older one: each of its epochs begins with a record."""
    there, here = archived.epoch_at(offset), other.epoch_at(offset)
    if there is None or here is None:
        return False
    if there > here:
        return other.began_late(there, offset)
    return archived.began_late(here, offset) and EpochStart(there, offset) not in archived.starts


def joined(archived: EpochHistory, local: EpochHistory) -> EpochHistory:
    """One history: the local one from where it begins, the archive's before that; the archive's newer end when the local log is behind."""
    if local.first_offset is None or (archived.newest is not None and local.newest is not None and archived.newest > local.newest):
        return archived
    first_epoch = local.oldest
    assert first_epoch is not None
    before = [step for step in archived.starts if step[1] < local.first_offset and step[0] < first_epoch]
    if any(epoch == first_epoch and first < local.first_offset for epoch, first in archived.starts):
        begun = next(first for epoch, first in archived.starts if epoch == first_epoch)
        return EpochHistory.of([*before, (first_epoch, begun), *local.starts[1:]])
    return EpochHistory.of([*before, *local.starts])


def epoch_end(epochs: EpochHistory, epoch: int, log_end: int) -> EpochEnd:
    """Where the largest known epoch that is not larger than `epoch` ends, as brokers answer OffsetForLeaderEpoch."""
    if epochs.newest is None or not 0 <= epoch <= epochs.newest:
        return UNDEFINED
    following = next((first for candidate, first in epochs.starts if candidate > epoch), log_end)
    known = max((candidate for candidate, _ in epochs.starts if candidate <= epoch), default=epoch)
    return EpochEnd(known, following)
