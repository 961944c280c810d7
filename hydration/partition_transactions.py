"""The transactions of one partition: the last stable offset, and the aborted ones of an answer. Both come from one view, and reach
equally far."""

from collections.abc import Callable
from typing import TypeVar

from headwater_core.errors import TransientError
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, overlapping
from hydration.answers import AbortedFrom
from hydration.archive.archive_transactions import ArchiveTransactions, Carried
from hydration.local.local_transactions import Ending, LocalTransactions, UnknownBeginning
from hydration.local.scan_budget import ScanBudget
from hydration.local.scan_workers import ScanWorker
from hydration.local_looks import LocalLooks
from hydration.resumption import Resumable
from hydration.scope import Scope, Span, Tier
from hydration.tiers import Tiers
from hydration.views import View

T = TypeVar("T")


class PartitionTransactions:
    """Everything public is a generator that yields what has to be waited for (see hydration.resumption)."""

    def __init__(self, tiers: Tiers, looks: LocalLooks) -> None:
        self._tiers, self._looks = tiers, looks
        self._archive = ArchiveTransactions(tiers.manifest, tiers.hydrator) if tiers.manifest is not None else None
        self._known = LocalTransactions(tiers.local) if tiers.local is not None else None
        self._worker = ScanWorker(tiers.submit)

    def stable_offset(self, view: View) -> Resumable[int]:
        """First offset of the oldest transaction open at the view's end, as whichever tier reaches further knows it."""
        scope, extent = view.scope, view.extent
        if view.ends_with_archive:
            assert extent is not None
            begun = [extent.open_from] if extent.open_from is not None else []
        elif view.ends_with_cut_archive:  # what the manifest says of its own end counts for nothing
            assert self._archive is not None
            begun = [each.first_offset for each in (yield from self._archive.open_at(scope.high_watermark, scope.high_watermark))]
        elif scope.local is not None:
            still, known_to = yield from self._local_ending(view)
            if scope.archive is not None and known_to < min(scope.archive.end, scope.local.end):
                return (yield from self.stable_offset(view.with_local_end(known_to)))  # so it is the archive that reaches further
            begun = []
            for each in still:
                begun.append((yield from self._met_from(each, scope)))
            return scope.stable(min([*begun, known_to]))
        else:
            return scope.stable(None)
        carried = yield from self._carried(view)
        return scope.stable(min([*begun, *(each.first_offset for each in carried.still)], default=None))

    def aborted(self, served: Tier, view: View, offsets: Span) -> Resumable[list[AbortedFrom]]:
        """The aborted transactions that `offsets` may belong to, oldest first.

        Their markers may lie anywhere after: each tier is searched for those that the ones before do not reach, as long as a
        transaction of these offsets is open.

        served   the tier that the offsets come from. A compacted log may lack, in one tier, what explains the other's batches.
        """
        scope, found = view.scope, set[AbortedFrom]()
        position: int | None = offsets.start
        while position is not None and position < scope.high_watermark:
            holders = self._holders(view, position)
            if not holders:
                position = self._after_gap(view, position)
                continue
            search = {Tier.LOCAL: self._aborted_locally, Tier.ARCHIVE: self._aborted_in_archive}
            more, position = yield from search[served if served in holders else holders[0]](view, position, offsets)
            found.update(AbortedFrom(each.producer_id, each.first_offset) for each in more)
        carried = yield from self._carried(view)
        found.update(AbortedFrom(each.producer_id, each.first_offset) for each in overlapping(carried.aborted, offsets.start, offsets.end))
        return sorted(found, key=lambda each: (each.first_offset, each.producer_id))

    def _holders(self, view: View, position: int) -> tuple[Tier, ...]:
        """The tiers that know the markers at `position`, the one to ask first in front."""
        holders = self._tiers.order(view.scope, position)
        if Tier.LOCAL not in holders and position in view.described_locally and self._tiers.next_archived(view.scope, position) != position:
            return (Tier.LOCAL,)
        return holders

    def _after_gap(self, view: View, position: int) -> int:
        moved = view.scope.next_held(position)
        if view.scope.archive is not None and moved == view.scope.archive.start:
            raise TransientError(f"{view.partition}: the local log lacks offset {position}, where the archive begins later")
        view.prove_gap(position)
        return moved

    def _aborted_in_archive(self, view: View, since: int, offsets: Span) -> Resumable[tuple[list[AbortedTransaction], int | None]]:
        assert self._archive is not None
        assert view.scope.archive is not None
        return (yield from self._archive.aborted(since, offsets, view.scope.archive.end, view.described_locally))

    def _aborted_locally(self, view: View, since: int, offsets: Span) -> Resumable[tuple[list[AbortedTransaction], int | None]]:
        found, markers = view.local_log, Span(since, view.described_locally.end)
        more, is_all = yield from self._search(view, lambda known, budget: known.aborted(found, markers, offsets, budget))
        return more, None if is_all else markers.end

    def _carried(self, view: View) -> Resumable[Carried]:
        """What becomes in the archive of transactions that began before a gap of it, or in one, and that are open where the local log
        ends: entries after a gap do not know of them. Nothing where the archive ends first, or has known from their beginnings. One whose
        beginning the archive denies counts where the local log serves what the gap lacks: what it wrote later may be there.
        """
        local, archive, extent = view.described_locally, view.scope.archive, view.extent
        if archive is None or extent is None:
            return Carried(())
        known_from = extent.knows_from(local.end)
        if local.end > archive.end or not local.start < known_from <= local.end:
            return Carried(())
        still, known_to = yield from self._local_ending(view)
        unknown = []
        serves_gap = view.scope.local is not None and view.scope.local.start < known_from
        for each in still:
            if each.first_offset < known_from and (serves_gap or not (yield from self._is_denied(each, archive))):
                unknown.append(OpenTransaction(each.producer_id, (yield from self._met_from(each, view.scope))))
        if known_to < local.end or not unknown:  # a log that has been cut: until its checkpoint says so they count as open
            return Carried(tuple(unknown))
        assert self._archive is not None
        return (yield from self._archive.carried(tuple(unknown), known_to, archive.end))

    def _is_denied(self, begun: OpenTransaction, archive: Span) -> Resumable[bool]:
        """Whether the archive has where it began, and knows nothing of it: files below a log start may be of a dead branch, and no
        history shows it. An entry that is live in part only does not say what is open where that part ends."""
        assert self._tiers.manifest is not None
        if begun.first_offset not in archive:
            return False
        entry = yield from self._tiers.manifest.entry_at(begun.first_offset)
        if entry is None or entry.gap or entry.next_offset > archive.end:
            return False
        return entry.open_from is None or entry.open_from > begun.first_offset

    def _met_from(self, begun: OpenTransaction, scope: Scope) -> Resumable[int]:
        """The first offset at which a reader may meet it. Where the archive denies it, what is read there is of another branch than what
        the local log had: nothing of the transaction comes before the archive's next gap, or the local log."""
        local, archive, first = scope.local, scope.archive, begun.first_offset
        if local is None or archive is None or first >= local.start or not (yield from self._is_denied(begun, archive)):
            return first
        assert self._tiers.manifest is not None
        return self._tiers.manifest.first_gap(first, min(archive.end, local.start))

    def _local_ending(self, view: View) -> Resumable[Ending]:
        found, end = view.local_log, view.described_locally.end
        return (yield from self._search(view, lambda known, budget: known.ending(found, end, budget)))

    def _search(self, view: View, ask: Callable[[LocalTransactions, ScanBudget], T]) -> Resumable[T]:
        """What `ask` finds in the local log. What was open at its beginning comes from the archive, where the broker does not say it."""
        known, found = self._known, view.local_log
        assert known is not None
        first = found.segments[0].base_offset if found.segments else 0
        archive_knows = self._tiers.next_archived(view.scope, first - 1) == first - 1
        if archive_knows:
            known.forget_guess()
            if view.archive_may_leave_open(first) and not known.knows_beginning(found):
                yield from self._begin_with_archive(view, known, first)
        while True:
            try:
                return (yield from self._looks.while_same(found, self._worker.find(lambda budget: ask(known, budget))))
            except UnknownBeginning:
                if archive_knows:
                    yield from self._begin_with_archive(view, known, first)
                    continue
                if view.scope.archive is None or first - 1 not in view.scope.archive:
                    view.prove_gap(first - 1)
                known.begin_with(found, (), is_guess=True)

    def _begin_with_archive(self, view: View, known: LocalTransactions, first: int) -> Resumable[None]:
        assert self._archive is not None
        assert view.scope.archive is not None
        known.begin_with(view.local_log, (yield from self._archive.open_at(first, view.scope.archive.end)))
