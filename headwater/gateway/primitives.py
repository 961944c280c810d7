"""Kafka's primitive types, both ways, and the varints and tagged fields of flexible versions.

No length is believed beyond the bytes that are there. Nullable values are None; a time is an integer of milliseconds, a UUID 16 bytes.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (tagged fields).
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.response import Records, Response

Reader = Callable[[bytes, int], tuple[Any, int]]  # a value and the position after it
Writer = Callable[[Response, Any], None]

BOOL = "?"
FIXED = {  # struct formats, big-endian
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": BOOL,
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
INT32 = struct.Struct(">i")
NO_TAGS = b"\0"  # an empty list of tagged fields
_INT16 = struct.Struct(">h")
_ZERO_UUID = bytes(16)


@cache
def primitive(kind: str, flexible: bool, nullable: bool) -> tuple[Reader, Writer]:
    """Reader and writer of one of kio's types. The reader raises MalformedRequest, or struct.error where the bytes end."""
    if kind in FIXED:
        return _fixed(FIXED[kind], _ZERO_UUID if kind == "uuid" else -1)
    if kind == "string":
        return _sized(flexible, nullable, _INT16, text=True)
    if kind in ("bytes", "records"):
        return _sized(flexible, nullable, INT32, text=False)
    raise NotImplementedError(f"Kafka type {kind}")


def _fixed(form: str, when_none: bytes | int) -> tuple[Reader, Writer]:
    packed = struct.Struct(">" + form)
    unpack_from, pack, size = packed.unpack_from, packed.pack, packed.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack_from(data, at)[0], at + size

    def write(response: Response, value: Any) -> None:
        response.buffer += pack(when_none if value is None else value)

    return read, write


def _sized(flexible: bool, nullable: bool, legacy: struct.Struct, *, text: bool) -> tuple[Reader, Writer]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if flexible:
            size, at = read_varint(data, at)
            size -= 1
        else:
            (size,) = legacy.unpack_from(data, at)
            at += legacy.size
        if size == -1 and nullable:
            return None, at
        end = at + size
        if size < 0 or end > len(data):
            raise MalformedRequest(f"{size} bytes announced, {len(data) - at} are there")
        value = data[at:end]
        return (value.decode() if text else value), end

    def write(response: Response, value: Any) -> None:
        if isinstance(value, str):
            value = value.encode()
        size = -1 if value is None else value.size_bytes if isinstance(value, Records) else len(value)
        if flexible:
            write_varint(response.buffer, size + 1)
        else:
            response.buffer += legacy.pack(size)
        if isinstance(value, Records):
            response.attach(value)
        elif value is not None:
            response.buffer += value

    return read, write


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint at byte `at`, and the position after it. Raises MalformedRequest when it is cut or longer than five bytes."""
    if at < len(data) and (byte := data[at]) < 0x80:
        return byte, at + 1
    value = shift = 0
    while shift < 35:  # 32 bits take five bytes at most
        if at >= len(data):
            raise MalformedRequest("the bytes end inside a varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedRequest("a varint of more than five bytes")


def read_tag_count(data: bytes, at: int) -> tuple[int, int]:
    """The number of tagged fields, and the position after it. Raises MalformedRequest for more than there are bytes."""
    count, at = read_varint(data, at)
    if count > len(data) - at:
        raise MalformedRequest(f"{count} tagged fields in {len(data) - at} bytes")
    return count, at


def write_varint(out: bytearray, value: int) -> None:
    """Append `value`, which is not negative, as an unsigned varint."""
    while value > 0x7F:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)


def skip_tags(data: bytes, at: int) -> int:
    """The position after tagged fields that are not read. Raises MalformedRequest when they are cut."""
    if data.startswith(NO_TAGS, at):
        return at + 1
    count, at = read_tag_count(data, at)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > len(data):
            raise MalformedRequest("the bytes end inside a tagged field")
    return at
