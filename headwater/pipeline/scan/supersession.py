"""Whether a head still holds the records that a task was planned from."""

from collections.abc import Sequence

from headwater.pipeline.scan.archive_snapshot import OffsetRange
from headwater_core.epochs import leader_epoch_at
from manifests.entry import Entry
from manifests.head import Head


def first_superseded(planned: Sequence[Entry], head: Head, first: int, end: int) -> int | None:
    """The first offset in [first, end) that a newer leader epoch has replaced, or that lies past the head's last; None when none does.

    planned  the entries of an older head, in which these offsets were
    """
    now = OffsetRange(head, first, end).entries
    superseded = {min(head.next_offset, end)}
    for entry in planned:
        first_offset, last_offset = max(entry.base_offset, first), min(entry.last_offset, end - 1)
        if first_offset <= last_offset and not entry.gap:
            starts = {first_offset, *(start for each in now for _, start in each.epochs if first_offset <= start <= last_offset)}
            superseded.update(at for at in starts if _known_epoch(now, at) > _known_epoch((entry,), at))
    found = min(superseded)
    return found if found < end else None


def _known_epoch(entries: Sequence[Entry], offset: int) -> int:
    """The leader epoch that wrote `offset`, the first known one before any; -1 when none is known. Compaction may make it
    older than it was, never newer."""
    starts = [start for entry in entries for start in entry.epochs]
    epoch = leader_epoch_at(starts, offset)
    return epoch if epoch is not None else starts[0].epoch if starts else -1
