"""The records inside a batch."""

from collections.abc import Iterator
from typing import NamedTuple

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments import codecs
from headwater_core.segments.batches import HEADER_BYTES, read_batch_header
from headwater_core.segments.varint import read_varint

COPIED_BYTES_MAX = 1 << 20  # a body up to here is copied, which reads faster; a longer one would be in memory twice
_RECORD_BYTES_MIN = 6  # five one-byte fields after the length, and the header count


class Record(NamedTuple):
    """One record as a consumer gets it. Its timestamp's type and leader epoch are its batch's.

    key, value  None is null, which is not the same as empty
    headers     (name, value) in order; names may repeat
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def decode_batch(batch: bytes | bytearray | memoryview, *, limit_bytes: int = codecs.LIMIT_BYTES, where: str = "batch") -> Iterator[Record]:
    """The records of one whole batch, in offset order, control records included.

    limit_bytes  most bytes that its body may decompress to

    Raises CorruptData when lengths, counts or offsets inside do not agree with each other or with the batch header, and
    what codecs.decompress raises. The checksum is check_batch's business.
    """
    view = memoryview(batch)
    header = read_batch_header(view, where=where)
    if header.size_bytes != len(view):
        kind = TruncatedData if header.size_bytes > len(view) else CorruptData
        raise kind(where, 0, f"batch of {header.size_bytes} bytes in {len(view)}")
    where = f"{where}, batch at offset {header.base_offset}"
    if not header.records:
        if header.size_bytes != HEADER_BYTES and codecs.decompress(header.codec, view[HEADER_BYTES:], limit_bytes, where=where):
            raise CorruptData(where, HEADER_BYTES, "bytes in a batch without records")
        return
    unpacked = codecs.decompress(header.codec, view[HEADER_BYTES:], limit_bytes, where=where)
    body = bytes(unpacked) if len(unpacked) <= COPIED_BYTES_MAX else unpacked
    fixed_timestamp = header.max_timestamp_ms if header.log_append_time else None
    base_offset, base_timestamp_ms, last_delta = header.base_offset, header.base_timestamp_ms, header.last_offset_delta
    at, previous_delta = 0, -1
    for _ in range(header.records):
        length, at = read_varint(body, at, where)
        end = at + length
        if length < _RECORD_BYTES_MIN or end > len(body):
            raise CorruptData(where, at, f"record of {length} bytes, {len(body) - at} are left")
        timestamp_delta, at = read_varint(body, at + 1, where)  # one byte of attributes, unused
        offset_delta, at = read_varint(body, at, where)
        key, at = _read_bytes(body, at, end, where)
        value, at = _read_bytes(body, at, end, where)
        headers, at = _read_headers(body, at, end, where)
        if at != end:
            raise CorruptData(where, at, f"record ends at {end}, its fields at {at}")
        if not previous_delta < offset_delta <= last_delta:
            raise CorruptData(where, at, f"offset delta {offset_delta} follows {previous_delta}, the last is {last_delta}")
        previous_delta = offset_delta
        timestamp_ms = base_timestamp_ms + timestamp_delta if fixed_timestamp is None else fixed_timestamp
        yield Record(base_offset + offset_delta, timestamp_ms, key, value, headers)
    if at != len(body):
        raise CorruptData(where, at, f"{len(body) - at} bytes after the last of {header.records} records")


def _read_bytes(body: bytes | memoryview, at: int, end: int, where: str) -> tuple[bytes | None, int]:
    size, at = read_varint(body, at, where)
    if size < 0:
        if size != -1:
            raise CorruptData(where, at, f"length {size}")
        return None, at
    if at + size > end:
        raise CorruptData(where, at, f"field of {size} bytes, {end - at} are left in the record")
    return bytes(body[at : at + size]), at + size


def _read_headers(body: bytes | memoryview, at: int, end: int, where: str) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = read_varint(body, at, where)
    if not count:
        return (), at
    if not 0 < count <= (end - at) // 2:  # a header takes two bytes or more
        raise CorruptData(where, at, f"{count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(body, at, end, where)
        if name is None:
            raise CorruptData(where, at, "header without a name")
        value, at = _read_bytes(body, at, end, where)
        headers.append((name.decode("utf-8", "replace"), value))  # brokers do not check names; clients replace, too
    return tuple(headers), at
