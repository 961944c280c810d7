"""One partition's archive as a reader of bytes sees it: entries, their chunks, and what their indexes know."""

from collections.abc import Iterable
from functools import partial

from headwater_core.errors import NotFound
from hydration.answers import ReadResult, Slice
from hydration.archive.archived_runs import missing
from hydration.archive.chunks import Chunk, ChunkPlan
from hydration.archive.damage import damage_of
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import ManifestView
from hydration.archive.readahead import Ahead, Streams
from hydration.counters import report_gap
from hydration.ranges import Boundary, cut, first_at, headers
from hydration.resumption import Resumable
from hydration.runfile import RunFile
from hydration.scope import Span
from manifests.entry import Entry


class ArchiveTier:
    """Slices of one partition's archive. `fill` is a generator that yields what has to be waited for (see hydration.resumption)."""

    def __init__(self, manifest: ManifestView, hydrator: Hydrator) -> None:
        self.manifest = manifest
        self._partition = manifest.partition
        self._hydrator = hydrator
        self._streams = Streams(hydrator.readahead_chunks, hydrator.chunk_bytes, hydrator.clock)

    def fill(self, answer: ReadResult, cursor: int, end: int, max_bytes: int, local: Span | None) -> Resumable[int]:
        """Add slices from `cursor` on and below `end`, about `max_bytes`; the offset to continue with.

        Waits for the first slice; more are added only as far as they are at hand. An offset that compaction removed leads on
        to the next chunk and entry, and so does a gap, as far as `local` does not fill it. Without slices the answer is the end of
        what was searched.

        Raises CorruptData when what the manifest lists is damaged or not there, NotFound when it lists nothing at `cursor`.
        """
        requested, begun, refreshes = answer.next_offset, cursor, 0
        while cursor < end and answer.size_bytes < max_bytes:
            entry = self.manifest.entry_now(cursor) if answer.slices else (yield from self.manifest.entry_at(cursor))
            if entry is None and answer.slices:
                break  # its page is not at hand
            if entry is not None and entry.gap:
                if answer.slices or (local is not None and cursor in local and cursor > begun):
                    break
                if local is not None and cursor in local:
                    raise NotFound(f"{self._partition}: the manifest lists a gap at offset {cursor}")
                gap_end = entry.next_offset if local is None or local.start < cursor else min(entry.next_offset, local.start)
                report_gap(self._hydrator.counters, self._partition, cursor, gap_end)
                cursor = gap_end
                continue
            try:
                if entry is None:
                    raise NotFound(f"{self._partition}: the manifest lists nothing at offset {cursor}")
                moved = yield from self._fill_from_entry(answer, entry, cursor, requested, end, max_bytes)
            except NotFound as error:
                if answer.slices:
                    break
                yield from self.manifest.refresh(0.0)
                refreshes += 1
                if refreshes > 2 or (yield from self.manifest.entry_at(cursor)) == entry:
                    if entry is None:
                        raise
                    lost = missing(entry, error)
                    self._hydrator.damage.note(damage_of(self._partition, entry, lost, offset=cursor))
                    raise lost from error
                continue
            if moved <= cursor:
                break
            cursor = moved
            if answer.slices and cursor < entry.next_offset:
                break
        if answer.slices:
            self._streams.moved(requested, cursor, answer.size_bytes)
        return cursor

    def _fill_from_entry(self, answer: ReadResult, entry: Entry, cursor: int, requested: int, end: int, max_bytes: int) -> Resumable[int]:
        hydrator, partition = self._hydrator, self._partition
        plan = hydrator.plan_now(entry)
        if plan is None:
            if answer.slices:
                return cursor
            plan = yield from hydrator.plan(partition, entry)
        chunk: Chunk | None = plan.chunk_for(cursor)
        if chunk is not None and not answer.slices:
            self._read_ahead(entry, plan, chunk, requested)
        while chunk is not None and cursor < end:
            remaining = max_bytes - answer.size_bytes
            if answer.slices:
                file = hydrator.chunk_now(partition, entry, chunk) if remaining > 0 else None
            else:
                file = yield from hydrator.chunk(partition, entry, chunk)
            if file is None:
                return cursor
            following = plan.after(chunk)
            try:
                chunk_end = _chunk_end(file, plan, chunk, following.first_offset if following else entry.next_offset, end)
                found = cut(
                    partial(headers, file),
                    cursor,
                    start=plan.start_for(chunk, cursor),
                    end=chunk_end,
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
            cursor = max(cursor, found.next_offset if found is not None else chunk_end.offset)
            if chunk_end.position < chunk.size_bytes:  # `end` is in this chunk; nothing whole is left before it
                return cursor if found is not None else end
            if cursor < chunk_end.offset:
                return cursor
            chunk = following
        return cursor

    def _read_ahead(self, entry: Entry, plan: ChunkPlan, chunk: Chunk, requested: int) -> None:
        """Get ready what the reader whose read began at `requested` will need after `chunk`, in this entry and the beginning of the next:
        once for each chunk, if it continues so.
        """
        ahead = self._streams.ahead(requested, chunk)
        if not ahead.gets:
            return
        ranges = ahead.ranges(chunk.number, len(plan.chunks))
        self._get_ready(entry, plan, ranges)
        left = ahead.gets - sum(1 for each in ranges if each.start % ahead.chunks == 0)
        following = self.manifest.entry_now(entry.next_offset) if left else None
        if following is not None and not following.gap:
            following_plan = self._hydrator.plan_now(following)
            if following_plan is None:
                self._hydrator.plan_ahead(self._partition, following)
                return
            self._get_ready(following, following_plan, Ahead(left, ahead.chunks).ranges(-1, len(following_plan.chunks)))
        self._streams.got_ready(requested, chunk)

    def _get_ready(self, entry: Entry, plan: ChunkPlan, ranges: Iterable[range]) -> None:
        for each in ranges:
            self._hydrator.read_ahead(self._partition, entry, plan.chunks[each.start : each.stop])


def _chunk_end(file: RunFile, plan: ChunkPlan, chunk: Chunk, next_offset: int, end: int) -> Boundary:
    """Where the chunk's batches below `end` end."""
    if next_offset <= end:
        return Boundary(chunk.size_bytes, next_offset)
    found = first_at(partial(headers, file), end, plan.start_for(chunk, end).position, chunk.size_bytes)
    return Boundary(found[0], min(found[1].base_offset, end)) if found is not None else Boundary(chunk.size_bytes, end)
