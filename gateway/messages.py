"""Kafka's messages as plain dicts of plain values, by the schemas that kio generates from Kafka's own definitions.

kio supplies the schemas; reading and writing are done here. Its native reader takes an array's length on trust: nine
hostile bytes make it ask for 32 GiB and abort the process. Here no length is believed beyond the bytes that are there.
Writing here goes straight from facts to bytes and lets records stay ranges of files.

Field names are kio's. Durations and times are integers of milliseconds, error codes and ids plain ints and bytes.
A fact that a version does not know is left out; one that the facts lack takes the schema's default.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (tagged fields), KIP-893 (nullable structs).
"""

import struct
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from gateway.frames import MalformedRequest
from gateway.slices import Answer, Records

Facts = Mapping[str, Any]
_Reader = Callable[[bytes, int], tuple[Any, int]]
_Writer = Callable[[Answer, Any], None]

_FIXED = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "uint32": ">I",
    "float64": ">d",
    "bool": ">?",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
    "uuid": "16s",
}
_ZERO_UUID = bytes(16)
ELEMENTS_MAX = 50_000  # array elements in one request, all arrays together: a few bytes each there, a dict each here


class _Request(bytes):
    """A request's bytes, and how many array elements may still be read from them."""

    elements_left = ELEMENTS_MAX

    def take(self, count: int) -> None:
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedRequest(f"arrays of more than {ELEMENTS_MAX} elements")


@dataclass(frozen=True, slots=True)
class Schema:
    """One message of one version, both ways."""

    flexible: bool
    header_version: int
    read: _Reader
    write: _Writer


@cache
def request_schema(api_key: int, version: int) -> Schema:
    return _schema(api_key, version, "request")


@cache
def response_schema(api_key: int, version: int) -> Schema:
    return _schema(api_key, version, "response")


def _schema(api_key: int, version: int, kind: str) -> Schema:
    from kio.index import load_request_schema, load_response_schema  # half a second: only a gateway pays it

    entity: Any = (load_request_schema if kind == "request" else load_response_schema)(api_key, version)
    read, write = _entity(entity)
    return Schema(entity.__flexible__, int(entity.__header_schema__.__version__), read, write)


def preload(versions: Mapping[Any, range]) -> None:
    """Import the newest version of each, which most clients speak, so that no first request waits for it."""
    for api_key, each in versions.items():
        request_schema(api_key, each[-1])
        response_schema(api_key, each[-1])


def read_request(frame: bytes, position: int, api_key: int, version: int) -> dict[str, Any]:
    """The body of the request whose header ended at `position` (see frames.read_header).

    Raises MalformedRequest when the bytes are not such a request. Bytes left over are let pass, as every broker does:
    librdkafka asks for all topics with a null array four bytes long where flexible versions have one of a single byte.
    """
    schema = request_schema(api_key, version)
    frame = _Request(frame)
    try:
        if schema.flexible:
            position = _skip_tags(frame, position)
        body, _ = schema.read(frame, position)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"api {api_key} version {version}: {error}") from error
    return body  # type: ignore[no-any-return]


def write_response(answer: Answer, facts: Facts, api_key: int, version: int, correlation_id: int) -> None:
    """Append response header and body."""
    write_header(answer, api_key, version, correlation_id)
    response_schema(api_key, version).write(answer, facts)


def write_header(answer: Answer, api_key: int, version: int, correlation_id: int) -> None:
    """Append the response header. That of ApiVersions is always the oldest one, so that every client can read it."""
    answer.gathered += _INT32.pack(correlation_id)
    if response_schema(api_key, version).header_version >= 1:
        answer.gathered.append(0)  # no tagged fields


# -- structures ---------------------------------------------------------------------------------------------------


