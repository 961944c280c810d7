"""A model of Kafka's log cleaner: which batches of a compacted log are there after it was past them.

Source: Kafka 4.3's Cleaner, CleanedTransactionMetadata and LogCleanerManager."""

from collections.abc import Sequence

from headwater_core.segments.batches import BatchHeader, read_batch_header
from headwater_core.segments.records import Record, decode_batch
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.recovery.coordinator_model import LeaderLog, Row, outcomes
from tests.recovery.transaction_cluster import Appended


def uncleanable_from(batches: Sequence[Appended]) -> int:
    """Return the first offset that the cleaner leaves alone: that of an open transaction, or of the active segment, which has a batch."""
    if not batches:
        return 0
    log = LeaderLog((Row.of(read_batch_header(batch.raw), batch.raw) for batch in batches), 0)
    return min(log.last_stable_offset, batches[-1].base_offset)


def cleaned(batches: Sequence[Appended], end: int, *, is_late: bool) -> list[Appended]:
    """Return the log `batches` once it is clean up to `end`, which is not above `uncleanable_from`.

    is_late  a day has passed since: delete.retention.ms, after which tombstones and markers without data go, and
             producer.id.expiration.ms, until which the last batch of a producer stays, without its records
    """
    headers = [read_batch_header(batch.raw) for batch in batches]
    seen = outcomes(Row.of(header, batch.raw) for header, batch in zip(headers, batches, strict=True))
    data = [(header, batch) for header, batch in zip(headers, batches, strict=True) if not header.is_control]
    below = (record for header, batch in data if header.base_offset < end for record in decode_batch(batch.raw))
    newest = {record.key: record.offset for record in below if seen[record.offset]}
    last_data = {header.producer_id: header.base_offset for header, _ in data}
    found: list[Appended] = []
    with_data: set[int] = set()
    for header, batch in zip(headers, batches, strict=True):
        if header.base_offset >= end:
            found.append(batch)
        elif header.is_control:
            if not is_late or header.producer_id in with_data:
                found.append(batch)
            with_data.discard(header.producer_id)
        else:
            records = list(decode_batch(batch.raw))
            kept = [record for record in records if seen[record.offset] and newest[record.key] == record.offset]
            kept = [record for record in kept if not (is_late and record.value is None)]
            if not kept and (is_late or header.producer_id < 0 or last_data[header.producer_id] != header.base_offset):
                continue
            found.append(batch if kept == records else batch._replace(raw=_with(header, kept)))
            if header.is_transactional:
                with_data.add(header.producer_id)
    return found


def _with(header: BatchHeader, records: Sequence[Record]) -> bytes:
    return a_batch(
        header.base_offset,
        records,
        epoch=header.leader_epoch,
        producer=Producer(id=header.producer_id, epoch=header.producer_epoch, sequence=-1) if header.producer_id >= 0 else None,
        transactional=header.is_transactional,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp_ms,
    )
