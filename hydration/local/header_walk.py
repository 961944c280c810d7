"""A walk over the headers of a run: what they say of transactions and times, found batch by batch and kept."""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments.batches import HEADER_BYTES, LENGTH_FROM, check_batch, read_batch_header
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.runindex import NO_TIMESTAMP
from headwater_core.segments.transactions import OpenTransaction, Transactions
from hydration.local.epoch_check import EpochCheck
from hydration.local.scan_budget import ScanBudget
from hydration.ranges import Boundary, Readable

WINDOW_BYTES = 256 << 10  # read at once where batches are small
SMALL_WINDOW_BYTES = 8 << 10  # where they are large: most of a window would be records
PIECE_BYTES = 1 << 20  # as finely as times are kept: 24 bytes for each
MARKER_BYTES_MAX = 64 << 10
_FIELDS = struct.Struct(">qiib4xhi8xqq6xi")  # base, length, epoch, magic, attributes, last delta, largest timestamp, producer, records
_CONTROL, _TRANSACTIONAL = 0x20, 0x10

assert _FIELDS.size == HEADER_BYTES


class WalkedRange(NamedTuple):
    """Batches in file[start:end], none of them with user data younger than `newest_ms`."""

    start: int
    end: int
    newest_ms: int


class HeaderWalk:
    """From the start of a run to where the walk has come; grows. Checksums are looked at for markers only.

    position      where the next batch begins
    next_offset   every batch before it was met
    done_to       everything before it is met: the highest `end_offset` that the walk has come to, or where the run ended before that
    last          the last batch that was met; as long as that is there, everything before it is
    """

    def __init__(self, base_offset: int, open_before: Sequence[OpenTransaction] = ()) -> None:
        """
        open_before   transactions open at the run's start
        """
        self.position, self.next_offset, self.done_to = 0, base_offset, base_offset
        self.last: Boundary | None = None
        self.transactions = Transactions(open_before)
        self._window_bytes = WINDOW_BYTES
        self._starts, self._offsets, self._newest = array("q"), array("q"), array("q")

    def advance(self, file: Readable, end: int, *, end_offset: int, budget: ScanBudget, epoch_check: EpochCheck | None = None) -> None:
        """Continue over the whole batches of file[:end] that lie below `end_offset`. A torn one at the end is not there yet.

        Raises ScanBudgetExceeded: what was met is kept. Raises CorruptData or UnsupportedFormat for what
        cannot be a header, an impossible marker, or offsets that do not rise, SourceChanged for what is not on `lineage`.
        """
        while self.position + HEADER_BYTES <= end and self.next_offset < end_offset:
            wanted = min(self._window_bytes, end - self.position)
            budget.take(wanted)
            if not self._take(file, file.read(self.position, wanted), end, end_offset, epoch_check):
                break
        self.done_to = max(self.done_to, self.next_offset)

    def _take(self, file: Readable, window: bytes, end: int, end_offset: int, epoch_check: EpochCheck | None) -> bool:
        """Continue over the batches whose headers are in `window`; whether there may be more."""
        unpack, data, starts, newest = _FIELDS.unpack_from, self.transactions.data, self._starts, self._newest
        window_start, next_offset = self.position, self.next_offset
        at, last_at, size_bytes, known_epoch = 0, len(window) - HEADER_BYTES, 0, None
        met_at, met = -1, 0
        try:
            while at <= last_at:
                base, length, epoch, magic, attributes, delta, newest_ms, producer_id, records = unpack(window, at)
                last_offset, size_bytes = base + delta, LENGTH_FROM + length
                if magic != 2 or length < HEADER_BYTES - LENGTH_FROM or base < next_offset or delta < 0:
                    self._check_header(window, at, file.where, next_offset)
                    return False
                position = window_start + at
                if last_offset >= end_offset:
                    self.done_to = max(self.done_to, end_offset)
                    return False
                if position + size_bytes > end:
                    return False
                if epoch != known_epoch and epoch_check is not None:
                    epoch_check.check(epoch, base, file.where)
                known_epoch = epoch
                if not starts or position - starts[-1] >= PIECE_BYTES:
                    starts.append(position)
                    self._offsets.append(base)
                    newest.append(NO_TIMESTAMP)
                if attributes & _CONTROL:
                    if records and producer_id >= 0:
                        self._mark(file, position, size_bytes)
                else:
                    if attributes & _TRANSACTIONAL and producer_id >= 0:
                        data(producer_id, base)
                    if records and newest_ms > newest[-1]:
                        newest[-1] = newest_ms
                met_at, met = position, base
                at += size_bytes
                next_offset = last_offset + 1
                if next_offset == end_offset:
                    return False  # what follows may be preallocated
            return last_at >= 0
        finally:  # nothing is met twice: a marker that is met again would end the next transaction
            self.position, self.next_offset = window_start + at, next_offset
            if met_at >= 0:
                self.last = Boundary(met_at, met)
            self._window_bytes = SMALL_WINDOW_BYTES if size_bytes > SMALL_WINDOW_BYTES else WINDOW_BYTES

    @property
    def newest_ms(self) -> int:
        """The largest timestamp of user data so far."""
        return max(self._newest, default=NO_TIMESTAMP)

    def pieces(self, offset: int, end_offset: int, timestamp_ms: int) -> list[WalkedRange]:
        """Where records of offsets in [offset, end_offset) that are not older than `timestamp_ms` may be, as far as the walk has come."""
        first = max(bisect_right(self._offsets, offset) - 1, 0)
        end = bisect_left(self._offsets, end_offset)
        ends = [*self._starts[first + 1 :], self.position]
        pieces = (WalkedRange(*each) for each in zip(self._starts[first:end], ends, self._newest[first:end], strict=False))
        return [each for each in pieces if each.newest_ms >= timestamp_ms]

    @staticmethod
    def _check_header(window: bytes, at: int, where: str, next_offset: int) -> None:
        """Raises what is wrong with a header that can be none, unless it is zeros: allocated ahead, or not written before a crash."""
        with suppress(TruncatedData):
            header = read_batch_header(window, at, where=where)
            raise CorruptData(where, at, f"batch at offset {header.base_offset} follows offset {next_offset - 1}")

    def _mark(self, file: Readable, position: int, size_bytes: int) -> None:
        if size_bytes > MARKER_BYTES_MAX:
            raise CorruptData(file.where, position, f"control batch of {size_bytes} bytes")
        batch = file.read(position, size_bytes)
        header = check_batch(batch, where=file.where)
        marker = read_marker(batch, where=file.where)
        if marker.type in (ABORT, COMMIT):
            self.transactions.marker(header.producer_id, header.base_offset, aborts=marker.type == ABORT)
