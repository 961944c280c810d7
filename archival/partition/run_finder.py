"""Where in a segment's file the next run begins and ends. Reads the file, and no other state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from archival.partition.source import FoundBatch, check_unchanged, find_batch
from archival.plan.entries import entries_before
from archival.plan.lineage import CutAt, ends_at, epoch_in, newer_from
from archival.plan.steps import Upload
from headwater_core.errors import CorruptData, SuspectedGap, UnsupportedFormat
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.transactions import OpenTransaction
from manifests.entry import ENTRY_EPOCHS_MAX
from manifests.entry_tree import EntryTree


@dataclass(frozen=True, slots=True)
class Run:
    """Verified batches, and the offsets that their entry covers, both inclusive: it may begin and end with a gap that compaction made."""

    base_offset: int
    last_offset: int
    scan: RunScan

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.scan.base_offset <= self.scan.last_offset <= self.last_offset:
            raise ValueError(f"offsets out of order: {self.base_offset} to {self.last_offset}")


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Where the last run ended, so that the next one of a file that grows need not be searched from the file's start.

    A guess: file names and inodes are used again. It counts only when a batch begins right there, at the offset that is due.
    """

    path: Path
    inode: int
    next_offset: int
    position: int

    @classmethod
    def of(cls, segment: LocalSegment, scan: RunScan) -> "RunEnd":
        return cls(segment.path, segment.generation.inode, scan.next_offset, scan.end_position)

    def is_of(self, segment: LocalSegment, next_offset: int) -> bool:
        return (self.path, self.inode, self.next_offset) == (segment.path, segment.generation.inode, next_offset)


OpenAfter = Callable[[EntryTree], Sequence[OpenTransaction]]
"""The transactions that are open after the last of some entries."""


def find_run(
    step: Upload, file: BinaryIO, log: LocalLog, entries: EntryTree, open_after: OpenAfter, last_run: RunEnd | None = None
) -> Run | CutAt | None:
    """The run in `file` that `step` means, verified; None when there is no whole batch for it.

    file      the step's segment
    entries   the live ones that the run continues or fills a gap of
    last_run  where to search first

    CutAt means that the run begins with a batch that lies across the end of what is archived, in another leader epoch, or that is of
    an older one: a batch is never divided, and epochs never go back, so one log cannot do that. But the log's first batches may lie
    below the log start, where the epoch history is silent: then they are what shows that the archive ends in a dead branch.

    Raises SourceChanged, CorruptData and UnsupportedFormat, and SuspectedGap for missing offsets that nothing proves to be compaction's.
    """
    size_bytes, where = check_unchanged(step.segment, file), str(step.segment.path)
    found = _first_batch(step, file, log, last_run, size_bytes)
    if found is None:
        return None
    first = step.first
    if step.refills and not log.topic_policy_proves_compaction:
        first = max(first, found.base_offset)  # nothing shows what became of the offsets before: they stay a gap
    before = entries_before(entries, step.refills, min(first, found.base_offset))
    scan = scan_run(file, start=found.position, end=size_bytes, open_before=open_after(before), end_offset=step.end, where=where)
    if scan is not None and len(scan.epochs) > ENTRY_EPOCHS_MAX:  # the rest is the next run
        end = scan.epochs[ENTRY_EPOCHS_MAX].first_offset
        scan = scan_run(file, start=found.position, end=size_bytes, open_before=open_after(before), end_offset=end, where=where)
    if scan is None:
        return None
    if scan.first_gap is not None and not log.topic_policy_proves_compaction:
        raise SuspectedGap(f"{where} lacks offset {scan.first_gap}, and nothing proves compaction")
    if _crosses_end(step, scan, entries):
        return CutAt(scan.base_offset)
    if scan.epochs and (dead_from := newer_from(before, scan.epochs[0].epoch)) is not None:
        return CutAt(dead_from)
    return Run(min(first, scan.base_offset), _last_offset(step, file, log, scan, size_bytes), scan)


def _first_batch(step: Upload, file: BinaryIO, log: LocalLog, last_run: RunEnd | None, size_bytes: int) -> FoundBatch | None:
    segment, proof = step.segment, log.topic_policy_proves_compaction
    found = _continuation(step, file, last_run, size_bytes) if last_run and not proof else None
    found = found or find_batch(segment, file, step.read_from, 0, size_bytes)
    if proof or (found is None and segment.is_active):
        return found
    if step.refills:  # the log may lack what the archive lists as a gap: after a recovery it begins where the archive does, with its gaps
        return found if found is not None and found.base_offset <= step.refills.last_offset else None
    if found is None:
        raise SuspectedGap(f"{segment.path} holds nothing at or past offset {step.read_from}, and nothing proves compaction")
    if found.base_offset > step.first:
        raise SuspectedGap(f"{segment.path} goes from offset {step.first - 1} to {found.base_offset}, and nothing proves compaction")
    return found


def _continuation(step: Upload, file: BinaryIO, last_run: RunEnd, size_bytes: int) -> FoundBatch | None:
    """The batch at `last_run`, when it is the one that is due."""
    if not last_run.is_of(step.segment, step.read_from):
        return None
    try:
        found = find_batch(step.segment, file, step.read_from, last_run.position, size_bytes)
    except (CorruptData, UnsupportedFormat):
        return None
    return found if found and found.base_offset == step.read_from else None


def _crosses_end(step: Upload, scan: RunScan, entries: EntryTree) -> bool:
    if not entries or scan.base_offset >= (step.refills.base_offset if step.refills else step.first):
        return False
    if scan.epochs and epoch_in(entries, scan.base_offset) != scan.epochs[0].epoch:
        return True
    reason = f"the batch at offset {scan.base_offset} reaches across the end of the archive, in the same leader epoch"
    raise CorruptData(str(step.segment.path), scan.start_position, reason)


def _last_offset(step: Upload, file: BinaryIO, log: LocalLog, scan: RunScan, size_bytes: int) -> int:
    """A gap that compaction made belongs to the entry before it, as far as the step allows: up to the next batch or the next leader
    epoch, whichever comes first."""
    if step.cover_end is None:
        return scan.last_offset
    following = find_batch(step.segment, file, scan.next_offset, scan.end_position, size_bytes)
    if following is not None and following.base_offset < step.cover_end:
        return scan.last_offset
    end = ends_at(log.epochs, *scan.epochs[-1]) if scan.epochs else None
    return max(scan.last_offset, min(step.cover_end, step.cover_end if end is None else end) - 1)
