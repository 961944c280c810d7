"""One run's way from the local log into the store: found, verified, uploaded, and placed in a head that is still to be committed."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from archival.branches import Branches
from archival.cleaner import clean_with, displaced_by, is_clean
from archival.entries import place
from archival.entry_reader import ArchivedEntries
from archival.lineage import CutAt
from archival.looks import CleanerLooks
from archival.run_finder import Run, RunEnd, find_run
from archival.source import PartitionSource
from archival.steps import Upload
from archival.uploads import Uploads
from headwater_core import milestones
from headwater_core.errors import SourceChanged
from headwater_core.segments.local_log import LocalLog
from manifests.entry import Entry
from manifests.head import Head


class Transferred(NamedTuple):
    """A run that the store has confirmed, and a head that lists it."""

    head: Head
    entry: Entry


class RunTransfer:
    """The transfers of one partition. Remembers where the last one ended."""

    def __init__(
        self, source: PartitionSource, looks: CleanerLooks, archived: ArchivedEntries, uploads: Uploads, branches: Branches
    ) -> None:
        self._source, self._looks, self._archived, self._uploads, self._branches = source, looks, archived, uploads, branches
        self._last_run: RunEnd | None = None

    def transfer(
        self, step: Upload, head: Head, log: LocalLog, *, stale_keys_below: int | None = None, listed: Iterable[Entry] = ()
    ) -> Transferred | CutAt | None:
        """`head` with the run that `step` means; None when there is no whole batch for it, CutAt where `head` turns out to end in a dead
        branch.

        stale_keys_below  see Policy
        listed            entries one of which may be the same run already: then nothing is sent

        Raises SourceChanged when the log changed meanwhile, or its cleaner went past `head`; SuspectedGap, CorruptData and
        UnsupportedFormat for what may not be archived; and what the store raises.
        """
        step = self._uploads.resumed(step)
        with self._source.open(step.segment) as file:
            with self._source.unless_changed(log, step.segment):
                run = find_run(step, file, log, head.entries, self._archived.open_after, self._last_run)
            if run is None:
                return None
            if isinstance(run, CutAt):
                self._source.look_again(log, segment=step.segment)
                return run
            entry = self._uploads.new_entry(run.base_offset, run.last_offset, run.scan, head.fence)
            again = self._source.look_again(log, entry, step.segment)
            if self._looks.overtaken(again, head, step.read_from, stale_keys_below):
                raise SourceChanged(f"{log.partition}: compaction went past the archive while a run was read")
            clean_to = clean_with(head, log, again)
            entry = replace(entry, cleaned=is_clean(entry, clean_to), displaced_by=displaced_by(entry, run.scan, again))
            milestones.reached("archive.scanned")
            self._uploads.begin(step)
            entry = self._archived.find_same(listed, entry, run.scan) or self._uploads.upload(entry, file, run.scan)
        return Transferred(self._placed(head, entry, step, run, clean_to), entry)

    def _placed(self, head: Head, entry: Entry, step: Upload, run: Run, clean_to: int) -> Head:
        """`head` with the confirmed `entry`, and what follows it indexed again."""
        self._archived.remember_open(entry, run.scan.open_transactions)
        entries, following = place(head.entries, entry, step.refills)
        reindexed = self._branches.reindex(entries, following, head.fence)
        self._archived.remember_open(entry, run.scan.open_transactions)  # the rest of a gap is next, and reindexing has read others
        self._last_run = RunEnd.of(step.segment, run.scan)
        entries += reindexed.live
        superseded = head.superseded.with_branch(reindexed.dead)
        return replace(head, entries=entries, superseded=superseded, last_offset=entries.next_offset - 1, clean_to=clean_to)
