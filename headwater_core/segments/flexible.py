"""Kafka's flexible message encoding: compact strings and arrays, tagged fields. No length is believed when reading."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.partition import topic_id_bytes, topic_id_text
from headwater_core.segments.varint import encode_uvarint, read_uvarint

T = TypeVar("T")

_I16, _I32, _U32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">I"), struct.Struct(">q")


class Reader:
    """Takes fields off `data`, one after the other. Raises TruncatedData at its end, CorruptData for impossible lengths."""

    def __init__(self, data: bytes | memoryview, where: str) -> None:
        self._data, self._where, self._at = memoryview(data), where, 0

    @property
    def where(self) -> str:
        return self._where

    @property
    def position(self) -> int:
        return self._at

    @property
    def bytes_left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if size > len(self._data) - self._at:
            raise TruncatedData(self._where, self._at, f"field of {size} bytes, {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def i8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def i16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def uvarint(self) -> int:
        value, self._at = read_uvarint(self._data, self._at, self._where)
        return value

    def uuid(self) -> str:
        return topic_id_text(bytes(self.take(16)))

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptData(self._where, self._at, "null where a string must be")
        return text

    def nullable_string(self) -> str | None:
        size = self.uvarint()
        if not size:
            return None
        try:
            return str(self.take(size - 1), "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptData(self._where, self._at, "not UTF-8") from error

    def array(self, item: Callable[[], T]) -> tuple[T, ...]:
        found = self.nullable_array(item)
        if found is None:
            raise CorruptData(self._where, self._at, "null where an array of items must be")
        return found

    def nullable_array(self, item: Callable[[], T]) -> tuple[T, ...] | None:
        count = self.uvarint() - 1
        if count > self.bytes_left:  # an item takes a byte or more
            raise CorruptData(self._where, self._at, f"array of {count} items in {self.bytes_left} bytes")
        return tuple(item() for _ in range(count)) if count >= 0 else None

    def tags(self) -> dict[int, "Reader"]:
        """The tagged fields, each with its own reader, for the caller that knows the tag."""
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = Reader(self.take(self.uvarint()), self._where)
        return fields


def i8(value: int) -> bytes:
    return value.to_bytes(1, "big", signed=True)


def i16(value: int) -> bytes:
    return _I16.pack(value)


def i32(value: int) -> bytes:
    return _I32.pack(value)


def u32(value: int) -> bytes:
    return _U32.pack(value)


def i64(value: int) -> bytes:
    return _I64.pack(value)


def string(value: str | None) -> bytes:
    if value is None:
        return encode_uvarint(0)
    raw = value.encode()
    return encode_uvarint(len(raw) + 1) + raw


def uuid(text: str) -> bytes:
    return topic_id_bytes(text)


def array(items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    return encode_uvarint(len(encoded) + 1) + b"".join(encoded)


def tags(fields: Mapping[int, bytes]) -> bytes:
    return encode_uvarint(len(fields)) + b"".join(
        encode_uvarint(tag) + encode_uvarint(len(raw)) + raw for tag, raw in sorted(fields.items())
    )
