"""The one pass over a run before it is uploaded: verify everything, learn everything an archive must know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from headwater_core.epochs import EpochStart
from headwater_core.errors import UnsupportedFormat
from headwater_core.segments import markers, runindex
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import CONTROL, HEADER, LENGTH_FROM, NO_BASE_TIMESTAMP, TRANSACTIONAL, BatchHeader
from headwater_core.segments.producers import Producers
from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.stretch import NO_LIMIT, Stretch, pass_batches
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, Transactions

__all__ = ["AbortedTransaction", "OpenTransaction", "RunScan", "scan_run"]

_SPARE_ROWS = 1 << 12  # how far a section of the index may grow between two points: a batch takes 61 bytes or more


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScan:
    """What scan_run found in file[start_position:end_position].

    first_timestamp_ms, last_timestamp_ms  smallest and largest of user data; None when there is none
    records          user data records, as batch headers count them
    offsets          how many of the run's offsets hold a record of any kind
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
    transactions = Transactions(open_before)
    producers = Producers()
    last_batch_of = producers.last_batch_of
    points = runindex.new_points()
    epochs: list[EpochStart] = []
    base_offset = last_offset = -1
    first_gap: int | None = None
    leader_epoch = -1
    earliest, latest = 2**63 - 1, runindex.NO_TIMESTAMP
    records = offsets = 0
    end_position = next_point = start

    def pass_plain(view: memoryview, at: int, filled: int, position: int, previous_offset: int, previous_epoch: int) -> Stretch:
        """Plain batches up to the next point, by compiled code: what the loop below would learn from each is learnt from all."""
        nonlocal earliest, end_position, first_gap, last_offset, latest, offsets, records
        assert pass_batches is not None
        limit = NO_LIMIT if end_offset is None else end_offset
        passed = Stretch(*pass_batches(view, at, filled, at + next_point - position, limit, previous_offset, previous_epoch, True))
        if passed.at > at:
            records, offsets = records + passed.records, offsets + passed.offsets
            earliest, latest = min(earliest, passed.earliest_ms), max(latest, passed.latest_ms)
            if first_gap is None and passed.first_gap >= 0:
                first_gap = passed.first_gap
            last_offset, end_position = passed.last_offset, position + passed.at - at
            for producer_id, batch_at, first_transactional in passed.producers:
                last_batch_of[producer_id] = HEADER.unpack_from(view, batch_at)
                if first_transactional >= 0:
                    transactions.data(producer_id, first_transactional)
        return passed

    walk = BatchWalk(file, start, end, where=where, end_offset=end_offset, ahead=pass_plain if pass_batches is not None else None)
    for position, fields in walk:
        base, length, epoch, _, _, attributes, delta, base_timestamp_ms, max_timestamp_ms, producer_id, _, _, count = fields
        if position >= next_point:
            if base_offset < 0:
                base_offset = base
            if (
                len(points.offsets) >= runindex.POINTS_MAX
                or len(transactions.aborted) > runindex.ABORTED_MAX - _SPARE_ROWS
                or len(epochs) > runindex.EPOCHS_MAX - _SPARE_ROWS
            ):
                walk.finish()
            points.offsets.append(base)
            points.positions.append(position - start)
            points.max_timestamps_ms.append(latest)
            next_point = position + runindex.POINT_SPACING_BYTES
            if len(producers) > 2 * runindex.PRODUCERS_MAX:
                producers.prune(runindex.PRODUCERS_MAX)
            _check_open(transactions, where)
        if epoch != leader_epoch:
            epochs.append(EpochStart(epoch, base))
            leader_epoch = epoch
        if base != last_offset + 1 and first_gap is None and last_offset >= 0:
            first_gap = last_offset + 1
        last_offset = base + delta
        offsets += count
        end_position = position + LENGTH_FROM + length
        if attributes & CONTROL:
            if count and producer_id >= 0:
                marker = markers.read_marker(walk.batch(position, LENGTH_FROM + length), where=where)
                if marker.type in (markers.ABORT, markers.COMMIT):
                    transactions.marker(producer_id, base, aborts=marker.type == markers.ABORT)
                    producers.mark(BatchHeader(*fields), marker.coordinator_epoch)
            continue
        if producer_id >= 0:
            last_batch_of[producer_id] = fields
            if attributes & TRANSACTIONAL:
                transactions.data(producer_id, base)
        if count:
            records += count
            if max_timestamp_ms >= 0:
                latest = max(latest, max_timestamp_ms)
                first = max_timestamp_ms if attributes & NO_BASE_TIMESTAMP else base_timestamp_ms
                if 0 <= first < earliest:
                    earliest = first
    if base_offset < 0:
        return None
    _check_open(transactions, where)
    producers.prune(runindex.PRODUCERS_MAX)
    return RunScan(
        start_position=start,
        end_position=end_position,
        first_timestamp_ms=min(earliest, latest) if latest >= 0 else None,
        last_timestamp_ms=latest if latest >= 0 else None,
        records=records,
        offsets=offsets,
        digest=walk.digest_to(end_position),
        max_producer_id=producers.max_id,
        first_gap=first_gap,
        index=RunIndex(
            base_offset=base_offset,
            last_offset=last_offset,
            size_bytes=end_position - start,
            points=points,
            epochs=tuple(each for each in epochs if each.epoch >= 0),
            aborted=tuple(transactions.aborted),
            open_transactions=transactions.open,
            producers=producers.states(transactions.first_offsets),
        ),
    )


def _check_open(transactions: Transactions, where: str) -> None:
    """Called at every point, so that a hostile log is refused before its transactions fill the memory."""
    if len(transactions.first_offsets) > runindex.OPEN_MAX:
        raise UnsupportedFormat(f"{where}: {len(transactions.first_offsets)} transactions are open, an index holds {runindex.OPEN_MAX}")
