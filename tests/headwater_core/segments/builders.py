"""Batches and segments made for tests, byte for byte as brokers lay them out."""

import gzip
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import cramjam
from awscrt.checksums import crc32c

from headwater_core.segments import codecs
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.batches import HEADER_BYTES, LENGTH_FROM
from headwater_core.segments.records import Record
from headwater_core.segments.runindex import Points, new_points
from headwater_core.segments.varint import encode_uvarint, encode_varint

BASE_TIME = 1_700_000_000_000
_HEADER = struct.Struct(">qiibIhiqqqhii")


def a_record(offset: int = 0, value: bytes | None = b"soup", *, key: bytes | None = None, timestamp: int | None = None) -> Record:
    return Record(offset, BASE_TIME + offset if timestamp is None else timestamp, key, value, ())


@dataclass(frozen=True, kw_only=True)
class Producer:
    """Who writes a batch: the identity that idempotence and transactions need."""

    id: int
    epoch: int = 0
    sequence: int = 0


def a_batch(
    base_offset: int = 0,
    records: Sequence[Record | bytes | None] | int = 1,
    *,
    epoch: int = 0,
    codec: int = codecs.NONE,
    producer: Producer | int | None = None,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    delete_horizon: int | None = None,
    last_offset: int | None = None,
    max_timestamp_ms: int | None = None,
    xerial: bool = False,
) -> bytes:
    """One whole batch.

    records      how many small ones, or their values, or whole records (of rising offsets from base_offset on)
    producer     a producer id alone means epoch 0, sequence 0
    last_offset  beyond the last record's, as compaction leaves it
    """
    if isinstance(records, int):
        records = [f"value-{base_offset + n}".encode() for n in range(records)]
    rows = [row if isinstance(row, Record) else a_record(base_offset + n, row) for n, row in enumerate(records)]
    base_timestamp_ms = rows[0].timestamp_ms if rows else BASE_TIME
    if delete_horizon is not None:
        base_timestamp_ms = delete_horizon
    if last_offset is None:
        last_offset = rows[-1].offset if rows else base_offset
    if max_timestamp_ms is None:
        max_timestamp_ms = max((row.timestamp_ms for row in rows), default=-1)
    if log_append_time is not None:
        max_timestamp_ms = log_append_time
    if isinstance(producer, int):
        producer = Producer(id=producer)
    body = compress(codec, b"".join(_encode(row, base_offset, base_timestamp_ms) for row in rows), xerial=xerial) if rows else b""
    attributes = (
        codec
        | (0x08 if log_append_time is not None else 0)
        | (0x10 if transactional else 0)
        | (0x20 if control else 0)
        | (0x40 if delete_horizon is not None else 0)
    )
    head = bytearray(
        _HEADER.pack(
            base_offset,
            HEADER_BYTES + len(body) - LENGTH_FROM,
            epoch,
            2,
            0,
            attributes,
            last_offset - base_offset,
            base_timestamp_ms,
            max_timestamp_ms,
            producer.id if producer else -1,
            producer.epoch if producer else -1,
            producer.sequence if producer and not control else -1,
            len(rows),
        )
    )
    return with_crc(bytes(head) + body)


def a_marker(offset: int, producer: Producer | int, *, aborts: bool, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    """The control batch that ends a producer's transaction."""
    key = struct.pack(">hh", 0, 0 if aborts else 1)
    value = struct.pack(">hi", 0, coordinator_epoch)
    record = Record(offset, BASE_TIME + offset, key, value, ())
    return a_batch(offset, [record], epoch=epoch, producer=producer, transactional=True, control=True)


def an_abort(offset: int, producer: Producer | int, *, epoch: int = 0) -> bytes:
    return a_marker(offset, producer, aborts=True, epoch=epoch)


def a_commit(offset: int, producer: Producer | int, *, epoch: int = 0) -> bytes:
    return a_marker(offset, producer, aborts=False, epoch=epoch)


def a_segment(base_offset: int = 0, batches: int = 3, *, records: int = 1, epoch: int = 0, value_bytes: int = 0) -> bytes:
    """`batches` plain batches of `records` records each, without a gap."""
    run = []
    for offset in range(base_offset, base_offset + batches * records, records):
        run.append(a_batch(offset, [f"value-{offset + n}".encode().ljust(value_bytes, b".") for n in range(records)], epoch=epoch))
    return b"".join(run)


def with_crc(batch: bytes) -> bytes:
    """`batch` with the checksum its bytes deserve; for batches damaged on purpose after it."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def compress(codec: int, data: bytes, *, xerial: bool = False) -> bytes:
    if codec == codecs.GZIP:
        return gzip.compress(data, mtime=0)
    if codec == codecs.SNAPPY:
        return _xerial(data) if xerial else bytes(cramjam.snappy.compress_raw(data))
    if codec == codecs.LZ4:
        return bytes(cramjam.lz4.compress(data, level=1))
    if codec == codecs.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return data


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp_ms: int) -> bytes:
    return b"".join(_encode(record, base_offset, base_timestamp_ms) for record in records)


def _encode(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    fields = b"".join(
        (
            b"\x00",
            encode_varint(record.timestamp_ms - base_timestamp_ms),
            encode_varint(record.offset - base_offset),
            _bytes(record.key),
            _bytes(record.value),
            encode_varint(len(record.headers)),
            *(_bytes(name.encode()) + _bytes(value) for name, value in record.headers),
        )
    )
    return encode_varint(len(fields)) + fields


def _bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def _xerial(data: bytes, block_bytes: int = 32 << 10) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes])) for at in range(0, len(data), block_bytes)]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def newer_metadata(root: Path) -> None:
    """A record at the end of the metadata log that only a later version can read, as after an upgrade of Kafka."""
    log = max((root / "__cluster_metadata-0").glob("*.log"))
    raw = log.read_bytes()
    end = max(header.next_offset for _, header in headers(BytesIO(raw), 0, len(raw), where=log.name))
    record = Record(end, 0, None, encode_uvarint(1) + encode_uvarint(2) + encode_uvarint(99), ())
    log.write_bytes(raw + a_batch(end, [record], epoch=1))


def points_of(rows: Iterable[tuple[int, int, int]]) -> Points:
    """An index's points, from (offset, position, largest timestamp before it)."""
    points = new_points()
    for offset, position, timestamp_ms in rows:
        points.offsets.append(offset)
        points.positions.append(position)
        points.max_timestamps_ms.append(timestamp_ms)
    return points
