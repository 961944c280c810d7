"""Kafka's messages as plain dicts of plain values, by the schemas that kio generates from Kafka's own definitions.

kio supplies the schemas; reading and writing are done here. Its native reader takes an array's length on trust: nine
hostile bytes make it ask for 32 GiB and abort the process. Here no length is believed beyond the bytes that are there.
Writing here goes straight from field values to bytes and lets records stay ranges of files.

Field names are kio's. Durations and times are integers of milliseconds, error codes and ids plain ints and bytes.
A field that a version does not know is left out; one that has no value takes the schema's default.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (tagged fields), KIP-893 (nullable structs).
"""

import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from datetime import timedelta
from functools import cache
from itertools import groupby
from typing import Any
from uuid import UUID

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.primitives import (
    BOOL,
    FIXED,
    INT32,
    NO_TAGS,
    Reader,
    Writer,
    primitive,
    read_tag_count,
    read_varint,
    skip_tags,
    write_varint,
)
from headwater.gateway.response import Response

Fields = Mapping[str, Any]
_PartReader = Callable[[bytes, int, dict[str, Any]], int]  # puts what it reads into the values; the position after it
_PartWriter = Callable[[Response, Fields], None]

ELEMENTS_MAX = 40_000  # array elements in one request, all arrays together: a few bytes each there, a dict each here. A consumer of
# twenty thousand topics of one partition names each twice


class _LongRequest(bytes):
    """A request's bytes, and how many array elements may still be read from them. A short one cannot hold too many."""

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
    read: Reader
    write: Writer


@cache
def request_schema(api_key: int, version: int) -> Schema:
    """Made on first use: some milliseconds. Raises what kio does when it has no such version."""
    return _schema(api_key, version, "request")


@cache
def response_schema(api_key: int, version: int) -> Schema:
    """As request_schema."""
    return _schema(api_key, version, "response")


@cache
def element_writer(api_key: int, version: int, *names: str) -> Writer:
    """Return the writer of one element of the response's array `names[0]`, or of an array in each of its elements, and so on. The bytes of
    one may stand for it in a response to write."""
    from kio.index import load_response_schema

    entity: Any = load_response_schema(api_key, version)
    for name in names:
        hint = typing.get_type_hints(entity)[name]
        [array] = [option for option in (hint, *typing.get_args(hint)) if typing.get_origin(option) is tuple]
        entity = typing.get_args(array)[0]
    return _entity(entity)[1]


def _schema(api_key: int, version: int, kind: str) -> Schema:
    from kio.index import load_request_schema, load_response_schema  # half a second: only a gateway pays it

    entity: Any = (load_request_schema if kind == "request" else load_response_schema)(api_key, version)
    read, write = _entity(entity)
    return Schema(entity.__flexible__, int(entity.__header_schema__.__version__), read, write)


def load_schemas(api_key: int, version: int) -> None:
    """Import what the first request of a version would otherwise wait for, some milliseconds of computing: not in an event loop."""
    request_schema(api_key, version)
    response_schema(api_key, version)


def read_request(frame: bytes, position: int, api_key: int, version: int) -> dict[str, Any]:
    """The body of the request whose header ended at `position` (see frames.read_header).

    Raises MalformedRequest when the bytes are not such a request. Bytes left over are let pass, as every broker does:
    librdkafka asks for all topics with a null array four bytes long where flexible versions have one of a single byte.
    """
    schema = request_schema(api_key, version)
    if len(frame) > ELEMENTS_MAX:  # an element takes a byte at least
        frame = _LongRequest(frame)
    try:
        if schema.flexible:
            position = skip_tags(frame, position)
        body, _ = schema.read(frame, position)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"api {api_key} version {version}: {error}") from error
    return body  # type: ignore[no-any-return]


def write_response(response: Response, values: Fields, api_key: int, version: int, correlation_id: int) -> None:
    """Append response header and body."""
    write_header(response, api_key, version, correlation_id)
    response_schema(api_key, version).write(response, values)


def write_header(response: Response, api_key: int, version: int, correlation_id: int) -> None:
    """Append the response header. That of ApiVersions is always the oldest one, so that every client can read it."""
    response.buffer += INT32.pack(correlation_id)
    if response_schema(api_key, version).header_version >= 1:
        response.buffer += NO_TAGS


# -- structures ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """One field of an entity. `form` is its struct format when it is a single value of fixed width."""

    name: str
    default: Any
    read: Reader
    write: Writer
    form: str | None
    entity: str


