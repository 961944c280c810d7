"""Reading one split: bytes of the archive in, Arrow out, in the task that was given it."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import pyarrow as pa
import structlog

from headwater.pipeline.scan.archive_snapshot import LOOKS_MAX, OffsetRange, load_head
from headwater.pipeline.scan.buffers import PIECE_BYTES, Buffer
from headwater.pipeline.scan.decoder import Wanted, decode
from headwater.pipeline.scan.pieces import Piece, cut, fetch, read_index, whole
from headwater.pipeline.scan.quarantine import Damage, open_quarantine
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.splits import Split, gap_error, marker_entries
from headwater_core.epochs import leader_epoch_at
from headwater_core.errors import (
    CorruptData,
    DataLoss,
    HeadwaterError,
    NotFound,
    Superseded,
    TransientError,
    TruncatedData,
    UnsupportedFormat,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.runindex import RunIndex
from hydration.archive.index_transactions import overlapping
from manifests.head import Entry, Head
from manifests.repository import ManifestRepository

AHEAD_BYTES = 2 * PIECE_BYTES  # under way while a piece is decoded
AHEAD_GETS = 4  # of small pieces, for which the store's latency counts
SMALL_BYTES = 1 << 20  # an entry up to this is read as a whole: asking its index would take as long

log = structlog.get_logger()


@dataclass(slots=True)
class ReadCounters:
    """What reading took. entries_skipped: for the predicate's sake, or because they are gaps."""

    gets: int = 0
    bytes_fetched: int = 0
    entries_skipped: int = 0
    gaps_skipped: int = 0
    heads_reread: int = 0
    damaged: int = 0
    rows: int = 0

    def add(self, other: "ReadCounters") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def read_split(
    store: ObjectStore, split: Split, query: Query, counters: ReadCounters | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """The split's records that satisfy the query, in offset order, each once. Memory: a few pieces and what one decodes to.

    An object that is not there any more is looked for in the head again, by offset: it may have been merged or compacted away.

    Raises CorruptData, with object, position and offsets, for what is damaged or gone though listed; with query.quarantine_path
    that is listed there instead, and the rest is read. Raises Superseded and DataLoss for what an unclean election or retention
    has taken meanwhile, and what the store raises.
    """
    reading = _Reading(store, split, query, counters if counters is not None else ReadCounters())
    try:
        yield from reading.batches()
    finally:
        reading.finish()


class _Gone(Exception):
    """The object `key` of an entry is not there."""

    def __init__(self, entry: Entry, key: str) -> None:
        super().__init__(key)
        self.entry, self.key = entry, key


class _Reading:
    """One pass over a split. `_cursor`: what lies below was yielded, or is not to be."""

    def __init__(self, store: ObjectStore, split: Split, query: Query, counters: ReadCounters) -> None:
        self._store, self._split, self._query, self._counters = store, split, query, counters
        self._entries: Sequence[Entry] = split.entries
        self._markers: Sequence[Entry] = split.markers
        self._aborted: tuple[tuple[int, int, int], ...] | None = None
        self._cursor = split.first
        self._looks = 0
        self._quarantine = open_quarantine(query)
        self._damage: dict[Damage, None] = {}
        self._noticed = 0  # damage that was met, also where it takes no offset of this split

    def batches(self) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(AHEAD_GETS, "fetch") as pool:
            while self._cursor < self._split.end:
                try:
                    if self._aborted is None:
                        self._aborted = self._find_aborted()
                    for piece, got in self._fetched(pool):
                        yield from self._records(piece, got.content if isinstance(got, Buffer) else got)
                        self._cursor = max(self._cursor, min(piece.next_offset, self._split.end))
                    return
                except _Gone as gone:
                    self._look_again(gone)

    def finish(self) -> None:
        if self._damage and self._quarantine:
            self._quarantine.write(self._split, list(self._damage))

    # Which bytes, and getting them

    def _find_aborted(self) -> tuple[tuple[int, int, int], ...]:
        first, end = self._cursor, self._split.end
        found: list[tuple[int, int, int]] = []
        for entry in self._markers:
            try:
                listed = self._index(entry).aborted
            except CorruptData as error:  # nobody can tell what of the split was aborted
                self._set_aside(error, entry.index_key, 0, first, end - 1)
                self._cursor = end
                return ()
            live = (each for each in listed if each.last_offset <= entry.last_offset)  # the others are a dead branch's
            found.extend((each.producer_id, each.first_offset, each.last_offset) for each in overlapping(live, first, end))
        return tuple(found)

    def _pieces(self) -> Iterator[Piece]:
        """What is wanted from the cursor on; indexes are read on the way."""
        predicate = self._query.predicate
        for entry in self._entries:
            first = max(self._cursor, entry.base_offset, predicate.first_offset)
            end = min(self._split.end, entry.next_offset, predicate.end_offset)
            if first >= end:
                continue
            if entry.gap:
                if self._query.fail_on_data_loss:
                    raise gap_error(self._split.partition_id, entry, self._query)
                self._counters.gaps_skipped += 1
            elif not predicate.may_match(entry):
                self._counters.entries_skipped += 1
            elif entry.live_bytes <= (PIECE_BYTES if self._wants_all(entry, first, end) else SMALL_BYTES):
                yield whole(entry)
            else:
                try:
                    index = self._index(entry)
                except CorruptData as error:
                    self._set_aside(error, entry.index_key, 0, first, end - 1)
                    continue
                yield from cut(entry, index, first, end, predicate.first_timestamp_ms, PIECE_BYTES)

    def _wants_all(self, entry: Entry, first: int, end: int) -> bool:
        oldest = self._query.predicate.first_timestamp_ms
        as_old = oldest is None or (entry.first_timestamp_ms is not None and oldest <= entry.first_timestamp_ms)
        return as_old and (first, end) == (entry.base_offset, entry.next_offset)

    def _fetched(self, pool: ThreadPoolExecutor) -> Iterator[tuple[Piece, Buffer | CorruptData]]:
        """Pieces in order, fetched ahead of time; CorruptData where the store holds less than the manifest says. A piece's buffer
        is good until the next one is asked for.
        """
        pieces = self._pieces()
        under_way: deque[tuple[Piece, Future[Buffer]]] = deque()
        failure: HeadwaterError | _Gone | None = None
        try:
            while True:
                ahead = sum(piece.size_bytes for piece, _ in under_way)
                while failure is None and len(under_way) < AHEAD_GETS and (ahead < AHEAD_BYTES or not under_way):
                    try:
                        piece = next(pieces)
                    except StopIteration:
                        break
                    except (HeadwaterError, _Gone) as error:  # what comes before it is read first
                        failure = error
                        break
                    self._count_get(piece.size_bytes)
                    under_way.append((piece, pool.submit(fetch, self._store, piece)))
                    ahead += piece.size_bytes
                if not under_way:
                    break
                piece, future = under_way.popleft()
                try:
                    got: Buffer | CorruptData = future.result()
                except NotFound as error:
                    raise _Gone(piece.entry, piece.entry.key) from error
                except CorruptData as error:
                    got = error
                try:
                    yield piece, got
                finally:
                    if isinstance(got, Buffer):
                        got.release()
            if failure is not None:
                raise failure
        finally:
            for _, future in under_way:
                if not future.cancel():
                    future.add_done_callback(_release)

    def _fetch(self, piece: Piece) -> Buffer:
        self._count_get(piece.size_bytes)
        try:
            return fetch(self._store, piece)
        except NotFound as error:
            raise _Gone(piece.entry, piece.entry.key) from error

    def _index(self, entry: Entry) -> RunIndex:
        self._count_get(entry.index_bytes)
        try:
            return read_index(self._store, entry)
        except NotFound as error:
            raise _Gone(entry, entry.index_key) from error

    def _count_get(self, size_bytes: int) -> None:
        self._counters.gets += 1
        self._counters.bytes_fetched += size_bytes

    # Bytes to records

    def _records(self, piece: Piece, got: memoryview | CorruptData) -> Iterator[pa.RecordBatch]:
        try:
            if self._quarantine:
                found: Iterable[pa.RecordBatch] = self._salvaged(piece, got)
            elif isinstance(got, CorruptData):
                raise got
            else:
                found = self._checked(piece, got)
            for batch in found:
                self._counters.rows += batch.num_rows
                yield batch
        except (CorruptData, UnsupportedFormat) as error:
            raise self._located(error, piece.first_offset, piece.next_offset - 1) from error

    def _checked(self, piece: Piece, buffer: memoryview) -> Iterator[pa.RecordBatch]:
        try:
            piece.check(buffer)
        except CorruptData:
            for _ in self._decode(piece.entry, buffer, piece.position, only_looks=True):
                pass  # where a batch is damaged, this says which
            raise
        yield from self._decode(piece.entry, buffer, piece.position)

    def _decode(self, entry: Entry, buffer: memoryview, position: int, *, only_looks: bool = False) -> Iterator[pa.RecordBatch]:
        predicate = self._query.predicate
        first = max(self._cursor, entry.base_offset, predicate.first_offset)
        wanted = Wanted(
            topic=self._split.topic,
            partition=self._split.partition,
            columns=self._query.columns,
            first=first,
            end=max(min(self._split.end, entry.next_offset, predicate.end_offset), first),
            first_timestamp_ms=predicate.first_timestamp_ms,
            end_timestamp_ms=predicate.end_timestamp_ms,
            aborted=self._aborted or (),
        )
        if only_looks:
            return decode(buffer, wanted, where=entry.key, position=position)
        return decode(buffer, wanted, where=entry.key, position=position, passed=self._passed)

    def _passed(self, next_offset: int) -> None:
        self._cursor = max(self._cursor, min(next_offset, self._split.end))

    # Damage

    def _salvaged(self, piece: Piece, got: memoryview | CorruptData) -> Iterator[pa.RecordBatch]:
        """What is sound streams, as without a quarantine. From the first damage on, batch by batch between the points of the index;
        the rest is set aside.
        """
        try:
            if isinstance(got, CorruptData):
                raise got
            yield from self._checked(piece, got)
            return
        except (CorruptData, UnsupportedFormat) as error:
            damage, before = error, self._noticed
        try:
            with self._fetch(piece) as again:  # it may have happened on the way
                yield from self._checked(piece, again)
            return
        except (CorruptData, UnsupportedFormat):
            pass
        first = max(piece.first_offset, self._cursor)
        try:
            parts = cut(piece.entry, self._index(piece.entry), first, piece.next_offset, None, piece_bytes=0)
        except (CorruptData, _Gone):
            parts = [piece]
        sound = [(part, span) for part in parts for span in self._sound(part)]
        if self._noticed == before:
            self._set_aside(damage, piece.entry.key, piece.position, first, piece.next_offset - 1)  # no batch, yet the whole
            return
        for part, (at, stop) in sound:
            position = part.position + at
            try:
                with self._fetch(replace(part, position=position, size_bytes=stop - at)) as buffer:
                    yield from self._decode(part.entry, buffer, position)
            except (CorruptData, UnsupportedFormat) as error:  # sound a moment ago
                self._set_aside(error, part.entry.key, position, max(part.first_offset, self._cursor), part.next_offset - 1)

    def _sound(self, part: Piece) -> list[tuple[int, int]]:
        """Where in `part` runs of sound batches begin and end; the others are set aside."""
        try:
            with self._fetch(part) as buffer:
                return self._sound_batches(part, buffer)
        except CorruptData as error:
            self._set_aside(error, part.entry.key, part.position, part.first_offset, part.next_offset - 1)
            return []

    def _sound_batches(self, part: Piece, buffer: memoryview) -> list[tuple[int, int]]:
        key, at, last = part.entry.key, 0, part.first_offset - 1
        found: list[tuple[int, int]] = []
        while at < len(buffer):
            position = part.position + at
            try:
                header = read_batch_header(buffer, at, where=key)
                stop = at + header.size_bytes
                if stop > len(buffer):
                    raise TruncatedData(key, position, f"batch of {header.size_bytes} bytes, {len(buffer) - at} are left")
            except (CorruptData, UnsupportedFormat) as error:  # where the next batch begins, nobody can tell
                self._set_aside(error, key, position, last + 1, part.next_offset - 1)
                return found
            if not last < header.base_offset <= header.last_offset < part.next_offset or (
                at == 0 and part.by_index and header.base_offset != part.first_offset
            ):  # which of these batches lies, nobody can tell
                moved = CorruptData(key, position, f"batch at offset {header.base_offset} follows offset {last}")
                self._set_aside(moved, key, part.position, part.first_offset, part.next_offset - 1)
                return []
            try:
                for _ in self._decode(part.entry, buffer[at:stop], position, only_looks=True):
                    pass
                found.append((found.pop()[0] if found and found[-1][1] == at else at, stop))
            except (CorruptData, UnsupportedFormat) as error:
                self._set_aside(error, key, position, header.base_offset, header.last_offset)
            at, last = stop, header.last_offset
        return found

    def _located(self, error: CorruptData | UnsupportedFormat, first: int, last: int) -> HeadwaterError:
        """`error`, and which offsets are concerned."""
        advice = "" if self._quarantine or not self._query.words.set_aside else f" ({self._query.words.set_aside})"
        offsets = f"; offsets {first} to {last} of {self._split.partition_id}{advice}"
        if isinstance(error, CorruptData):
            return type(error)(error.where, error.position, error.reason + offsets)
        return UnsupportedFormat(f"{error}{offsets}")

    def _set_aside(self, error: CorruptData | UnsupportedFormat, key: str, position: int, first: int, last: int) -> None:
        """List damage, as far as it is the split's; without a quarantine it is the end."""
        if not self._quarantine:
            raise self._located(error, first, last) from error
        self._noticed += 1
        first, last = max(first, self._split.first), min(last, self._split.end - 1)
        if first > last:
            return
        topic, partition = self._split.topic, self._split.partition
        reason = error.reason if isinstance(error, CorruptData) else str(error)
        found = Damage(topic=topic, partition=partition, object=key, position=position, first_offset=first, last_offset=last, reason=reason)
        if found not in self._damage:
            self._damage[found] = None
            self._counters.damaged += 1
            place = str(self._split.partition_id)
            log.warning(
                "damage_set_aside", partition=place, key=key, position=position, first_offset=first, last_offset=last, reason=reason
            )

    # A manifest that has moved on

    def _look_again(self, gone: _Gone) -> None:
        """Go on with what the head lists now from the cursor on. An object that it still lists is damage."""
        self._looks += 1
        self._counters.heads_reread += 1
        if self._looks > LOOKS_MAX:
            raise TransientError(f"{self._split}: {gone.key} was replaced, as were {LOOKS_MAX} before it; read again later")
        head = load_head(ManifestRepository(self._store), self._split.partition_id)
        if any(entry.key == gone.entry.key for entry in head.entries):
            first, end = max(self._cursor, gone.entry.base_offset), min(self._split.end, gone.entry.next_offset)
            if self._aborted is None:  # nobody can tell what of the split was aborted
                first, end = self._cursor, self._split.end
            self._set_aside(CorruptData(gone.key, 0, "the manifest lists it, the store does not have it"), gone.key, 0, first, end - 1)
            self._cursor = end
            return
        self._check_still_there(head)
        rest = OffsetRange(head, self._cursor, self._split.end)
        self._entries = rest.entries
        if self._query.read_committed:
            self._markers, self._aborted = marker_entries(head.entries, rest.first, rest.end), None

    def _check_still_there(self, head: Head) -> None:
        """Whether the offsets that are left are still what was planned: the same leaderships' records, and all of them."""
        split, end = self._split, self._split.end
        if self._cursor < head.start_offset:
            if self._query.fail_on_data_loss:
                raise DataLoss(f"{split}: the archive begins at {head.start_offset} now ({self._query.words.skip_loss})")
            self._cursor = min(head.start_offset, end)
        now, partings = OffsetRange(head, self._cursor, end).entries, {min(head.next_offset, end)}
        for entry in self._entries:
            first, last = max(entry.base_offset, self._cursor), min(entry.last_offset, end - 1)
            if first <= last and not entry.gap:
                looked_at = {first, *(start for each in now for _, start in each.epochs if first <= start <= last)}
                partings.update(at for at in looked_at if _known_epoch(now, at) > _known_epoch((entry,), at))
        if min(partings) < end:
            raise Superseded(f"{split}: from offset {min(partings)} on a newer leader epoch has superseded what was to be read; start anew")


def _known_epoch(entries: Sequence[Entry], offset: int) -> int:
    """The leader epoch that wrote `offset`, the first known one before any; -1 when none is known. Compaction may make it
    older than it was, never newer."""
    starts = [start for entry in entries for start in entry.epochs]
    epoch = leader_epoch_at(starts, offset)
    return epoch if epoch is not None else starts[0].epoch if starts else -1


def _release(done: Future[Buffer]) -> None:
    if done.exception() is None:
        done.result().release()
