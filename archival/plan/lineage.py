"""Which of what is archived still lies on the partition's history, and what to do about the rest (design §4, Lineage).

A record is known by (offset, leader epoch): an epoch has one leader, so the pair stands for the bytes. A partition's
history is the leader epoch checkpoint of the broker that may archive it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from headwater_core.epochs import EpochHistory, EpochStart
from manifests.entry import OFFSET_MAX, Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import PageRef


@dataclass(frozen=True, slots=True)
class Ok:
    """Everything live lies on the history."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The log is older than what the head has followed: it archives and releases nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class CutAt:
    """From this offset on, what is live is a dead branch."""

    offset: int


Verdict = Ok | Behind | CutAt


def lies_on(history: EpochHistory, epoch: int, offset: int) -> bool:
    """Does the record (`offset`, `epoch`) lie on `history`? Below its first offset the answer is "not newer" at most."""
    oldest, first = history.oldest, history.first_offset
    if oldest is None or first is None:
        return False
    if history.began_late(epoch, offset):
        return True
    if offset < first:
        return epoch <= oldest
    return history.epoch_at(offset) == epoch


def ends_at(history: EpochHistory, epoch: int, offset: int) -> int | None:
    """Where the history leaves the epoch of a record (`offset`, `epoch`) that lies on it; None when it is the newest.

    Below the history's first offset an older epoch leaves it there at the latest.
    """
    oldest, first = history.oldest, history.first_offset
    if oldest is not None and first is not None and offset < first and epoch < oldest:
        return first
    at = bisect_right(history.starts, epoch, key=lambda start: start.epoch)
    return history.starts[at].first_offset if at < len(history.starts) else None


def branches_at(history: EpochHistory, entries: EntryTree) -> int | None:
    """The first offset of `entries`, which abut, that does not lie on `history`; None when all of them do.

    An entry knows where each epoch's records begin, not where they end: compaction may have left a gap before the next
    epoch's first record in it. A record that lies on the history proves everything below it in the same log, so an epoch that
    continues past its end on the history is such a gap when the epoch after it, in the same entry, lies there, and a branch
    otherwise. What follows in the next entry proves nothing: it may be of another log, whose history was silent below it, and
    an entry reaches no further than its last epoch did.
    """
    spans = entries.spans()
    for at, (epoch, first, last, ends_entry) in enumerate(spans):
        if not lies_on(history, epoch, first):
            return first
        end = ends_at(history, epoch, first)
        if end is None or last < end:
            continue
        if not ends_entry and lies_on(history, spans[at + 1].epoch, spans[at + 1].first_offset):
            continue
        return max(end, first)
    return None


def resumes_at(history: EpochHistory, entries: EntryTree, branch: int) -> int | None:
    """Base of the first entry after `branch` from which on everything is proven to lie on `history`; None when there is none.

    So it is where a dead run was joined with a log that was silent about it.
    """
    silent_below = history.first_offset or 0
    following = entries.split_at(branch + 1)[1]
    for entry in following:
        if entry.epochs and entry.epochs[0].first_offset >= silent_below and branches_at(history, following) is None:
            return entry.base_offset
        following = following.split_at(entry.next_offset)[1]
    return None


def may_lack(history: EpochHistory, entries: EntryTree, first: int = 0) -> tuple[Entry, ...]:
    """Those of `entries` from offset `first` on that may lack a record which counts again: compaction had dropped some for later ones
    when they were read, and those reached to where `history` has gone another way since."""

    def may_hold(ref: PageRef) -> bool:
        return ref.displaced is None or not all(
            lies_on(history, each.leader_epoch, each.least) and lies_on(history, each.leader_epoch, each.greatest) for each in ref.displaced
        )

    found = entries.within(first, OFFSET_MAX, may_hold)
    return tuple(each for each in found if each.displaced_by and not lies_on(history, *each.displaced_by))


def written_epochs(history: EpochHistory) -> frozenset[int]:
    """The epochs of `history` that wrote something, or may yet: not those whose offset went to the next one."""
    starts = history.starts
    return frozenset(epoch for at, (epoch, first) in enumerate(starts) if at + 1 == len(starts) or first < starts[at + 1].first_offset)


def is_proven(history: EpochHistory, entries: EntryTree, end: int) -> bool:
    """Does a record of `entries` below offset `end` lie on `history` where that speaks of single offsets? Then all before
    it do. Where only "not newer" can be said, a dead branch looks like the log that retention has removed."""
    first = history.first_offset
    return first is not None and any(
        first <= last and max(start, first) < end and lies_on(history, epoch, max(start, first))
        for epoch, start, last, _ in entries.spans()
    )


def epoch_in(entries: EntryTree, offset: int) -> int | None:
    """The leader epoch of what is archived at `offset`; None when nothing is."""
    entry = entries.at(offset)
    before = entries.at(entry.base_offset - 1) if entry else None  # where its epoch began, if compaction left nothing of it before `offset`
    epochs = [epoch for epoch, first, last, _ in EntryTree(filter(None, (before, entry))).spans() if first <= offset <= last]
    return epochs[-1] if epochs else None


def newer_from(entries: EntryTree, epoch: int) -> int | None:
    """Where `entries` first have a newer leader epoch than that."""
    return next((span.first_offset for span in entries.spans() if span.epoch > epoch), None)


def newest_epoch(entries: EntryTree) -> int:
    """The newest leader epoch of live records; -1 when there are none."""
    return next((entry.epochs[-1].epoch for entry in reversed(entries) if entry.epochs), -1)


def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
    """What `history` says about a head, seen from a log that acts under `acting_epoch`.

    Behind comes first only for knowledge the head really has: an epoch that a commit has followed, or one of a live
    record. A history without the newest archived epoch but with a newer one is a branch, not behind.
    """
    known = max(head.leader_epoch, newest_epoch(head.entries))
    if acting_epoch < known:
        return Behind(f"the log's newest leader epoch is {acting_epoch}, the archive has followed {known}")
    at = branches_at(history, head.entries)
    return Ok() if at is None else CutAt(at)


def clip_epochs(epochs: Sequence[EpochStart], first: int, last: int) -> tuple[EpochStart, ...]:
    """Where the epochs of `epochs` begin that matter for [first, last]; one that began before `first` begins there now."""
    clipped: list[EpochStart] = []
    for epoch, start in epochs:
        if start > last:
            break
        if start <= first:
            clipped = [EpochStart(epoch, first)]
        else:
            clipped.append(EpochStart(epoch, start))
    return tuple(clipped)
