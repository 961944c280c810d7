"""The one pass over a run before it is uploaded: verify everything, learn everything an archive must know."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from awscrt.checksums import crc64nvme

from headwater_core.epochs import EpochStart
from headwater_core.errors import UnsupportedFormat
from headwater_core.segments import markers, runindex
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import CONTROL, HEADER, LENGTH_FROM, NO_BASE_TIMESTAMP, TRANSACTIONAL, BatchHeader
from headwater_core.segments.producers import Producers
from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.stretch import NO_END_OFFSET, Stretch, pass_batches
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, Transactions

__all__ = ["AbortedTransaction", "GrowingScan", "OpenTransaction", "RunScan", "scan_run"]

_SPARE_ROWS = 1 << 12  # how far a section of the index may grow between two points: a batch takes 61 bytes or more


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScan:
    """What scan_run found in file[start_position:end_position].

    first_timestamp_ms, last_timestamp_ms  smallest and largest of user data; None when there is none
    records          user data records, as batch headers count them
    offsets          how many of the run's offsets hold a record of any kind
    batches          how many there are
    batches_before   each of the index's points
    digest           "crc64nvme:<16 hex>" of exactly these bytes, taken from the same window the CRCs were
    max_producer_id  -1 when no batch names one
    first_gap        first offset between the run's ends that no batch covers, as compaction leaves them; None when none is missing
    """

    start_position: int
    end_position: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    records: int
    offsets: int
    batches: int
    batches_before: "array[int]"
    digest: str
    max_producer_id: int
    index: RunIndex
    first_gap: int | None = None

    @property
    def base_offset(self) -> int:
        return self.index.base_offset

    @property
    def last_offset(self) -> int:
        return self.index.last_offset

    @property
    def next_offset(self) -> int:
        return self.index.last_offset + 1

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        return self.index.epochs

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        return self.index.aborted

    @property
    def aborted_from(self) -> int | None:
        """Least first offset of the aborted transactions; None without any."""
        return min((each.first_offset for each in self.index.aborted), default=None)

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        return self.index.open_transactions

    @property
    def open_from(self) -> int | None:
        return self.index.open_from


def scan_run(
    file: BinaryIO,
    *,
    start: int,
    end: int,
    open_before: Sequence[OpenTransaction] = (),
    end_offset: int | None = None,
    where: str,
) -> RunScan | None:
    """Scan the batches of file[start:end]; None when none of them lies below `end_offset`.

    start        byte position of a batch
    end          byte position after the last byte known to be there
    open_before  transactions open at `start`, as the previous run's scan or index says
    end_offset   a high watermark: only whole batches below it belong to the run, and what follows is not read

    The run may also end before `end` because its index is full (an absurd number of aborted transactions or leader epochs);
    what is left is another run. Raises what BatchWalk raises, and UnsupportedFormat for more open transactions than
    an index can hold.
    """
    scan = _Scan(start, end_offset, open_before, where)
    walk = BatchWalk(file, start, end, where=where, end_offset=end_offset, ahead=scan.pass_plain if pass_batches is not None else None)
    scan.follow(walk)
    return scan.result(walk.digest_to(scan.end_position)) if scan.base_offset >= 0 else None


class GrowingScan:
    """The scan of a run that comes in pieces, each of whole batches, in order.

    open_before, where  as scan_run's

    `add` raises what scan_run does; nothing may follow then.
    """

    def __init__(self, open_before: Sequence[OpenTransaction], where: str) -> None:
        self._scan, self._where = _Scan(0, None, open_before, where), where
        self._digest = 0

    def add(self, piece: memoryview) -> None:
        scan = self._scan
        start = scan.end_position
        ahead = scan.pass_plain if pass_batches is not None else None
        scan.follow(BatchWalk(piece, start, start + len(piece), where=self._where, ahead=ahead, after=scan.last), may_end=False)
        self._digest = crc64nvme(piece, self._digest)

    @property
    def size_bytes(self) -> int:
        """Of all pieces."""
        return self._scan.end_position

    @property
    def last_offset(self) -> int:
        """-1 while there is none."""
        return self._scan.last[0]

    @property
    def points(self) -> "array[int]":
        """Positions in the run of the points of its index, as far as it has come."""
        return self._scan.point_positions

    @property
    def is_full(self) -> bool:
        """Its index has room for little more: this much, and a spare, is what one run may have."""
        return self._scan.is_full

    def result(self) -> RunScan:
        """Of all pieces, of which there must be one."""
        return self._scan.result(f"crc64nvme:{self._digest:016x}")


class _Scan:
    """What is known of a run so far."""

    def __init__(self, start: int, end_offset: int | None, open_before: Sequence[OpenTransaction], where: str) -> None:
        self.base_offset = -1
        self.end_position = self.next_point = start
        self._start, self._where = start, where
        self._end_offset = NO_END_OFFSET if end_offset is None else end_offset
        self._last_offset = self._leader_epoch = -1
        self._first_gap: int | None = None
        self._earliest_ms, self._latest_ms = 2**63 - 1, runindex.NO_TIMESTAMP
        self._records = self._offsets = self._batches = 0
        self._batches_before = array("q")
        self._points = runindex.new_points()
        self._epochs: list[EpochStart] = []
        self._transactions = Transactions(open_before)
        self._producers = Producers()

    def follow(self, walk: BatchWalk, *, may_end: bool = True) -> None:
        """Add all that `walk` finds; with `may_end` only what the index has room for."""
        for position, fields in walk:
            if position >= self.next_point:
                if may_end and self.is_full:
                    walk.finish()
                self.add_point(position, fields[0])
            if self.add(position, fields):
                self.add_marker(BatchHeader(*fields), walk.batch(position, self.end_position - position))

    @property
    def last(self) -> tuple[int, int]:
        """The last batch's last offset and leader epoch; -1 each without one."""
        return self._last_offset, self._leader_epoch

    @property
    def point_positions(self) -> "array[int]":
        return self._points.positions

    @property
    def is_full(self) -> bool:
        """The index holds no more."""
        return (
            len(self._points.offsets) >= runindex.POINTS_MAX
            or len(self._transactions.aborted) > runindex.ABORTED_MAX - _SPARE_ROWS
            or len(self._epochs) > runindex.EPOCHS_MAX - _SPARE_ROWS
        )

    def add_point(self, position: int, base_offset: int) -> None:
        """The batch that follows is one of the index's points. Raises UnsupportedFormat for too many open transactions."""
        if self.base_offset < 0:
            self.base_offset = base_offset
        self._points.offsets.append(base_offset)
        self._points.positions.append(position - self._start)
        self._points.max_timestamps_ms.append(self._latest_ms)
        self._batches_before.append(self._batches)
        self.next_point = position + runindex.POINT_SPACING_BYTES
        if len(self._producers) > 2 * runindex.PRODUCERS_MAX:
            self._producers.prune(runindex.PRODUCERS_MAX)
        self._check_open()

    def add(self, position: int, fields: tuple[int, ...]) -> bool:
        """One verified batch, its fields in BatchHeader's order. True for a transaction's marker, which add_marker reads."""
        base, length, epoch, _, _, attributes, delta, base_timestamp_ms, max_timestamp_ms, producer_id, _, _, count = fields
        if epoch != self._leader_epoch:
            self._epochs.append(EpochStart(epoch, base))
            self._leader_epoch = epoch
        if base != self._last_offset + 1 and self._first_gap is None and self._last_offset >= 0:
            self._first_gap = self._last_offset + 1
        self._last_offset = base + delta
        self._offsets += count
        self._batches += 1
        self.end_position = position + LENGTH_FROM + length
        if attributes & CONTROL:
            return bool(count) and producer_id >= 0
        if producer_id >= 0:
            self._producers.last_batch_of[producer_id] = fields
            if attributes & TRANSACTIONAL:
                self._transactions.data(producer_id, base)
        if count:
            self._records += count
            if max_timestamp_ms >= 0:
                self._latest_ms = max(self._latest_ms, max_timestamp_ms)
                first_ms = max_timestamp_ms if attributes & NO_BASE_TIMESTAMP else base_timestamp_ms
                if 0 <= first_ms < self._earliest_ms:
                    self._earliest_ms = first_ms
        return False

    def add_marker(self, header: BatchHeader, batch: memoryview) -> None:
        """What the control batch that was just added says."""
        marker = markers.read_marker(batch, where=self._where)
        if marker.type in (markers.ABORT, markers.COMMIT):
            self._transactions.marker(header.producer_id, header.base_offset, aborts=marker.type == markers.ABORT)
            self._producers.mark(header, marker.coordinator_epoch)

    def pass_plain(self, view: memoryview, at: int, filled: int, position: int, last_offset: int, epoch: int) -> Stretch:
        """Plain batches up to the next point, verified by compiled code; what add() would learn from each is learnt from all."""
        assert pass_batches is not None
        point = at + self.next_point - position
        passed = Stretch(*pass_batches(view, at, filled, point, self._end_offset, last_offset, epoch, True))
        if passed.at > at:
            self._records, self._offsets = self._records + passed.records, self._offsets + passed.offsets
            self._batches += passed.batches
            self._earliest_ms, self._latest_ms = min(self._earliest_ms, passed.earliest_ms), max(self._latest_ms, passed.latest_ms)
            if self._first_gap is None and passed.first_gap >= 0:
                self._first_gap = passed.first_gap
            self._last_offset, self.end_position = passed.last_offset, position + passed.at - at
            for producer_id, batch_at, first_transactional in passed.producers:
                self._producers.last_batch_of[producer_id] = HEADER.unpack_from(view, batch_at)
                if first_transactional >= 0:
                    self._transactions.data(producer_id, first_transactional)
        return passed

    def result(self, digest: str) -> RunScan:
        self._check_open()
        self._producers.prune(runindex.PRODUCERS_MAX)
        timed = self._latest_ms >= 0
        return RunScan(
            start_position=self._start,
            end_position=self.end_position,
            first_timestamp_ms=min(self._earliest_ms, self._latest_ms) if timed else None,
            last_timestamp_ms=self._latest_ms if timed else None,
            records=self._records,
            offsets=self._offsets,
            batches=self._batches,
            batches_before=self._batches_before,
            digest=digest,
            max_producer_id=self._producers.max_id,
            first_gap=self._first_gap,
            index=RunIndex(
                base_offset=self.base_offset,
                last_offset=self._last_offset,
                size_bytes=self.end_position - self._start,
                points=self._points,
                epochs=tuple(each for each in self._epochs if each.epoch >= 0),
                aborted=tuple(self._transactions.aborted),
                open_transactions=self._transactions.open,
                producers=self._producers.states(self._transactions.first_offsets),
            ),
        )

    def _check_open(self) -> None:
        """Called at every point, so that a hostile log is refused before its transactions fill the memory."""
        opened = len(self._transactions.first_offsets)
        if opened > runindex.OPEN_MAX:
            raise UnsupportedFormat(f"{self._where}: {opened} transactions are open, an index holds {runindex.OPEN_MAX}")
