"""One partition's archive as a reader of bytes sees it: entries, their chunks, and what their indexes know."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, SourceChanged, TransientError
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, Transactions
from hydration.answers import ReadResult, Slice
from hydration.archive.chunks import Chunk, ChunkPlan
from hydration.archive.hydrator import Hydrator
from hydration.archive.index_transactions import open_at, overlapping
from hydration.archive.manifest_view import Archived, Extent
from hydration.archive.readahead import Ahead, Streams
from hydration.local.header_walk import HeaderWalk
from hydration.local.open_segment import Allowance
from hydration.ranges import Boundary, cut, first_at, headers
from hydration.resumption import Steps
from hydration.runfile import RunFile
from hydration.scope import Span, parting_offset
from hydration.times import RecordTime, first_not_older
from manifests.head import Entry

log = structlog.get_logger()


class Carried(NamedTuple):
    """What became of some transactions: those still open, and those that were aborted."""

    still: tuple[OpenTransaction, ...]
    aborted: tuple[AbortedTransaction, ...] = ()


class _Followed(NamedTuple):
    """How far `ArchiveTier.carried` has come with one question, in which state of the archive."""

    asked: tuple[tuple[OpenTransaction, ...], int]
    extent: Extent | None
    reached: int
    found: Carried


class ArchiveTier:
    """Everything here is a generator that yields what has to be waited for (see hydration.waiting)."""

    def __init__(self, archived: Archived, hydrator: Hydrator) -> None:
        self.archived = archived
        self._partition = archived.partition
        self._hydrator = hydrator
        self._streams = Streams(hydrator.readahead_chunks, hydrator.chunk_bytes, hydrator.clock)
        self._followed: _Followed | None = None

    def fill(self, answer: ReadResult, cursor: int, limit: int, max_bytes: int, local: Span | None) -> Steps[int]:
        """Add slices from `cursor` on and below `limit`, about `max_bytes`; the offset to go on with.

        Waits for the first slice; more are added only as far as they are at hand. An offset that compaction took leads on
        to the next chunk and entry, and so does a gap, up to where it is filled by what `local` holds. Without slices the
        answer is the end of what was looked through.

        Raises CorruptData when what the manifest lists is damaged or not there, NotFound when it lists nothing at `cursor`.
        """
        asked, begun, looked_again = answer.next_offset, cursor, 0
        while cursor < limit and answer.size_bytes < max_bytes:
            entry = self.archived.entry_at(cursor)
            if entry is not None and entry.gap:
                if answer.slices or (local is not None and cursor in local and cursor > begun):
                    break
                if local is not None and cursor in local:
                    raise NotFound(f"{self._partition}: the manifest lists a gap at offset {cursor}")
                end = entry.next_offset if local is None or local.start < cursor else min(entry.next_offset, local.start)
                self._moved_over_gap(cursor, end)
                cursor = end
                continue
            try:
                if entry is None:
                    raise NotFound(f"{self._partition}: the manifest lists nothing at offset {cursor}")
                moved = yield from self._fill_from_entry(answer, entry, cursor, asked, limit, max_bytes)
            except NotFound as error:
                if answer.slices:
                    break
                yield from self.archived.refresh(0.0)
                looked_again += 1
                if looked_again > 2 or self.archived.entry_at(cursor) == entry:
                    if entry is None:
                        raise
                    raise _missing(entry, error) from error
                continue
            if moved <= cursor:
                break
            cursor = moved
            if answer.slices and cursor < entry.next_offset:
                break
        if answer.slices:
            self._streams.moved(asked, cursor, answer.size_bytes)
        return cursor

    def aborted(self, since: int, offsets: Span, end: int, local: Span) -> Steps[tuple[list[AbortedTransaction], int | None]]:
        """The aborted transactions that `offsets` may belong to and whose markers are at or past `since`; and from where on
        others have to be asked for more, None when they need not be: no transaction of these offsets is open there.

        end   of what is live: what entries say from there on belongs to a dead branch
        local  what the local log tells of, in gaps
        """
        found: list[AbortedTransaction] = []
        cursor = since
        while cursor < end:
            entry = self.archived.entry_at(cursor)
            if entry is None:
                raise SourceChanged(f"{self._partition}: the manifest no longer lists offset {cursor}")
            if entry.gap:
                if cursor in local:
                    break
                cursor = min(entry.next_offset, local.start) if cursor < local.start < local.end else entry.next_offset
                continue
            live = Span(since, min(entry.next_offset, end))
            if entry.aborted:
                plan = yield from self._plan(entry)
                found.extend(each for each in overlapping(plan.index.aborted, offsets.start, offsets.end) if each.last_offset in live)
            if offsets.end <= entry.next_offset <= end and (entry.open_from is None or entry.open_from >= offsets.end):
                return found, None
            cursor = live.end
        return found, cursor

    def open_at(self, offset: int, end: int) -> Steps[tuple[OpenTransaction, ...]]:
        """Transactions that are open right before `offset`, as far as an entry tells.

        end   of what is live. An index that describes more than that cannot say it: the batches before `offset` are walked then.
        """
        entry = self.archived.entry_at(offset - 1) if offset else None
        if entry is None or entry.gap:
            return ()
        plan = yield from self._plan(entry)
        if plan.index.last_offset < min(entry.next_offset, end):
            return open_at(plan.index, offset)
        still = yield from self.open_at(entry.base_offset, end)
        for chunk in plan.chunks:
            if chunk.first_offset >= offset:
                break
            still = (yield from self._walked(entry, chunk, still, offset)).open
        return still

    def carried(self, open_at: tuple[OpenTransaction, ...], since: int, end: int) -> Steps[Carried]:
        """What becomes, from `since` on, of transactions that no entry tells of, since they began where the archive has nothing. Their
        markers are looked for batch by batch, once; as far as the next gap, behind which nobody can know.

        end   of what is live
        """
        kept, asked = self._followed, (open_at, since)
        if kept is None or kept.asked != asked or kept.reached > end or self._parts_from(kept):
            kept = _Followed(asked, self.archived.extent, since, Carried(open_at))
        extent, cursor, (still, aborted) = self.archived.extent, kept.reached, kept.found
        while still and cursor < end:
            entry = self.archived.entry_at(cursor)
            if entry is None:
                raise SourceChanged(f"{self._partition}: the manifest no longer lists offset {cursor}")
            if entry.gap:
                return Carried((), aborted)
            plan = yield from self._plan(entry)
            chunk: Chunk | None = plan.chunk_for(cursor)
            while still and chunk is not None and chunk.first_offset < end:
                walked = yield from self._walked(entry, chunk, still, end)
                aborted += tuple(each for each in walked.aborted if (each.producer_id, each.first_offset) in open_at)
                still = tuple(each for each in walked.open if each in open_at)
                chunk = plan.after(chunk)
                cursor = min(end, chunk.first_offset if chunk is not None else entry.next_offset)
            self._followed = _Followed(asked, extent, cursor, Carried(still, aborted))
        return Carried(still, aborted)

    def _parts_from(self, followed: _Followed) -> bool:
        """Whether what it came through is not what the archive lists now."""
        before, now = followed.extent, self.archived.extent
        if before is now:
            return False
        if before is None or now is None or now.next_offset < followed.reached:
            return True
        return parting_offset(before.epochs, now.epochs, followed.reached) < followed.reached

    def _walked(self, entry: Entry, chunk: Chunk, open_before: Sequence[OpenTransaction], up_to: int) -> Steps[Transactions]:
        """What a chunk's batches below `up_to` say of transactions."""
        try:
            file = yield from self._hydrator.chunk(self._partition, entry, chunk)
        except NotFound as error:
            raise (yield from self._gone(entry, error)) from error
        walk = HeaderWalk(chunk.first_offset, open_before)

        def advance() -> None:
            try:
                walk.advance(file, chunk.size_bytes, up_to=up_to, allowance=Allowance())
            finally:
                file.release()

        try:
            walking = self._hydrator.submit(advance)
        except HeadwaterError:
            file.release()
            raise
        yield walking
        return walk.transactions

    def first_not_older(self, timestamp_ms: int, span: Span) -> Steps[RecordTime | None]:
        """The first record in `span` that is not older than `timestamp_ms`."""
        entry = self.archived.entry_for_time(timestamp_ms)
        while entry is not None and entry.base_offset < span.end:
            newest = entry.last_timestamp_ms
            if newest is not None and newest >= timestamp_ms and entry.next_offset > span.start:
                found = yield from self._first_not_older(entry, timestamp_ms, span)
                if found is not None:
                    return found
            entry = self.archived.entry_at(entry.next_offset)
        return None

    def next_held(self, span: Span) -> int:
        """The first offset in `span` for which the manifest lists data; the span's end when there is none."""
        offset = span.start
        while offset < span.end and (entry := self.archived.entry_at(offset)) is not None and entry.gap:
            offset = entry.next_offset
        return min(offset, span.end)

    def first_gap(self, span: Span) -> int:
        """The first offset in `span` for which the manifest lists no data; the span's end when there is none."""
        offset = span.start
        while offset < span.end and (entry := self.archived.entry_at(offset)) is not None and not entry.gap:
            offset = entry.next_offset
        return min(offset, span.end)

    def _moved_over_gap(self, offset: int, next_offset: int) -> None:
        self._hydrator.counters.gaps_skipped += 1
        log.warning("gap_skipped", partition=str(self._partition), offset=offset, next_offset=next_offset)

    def _fill_from_entry(self, answer: ReadResult, entry: Entry, cursor: int, asked: int, limit: int, max_bytes: int) -> Steps[int]:
        hydrator, partition = self._hydrator, self._partition
        plan = hydrator.plan_now(entry)
        if plan is None:
            if answer.slices:
                return cursor
            plan = yield from hydrator.plan(partition, entry)
        chunk: Chunk | None = plan.chunk_for(cursor)
        if chunk is not None and not answer.slices:
            self._read_ahead(entry, plan, chunk, asked)
        while chunk is not None and cursor < limit:
            remaining = max_bytes - answer.size_bytes
            if answer.slices:
                file = hydrator.chunk_now(partition, entry, chunk) if remaining > 0 else None
            else:
                file = yield from hydrator.chunk(partition, entry, chunk)
            if file is None:
                return cursor
            following = plan.after(chunk)
            try:
                end = _chunk_end(file, plan, chunk, following.first_offset if following else entry.next_offset, limit)
                found = cut(
                    partial(headers, file),
                    cursor,
                    start=plan.start_for(chunk, cursor),
                    end=end,
                    max_bytes=remaining,
                    boundary=partial(plan.boundary, chunk),
                    walk=not answer.slices or answer.size_bytes < max_bytes // 2,
                )
                if answer.slices and (found is None or found.size_bytes > remaining):
                    return cursor
                if found is not None:
                    answer.slices.append(Slice(file.hold(), found.position, found.size_bytes))
            finally:
                file.release()
            cursor = max(cursor, found.next_offset if found is not None else end.offset)
            if end.position < chunk.size_bytes:  # the limit is in this chunk; below it nothing whole is left
                return cursor if found is not None else limit
            if cursor < end.offset:
                return cursor
            chunk = following
        return cursor

    def _read_ahead(self, entry: Entry, plan: ChunkPlan, chunk: Chunk, asked: int) -> None:
        """Get ready what the reader that asks at `asked` will want behind `chunk`, in this entry and the beginning of the next: once
        for each chunk, if it goes on so.
        """
        ahead = self._streams.ahead(asked, chunk)
        if not ahead.gets:
            return
        ranges = ahead.ranges(chunk.number, len(plan.chunks))
        self._get_ready(entry, plan, ranges)
        left = ahead.gets - sum(1 for each in ranges if each.start % ahead.chunks == 0)
        following = self.archived.entry_at(entry.next_offset) if left else None
        if following is not None and not following.gap:
            following_plan = self._hydrator.plan_now(following)
            if following_plan is None:
                self._hydrator.plan_ahead(self._partition, following)
                return
            self._get_ready(following, following_plan, Ahead(left, ahead.chunks).ranges(-1, len(following_plan.chunks)))
        self._streams.got_ready(asked, chunk)

    def _get_ready(self, entry: Entry, plan: ChunkPlan, ranges: Iterable[range]) -> None:
        for each in ranges:
            self._hydrator.read_ahead(self._partition, entry, plan.chunks[each.start : each.stop])

    def _first_not_older(self, entry: Entry, timestamp_ms: int, span: Span) -> Steps[RecordTime | None]:
        plan = yield from self._plan(entry)
        position = plan.index.position_for_time(timestamp_ms)
        for chunk in plan.chunks:
            if chunk.end <= position:
                continue
            try:
                file = yield from self._hydrator.chunk(self._partition, entry, chunk)
            except NotFound as error:
                raise (yield from self._gone(entry, error)) from error
            try:
                found = first_not_older(file, max(position - chunk.position, 0), chunk.size_bytes, timestamp_ms, span)
            finally:
                file.release()
            if found is not None:
                return found
        return None

    def _plan(self, entry: Entry) -> Steps[ChunkPlan]:
        try:
            plan = yield from self._hydrator.plan(self._partition, entry)
        except NotFound as error:
            raise (yield from self._gone(entry, error)) from error
        return plan

    def _gone(self, entry: Entry, error: NotFound) -> Steps[CorruptData | TransientError]:
        """What it means that an object was not found: damage while the manifest lists it, else it was replaced meanwhile."""
        yield from self.archived.refresh(0.0)
        if self.archived.entry_at(entry.base_offset) == entry:
            return _missing(entry, error)
        return TransientError(f"{entry.key} was replaced while it was wanted; ask again")


def _missing(entry: Entry, error: NotFound) -> CorruptData:
    return CorruptData(entry.key, 0, f"the manifest lists it, the store does not have it ({error})")


def _chunk_end(file: RunFile, plan: ChunkPlan, chunk: Chunk, next_offset: int, limit: int) -> Boundary:
    """Where the chunk's batches below `limit` end."""
    if next_offset <= limit:
        return Boundary(chunk.size_bytes, next_offset)
    found = first_at(partial(headers, file), limit, plan.start_for(chunk, limit).position, chunk.size_bytes)
    return Boundary(found[0], found[1].base_offset) if found is not None else Boundary(chunk.size_bytes, limit)
