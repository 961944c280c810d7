"""Mistakes of readers."""

from contextlib import ExitStack
from typing import Any

import hydration.scope
from headwater_core.epochs import EpochHistory
from headwater_core.errors import (
    CorruptData,
    HeadwaterError,
    NotFound,
)
from headwater_core.segments.transactions import OpenTransaction
from hydration.answers import AbortedFrom
from hydration.archive.archive_transactions import Carried
from hydration.archive.archived_runs import ArchivedRuns, missing
from hydration.archive.manifest_view import ManifestView
from hydration.local.epoch_check import EpochCheck
from hydration.partition_transactions import PartitionTransactions
from hydration.resumption import Resumable
from hydration.scope import Scope, Span, Tier
from hydration.views import View
from manifests.entry import Entry
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a reader of the local log takes its word on aborted transactions alone", theme="disks", noted=313)
def aborted_by_the_local_log_alone(stack: ExitStack) -> None:
    real = PartitionTransactions.aborted

    def aborted(self: PartitionTransactions, served: Tier, view: Any, offsets: Span) -> Resumable[list[AbortedFrom]]:
        if served is not Tier.LOCAL:
            return (yield from real(self, served, view, offsets))
        found, _ = yield from self._aborted_locally(view, offsets.start, offsets)
        return sorted(
            {AbortedFrom(each.producer_id, each.first_offset) for each in found}, key=lambda each: (each.first_offset, each.producer_id)
        )

    patch_in(stack, PartitionTransactions, "aborted", aborted)


@mutant("a head that cannot be read is taken for an empty archive", theme="gaps", noted=10)
def no_head_is_an_empty_archive(stack: ExitStack) -> None:
    real = ManifestView.load

    def load(self: ManifestView) -> None:
        try:
            real(self)
        except HeadwaterError:
            self._take(None, None)
            self._seen_s = self._clock.monotonic_s()

    patch_in(stack, ManifestView, "load", load)


@mutant("batches of a local log are not compared with the leader epochs of the look", noted=87)
def epochs_of_batches_ignored(stack: ExitStack) -> None:
    patch_in(stack, EpochCheck, "check", lambda *_: None)


@mutant("after a gap the archive's word on transactions is taken", theme="gaps", noted=51)
def nothing_carried_over_gaps(stack: ExitStack) -> None:
    def carried(self: PartitionTransactions, view: Any) -> Resumable[Carried]:
        yield from ()
        return Carried(())

    patch_in(stack, PartitionTransactions, "_carried", carried)


@mutant("the archive's end is believed on what was open before a gap of it", theme="gaps", noted=201274)
def end_speaks_for_all(stack: ExitStack) -> None:
    def may_leave_open(self: View, offset: int) -> bool:
        archive, extent = self.scope.archive, self.extent
        if archive is None or extent is None:
            return False
        return archive.end < extent.next_offset or (extent.open_from is not None and extent.open_from < offset)

    patch_in(stack, View, "archive_may_leave_open", may_leave_open)


@mutant("a late beginning in the archive excuses its record of an older epoch", theme="gaps", noted=405809)
def late_beginnings_excused(stack: ExitStack) -> None:
    def began_late(archived: EpochHistory, other: EpochHistory, offset: int) -> bool:
        there, here = archived.epoch_at(offset), other.epoch_at(offset)
        if there is None or here is None:
            return False
        return other.began_late(there, offset) if there > here else archived.began_late(here, offset)

    patch_in(stack, hydration.scope, "_began_late", began_late)


@mutant("a reader waits for what its broker has open of a dead branch", theme="gaps", noted=703422)
def waits_for_a_dead_branch(stack: ExitStack) -> None:
    def met_from(self: PartitionTransactions, begun: OpenTransaction, scope: Scope) -> Resumable[int]:
        yield from ()
        return begun.first_offset

    patch_in(stack, PartitionTransactions, "_met_from", met_from)


@mutant("what a cut entry says of its end denies a transaction", theme="gaps", noted=401955)
def denied_by_a_dead_end(stack: ExitStack) -> None:
    real = PartitionTransactions._is_denied
    patch_in(stack, PartitionTransactions, "_is_denied", lambda self, begun, archive: real(self, begun, Span(archive.start, 1 << 62)))


@mutant("a reader takes what is gone for damage, whatever the head says by now", theme="recovered", noted=11)
def reader_calls_it_damage(stack: ExitStack) -> None:
    def gone(self: ArchivedRuns, entry: Entry, error: NotFound) -> Resumable[CorruptData]:
        yield from ()
        return missing(entry, error)

    patch_in(stack, ArchivedRuns, "_gone", gone)
