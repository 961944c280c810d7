"""bootstrap.checkpoint: the records with which a freshly formatted controller begins its metadata log."""

import struct
from collections.abc import Iterable, Sequence

from awscrt.checksums import crc32c

from segments import flexible
from segments.batches import CRC_FROM, HEADER_BYTES, LENGTH_FROM
from segments.metadata_records import MetadataRecord
from segments.varint import varint

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LEADER_EPOCH = 1  # as kafka-storage writes it
_CONTROL = 0x20
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
_BATCH_RECORDS = 500


def write_bootstrap_checkpoint(records: Iterable[MetadataRecord], *, timestamp_ms: int = 0) -> bytes:
    """The whole file: a header batch, data batches, a footer batch; offsets count from 0 through all of them.

    records  FeatureLevel first, metadata.version among them; then each Topic with its Partitions; then the rest
    """
    values = [record.encode() for record in records]
    header_value = flexible.i16(0) + flexible.i64(timestamp_ms) + flexible.tags({})
    footer_value = flexible.i16(0) + flexible.tags({})
    batches = [_batch(0, [(_control_key(_SNAPSHOT_HEADER), header_value)], timestamp_ms, _CONTROL)]
    for first in range(0, len(values), _BATCH_RECORDS):
        batches.append(_batch(1 + first, [(None, value) for value in values[first : first + _BATCH_RECORDS]], timestamp_ms, 0))
    batches.append(_batch(1 + len(values), [(_control_key(_SNAPSHOT_FOOTER), footer_value)], timestamp_ms, _CONTROL))
    return b"".join(batches)


def _control_key(kind: int) -> bytes:
    return flexible.i16(0) + flexible.i16(kind)


def _batch(base_offset: int, rows: Sequence[tuple[bytes | None, bytes]], timestamp_ms: int, attributes: int) -> bytes:
    body = b"".join(_record(delta, key, value) for delta, (key, value) in enumerate(rows))
    head = _HEADER.pack(
        base_offset,
        HEADER_BYTES + len(body) - LENGTH_FROM,
        _LEADER_EPOCH,
        2,
        0,
        attributes,
        len(rows) - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        len(rows),
    )
    covered = head[CRC_FROM:] + body
    return head[: CRC_FROM - 4] + flexible.u32(crc32c(covered)) + covered


def _record(offset_delta: int, key: bytes | None, value: bytes) -> bytes:
    key_field = varint(-1) if key is None else varint(len(key)) + key
    fields = b"\x00" + varint(0) + varint(offset_delta) + key_field + varint(len(value)) + value + varint(0)
    return varint(len(fields)) + fields
