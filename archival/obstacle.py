"""What keeps a log from being archived until it is repaired, so that the log need not be read again to find the same."""

from dataclasses import dataclass

from archival.plan.role import Acting, Standby, archiving_role
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, HeadwaterError, SuspectedGap, UnsupportedFormat
from headwater_core.segments.local_log import LocalLog, LocalSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """`error` came of a step on a log that looked so."""

    error: HeadwaterError
    first: int  # the first offset that was due
    segments: tuple[LocalSegment, ...]  # from there on
    log: "_Log"

    @classmethod
    def of(cls, error: HeadwaterError, log: LocalLog, next_offset: int) -> "Obstacle | None":
        """The obstacle that `error` shows; None when it is not about the content of the files, and may pass without a change to them.

        next_offset  of what is archived
        """
        if not isinstance(error, (CorruptData, SuspectedGap, UnsupportedFormat)) or str(log.directory) not in str(error):
            return None
        first = max(next_offset, log.start_offset)
        return cls(error=error, first=first, segments=_segments_from(log, first), log=_log(log, first))

    def remains(self, log: LocalLog) -> bool:
        """Would a step find the same? What was added since repairs nothing."""
        now = _segments_from(log, self.first)
        pairs = list(zip(self.segments, now, strict=False))
        return (
            _log(log, self.first) == self.log
            and len(pairs) == len(self.segments)
            and all(after == before or (before.is_active and _has_grown(before, after)) for before, after in pairs)
        )


_Log = tuple[EpochHistory, int, int | None, bool, tuple[str, ...], Acting | Standby]


def _log(log: LocalLog, first: int) -> _Log:
    is_cleaned = log.compacted or log.leadership_unread
    return log.epochs, max(first, log.start_offset), log.cleaned_to, is_cleaned, log.leftovers, archiving_role(log)


def _segments_from(log: LocalLog, first: int) -> tuple[LocalSegment, ...]:
    return tuple(segment for segment, _ in log.segments_from(first))


def _has_grown(before: LocalSegment, after: LocalSegment) -> bool:
    """A broker that starts cuts what is damaged off the end of the active segment."""
    return (after.base_offset, after.generation.inode) == (
        before.base_offset,
        before.generation.inode,
    ) and after.size_bytes >= before.size_bytes
