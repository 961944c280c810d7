"""Pieces of one split to records: which of them are wanted, and how far the split has been read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.pipeline.scan.decoder import Wanted, decode
from headwater.pipeline.scan.pieces import Piece
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import CorruptData
from headwater_core.segments.transactions import AbortedTransaction
from manifests.entry import Entry


class SplitDecoder:
    """Decodes from offset `cursor` on: every smaller one was yielded or is left out. The cursor never moves back."""

    def __init__(self, split: Split, query: Query) -> None:
        self._predicate = query.predicate
        self._wanted = Wanted(
            topic=split.topic,
            partition=split.partition,
            columns=query.columns,
            first=split.first,
            end=split.end,
            first_timestamp_ms=query.predicate.first_timestamp_ms,
            end_timestamp_ms=query.predicate.end_timestamp_ms,
        )
        self._end = split.end
        self.cursor = split.first

    def skip_to(self, offset: int) -> None:
        self.cursor = max(self.cursor, min(offset, self._end))

    def leave_out(self, aborted: Sequence[AbortedTransaction]) -> None:
        """From now on, leave out the records of these transactions, and of no others."""
        self._wanted = replace(self._wanted, aborted=tuple(aborted))

    def wanted_offsets(self, entry: Entry) -> tuple[int, int]:
        """[first, end) of what is wanted of `entry`; no offsets when end <= first."""
        first = max(self.cursor, entry.base_offset, self._predicate.first_offset)
        return first, min(self._end, entry.next_offset, self._predicate.end_offset)

    def records(self, piece: Piece, buffer: memoryview) -> Iterator[pa.RecordBatch]:
        """The wanted records of the piece in `buffer`; the cursor follows. What was yielded before an error stands.

        Raises CorruptData, naming the damaged batch where there is one, and UnsupportedFormat.
        """
        try:
            piece.check(buffer)
        except CorruptData:
            self.check_batches(piece.entry, buffer, piece.position)  # names the batch, where one is damaged
            raise
        yield from self.batch_records(piece.entry, buffer, piece.position)

    def batch_records(self, entry: Entry, buffer: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        """The same for any run of whole batches, at byte `position` of the entry's object."""
        return decode(buffer, self._wanted_of(entry), where=entry.key, position=position, passed=self.skip_to)

    def check_batches(self, entry: Entry, buffer: memoryview, position: int) -> None:
        """Decodes for the errors alone: yields nothing, and the cursor stays."""
        for _ in decode(buffer, self._wanted_of(entry), where=entry.key, position=position):
            pass

    def _wanted_of(self, entry: Entry) -> Wanted:
        first, end = self.wanted_offsets(entry)
        return replace(self._wanted, first=first, end=max(first, end))
