"""How the live entries of a head change: a run is placed, an entry is cut, what is dead leaves. Values in, values out."""

from collections.abc import Collection

from msgspec.structs import replace

from archival.plan.lineage import clip_epochs
from headwater_core.segments.run_scan import RunScan
from manifests.entry import Entry
from manifests.entry_tree import EntryTree


def place(entries: EntryTree, entry: Entry, refills: Entry | None) -> tuple[EntryTree, EntryTree]:
    """The live entries up to the new one, which comes after the last or in place of the part of a gap that it fills; and those after it.

    What a run leaves of a gap stays one between live entries; at the end of the list it goes, since the log holds, or
    will hold, those offsets.
    """
    if refills is None:
        return entries.followed_by(entry), EntryTree()
    before, following = entries.split_at(refills.base_offset)[0], entries.split_at(refills.next_offset)[1]
    if entry.base_offset > refills.base_offset:
        before = before.followed_by(replace(refills, last_offset=entry.base_offset - 1))
    if following and entry.last_offset < refills.last_offset:
        following = EntryTree((replace(refills, base_offset=entry.next_offset),)) + following
    return before.followed_by(entry), following


def with_gap(entries: EntryTree, first: int, last: int, reason: str = "") -> EntryTree:
    """`entries`, which end before `first`, and the gap [first, last] after them: one gap, however often its end moved, unless for another
    reason."""
    if entries and entries[-1].gap and entries[-1].reason == reason:
        return entries.without_last().followed_by(replace(entries[-1], last_offset=last))
    return entries.followed_by(Entry(base_offset=first, last_offset=last, gap=True, reason=reason))


def part_of(entry: Entry, scan: RunScan, end: int) -> Entry:
    """`entry` cut to its whole batches below offset `end`, which `scan` has found."""
    whole = scan.end_position == entry.live_bytes and end == entry.next_offset
    last_offset = entry.last_offset if whole else scan.last_offset
    return replace(
        entry,
        last_offset=last_offset,
        live_bytes=scan.end_position,
        epochs=clip_epochs(scan.epochs, entry.base_offset, last_offset),
        first_timestamp_ms=scan.first_timestamp_ms,
        last_timestamp_ms=scan.last_timestamp_ms,
        records=scan.records,
        open_from=scan.open_from,
        aborted=len(scan.aborted),
        aborted_from=scan.aborted_from,
        displaced_by=None if scan.offsets == last_offset - entry.base_offset + 1 else entry.displaced_by,
        max_producer_id=scan.max_producer_id,
    )


def merged_publication(entries: Collection[Entry]) -> int | None:
    """`Entry.published_ms` of what is made of all of these: the latest, so that no record counts as older than it may be; None where one
    of them does not know its own."""
    times = [entry.published_ms for entry in entries if entry.published_ms is not None]
    return max(times) if entries and len(times) == len(entries) else None


def first_published_ms(entry: Entry, replaced: EntryTree, now_ms: int) -> int | None:
    """`Entry.published_ms` of a run that is listed now: as `replaced` had it, where that listed each of its offsets."""
    known = tuple(replaced.within(entry.base_offset, entry.next_offset))
    covered = sum(listed.next_offset - listed.base_offset for listed in known if not listed.gap)
    reaches = known and known[0].base_offset <= entry.base_offset and entry.last_offset <= known[-1].last_offset
    return merged_publication(known) if reaches and covered == known[-1].next_offset - known[0].base_offset else now_ms


def entries_before(entries: EntryTree, refills: Entry | None, base_offset: int) -> EntryTree:
    """The entries that a new one from `base_offset` on follows, what it leaves of a gap included."""
    if refills is None:
        return entries
    return entries.split_at(refills.next_offset if base_offset > refills.base_offset else refills.base_offset)[0]


def rest_of(entry: Entry, base_offset: int) -> Entry:
    """The superseded part of an entry from `base_offset` on. What it says of its records is not known for a part."""
    if base_offset == entry.base_offset:
        return entry
    return replace(
        entry,
        base_offset=base_offset,
        epochs=clip_epochs(entry.epochs, base_offset, entry.last_offset),
        first_timestamp_ms=None,
        last_timestamp_ms=None,
        records=0,
        open_from=None,
        aborted=0,
        aborted_from=None,
        cleaned=False,
    )
