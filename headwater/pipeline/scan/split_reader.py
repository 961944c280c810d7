"""One split: bytes of the archive in, Arrow out."""

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from headwater.pipeline.scan.archive_snapshot import REPLANS_MAX, OffsetRange, load_head
from headwater.pipeline.scan.buffers import PIECE_BYTES
from headwater.pipeline.scan.piece_fetcher import MissingObject, PieceFetcher
from headwater.pipeline.scan.pieces import Piece, cut, whole
from headwater.pipeline.scan.quarantine import SplitDamage
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.salvage import Salvage
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.split_decoder import SplitDecoder
from headwater.pipeline.scan.splits import Split, gap_error, marker_entries
from headwater.pipeline.scan.supersession import first_superseded
from headwater_core.errors import CorruptData, DataLoss, Superseded, TransientError, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.transactions import AbortedTransaction, overlapping
from manifests.entry import Entry
from manifests.repository import ManifestRepository

SMALL_BYTES = 1 << 20  # an entry up to this is read as a whole: to fetch its index would take as long


def read_split(
    store: ObjectStore, split: Split, query: Query, counters: ScanCounters | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """The split's records that satisfy the query, in offset order, each once. Memory: a few pieces and what one decodes to.

    When an object is missing, its offsets are looked up in the head again: it may have been merged or compacted away.

    Raises CorruptData, with object, position and offsets, for data that is damaged, or listed and missing. With
    query.quarantine_path such data is listed there instead, and the rest is read. Raises Superseded and DataLoss for offsets that
    an unclean election or retention has removed meanwhile, TransientError, and what the store raises.
    """
    counters = counters if counters is not None else ScanCounters()
    damage = SplitDamage(split, query, counters)
    try:
        with PieceFetcher(store, counters) as fetcher:
            yield from _SplitReader(store, split, query, fetcher, damage, counters).batches()
    finally:
        damage.write()


class _SplitReader:
    """One pass over a split."""

    def __init__(
        self, store: ObjectStore, split: Split, query: Query, fetcher: PieceFetcher, damage: SplitDamage, counters: ScanCounters
    ) -> None:
        self._store, self._split, self._query = store, split, query
        self._fetcher, self._damage, self._counters = fetcher, damage, counters
        self._decoder = SplitDecoder(split, query)
        self._salvage = Salvage(fetcher, self._decoder, damage)
        self._entries: Sequence[Entry] = split.entries
        self._markers: Sequence[Entry] | None = split.markers  # None once the decoder knows what was aborted
        self._replans = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._decoder.cursor < self._split.end:
            try:
                if self._markers is not None:
                    self._decoder.leave_out(self._aborted(self._markers))
                    self._markers = None
                for piece, got in self._fetcher.in_order(self._pieces()):
                    yield from self._records(piece, got)
                    self._decoder.skip_to(piece.next_offset)
                return
            except MissingObject as missing:
                self._replan(missing)

    def _aborted(self, markers: Sequence[Entry]) -> list[AbortedTransaction]:
        first, end = self._decoder.cursor, self._split.end
        found: list[AbortedTransaction] = []
        for entry in markers:
            try:
                listed = self._fetcher.index(entry).aborted
            except CorruptData as error:  # it is unknown which records of the split were aborted
                self._damage.add(error, entry.index_place, 0, first, end - 1)
                self._decoder.skip_to(end)
                return []
            live = (each for each in listed if each.last_offset <= entry.last_offset)  # the others are a dead branch's
            found.extend(overlapping(live, first, end))
        return found

    def _pieces(self) -> Iterator[Piece]:
        """The pieces with wanted records from the cursor on; fetches indexes when they are needed."""
        predicate = self._query.predicate
        for entry in self._entries:
            first, end = self._decoder.wanted_offsets(entry)
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
                    index = self._fetcher.index(entry)
                except CorruptData as error:
                    self._damage.add(error, entry.index_place, 0, first, end - 1)
                    continue
                yield from cut(entry, index, first, end, predicate.first_timestamp_ms, PIECE_BYTES)

    def _wants_all(self, entry: Entry, first: int, end: int) -> bool:
        oldest_ms = self._query.predicate.first_timestamp_ms
        none_too_old = oldest_ms is None or (entry.first_timestamp_ms is not None and oldest_ms <= entry.first_timestamp_ms)
        return none_too_old and (first, end) == (entry.base_offset, entry.next_offset)

    def _records(self, piece: Piece, got: memoryview | CorruptData) -> Iterator[pa.RecordBatch]:
        try:
            if not self._damage.is_fatal:
                found = self._salvage.records(piece, got)
            elif isinstance(got, CorruptData):
                raise got
            else:
                found = self._decoder.records(piece, got)
            for batch in found:
                self._counters.rows += batch.num_rows
                yield batch
        except (CorruptData, UnsupportedFormat) as error:
            raise self._damage.located(error, piece.first_offset, piece.next_offset - 1) from error

    def _replan(self, missing: MissingObject) -> None:
        """Continue from the cursor on with the entries that the head lists now. If it still lists the missing object, that is damage.

        Raises Superseded, DataLoss, and TransientError when the objects are replaced again and again.
        """
        self._replans += 1
        self._counters.heads_reread += 1
        if self._replans > REPLANS_MAX:
            raise TransientError(f"{self._split}: {missing.key} was replaced, as were {REPLANS_MAX} objects before it; retry later")
        split, cursor = self._split, self._decoder.cursor
        head = load_head(ManifestRepository(self._store), split.partition_id)
        if any(entry.key == missing.entry.key for entry in head.entries.within(missing.entry.base_offset, missing.entry.next_offset)):
            first, end = max(cursor, missing.entry.base_offset), min(split.end, missing.entry.next_offset)
            if self._markers is not None:  # it is unknown which records of the split were aborted
                first, end = cursor, split.end
            error = CorruptData(missing.key, 0, "the manifest lists it, the store does not have it")
            self._damage.add(error, missing.key, 0, first, end - 1)
            self._decoder.skip_to(end)
            return
        if cursor < head.start_offset:
            if self._query.fail_on_data_loss:
                raise DataLoss(f"{split}: the archive begins at {head.start_offset} now ({self._query.advice.skip_loss})")
            self._decoder.skip_to(head.start_offset)
        rest = OffsetRange(head, self._decoder.cursor, split.end)
        superseded = first_superseded(self._entries, head, rest.first, rest.end)
        if superseded is not None:
            raise Superseded(f"{split}: from offset {superseded} on a newer leader epoch has replaced the records; start the scan again")
        self._entries = rest.entries
        if self._query.read_committed:
            self._markers = marker_entries(head.entries, rest.first, rest.end)
