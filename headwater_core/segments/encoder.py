"""Writing record batches: the few that Headwater itself adds to a log. Uncompressed, as brokers write their own."""

from collections.abc import Sequence

from awscrt.checksums import crc32c

from headwater_core.segments import flexible
from headwater_core.segments.batches import CONTROL, CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM, LOG_APPEND_TIME, TRANSACTIONAL
from headwater_core.segments.varint import encode_varint

_KEY_VERSION = _MARKER_VERSION = 0


def encode_batch(
    base_offset: int,
    rows: Sequence[tuple[bytes | None, bytes | None]],
    *,
    leader_epoch: int,
    timestamp_ms: int,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """One whole batch of `rows`, (key, value) each, all of one time and without a sequence."""
    body = b"".join(_record(delta, key, value) for delta, (key, value) in enumerate(rows))
    head = HEADER.pack(
        base_offset,
        HEADER_BYTES + len(body) - LENGTH_FROM,
        leader_epoch,
        2,
        0,
        attributes,
        len(rows) - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        -1,
        len(rows),
    )
    covered = head[CRC_FROM:] + body
    return head[: CRC_FROM - 4] + flexible.u32(crc32c(covered)) + covered


def encode_marker(
    offset: int,
    kind: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int,
    timestamp_ms: int,
    log_append_time: bool = False,
) -> bytes:
    """The control batch that ends a producer's transaction; `kind` is one of segments.markers. Source: Kafka's EndTransactionMarker.

    log_append_time  the topic's message.timestamp.type
    """
    value = flexible.i16(_MARKER_VERSION) + flexible.i32(coordinator_epoch)
    return encode_batch(
        offset,
        [(control_key(kind), value)],
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        attributes=CONTROL | TRANSACTIONAL | (LOG_APPEND_TIME if log_append_time else 0),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def control_key(kind: int) -> bytes:
    return flexible.i16(_KEY_VERSION) + flexible.i16(kind)


def _record(offset_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    fields = b"\x00" + encode_varint(0) + encode_varint(offset_delta) + _nullable(key) + _nullable(value) + encode_varint(0)
    return encode_varint(len(fields)) + fields


def _nullable(field: bytes | None) -> bytes:
    return encode_varint(-1) if field is None else encode_varint(len(field)) + field
