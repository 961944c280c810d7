"""Decoded records in offset order, as a consumer gets them: for `headwater read`, and for checking."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from headwater_core.segments.batches import HEADER_BYTES, BatchHeader, check_batch, read_batch_header
from headwater_core.segments.markers import ABORT, read_marker
from headwater_core.segments.records import Record, decode_batch
from hydration.answers import Isolation, ReadResult, Slice
from hydration.partition_log import TIMEOUT_S, PartitionLog

FETCH_BYTES = 1 << 20


class ReadRecord(NamedTuple):
    """A record with what its batch says of it. The timestamp is the broker's with `log_append_time`, else the producer's."""

    record: Record
    leader_epoch: int
    log_append_time: bool


def records(
    log: PartitionLog,
    first: int,
    end: int | None = None,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    *,
    max_bytes: int = FETCH_BYTES,
    timeout_s: float | None = TIMEOUT_S,
) -> Iterator[ReadRecord]:
    """Records with offsets in [first, end), each once, in order. Markers are left out, and with READ_COMMITTED what was aborted.

    end        None: to the end of what is readable when the first record is requested
    timeout_s  for each single read of the log

    Raises what PartitionLog.read does, and CorruptData for a batch that is damaged.
    """
    if end is None:
        bounds = log.bounds(isolation, timeout_s=timeout_s)
        end = bounds.high_watermark if bounds.last_stable_offset is None else bounds.last_stable_offset
    cursor = first
    while cursor < end:
        with log.read(cursor, max_bytes, isolation, timeout_s=timeout_s) as answer:
            reached = answer.next_offset
            for header, batch in batches(answer, isolation):
                reached = max(reached, header.next_offset)
                for record in decode_batch(batch):
                    if cursor <= record.offset < end:
                        yield ReadRecord(record, header.leader_epoch, header.log_append_time)
        if reached <= cursor:
            return  # nothing more is readable yet
        cursor = reached


def batches(answer: ReadResult, isolation: Isolation) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The data batches of one answer, verified, without what `isolation` hides. One batch is in memory at a time."""
    to_come = deque(answer.aborted)  # by first offset
    aborting: set[int] = set()
    for piece in answer.slices:
        for header, batch in _batches_of(piece):
            while to_come and to_come[0].first_offset <= header.last_offset:
                aborting.add(to_come.popleft().producer_id)
            if header.is_control:
                if header.records and read_marker(batch).type == ABORT:
                    aborting.discard(header.producer_id)
                continue
            hidden = isolation is Isolation.READ_COMMITTED and header.is_transactional and header.producer_id in aborting
            if not hidden:
                yield header, batch


def _batches_of(piece: Slice) -> Iterator[tuple[BatchHeader, memoryview]]:
    position, end = piece.position, piece.position + piece.length
    while position < end:
        header = read_batch_header(piece.file.read(position, HEADER_BYTES), where=piece.file.where)
        batch = piece.file.read(position, header.size_bytes)
        check_batch(batch, where=piece.file.where)
        yield header, memoryview(batch)
        position += header.size_bytes
