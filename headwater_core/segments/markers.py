"""Control batches: what a coordinator or a controller wrote into a log for brokers, never for consumers."""

import struct
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments.batches import HEADER_BYTES
from headwater_core.segments.varint import read_varint

ABORT = 0
COMMIT = 1

_KEY = struct.Struct(">hh")  # version, type
_END_VALUE = struct.Struct(">hi")  # version, coordinator epoch


class Marker(NamedTuple):
    """coordinator_epoch  of an ABORT or COMMIT; -1 for other types"""

    type: int
    coordinator_epoch: int


def read_marker(batch: bytes | bytearray | memoryview, *, where: str = "control batch") -> Marker:
    """The marker in one whole control batch that holds a record.

    Raises CorruptData when its record is no control record. Its checksum is check_batch's business.
    Source: Kafka's EndTxnMarker and ControlRecordType; one uncompressed record per batch.
    """
    view = memoryview(batch)
    length, at = read_varint(view, HEADER_BYTES, where)
    end = at + length
    if length < 0 or end > len(view):
        raise CorruptData(where, HEADER_BYTES, f"control record of {length} bytes")
    at += 1  # attributes
    _, at = read_varint(view, at, where)
    _, at = read_varint(view, at, where)
    key_bytes, at = read_varint(view, at, where)
    if key_bytes < _KEY.size or at + key_bytes > end:
        raise CorruptData(where, at, f"control key of {key_bytes} bytes")
    _, kind = _KEY.unpack_from(view, at)
    if kind not in (ABORT, COMMIT):
        return Marker(kind, -1)
    value_bytes, at = read_varint(view, at + key_bytes, where)
    if value_bytes < _END_VALUE.size or at + value_bytes > end:
        raise CorruptData(where, at, f"end marker of {value_bytes} bytes")
    return Marker(kind, _END_VALUE.unpack_from(view, at)[1])
