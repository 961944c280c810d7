"""Protobuf's wire format, as far as layouts' metadata needs it: a message is a list of fields, each a number and a value.

Source: protobuf.dev, "Encoding". Groups are refused, as nobody writes them any more.
"""

from collections.abc import Iterator

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments.varint import encode_uvarint, read_uvarint

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def varint_field(number: int, value: int) -> bytes:
    """An int32, int64, uint64, bool or enum; a negative one takes ten bytes."""
    return encode_uvarint(number << 3 | _VARINT) + encode_uvarint(value & 0xFFFF_FFFF_FFFF_FFFF)


def bytes_field(number: int, value: bytes) -> bytes:
    """A string in UTF-8, bytes, or a message inside this one."""
    return encode_uvarint(number << 3 | _BYTES) + encode_uvarint(len(value)) + value


def fields(message: memoryview, where: str) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) in the order in which they were written: an unsigned integer, or the bytes of any other kind of field.

    Raises CorruptData, TruncatedData for what is no message.
    """
    at = 0
    while at < len(message):
        tag, at = read_uvarint(message, at, where)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise CorruptData(where, at, "a field without a number")
        if kind == _VARINT:
            value, at = read_uvarint(message, at, where)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = read_uvarint(message, at, where)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise CorruptData(where, at, f"field {number} is of kind {kind}")
        if size > len(message) - at:
            raise TruncatedData(where, at, f"field {number} has {size} bytes, {len(message) - at} are there")
        yield number, message[at : at + size]
        at += size


def signed(value: int | memoryview, where: str) -> int:
    """An int32 or int64. Raises CorruptData for a field of another kind."""
    if not isinstance(value, int):
        raise CorruptData(where, 0, "bytes where a number belongs")
    return value - (1 << 64) if value >> 63 else value


def content(value: int | memoryview, where: str) -> memoryview:
    """A string, bytes or a message. Raises CorruptData for a field of another kind."""
    if isinstance(value, int):
        raise CorruptData(where, 0, "a number where bytes belong")
    return value
