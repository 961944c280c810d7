"""Which live runs must be archived again, or may be to save space, from what, and the draft of what is to replace them (design §4)."""

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
SMALLER = "compaction has made the log smaller than its archive"
DISPLACED = "an unclean election took records that older ones of their keys had been dropped for"

NOTHING = EntryTree()

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


def plan_smaller(log: LocalLog, head: Head, high_watermark: int, min_saved_percent: int | None) -> Replace | None:
    """Where that saves at least `min_saved_percent` of what the cleaner has passed of the archive, all that is live is archived again.

    Only where the log lacks nothing but what is archived in a later record of its key: its cleaner has a checkpoint, the log holds all that
    the archive does, and all that a cleaning could have read (what is sealed, and what came from former leaders) is archived. Not beside
    another broker than the leader: how far that one's cleaner has read in its own epoch is not known. And only when what the replacement
    before has left is forgotten, so that the archive never holds more than two copies for that.
    """
    cleaned_to = clean_below(log)
    if min_saved_percent is None or not cleaned_to or high_watermark < head.next_offset or not holds_what_was_cleaned(log, head):
        return None
    if log.leadership is None or not log.leadership.is_ours:
        return None
    if log.start_offset > head.start_offset or head.entries.gaps or head.superseded:
        return None
    local_bytes = sum(segment.size_bytes for segment, end in log.segments_from(0) if end is not None and end <= cleaned_to)
    if not _saves(head.entries.live_bytes, local_bytes, min_saved_percent):
        return None  # no page was read to know that
    passed = head.entries.split_at(cleaned_to)[0]
    if passed and passed.next_offset > cleaned_to:
        passed = passed.without_last()
    return Replace(head.start_offset, SMALLER) if _saves(passed.live_bytes, local_bytes, min_saved_percent) else None


def _saves(archived_bytes: int, local_bytes: int, min_saved_percent: int) -> bool:
    return (archived_bytes - local_bytes) * 100 >= max(archived_bytes, 1) * min_saved_percent


def _cleanable_to(log: LocalLog) -> int:
    """Where what cleaners have read of this log ends: before its active segment, or, at a leader that it was fetched from, before the first
    offset of its own leader epoch."""
    newest = log.epochs.starts[-1].first_offset if log.epochs.starts else 0
    return max(log.segments[-1].base_offset if log.segments else 0, newest)


def holds_what_was_cleaned(log: LocalLog, head: Head) -> bool:
    """Is all archived that a record of the log may have been dropped for?"""
    return head.next_offset >= _cleanable_to(log)


def _first_batch(entry: Entry) -> int:
    """The offset of the first batch: a run may begin with a gap that compaction made."""
    return entry.epochs[0].first_offset if entry.epochs else entry.base_offset


def irreplaceable(log: LocalLog, head: Head) -> tuple[Entry, ...]:
    """The live runs that may lack a record which counts again, and begin below the log: nothing there can replace them."""
    return tuple(entry for entry in may_lack(log.epochs, head.entries) if _first_batch(entry) < log.start_offset)


def rereads(log: LocalLog, draft: Head, head: Head, replaced_to: int) -> Iterator[Upload]:
    """The uploads that may be the next run of `draft`, which is to replace `head` below `replaced_to`, best first. Each ends where an entry
    of `head` does, so that a run whose bytes are the same can stay. None when the draft has all of it, as when its commit is retried."""
    first = draft.next_offset
    if first >= replaced_to:
        return
    read_from = max(first, log.start_offset)
    for segment, segment_end in log.segments_from(read_from):
        if segment.base_offset >= replaced_to:
            return
        last_end = replaced_to if segment_end is None else min(segment_end, replaced_to)
        for end in (*(entry.next_offset for entry in head.entries.within(read_from, last_end) if entry.next_offset < last_end), last_end):
            yield Upload(segment=segment, first=first, read_from=read_from, end=end, cover_end=end)


@dataclass(frozen=True, slots=True)
class Draft:
    """Kept in memory: nothing lists its runs yet.

    of      the head whose runs from the step's first offset up to `end` are replaced; what was archived after those since stays
    epochs  of the log that the runs are read from
    head    `of` as it was when the draft was begun, with what there is of the new runs instead
    dead    what leaves the live list with the commit
    """

    of: Head
    step: Replace
    end: int
    epochs: EpochHistory
    head: Head
    dead: EntryTree

    @classmethod
    def begin(cls, of: Head, step: Replace, epochs: EpochHistory, live: EntryTree, dead: EntryTree) -> "Draft":
        """live, dead  the entries of `of` that stay, and those that are replaced; what ends before the archive's start does not stay"""
        if live and live.next_offset <= of.start_offset:
            live, dead = EntryTree(), of.entries
        last_offset = live.next_offset - 1 if live else of.start_offset - 1
        return cls(of, step, of.next_offset, epochs, replace(of, entries=live, last_offset=last_offset), dead)

    def is_for(self, head: Head, step: Replace, epochs: EpochHistory) -> bool:
        """Does it replace what `head` lists as `step` says, and has the log the same history still?"""
        return (self.of, self.step, self.epochs) == (head, step, epochs)

    def with_run(self, head: Head) -> "Draft":
        """With one more run, which `head` lists."""
        return dataclass_replace(self, head=head)

    def beside(self, head: Head) -> "Draft | None":
        """It, when `head` lists more, which the same log holds after what is replaced; None where nothing may be listed meanwhile."""
        return dataclass_replace(self, of=head) if self.step.reason == SMALLER else None

    @property
    def is_complete(self) -> bool:
        return self.head.next_offset >= self.end

    @property
    def following(self) -> EntryTree:
        """What stays after the new runs."""
        return self.of.entries.split_at(self.end)[1]

    @property
    def replaced(self) -> tuple[Entry, ...]:
        """The runs that were live and are not listed any more. One whose bytes are the same stays."""
        names = self._names
        return tuple(entry for entry in self.dead if not entry.gap and _name(entry) not in names)

    def result(self, following: EntryTree = NOTHING, dead: EntryTree = NOTHING) -> Head:
        """What to commit.

        following, dead  `following` as it is after the new runs, and what was archived again for that
        """
        names = self._names
        superseded = self.of.superseded
        for entry in self.of.superseded:
            if _name(entry) in names:
                superseded = superseded.without(entry)
        entries = self.head.entries + following
        return replace(
            self.of,
            entries=entries,
            superseded=superseded.with_branch(self.replaced).with_branch(dead),
            last_offset=entries.next_offset - 1 if following else self.head.last_offset,
            clean_to=min(self.head.clean_to, self.of.clean_to) if following else self.head.clean_to,
        )

    @property
    def _names(self) -> set[tuple[str, int]]:
        return {_name(entry) for entry in self.head.entries}


def _name(entry: Entry) -> tuple[str, int]:
    return entry.uid, entry.base_offset