@cache
def _entity(entity: Any) -> tuple[_Reader, _Writer]:
    plain: list[tuple[str, Any, _Reader, _Writer]] = []
    tagged: dict[int, tuple[str, Any, _Reader, _Writer]] = {}
    hints = typing.get_type_hints(entity)
    for field in fields(entity):
        tag = field.metadata.get("tag")
        read, write = _field(field, hints[field.name], entity.__flexible__, tag is not None)
        slot = (field.name, _default(field), read, write)
        if tag is None:
            plain.append(slot)
        else:
            tagged[tag] = slot

    def read_entity(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        facts: dict[str, Any] = {}
        for name, _, read, _ in plain:
            facts[name], at = read(data, at)
        if entity.__flexible__:
            count, at = _read_count(data, at)
            for _ in range(count):
                tag, at = _read_varint(data, at)
                size, at = _read_varint(data, at)
                end = at + size
                if end > len(data):
                    raise MalformedRequest(f"tagged field of {size} bytes, {len(data) - at} are there")
                if tag in tagged:
                    name, _, read, _ = tagged[tag]
                    facts[name], at = read(data, at)
                    if at != end:
                        raise MalformedRequest(f"tagged field {name} is not as long as it says")
                at = end
        return facts, at

    def write_entity(answer: Answer, facts: Facts) -> None:
        for name, default, _, write in plain:
            value = facts.get(name, default)
            if value is MISSING:
                raise KeyError(f"{entity.__qualname__} v{entity.__version__} needs {name}")
            write(answer, value)
        if entity.__flexible__:
            given = [(tag, slot) for tag, slot in sorted(tagged.items()) if facts.get(slot[0], slot[1]) != slot[1]]
            _write_varint(answer.gathered, len(given))
            for tag, (name, _, _, write) in given:
                inner = Answer()
                write(inner, facts[name])
                _write_varint(answer.gathered, tag)
                _write_varint(answer.gathered, len(inner.gathered))
                answer.gathered += inner.gathered

    return read_entity, write_entity


def _field(field: Field[Any], hint: Any, flexible: bool, is_tag: bool) -> tuple[_Reader, _Writer]:
    nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        nullable = len(options) < len(typing.get_args(hint)) and not is_tag
        hint = options[0]
    kind = field.metadata.get("kafka_type")
    if typing.get_origin(hint) is tuple:
        item = _primitive(kind, flexible, False) if kind else _entity(typing.get_args(hint)[0])
        return _array(item, flexible, nullable)
    if kind:
        return _primitive(kind, flexible, nullable or is_tag)
    return _nullable_entity(_entity(hint)) if nullable else _entity(hint)


def _default(field: Field[Any]) -> Any:
    default = field.default
    if isinstance(default, timedelta):
        return round(default.total_seconds() * 1000)
    if isinstance(default, UUID):
        return default.bytes
    if default is MISSING and field.metadata.get("kafka_type") in ("timedelta_i32", "timedelta_i64"):
        return 0  # throttle_time, in every answer
    return default


def _array(item: tuple[_Reader, _Writer], flexible: bool, nullable: bool) -> tuple[_Reader, _Writer]:
    read_item, write_item = item

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        if flexible:
            count, at = _read_varint(data, at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(data, at)
            at += 4
        if count == -1:
            return (None if nullable else []), at
        if not 0 <= count <= len(data) - at:  # an element takes a byte at least
            raise MalformedRequest(f"array of {count} elements in {len(data) - at} bytes")
        if isinstance(data, _Request):
            data.take(count)
        items = []
        for _ in range(count):
            value, at = read_item(data, at)
            items.append(value)
        return items, at

    def write(answer: Answer, items: Any) -> None:
        count = -1 if items is None else len(items)
        if flexible:
            _write_varint(answer.gathered, count + 1)
        else:
            answer.gathered += _INT32.pack(count)
        for value in items or ():
            write_item(answer, value)

    return read, write


def _nullable_entity(entity: tuple[_Reader, _Writer]) -> tuple[_Reader, _Writer]:
    read_entity, write_entity = entity

    def read(data: bytes, at: int) -> tuple[Any, int]:
        (marker,) = struct.unpack_from(">b", data, at)
        return (None, at + 1) if marker < 0 else read_entity(data, at + 1)

    def write(answer: Answer, facts: Any) -> None:
        answer.gathered += b"\xff" if facts is None else b"\x01"
        if facts is not None:
            write_entity(answer, facts)

    return read, write


# -- primitives ---------------------------------------------------------------------------------------------------


@cache
def _primitive(kind: str, flexible: bool, nullable: bool) -> tuple[_Reader, _Writer]:
    if kind in _FIXED:
        return _fixed(_FIXED[kind], _ZERO_UUID if kind == "uuid" else -1)
    if kind == "string":
        return _sized(flexible, nullable, _INT16, text=True)
    if kind in ("bytes", "records"):
        return _sized(flexible, nullable, _INT32, text=False)
    raise NotImplementedError(f"Kafka type {kind}")


def _fixed(form: str, when_none: bytes | int) -> tuple[_Reader, _Writer]:
    packed = struct.Struct(form)
    unpack_from, pack, size = packed.unpack_from, packed.pack, packed.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack_from(data, at)[0], at + size

    def write(answer: Answer, value: Any) -> None:
        answer.gathered += pack(when_none if value is None else value)

    return read, write


def _sized(flexible: bool, nullable: bool, legacy: struct.Struct, *, text: bool) -> tuple[_Reader, _Writer]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if flexible:
            size, at = _read_varint(data, at)
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

    def write(answer: Answer, value: Any) -> None:
        if isinstance(value, str):
            value = value.encode()
        size = -1 if value is None else value.size_bytes if isinstance(value, Records) else len(value)
        if flexible:
            _write_varint(answer.gathered, size + 1)
        else:
            answer.gathered += legacy.pack(size)
        if isinstance(value, Records):
            answer.attach(value)
        elif value is not None:
            answer.gathered += value

    return read, write


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
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


def _read_count(data: bytes, at: int) -> tuple[int, int]:
    count, at = _read_varint(data, at)
    if count > len(data) - at:
        raise MalformedRequest(f"{count} tagged fields in {len(data) - at} bytes")
    return count, at


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)


def _skip_tags(data: bytes, at: int) -> int:
    count, at = _read_count(data, at)
    for _ in range(count):
        _, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        at += size
        if at > len(data):
            raise MalformedRequest("the bytes end inside a tagged field")
    return at
