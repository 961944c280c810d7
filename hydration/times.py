"""Finding a record by its time."""

from typing import NamedTuple

from headwater_core.segments.batches import check_batch
from headwater_core.segments.records import decode_batch
from hydration.ranges import headers
from hydration.runfile import RunFile
from hydration.scope import Span


class RecordTime(NamedTuple):
    """Where a record is, and its own timestamp."""

    offset: int
    timestamp_ms: int


def first_not_older(file: RunFile, start: int, end: int, timestamp_ms: int, span: Span, latest_ms: int | None = None) -> RecordTime | None:
    """The first record of the batches in file[start:end], byte positions, that is in `span` and not older than `timestamp_ms`; a batch
    that reaches across the end of `span` is of what follows, a dead branch maybe. Raises CorruptData for a batch that does not verify.

    latest_ms  a record that is dated later is passed over; None: none is

    Markers are no records here, and their times are in no index of a run. A broker may name the marker of a transaction that lies
    before this record: a reader that starts there meets this record first.
    """
    for position, header in headers(file, start, end):
        if header.last_offset >= span.end:
            return None
        if header.max_timestamp_ms < timestamp_ms or header.is_control or header.last_offset < span.start:
            continue
        batch = file.read(position, header.size_bytes)
        check_batch(batch, where=file.where)
        for record in decode_batch(batch, where=file.where):
            if latest_ms is not None and record.timestamp_ms > latest_ms:
                continue
            if record.timestamp_ms >= timestamp_ms and record.offset in span:
                return RecordTime(record.offset, record.timestamp_ms)
    return None
