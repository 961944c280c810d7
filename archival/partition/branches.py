"""A partition's branches in the archive: one is cut, or lives again, and what follows it is indexed again.

Reads and writes objects of the store; never touches a local file, and commits nothing.
"""

from typing import NamedTuple

from msgspec.structs import replace

from archival.partition.entry_reader import ArchivedEntries
from archival.partition.uploads import Uploads
from archival.plan.entries import part_of, rest_of, with_gap
from archival.plan.lineage import branches_at
from archival.plan.steps import CutEntries, Revive
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData
from headwater_core.segments.run_scan import RunScan
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head


class Division(NamedTuple):
    """Entries that are live, and those that are not any more."""

    live: EntryTree
    dead: EntryTree


class Change(NamedTuple):
    """A head to commit, and the entries that it changes: those that it cuts, or the one that lives again."""

    head: Head
    entries: EntryTree


class Branches:
    """Raises CorruptData when an object is not what the head says, and what the store raises."""

    def __init__(self, archived: ArchivedEntries, uploads: Uploads) -> None:
        self._archived, self._uploads = archived, uploads

    def split(self, entries: EntryTree, at: int) -> Division:
        """What of `entries` lies below offset `at`, in whole batches, and the rest."""
        live, dead = entries.split_at(at)
        if not live or live.next_offset <= at:
            return Division(live, dead)
        entry, live = live[-1], live.without_last()
        if entry.gap:
            return Division(live.followed_by(replace(entry, last_offset=at - 1)), dead)
        scan = self._archived.scan(entry, at, self._archived.open_after(live))
        kept = part_of(entry, scan, at) if scan else None
        rest = rest_of(entry, kept.next_offset if kept else entry.base_offset)
        return Division(live.followed_by(*([kept] if kept else [])), EntryTree((rest,)) + dead)

    def cut(self, head: Head, step: CutEntries, log_start: int) -> Change:
        """`head` without the dead branch that `step` means."""
        branch, following = head.entries.split_at(head.next_offset if step.end is None else step.end)
        live, dead = self.split(branch, step.at)
        next_offset = live.next_offset if live else min(step.at, head.entries.base_offset, log_start)
        if following:
            live = with_gap(live, next_offset, following.base_offset - 1)
            reindexed = self.reindex(live, following, head.fence)
            live, dead = live + reindexed.live, dead + reindexed.dead
        after = replace(
            head,
            leader_epoch=step.leader_epoch,
            entries=live,
            superseded=head.superseded.with_branch(dead),
            start_offset=min(head.start_offset, next_offset),
            last_offset=live.next_offset - 1 if live else next_offset - 1,
            clean_to=min(head.clean_to, step.at),
        )
        return Change(after, dead)

    def revive(self, head: Head, step: Revive, history: EpochHistory) -> Change | None:
        """`head` with a superseded run live again; None when no whole batch of it lies on `history`.

        The same object stays listed as long as its index is still true. It is not when the run was archived after a gap that has
        been filled since: then its bytes are archived again, with what is known now.
        """
        entry, before = step.entry, head.entries
        if before and before[-1].uid == entry.uid:
            whole, before = replace(entry, base_offset=before[-1].base_offset), before.without_last()
        else:
            whole = entry
        scan = self._archived.scan(whole, step.end, self._archived.open_after(before))
        if scan is None or scan.last_offset < entry.base_offset:
            return None
        live = replace(part_of(whole, scan, step.end), cleaned=False)  # what was live beside it then may not be now
        if branches_at(history, before.followed_by(live)) is not None:
            return None
        live = self._with_true_index(live, whole, scan, head.fence)
        superseded = head.superseded.without(entry)
        if live.last_offset < entry.last_offset:
            superseded = superseded.with_branch((rest_of(entry, live.next_offset),))
        after = replace(
            head,
            entries=before.followed_by(live),
            superseded=superseded,
            last_offset=live.last_offset,
            clean_to=min(head.clean_to, live.base_offset),
        )
        return Change(after, EntryTree((live,)))

    def reindex(self, entries: EntryTree, following: EntryTree, fence: int) -> Division:
        """`following`, which is live after `entries`, with what is now known of the transactions that are open at their end.

        A gap was filled, or a dead run made one, and what follows was archived without knowing. One commit says all of it, so that
        it is served without a break. What had to be archived again for that is dead.
        """
        live: list[Entry] = []
        for entry in following:
            if entry.gap:
                break
            scan = self._archived.scan(entry, entry.next_offset, self._archived.open_after(entries.followed_by(*live)))
            if scan is None:
                raise CorruptData(entry.key, 0, f"no batch below offset {entry.next_offset}")
            live.append(self._with_true_index(part_of(entry, scan, entry.next_offset), entry, scan, fence))
            if live[-1] == entry and not entry.is_cut:
                break  # its end is what it was known to be, and so is all that follows
        changed, unchanged = following.split_at(live[-1].next_offset) if live else (EntryTree(), following)
        dead = [entry for entry, now in zip(changed, live, strict=True) if entry.uid != now.uid]
        return Division(EntryTree(live) + unchanged, EntryTree(dead))

    def _with_true_index(self, entry: Entry, whole: Entry, scan: RunScan, fence: int) -> Entry:
        """`entry`, the part of `whole` that was scanned, when its index is true; else the same bytes archived again."""
        if self._archived.index_is_true(entry, scan):
            return entry
        again = self._uploads.new_entry(entry.base_offset, entry.last_offset, scan, fence)
        again = replace(again, cleaned=entry.cleaned, displaced_by=entry.displaced_by, published_ms=entry.published_ms)
        return self._uploads.upload(again, self._archived.open(whole), scan)
