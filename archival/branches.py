"""A partition's branches in the archive: one is cut, or lives again, and what follows it is indexed again.

Reads and writes objects of the store; never touches a local file, and commits nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from archival.entries import in_order, part_of, rest_of, with_gap
from archival.entry_reader import ArchivedEntries
from archival.lineage import branches_at
from archival.steps import CutEntries, Revive
from archival.uploads import Uploads
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData
from headwater_core.segments.run_scan import RunScan
from manifests.head import Entry, Head


class Division(NamedTuple):
    """Entries that are live, and those that are not any more."""

    live: tuple[Entry, ...]
    dead: tuple[Entry, ...]


class Change(NamedTuple):
    """A head to commit, and the entries that it changes: those that it cuts, or the one that lives again."""

    head: Head
    entries: tuple[Entry, ...]


class Branches:
    """Raises CorruptData when an object is not what the head says, and what the store raises."""

    def __init__(self, archived: ArchivedEntries, uploads: Uploads) -> None:
        self._archived, self._uploads = archived, uploads

    def split(self, entries: Sequence[Entry], at: int) -> Division:
        """What of `entries` lies below offset `at`, in whole batches, and the rest."""
        live: list[Entry] = []
        dead: list[Entry] = []
        for n, entry in enumerate(entries):
            if entry.next_offset <= at:
                live.append(entry)
            elif entry.base_offset >= at:
                dead.append(entry)
            elif entry.gap:
                live.append(replace(entry, last_offset=at - 1))
            else:
                scan = self._archived.scan(entry, at, self._archived.open_after(entries[:n]))
                kept = part_of(entry, scan, at) if scan else None
                live += [kept] if kept else []
                dead.append(rest_of(entry, kept.next_offset if kept else entry.base_offset))
        return Division(tuple(live), tuple(dead))

    def cut(self, head: Head, step: CutEntries, log_start: int) -> Change:
        """`head` without the dead branch that `step` means."""
        following = tuple(entry for entry in head.entries if step.end is not None and entry.base_offset >= step.end)
        live, dead = self.split(head.entries[: len(head.entries) - len(following)], step.at)
        next_offset = live[-1].next_offset if live else min(step.at, head.entries[0].base_offset, log_start)
        if following:
            live = with_gap(live, next_offset, following[0].base_offset - 1)
            reindexed = self.reindex(live, following, head.fence)
            live, dead = live + reindexed.live, dead + reindexed.dead
        after = replace(
            head,
            leader_epoch=step.leader_epoch,
            entries=live,
            superseded=in_order([*head.superseded, *(entry for entry in dead if not entry.gap)]),
            start_offset=min(head.start_offset, next_offset),
            last_offset=live[-1].last_offset if live else next_offset - 1,
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
            whole, before = replace(entry, base_offset=before[-1].base_offset), before[:-1]
        else:
            whole = entry
        scan = self._archived.scan(whole, step.end, self._archived.open_after(before))
        if scan is None or scan.last_offset < entry.base_offset:
            return None
        live = replace(part_of(whole, scan, step.end), cleaned=False)  # what was live beside it then may not be now
        if branches_at(history, (*before, live)) is not None:
            return None
        live = self._with_true_index(live, whole, scan, head.fence)
        superseded = [each for each in head.superseded if each != entry]
        if live.last_offset < entry.last_offset:
            superseded.append(rest_of(entry, live.next_offset))
        after = replace(
            head,
            entries=(*before, live),
            superseded=in_order(superseded),
            last_offset=live.last_offset,
            clean_to=min(head.clean_to, live.base_offset),
        )
        return Change(after, (live,))

    def reindex(self, entries: Sequence[Entry], following: Sequence[Entry], fence: int) -> Division:
        """`following`, which is live after `entries`, with what is now known of the transactions that are open at their end.

        A gap was filled, or a dead run made one, and what follows was archived without knowing. One commit says all of it, so that
        it is served without a break. What had to be archived again for that is dead.
        """
        live: list[Entry] = []
        for entry in following:
            if entry.gap:
                break
            scan = self._archived.scan(entry, entry.next_offset, self._archived.open_after([*entries, *live]))
            if scan is None:
                raise CorruptData(entry.key, 0, f"no batch below offset {entry.next_offset}")
            live.append(self._with_true_index(part_of(entry, scan, entry.next_offset), entry, scan, fence))
            if live[-1] == entry and not entry.is_cut:
                break  # its end is what it was known to be, and so is all that follows
        dead = [entry for entry, now in zip(following, live, strict=False) if entry.uid != now.uid]
        return Division((*live, *following[len(live) :]), tuple(dead))

    def _with_true_index(self, entry: Entry, whole: Entry, scan: RunScan, fence: int) -> Entry:
        """`entry`, the part of `whole` that was scanned, when its index is true; else the same bytes archived again."""
        if self._archived.index_is_true(entry, scan):
            return entry
        again = self._uploads.new_entry(entry.base_offset, entry.last_offset, scan, fence)
        again = replace(again, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        return self._uploads.upload(again, self._archived.open(whole), scan)
