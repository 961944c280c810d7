"""Mistakes about merges, and about prefixes of compacted topics that are replaced."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace as dataclass_replace
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

import archival.collection.collector
import archival.collection.orphans
import archival.partition.archiver
import archival.partition.branches
import archival.partition.looks
import archival.partition.merger
import archival.partition.release
import archival.partition.source
import archival.partition.tails
import archival.plan.lineage
import archival.plan.merge_plan
import archival.plan.replacement
import archival.plan.role
import archival.plan.step_plan
import archival.plan.trim
from archival.partition.archiver import PartitionArchiver
from archival.partition.entry_reader import ArchivedEntries
from archival.plan.steps import Replace
from headwater_core.errors import (
    TransientError,
)
from headwater_core.objectstore.digest import digest_of
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("neighbours are merged across a gap", theme="merged branches", noted=58)
def merge_across_a_gap(stack: ExitStack) -> None:
    def takes(group: Any, entry: Entry, layout: str) -> bool:
        return not entry.gap and bool(entry.epochs) and group.size_bytes + entry.live_bytes <= group.target_bytes

    real = EntryTree.within
    patch_in(stack, archival.plan.merge_plan._Group, "takes", takes)
    patch_in(stack, archival.partition.archiver, "with_merged", lambda entries, group, merged: _with_merged(entries, merged))

    def without_gaps(entries: EntryTree, first: int, end: int, *how: Any) -> Iterator[Entry]:
        return (entry for entry in real(entries, first, end, *how) if not entry.gap)

    def plan(head: Head, *args: Any, **how: Any) -> Any:
        with patch.object(EntryTree, "within", without_gaps):
            return archival.plan.merge_plan.plan_merge(head, *args, **how)

    patch_in(stack, archival.partition.archiver, "plan_merge", plan)


def _with_merged(entries: EntryTree, merged: Entry) -> EntryTree:
    before, rest = entries.split_at(merged.base_offset)
    return before.followed_by(merged) + rest.split_at(merged.next_offset)[1]


@mutant("a merged entry does not know what was open before it", theme="merges", noted=4)
def merge_forgets_transactions(stack: ExitStack) -> None:
    patch_in(stack, archival.partition.merger, "scan_run", lambda file, **how: scan_run(file, **(how | {"open_before": ()})))
    patch_in(stack, archival.partition.merger, "_is_sum", lambda *_: True)


@mutant("a merge is committed before its object is confirmed", theme="merges", noted=11)
def merge_unconfirmed(stack: ExitStack) -> None:
    real = archival.partition.merger.Merger.merge

    def merge(merger: Any, *args: Any) -> Any:
        upload = merger._uploads.upload

        def hopeful(entry: Entry, source: Any, scan: RunScan) -> Entry:
            with suppress(TransientError):
                return upload(entry, source, scan)  # type: ignore[no-any-return]
            index = encode_index(scan.index)
            return replace(entry, index_bytes=len(index), index_digest=digest_of(index))

        with patch.object(merger._uploads, "upload", hopeful):
            return real(merger, *args)

    patch_in(stack, archival.partition.merger.Merger, "merge", merge)


@mutant("a merge believes the local log without comparing digests", theme="merged keys", noted=6)
def merge_of_other_bytes(stack: ExitStack) -> None:
    real = archival.partition.merger.Merger._copy_local

    def copied(merger: Any, entry: Entry, *args: Any) -> str:
        return entry.digest if real(merger, entry, *args) else ""

    patch_in(stack, archival.partition.merger.Merger, "_copy_local", copied)
    patch_in(stack, archival.partition.merger, "_is_sum", lambda *_: True)


@mutant("a merge takes the dead bytes of a cut entry too", in_race=True)
def merge_of_dead_bytes(stack: ExitStack) -> None:
    real = ArchivedEntries.pieces

    def pieces(self: ArchivedEntries, entry: Entry, piece_bytes: int) -> Iterator[memoryview]:
        return real(self, replace(entry, live_bytes=entry.size_bytes), piece_bytes)

    patch_in(stack, ArchivedEntries, "pieces", pieces)
    patch_in(stack, archival.partition.merger, "_is_sum", lambda *_: True)


@mutant("what compaction went past is archived again before its cleaner has returned", theme="forgotten", noted=437)
def replaced_for_nothing(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.replacement, "clean_below", lambda log: 2**62)


@mutant("only what is new is archived again where compaction went past the archive", theme="keys", noted=2)
def replaced_in_part(stack: ExitStack) -> None:
    def plan(log: LocalLog, head: Head, first: int, overtaken: Any) -> Any:
        last = head.entries[-1].base_offset if head.entries else head.start_offset
        return Replace(last, "") if overtaken(first) and last > head.start_offset else None

    patch_in(stack, archival.plan.step_plan, "plan_overtaken", plan)


@mutant("what only the archive holds is replaced to save space", theme="shrinks", noted=24)
def saved_without_the_oldest(stack: ExitStack) -> None:
    real = archival.plan.replacement.plan_smaller

    def plan(log: LocalLog, head: Head, *of: Any) -> Replace | None:
        found = real(log, replace(head, start_offset=min(max(head.start_offset, log.start_offset), head.next_offset)), *of)
        return found and Replace(head.start_offset, found.reason)

    patch_in(stack, archival.plan.step_plan, "plan_smaller", plan)


@mutant("space is to be saved where there is none", theme="shrinks", noted=6)
def saved_without_end(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.replacement, "_saves", lambda *_: True)


@mutant("what a record may have been dropped for is not archived yet when space is saved", in_race=True)
def saved_before_what_displaced(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.replacement, "holds_what_was_cleaned", lambda *_: True)
    patch_in(stack, archival.partition.archiver, "holds_what_was_cleaned", lambda *_: True)


@mutant("a replacement that was begun under another claim goes on", in_race=True)
def drafted_under_another_claim(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **how: Any) -> Head:
        draft = self._draft
        head = real(self, after, *args, **how)
        if how.get("claims") and draft is not None:
            self._draft = dataclass_replace(draft, of=head)
        return head

    patch_in(stack, PartitionArchiver, "_commit", commit)
