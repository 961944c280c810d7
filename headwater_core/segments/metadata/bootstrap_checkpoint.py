"""bootstrap.checkpoint: the records with which a freshly formatted controller begins its metadata log."""

from collections.abc import Iterable

from headwater_core.segments import flexible
from headwater_core.segments.batches import CONTROL
from headwater_core.segments.encoder import control_key, encode_batch
from headwater_core.segments.metadata.metadata_records import MetadataRecord

_LEADER_EPOCH = 1  # as kafka-storage writes it
SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4
_BATCH_RECORDS = 500


def write_bootstrap_checkpoint(records: Iterable[MetadataRecord], *, timestamp_ms: int = 0) -> bytes:
    """The whole file: a header batch, data batches, a footer batch; offsets count from 0 through all of them.

    records  FeatureLevel first, metadata.version among them; then each Topic with its Partitions; then the rest
    """
    return write_checkpoint((record.encode() for record in records), timestamp_ms=timestamp_ms)


def write_checkpoint(records: Iterable[bytes], *, timestamp_ms: int = 0) -> bytes:
    """The same of records that are encoded already."""
    values = list(records)
    header_value = flexible.i16(0) + flexible.i64(timestamp_ms) + flexible.tags({})
    footer_value = flexible.i16(0) + flexible.tags({})

    def control(offset: int, kind: int, value: bytes) -> bytes:
        rows = [(control_key(kind), value)]
        return encode_batch(offset, rows, leader_epoch=_LEADER_EPOCH, timestamp_ms=timestamp_ms, attributes=CONTROL)

    batches = [control(0, SNAPSHOT_HEADER, header_value)]
    for first in range(0, len(values), _BATCH_RECORDS):
        rows = [(None, value) for value in values[first : first + _BATCH_RECORDS]]
        batches.append(encode_batch(1 + first, rows, leader_epoch=_LEADER_EPOCH, timestamp_ms=timestamp_ms))
    batches.append(control(1 + len(values), SNAPSHOT_FOOTER, footer_value))
    return b"".join(batches)
