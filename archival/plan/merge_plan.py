"""Which live entries become one object: neighbours that are small, as tails are that a seal timeout has left. Values in, a plan out.

What is small is less than half of the target, and no object gets larger than the target. Neighbours that cannot get any more, since what
follows does not fit, are merged once. At the archive's end, where more will follow, they are merged when that makes one at least
GROWTH times as large as the largest of them. So no byte is written more often than the logarithm of how many small entries fill one
object, and what is left unmerged is as few entries.

An entry is evidence, too. Its epochs prove each other: a record on the history proves what lies before it in the same log. So entries
become one only where they are of one log beyond doubt: a leader epoch that continues from one into the other had one leader and that one
log; elsewhere the history must say so record by record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from archival.plan.lineage import branches_at, lies_on
from archival.plan.stream_plan import LAYOUT
from headwater_core.epochs import EpochHistory
from manifests.entry import ENTRY_EPOCHS_MAX, OBJECT_BYTES_MAX, OFFSET_MAX, Entry, EpochOffset
from manifests.entry_tree import EntryTree
from manifests.head import Head

GROWTH = 4
ENTRIES_MAX = 1_000  # of one merge: a step should be short, and each may take a request
LOOKED_AT_MAX = 10_000  # entries, by one plan: ten pages


class MergePlan(NamedTuple):
    """What to merge next.

    group   entries that become one, at least two; empty: nothing is to be merged
    passed  everything below this offset will never be merged, as far as this plan has seen
    is_cut_short  it has not looked at all there is
    """

    group: tuple[Entry, ...]
    passed: int
    is_cut_short: bool = False


def plan_merge(
    head: Head,
    history: EpochHistory,
    *,
    target_bytes: int,
    span_ms: int,
    layouts: tuple[str, ...] = ("segment",),
    passed: int = 0,
    until: int = OFFSET_MAX,
) -> MergePlan:
    """The first neighbours in `head` that are to be merged.

    history  of the log that is archived: all that is live lies on it
    span_ms  from the oldest record of a merge to its newest, unless one of its parts takes longer: retention counts an entry by its newest
    layouts  others stay as they are, but for what was written while it filled
    passed   of an earlier plan
    until    what is live from this offset on is not merged yet

    Reads pages from `passed` on. Raises what PageReader.read does.
    """
    layouts = (*layouts, LAYOUT)
    group = _Group(head, history, target_bytes, span_ms)
    for looked_at, entry in enumerate(head.entries.within(passed, until)):
        if looked_at == LOOKED_AT_MAX:
            return MergePlan((), group.entries[0].base_offset if group.entries else entry.base_offset, is_cut_short=True)
        if group.takes(entry, layouts):
            group.add(entry)
            if len(group.entries) == ENTRIES_MAX and group.ripe:
                return MergePlan(group.ripe, passed)
            continue
        if group.closed:
            return MergePlan(group.closed, group.entries[0].base_offset)
        group = _Group(head, history, target_bytes, span_ms)
        if group.takes(entry, layouts):
            group.add(entry)
        passed = entry.base_offset if group.entries else entry.next_offset
    return MergePlan(group.ripe, passed)


def may_be_one(entries: Sequence[Entry], head: Head, history: EpochHistory, span_ms: int) -> bool:
    """May these live neighbours become one object, whatever their lengths, and however many they are?"""
    group = _Group(head, history, OBJECT_BYTES_MAX, span_ms, entries_max=len(entries))
    for entry in entries:
        if not group.takes(entry, (entry.layout,)):
            return False
        group.add(entry)
    return True


@dataclass
class _Group:
    """Neighbours that may become one object."""

    head: Head
    history: EpochHistory
    target_bytes: int
    span_ms: int
    entries_max: int = ENTRIES_MAX
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0
    epochs: int = 0
    displaced: set[EpochOffset | None] = field(default_factory=set)

    @property
    def closed(self) -> tuple[Entry, ...]:
        """To be merged, now that nothing more will be added."""
        return tuple(self.entries) if len(self.entries) > 1 else ()

    @property
    def ripe(self) -> tuple[Entry, ...]:
        """To be merged though more will follow: as many of the last ones as makes an object large enough."""
        size_bytes, ripe = 0, 0
        largest = 0
        for count, entry in enumerate(reversed(self.entries), 1):
            size_bytes, largest = size_bytes + entry.live_bytes, max(largest, entry.live_bytes)
            if count > 1 and (size_bytes >= GROWTH * largest or 2 * size_bytes >= self.target_bytes):
                ripe = count
        return tuple(self.entries[len(self.entries) - ripe :])

    def takes(self, entry: Entry, layouts: tuple[str, ...]) -> bool:
        """May `entry`, which comes next, become one with these?"""
        if not self._may_be_merged(entry, layouts):
            return False
        if not self.entries:
            return True
        last = self.entries[-1]
        return (
            last.next_offset == entry.base_offset
            and last.cleaned == entry.cleaned
            and len(self.entries) < self.entries_max
            and self.size_bytes + entry.live_bytes <= self.target_bytes
            and self.epochs + len(entry.epochs) <= ENTRY_EPOCHS_MAX
            and _span_ms(self.entries[0], entry) <= max(self.span_ms, *(_span_ms(each, each) for each in (self.entries[0], last, entry)))
            and self._are_of_one_log(last, entry)
            and self._are_displaced_as_one(self.displaced | {entry.displaced_by})
        )

    def add(self, entry: Entry) -> None:
        continues = bool(self.entries) and self.entries[-1].epochs[-1].epoch == entry.epochs[0].epoch
        self.entries.append(entry)
        self.size_bytes += entry.live_bytes
        self.epochs += len(entry.epochs) - continues
        self.displaced.add(entry.displaced_by)

    def _may_be_merged(self, entry: Entry, layouts: tuple[str, ...]) -> bool:
        """Its object is verified and small, and what else that object holds will not be wanted: a part that was cut off may live again,
        as long as the head lists it, and continues the same object then."""
        if entry.gap or not entry.epochs or not entry.digest or entry.layout not in layouts or 2 * entry.live_bytes >= self.target_bytes:
            return False
        return not entry.is_cut or all(each.uid != entry.uid for each in self.head.superseded.at_base(entry.next_offset))

    def _are_of_one_log(self, before: Entry, after: Entry) -> bool:
        if before.epochs[-1].epoch == after.epochs[0].epoch:
            return True
        silent_below, last = self.history.first_offset, before.epochs[-1]
        both = EntryTree((before, after))
        return silent_below is not None and silent_below <= last.first_offset and branches_at(self.history, both) is None

    def _are_displaced_as_one(self, displaced: set[EpochOffset | None]) -> bool:
        """Is the greatest of these on the log only if all of them are?"""
        silent_below = self.history.first_offset
        return len(displaced) == 1 or (
            silent_below is not None
            and all(each is None or (each.offset >= silent_below and lies_on(self.history, *each)) for each in displaced)
        )


def _span_ms(first: Entry, last: Entry) -> int:
    """From the oldest record of one to the newest of another; 0 where a time is not known."""
    if first.first_timestamp_ms is None or last.last_timestamp_ms is None:
        return 0
    return last.last_timestamp_ms - first.first_timestamp_ms


def merged_displacement(group: tuple[Entry, ...]) -> EpochOffset | None:
    """`Entry.displaced_by` of what the entries of a plan become."""
    return max((each.displaced_by for each in group if each.displaced_by is not None), default=None)


def with_merged(entries: EntryTree, group: tuple[Entry, ...], merged: Entry) -> EntryTree:
    """`entries` with `merged` in place of `group`, which are some of them and abut."""
    before, rest = entries.split_at(merged.base_offset)
    found, after = rest.split_at(merged.next_offset)
    if tuple(found) != group:
        raise ValueError(f"{merged.base_offset} to {merged.last_offset} are not what was merged")
    return before.followed_by(merged) + after
