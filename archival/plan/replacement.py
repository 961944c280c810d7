"""Which live runs must be archived again, from what, and the draft of what is to replace them (design §4, What the dead had displaced)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from archival.plan.cleaner import clean_below
from archival.plan.lineage import may_lack
from archival.plan.steps import Replace, Stop, Upload
from headwater_core.epochs import EpochHistory
from headwater_core.errors import NeedsReplacement
from headwater_core.segments.local_log import LocalLog
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head

OVERTAKEN = "compaction went past the archive"
DISPLACED = "an unclean election took records that older ones of their keys had been dropped for"

Overtaken = Callable[[int], str]
"""Why what lies from an offset on must not follow what is archived below it, compaction having gone past it; "" when it may."""


def plan_replacement(log: LocalLog, head: Head, high_watermark: int, overtaken: Overtaken) -> Replace | Stop | None:
    """Where something live may lack a record that counts again, all that is live is archived again, so that it is one log's.

    Else from the first such run on that the log holds all of: what only the archive has stays. But the log's cleaner must not have
    been past that for too long.
    """
    start = log.start_offset
    lacking = may_lack(log.epochs, head.entries, start)
    if not lacking or high_watermark < head.next_offset or not log.topic_policy_proves_compaction:
        return None
    if start <= head.start_offset:
        return Replace(head.start_offset, DISPLACED)
    first = next((max(entry.base_offset, start) for entry in lacking if _first_batch(entry) >= start), None)
    if first is None:
        return None
    stays = any(not entry.gap for entry in head.entries.within(0, first))
    if stays and (reason := overtaken(first)):
        why = f"what is archived from {first} on may lack records that count again since an unclean election"
        return Stop(NeedsReplacement(f"needs replacement: {why}; {reason.removeprefix('needs replacement: ')}"))
    return Replace(first, DISPLACED)


def plan_overtaken(log: LocalLog, head: Head, first: int, overtaken: Overtaken) -> Replace | Stop | None:
    """None while compaction has not gone past what is archived up to `first`. Else all that is live is archived again, where the log holds
    all of it, and its cleaner's checkpoint shows that it will be clean together then: that was taken back when the log was cut, and the
    cleaner has to come past again.

    Not one part after the other: a key that was deleted in the log could come back from the part that stays.
    """
    if not (why := overtaken(first)):
        return None
    if log.start_offset <= head.start_offset and not overtaken(max(first, clean_below(log))):
        return Replace(head.start_offset, OVERTAKEN)
    return Stop(NeedsReplacement(why))


def _first_batch(entry: Entry) -> int:
    """The offset of the first batch: a run may begin with a gap that compaction made."""
    return entry.epochs[0].first_offset if entry.epochs else entry.base_offset


def irreplaceable(log: LocalLog, head: Head) -> tuple[Entry, ...]:
    """The live runs that may lack a record which counts again, and begin below the log: nothing there can replace them."""
    return tuple(entry for entry in may_lack(log.epochs, head.entries) if _first_batch(entry) < log.start_offset)


def rereads(log: LocalLog, draft: Head, head: Head) -> Iterator[Upload]:
    """The uploads that may be the next run of `draft`, which is to replace `head`, best first. Each ends where an entry of `head` does, so
    that a run whose bytes are the same can stay. None when the draft has all of it, as when its commit is tried again."""
    first = draft.next_offset
    if first >= head.next_offset:
        return
    read_from = max(first, log.start_offset)
    for segment, segment_end in log.segments_from(read_from):
        if segment.base_offset >= head.next_offset:
            return
        last_end = head.next_offset if segment_end is None else min(segment_end, head.next_offset)
        for end in (*(entry.next_offset for entry in head.entries.within(read_from, last_end) if entry.next_offset < last_end), last_end):
            yield Upload(segment=segment, first=first, read_from=read_from, end=end, cover_end=end)


@dataclass(frozen=True, slots=True)
class Draft:
    """Kept in memory: nothing lists its runs yet.

    of      the head whose runs from offset `first` on are replaced
    epochs  of the log that the runs are read from
    head    `of` with what there is of the new runs instead
    dead    what leaves the live list with the commit
    """

    of: Head
    first: int
    epochs: EpochHistory
    head: Head
    dead: EntryTree

    @classmethod
    def begin(cls, of: Head, first: int, epochs: EpochHistory, live: EntryTree, dead: EntryTree) -> "Draft":
        """live, dead  the entries of `of` that stay, and those that are replaced; what ends before the archive's start does not stay"""
        if live and live.next_offset <= of.start_offset:
            live, dead = EntryTree(), of.entries
        last_offset = live.next_offset - 1 if live else of.start_offset - 1
        return cls(of, first, epochs, replace(of, entries=live, last_offset=last_offset), dead)

    def is_for(self, head: Head, first: int, epochs: EpochHistory) -> bool:
        """Does it replace what `head` lists from `first` on, and has the log the same history still?"""
        return (self.of, self.first, self.epochs) == (head, first, epochs)

    def with_run(self, head: Head) -> "Draft":
        """With one more run, which `head` lists."""
        return dataclass_replace(self, head=head)

    @property
    def is_complete(self) -> bool:
        return self.head.next_offset >= self.of.next_offset

    @property
    def replaced(self) -> tuple[Entry, ...]:
        """The runs that were live and are not listed any more. One whose bytes are the same stays."""
        names = self._names
        return tuple(entry for entry in self.dead if not entry.gap and _name(entry) not in names)

    @property
    def result(self) -> Head:
        """What to commit."""
        names = self._names
        superseded = self.of.superseded
        for entry in self.of.superseded:
            if _name(entry) in names:
                superseded = superseded.without(entry)
        return replace(self.head, superseded=superseded.with_branch(self.replaced))

    @property
    def _names(self) -> set[tuple[str, int]]:
        return {_name(entry) for entry in self.head.entries}


def _name(entry: Entry) -> tuple[str, int]:
    return entry.uid, entry.base_offset
