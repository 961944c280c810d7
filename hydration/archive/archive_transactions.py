"""The transactions of one partition, by its archive: by the indexes of runs, and by batches where those do not suffice."""

from collections.abc import Sequence
from typing import NamedTuple

from headwater_core.errors import HeadwaterError, SourceChanged
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, Transactions, overlapping
from hydration.archive.archived_runs import ArchivedRuns
from hydration.archive.chunks import Chunk
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import Extent, ManifestView
from hydration.local.header_walk import HeaderWalk
from hydration.local.scan_budget import ScanBudget
from hydration.resumption import Resumable
from hydration.scope import Span, parting_offset
from manifests.entry import Entry


class Carried(NamedTuple):
    """What became of some transactions: those still open, and those that were aborted."""

    still: tuple[OpenTransaction, ...]
    aborted: tuple[AbortedTransaction, ...] = ()


class _Followed(NamedTuple):
    """How far `ArchiveTransactions.carried` has come with one question, in which state of the archive."""

    question: tuple[tuple[OpenTransaction, ...], int]
    extent: Extent | None
    reached: int
    found: Carried


class ArchiveTransactions:
    """Of one partition. Everything public is a generator that yields what has to be waited for (see hydration.resumption)."""

    def __init__(self, manifest: ManifestView, hydrator: Hydrator) -> None:
        self._manifest, self._hydrator = manifest, hydrator
        self._runs = ArchivedRuns(manifest, hydrator)
        self._partition = manifest.partition
        self._followed: _Followed | None = None

    def aborted(self, since: int, offsets: Span, end: int, local: Span) -> Resumable[tuple[list[AbortedTransaction], int | None]]:
        """The aborted transactions that `offsets` may belong to and whose markers are at or past `since`; and the
        offset from which on the other tier has to be searched, None when no transaction of these offsets is open there. Raises
        SourceChanged when the manifest does not list what is searched any more, and what reading it does.

        end   of what is live: what entries say from there on belongs to a dead branch
        local  offsets that the local log describes, where the archive has gaps
        """
        found: list[AbortedTransaction] = []
        cursor = since
        while cursor < end:
            entry = yield from self._manifest.entry_at(cursor)
            if entry is None:
                raise SourceChanged(f"{self._partition}: the manifest no longer lists offset {cursor}")
            if entry.gap:
                if cursor in local:
                    break
                cursor = min(entry.next_offset, local.start) if cursor < local.start < local.end else entry.next_offset
                continue
            live = Span(since, min(entry.next_offset, end))
            if entry.aborted:
                plan = yield from self._runs.plan(entry)
                found.extend(each for each in overlapping(plan.index.aborted, offsets.start, offsets.end) if each.last_offset in live)
            if offsets.end <= entry.next_offset <= end and (entry.open_from is None or entry.open_from >= offsets.end):
                return found, None
            cursor = live.end
        return found, cursor

    def open_at(self, offset: int, end: int) -> Resumable[tuple[OpenTransaction, ...]]:
        """Transactions that are open right before `offset`, as far as an entry shows them.

        end   of what is live. An index that describes more than that cannot say it: the batches before `offset` are walked then.
        """
        entry = (yield from self._manifest.entry_at(offset - 1)) if offset else None
        if entry is None or entry.gap:
            return ()
        plan = yield from self._runs.plan(entry)
        if plan.index.last_offset < min(entry.next_offset, end):
            return plan.index.open_at(offset)
        still = yield from self.open_at(entry.base_offset, end)
        for chunk in plan.chunks:
            if chunk.first_offset >= offset:
                break
            still = (yield from self._walked(entry, chunk, still, offset)).open
        return still

    def carried(self, open_at: tuple[OpenTransaction, ...], since: int, end: int) -> Resumable[Carried]:
        """What becomes, from `since` on, of transactions that no entry lists, because they began where the archive has nothing. Their
        markers are searched batch by batch, once; as far as the next gap, after which nothing is known. Raises as `aborted` does.

        end   of what is live
        """
        kept, question = self._followed, (open_at, since)
        if kept is None or kept.question != question or kept.reached > end or self._has_other_branch(kept):
            kept = _Followed(question, self._manifest.extent, since, Carried(open_at))
        extent, cursor, (still, aborted) = self._manifest.extent, kept.reached, kept.found
        while still and cursor < end:
            entry = yield from self._manifest.entry_at(cursor)
            if entry is None:
                raise SourceChanged(f"{self._partition}: the manifest no longer lists offset {cursor}")
            if entry.gap:
                return Carried((), aborted)
            plan = yield from self._runs.plan(entry)
            chunk: Chunk | None = plan.chunk_for(cursor)
            while still and chunk is not None and chunk.first_offset < end:
                walked = yield from self._walked(entry, chunk, still, end)
                aborted += tuple(each for each in walked.aborted if (each.producer_id, each.first_offset) in open_at)
                still = tuple(each for each in walked.open if each in open_at)
                chunk = plan.after(chunk)
                cursor = min(end, chunk.first_offset if chunk is not None else entry.next_offset)
            self._followed = _Followed(question, extent, cursor, Carried(still, aborted))
        return Carried(still, aborted)

    def _walked(self, entry: Entry, chunk: Chunk, open_before: Sequence[OpenTransaction], end_offset: int) -> Resumable[Transactions]:
        """What a chunk's batches below `end_offset` say of transactions."""
        file = yield from self._runs.chunk(entry, chunk)
        walk = HeaderWalk(chunk.first_offset, open_before)

        def advance() -> None:
            try:
                walk.advance(file, chunk.size_bytes, end_offset=end_offset, budget=ScanBudget())
            finally:
                file.release()

        try:
            walking = self._hydrator.submit(advance)
        except HeadwaterError:
            file.release()
            raise
        yield walking
        return walk.transactions

    def _has_other_branch(self, followed: _Followed) -> bool:
        """Whether what it came through is not what the archive lists now."""
        before, now = followed.extent, self._manifest.extent
        if before is now:
            return False
        if before is None or now is None or now.next_offset < followed.reached:
            return True
        return parting_offset(before.epochs, now.epochs, followed.reached) < followed.reached