@cache
def _entity(entity: Any) -> tuple[Reader, Writer]:
    plain: list[_Slot] = []
    tagged: dict[int, _Slot] = {}
    hints = typing.get_type_hints(entity)
    for field in fields(entity):
        tag = field.metadata.get("tag")
        hint = hints[field.name]
        read, write = _field(field, hint, entity.__flexible__, tag is not None)
        form = None if _is_array(hint) else FIXED.get(field.metadata.get("kafka_type", ""))
        slot = _Slot(field.name, _default(field), read, write, form, f"{entity.__qualname__} v{entity.__version__}")
        if tag is None:
            plain.append(slot)
        else:
            tagged[tag] = slot
    parts: list[tuple[_PartReader, _PartWriter]] = []
    for may_merge, adjacent in groupby(plain, lambda slot: slot.form not in (None, BOOL)):
        slots = list(adjacent)
        parts += [_run(slots)] if may_merge else map(_alone, slots)
    if entity.__flexible__:
        parts.append(_tagged(tagged))
    readers, writers = [read for read, _ in parts], [write for _, write in parts]

    def read_entity(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        for read in readers:
            at = read(data, at, values)
        return values, at

    def write_entity(response: Response, values: Fields | bytes) -> None:
        if isinstance(values, bytes):  # see element_writer
            response.buffer += values
            return
        for write in writers:
            write(response, values)

    return read_entity, write_entity


def _alone(slot: _Slot) -> tuple[_PartReader, _PartWriter]:
    name, default, read_value, write_value = slot.name, slot.default, slot.read, slot.write

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        values[name], at = read_value(data, at)
        return at

    def write(response: Response, values: Fields) -> None:
        value = values.get(name, default)
        if value is MISSING:
            raise KeyError(f"{slot.entity} needs {name}")
        write_value(response, value)

    return read, write


def _run(slots: Sequence[_Slot]) -> tuple[_PartReader, _PartWriter]:
    """Adjacent fields of fixed width, read and written at once: the same bytes as one by one, at less cost.

    What is None or not there at all cannot be packed. No booleans, therefore: anything can be packed as one.
    """
    packed = struct.Struct(">" + "".join(slot.form or "" for slot in slots))
    unpack_from, pack, size = packed.unpack_from, packed.pack, packed.size
    names = [slot.name for slot in slots]
    defaults = [(slot.name, slot.default) for slot in slots]

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        values.update(zip(names, unpack_from(data, at)))  # noqa: B905  # strict=True takes as long as all the rest
        return at + size

    def write(response: Response, values: Fields) -> None:
        try:
            response.buffer += pack(*[values.get(name, default) for name, default in defaults])
        except struct.error:
            for _, write_one in map(_alone, slots):
                write_one(response, values)

    return read, write


def _tagged(slots: dict[int, _Slot]) -> tuple[_PartReader, _PartWriter]:
    """What ends every flexible structure. Hardly ever is there any of them."""
    ordered = [(slots[tag].name, tag, slots[tag]) for tag in sorted(slots)]

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        if data.startswith(NO_TAGS, at):
            return at + 1
        count, at = read_tag_count(data, at)
        for _ in range(count):
            tag, at = read_varint(data, at)
            size, at = read_varint(data, at)
            end = at + size
            if end > len(data):
                raise MalformedRequest(f"tagged field of {size} bytes, {len(data) - at} are there")
            if tag in slots:
                name = slots[tag].name
                values[name], at = slots[tag].read(data, at)
                if at != end:
                    raise MalformedRequest(f"tagged field {name} is not as long as it says")
            at = end
        return at

    def write(response: Response, values: Fields) -> None:
        given = [(tag, slot) for name, tag, slot in ordered if name in values and values[name] != slot.default]
        if not given:
            response.buffer += NO_TAGS
            return
        write_varint(response.buffer, len(given))
        for tag, slot in given:
            inner = Response()
            slot.write(inner, values[slot.name])
            write_varint(response.buffer, tag)
            write_varint(response.buffer, len(inner.buffer))
            response.buffer += inner.buffer

    return read, write


def _field(field: Field[Any], hint: Any, flexible: bool, is_tag: bool) -> tuple[Reader, Writer]:
    nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        nullable = len(options) < len(typing.get_args(hint)) and not is_tag
        hint = options[0]
    kind = field.metadata.get("kafka_type")
    if _is_array(hint):
        item = primitive(kind, flexible, False) if kind else _entity(typing.get_args(hint)[0])
        return _array(item, flexible, nullable)
    if kind:
        return primitive(kind, flexible, nullable or is_tag)
    return _nullable_entity(_entity(hint)) if nullable else _entity(hint)


def _is_array(hint: Any) -> bool:
    """`tuple[X, ...]` or `tuple[X, ...] | None`."""
    return any(typing.get_origin(option) is tuple for option in (hint, *typing.get_args(hint)))


def _default(field: Field[Any]) -> Any:
    default = field.default
    if isinstance(default, timedelta):
        return round(default.total_seconds() * 1000)
    if isinstance(default, UUID):
        return default.bytes
    if default is MISSING and field.metadata.get("kafka_type") in ("timedelta_i32", "timedelta_i64"):
        return 0  # throttle_time, in every answer
    return default


def _array(item: tuple[Reader, Writer], flexible: bool, nullable: bool) -> tuple[Reader, Writer]:
    read_item, write_item = item

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        if flexible:
            count, at = read_varint(data, at)
            count -= 1
        else:
            (count,) = INT32.unpack_from(data, at)
            at += 4
        if count == -1:
            return (None if nullable else []), at
        if not 0 <= count <= len(data) - at:  # an element takes a byte at least
            raise MalformedRequest(f"array of {count} elements in {len(data) - at} bytes")
        if isinstance(data, _LongRequest):
            data.take(count)
        items = []
        for _ in range(count):
            value, at = read_item(data, at)
            items.append(value)
        return items, at

    def write(response: Response, items: Any) -> None:
        count = -1 if items is None else len(items)
        if flexible:
            write_varint(response.buffer, count + 1)
        else:
            response.buffer += INT32.pack(count)
        for value in items or ():
            write_item(response, value)

    return read, write


def _nullable_entity(entity: tuple[Reader, Writer]) -> tuple[Reader, Writer]:
    read_entity, write_entity = entity

    def read(data: bytes, at: int) -> tuple[Any, int]:
        (marker,) = struct.unpack_from(">b", data, at)
        return (None, at + 1) if marker < 0 else read_entity(data, at + 1)

    def write(response: Response, values: Any) -> None:
        response.buffer += b"\xff" if values is None else b"\x01"
        if values is not None:
            write_entity(response, values)

    return read, write
