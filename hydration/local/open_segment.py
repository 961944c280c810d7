"""One segment of the broker's log, open for a read: where its batches begin and end, from what is known, Kafka's index or a walk."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData, UnsupportedFormat
from headwater_core.segments.batches import HEADER_BYTES, OFFSET_MAX, BatchHeader, read_batch_header
from headwater_core.segments.index_hints import Hint, hint_by_offset, hint_by_position
from headwater_core.segments.local_log import LocalSegment
from hydration.local.boundary_index import POINT_SPACING_BYTES, BoundaryIndex, End, Witness
from hydration.local.epoch_check import EpochCheck
from hydration.local.scan_budget import ScanBudget
from hydration.ranges import Boundary, Range, cut, headers
from hydration.runfile import RunFile


class GuardedRange(NamedTuple):
    """A range, and a batch at its end or after it: as long as that is there, nothing in the range has changed."""

    range: Range
    witness: Witness


class OpenSegment:
    """A segment as one read sees it. Every method raises ScanBudgetExceeded, SourceChanged when the file was
    cut since the look, CorruptData or UnsupportedFormat for what cannot be a header."""

    def __init__(
        self, file: RunFile, segment: LocalSegment, epoch_check: EpochCheck | None, boundaries: BoundaryIndex, budget: ScanBudget
    ) -> None:
        self.where = file.where
        self._file, self._segment, self._epoch_check, self._boundaries, self._budget = file, segment, epoch_check, boundaries, budget

    def read(self, position: int, size_bytes: int) -> bytes:
        """As RunFile.read, within the budget."""
        self._budget.take(size_bytes)
        return self._file.read(position, size_bytes)

    def headers(self, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """As ranges.headers; what is met is remembered."""
        noted, epoch = start, None
        for position, header in headers(self, start, end):
            if header.leader_epoch != epoch:
                self._check_epoch(header)
                epoch = header.leader_epoch
            if position >= noted:
                self._boundaries.note(Boundary(position, header.base_offset))
                noted = position + POINT_SPACING_BYTES
            yield position, header

    def whole(self) -> End:
        """The end of a sealed segment's file, and the offset after its last batch. Raises CorruptData where that is not whole."""
        size_bytes, boundaries = self._size_bytes(), self._boundaries
        found = boundaries.whole
        if found is None or found.place.position != size_bytes:
            start = self._start(OFFSET_MAX)
            found = End(
                Boundary(size_bytes, max(start.offset, self._segment.base_offset)), self._witness(start) if start.position else None
            )
            met_to = start.position
            for position, header in self.headers(start.position, size_bytes):
                met_to = position + header.size_bytes
                found = End(Boundary(size_bytes, header.next_offset), Witness.of(position, header))
            if met_to != size_bytes:  # nothing more comes, so what is left is no gap: records are damaged
                raise CorruptData(self.where, met_to, f"{size_bytes - met_to} bytes at the end of a sealed segment are no whole batch")
            boundaries.whole = found
        return found

    def end_offset(self) -> int:
        """The offset after the last whole batch of an active segment; zeros that were allocated ahead are none."""
        found = self._segment.base_offset
        with suppress(TruncatedData):
            for _, header in self.headers(self._start(OFFSET_MAX).position, self._size_bytes()):
                found = header.next_offset
        return found

    def end_at(self, end_offset: int) -> End:
        """Where the batches that lie wholly below `end_offset` end. Walks over what was appended since it was last called."""
        size_bytes, boundaries = self._size_bytes(), self._boundaries
        known = boundaries.end_at(end_offset)
        if known is not None and known.place.position <= size_bytes:
            return known
        start, is_met = self._start(end_offset), False
        witness = self._witness(start) if start.position else None
        end = End(Boundary(start.position, max(start.offset, self._segment.base_offset)), witness)
        for position, header in self.headers(start.position, size_bytes):
            if header.last_offset >= end_offset:
                is_met, witness = True, end.witness or Witness.of(position, header)
                end = End(Boundary(position, min(header.base_offset, end_offset)), witness)  # it begins later after compaction
                break
            end = End(Boundary(position + header.size_bytes, header.next_offset), Witness.of(position, header))
            if header.next_offset == end_offset:
                is_met = True
                break  # what follows may be preallocated
        if is_met or not self._segment.is_active:  # else more may come
            boundaries.note_end(end_offset, end)
        return end

    def cut(self, offset: int, end: End, max_bytes: int) -> GuardedRange | None:
        """About `max_bytes` from the batch that holds `offset`, or the next there is; None when there is none before `end`."""
        found = cut(self.headers, offset, start=self._start(offset), end=end.place, max_bytes=max_bytes, boundary=self._boundary)
        if found is None:
            return None
        following = Boundary(found.position + found.size_bytes, found.next_offset)
        if following.position == end.place.position:
            assert end.witness is not None
            self.check(end.witness)
            return GuardedRange(found, end.witness)
        self._boundaries.note(following)
        return GuardedRange(found, self._witness(following))  # it was met there just now

    def check(self, witness: Witness) -> None:
        """Raises SourceChanged when that batch is not there any more."""
        if self._witness(Boundary(witness.position, witness.base_offset)) != witness:
            raise self._was_cut()

    def _size_bytes(self) -> int:
        found = self._file.size_bytes
        if found < self._segment.size_bytes:
            raise SourceChanged(f"{self.where} was cut")
        return found

    def _check_epoch(self, header: BatchHeader) -> None:
        if self._epoch_check is not None:
            self._epoch_check.check(header.leader_epoch, header.base_offset, self.where)

    def _start(self, offset: int) -> Boundary:
        """A batch boundary at or before the batch that holds `offset`: the nearest that is known and still true."""
        known = self._boundaries.by_offset(offset)
        if known is not None and not self._is_batch(known):
            self._boundaries.forget()
            known = None
        if known is not None and known.offset == offset:
            return known
        hint = self._hinted(hint_by_offset(self._segment.index_path, self._segment.base_offset, offset))
        best = max(filter(None, (known, hint)), default=None)
        return best if best is not None else Boundary(0, self._segment.base_offset - 1)  # its first batch may begin later: look

    def _boundary(self, position: int, most: int) -> Boundary | None:
        """The last known boundary after `position`, at most `most` bytes after it, that is still one."""
        end = position + most
        known = self._boundaries.by_position(end)
        hint = None
        if known is None or known.position < (position + end) // 2 or not self._is_batch(known):
            known, hint = None, self._hinted(hint_by_position(self._segment.index_path, self._segment.base_offset, end))
        best = known or hint
        return best if best is not None and best.position > position else None

    def _witness(self, place: Boundary) -> Witness:
        """The batch that begins there. Raises SourceChanged when none does."""
        found = self._batch_at(place)
        if found is None:
            raise self._was_cut()
        return Witness.of(place.position, found)

    def _was_cut(self) -> SourceChanged:
        self._boundaries.forget()
        return SourceChanged(f"{self.where} was cut")

    def _is_batch(self, place: Boundary) -> bool:
        """Whether a batch with this very base offset still begins there."""
        return self._batch_at(place) is not None

    def _batch_at(self, place: Boundary) -> BatchHeader | None:
        header = self._header(place.position)
        if header is None or header.base_offset != place.offset:
            return None
        self._check_epoch(header)
        return header

    def _hinted(self, hint: Hint | None) -> Boundary | None:
        """The boundary that Kafka's index means, if the batch there is the one it names."""
        if hint is None:
            return None
        last_offset, position = hint
        header = self._header(position)
        if header is None or header.last_offset != last_offset:
            return None
        self._check_epoch(header)
        return Boundary(position, header.base_offset)

    def _header(self, position: int) -> BatchHeader | None:
        try:
            return read_batch_header(self.read(position, HEADER_BYTES), where=self.where)
        except (CorruptData, UnsupportedFormat):
            return None
