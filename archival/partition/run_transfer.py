"""Runs' way from the local log into the store: found, verified, uploaded, and placed in a head that is still to be committed."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from archival.partition.branches import Branches
from archival.partition.entry_reader import ArchivedEntries
from archival.partition.looks import CleanerLooks
from archival.partition.run_finder import Run, RunEnd, find_run
from archival.partition.source import PartitionSource
from archival.partition.uploads import NewUpload, Uploads
from archival.plan.cleaner import clean_with, displaced_by, is_clean
from archival.plan.entries import first_published_ms, place
from archival.plan.lineage import CutAt
from archival.plan.steps import Upload
from headwater_core import milestones
from headwater_core.errors import SourceChanged
from headwater_core.segments.local_log import LocalLog
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """A verified run, whose file is open. `entry` says what is known of it before its upload."""

    step: Upload
    file: BinaryIO
    run: Run
    entry: Entry


class Transferred(NamedTuple):
    """Runs that the store has confirmed, and a head that lists them."""

    head: Head
    entries: tuple[Entry, ...]


class RunTransfer:
    """The transfers of one partition. Remembers where the last one ended."""

    def __init__(
        self, source: PartitionSource, looks: CleanerLooks, archived: ArchivedEntries, uploads: Uploads, branches: Branches
    ) -> None:
        self._source, self._looks, self._archived, self._uploads, self._branches = source, looks, archived, uploads, branches
        self._last_run: RunEnd | None = None

    def scan(self, step: Upload, head: Head, log: LocalLog, files: ExitStack) -> ScannedRun | CutAt | None:
        """The run that `step` means, to come after what `head` lists; None when there is no whole batch for it, CutAt where `head` turns
        out to end in a dead branch. Its file stays open as long as `files`.

        Raises SourceChanged when the log changed meanwhile; SuspectedGap, CorruptData and UnsupportedFormat for what may not be archived.
        """
        step = self._uploads.resumed(step)
        file = files.enter_context(self._source.open(step.segment))
        with self._source.unless_changed(log, step.segment):
            run = find_run(step, file, log, head.entries, self._archived.open_after, self._last_run)
        if run is None:
            return None
        if isinstance(run, CutAt):
            self._source.look_again(log, segment=step.segment)
            return run
        last = None if step.refills or not head.entries else head.entries[-1]
        return ScannedRun(step, file, run, self._uploads.new_entry(run.base_offset, run.last_offset, run.scan, head.fence, last=last))

    def with_scanned(self, head: Head, scanned: ScannedRun) -> Head:
        """`head` as it will be once `scanned`, which is after its last entry, is archived: to plan what comes next."""
        self._archived.remember_open(scanned.entry, scanned.run.scan.open_transactions)
        return replace(head, entries=head.entries.followed_by(scanned.entry), last_offset=scanned.entry.last_offset)

    def send(
        self,
        scanned: Sequence[ScannedRun],
        head: Head,
        log: LocalLog,
        *,
        stale_keys_below: int | None = None,
        listed: Iterable[Entry] = (),
        replaced: EntryTree | None = None,
    ) -> Transferred:
        """`head` with all of `scanned`, one after the other, at least one, after one second look at the log.

        stale_keys_below  see Policy
        listed            entries one of which may be the first run already: then nothing is sent
        replaced          the live entries that `scanned` is to replace

        Raises SourceChanged when the log changed meanwhile, or its cleaner went past `head`; and what the store raises.
        """
        first = scanned[0]
        again = self._source.look_again(log, *(each.entry for each in scanned), segment=first.step.segment)
        if self._looks.overtaken(again, head, first.step.read_from, stale_keys_below, end=scanned[-1].entry.next_offset):
            raise SourceChanged(f"{log.partition}: compaction went past the archive while a run was read")
        clean_to = clean_with(head, log, again)
        now_ms = self._looks.now_ms()
        uploads = [
            NewUpload(
                replace(
                    each.entry,
                    cleaned=is_clean(each.entry, clean_to),
                    displaced_by=displaced_by(each.entry, each.run.scan, again),
                    published_ms=first_published_ms(each.entry, replaced or EntryTree(), now_ms),
                ),
                each.file,
                each.run.scan,
            )
            for each in scanned
        ]
        milestones.reached("archive.scanned")
        self._uploads.begin(first.step)
        same = self._archived.find_same(listed, uploads[0].entry, first.run.scan) if len(scanned) == 1 else None
        entries = [same] if same is not None else self._uploads.upload_all(uploads)
        for each, entry in zip(scanned, entries, strict=True):
            head = self._placed(head, entry, each, clean_to)
        return Transferred(head, tuple(entries))

    def _placed(self, head: Head, entry: Entry, scanned: ScannedRun, clean_to: int) -> Head:
        """`head` with the confirmed `entry`, and what follows it indexed again."""
        step, run = scanned.step, scanned.run
        self._archived.remember_open(entry, run.scan.open_transactions)
        entries, following = place(head.entries, entry, step.refills)
        reindexed = self._branches.reindex(entries, following, head.fence)
        self._archived.remember_open(entry, run.scan.open_transactions)  # the rest of a gap is next, and reindexing has read others
        self._last_run = RunEnd.of(step.segment, run.scan)
        entries += reindexed.live
        superseded = head.superseded.with_branch(reindexed.dead)
        return replace(head, entries=entries, superseded=superseded, last_offset=entries.next_offset - 1, clean_to=clean_to)
