"""Our codec against kio's own, which reads and writes the same schemas by other code."""

import io
import random
import struct
import types
import typing
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from headwater.gateway import messages
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.handlers import VERSIONS
from headwater.gateway.messages import read_request, request_schema, response_schema
from headwater.gateway.primitives import FIXED, primitive
from headwater.gateway.response import Response
from tests.headwater.gateway.raw import a_fetch

EVERY_VERSION = [(int(api), version) for api, versions in VERSIONS.items() for version in versions]


def any_entity(entity: Any, random_: random.Random, depth: int = 0) -> Any:
    """An instance of one of kio's message types with every field filled at random."""
    hints = typing.get_type_hints(entity)
    return entity(**{field.name: _any_value(field, hints[field.name], random_, depth) for field in fields(entity)})


def _any_value(field: Any, hint: Any, random_: random.Random, depth: int) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if random_.random() < 0.2 and field.metadata.get("kafka_type") != "uuid" and "tag" not in field.metadata:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    kind = field.metadata.get("kafka_type")
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        count = random_.randrange(3)
        return tuple(_a_value(kind, random_) if kind else any_entity(item, random_, depth + 1) for _ in range(count))
    return _a_value(kind, random_) if kind else any_entity(hint, random_, depth + 1)


def _a_value(kind: str, random_: random.Random) -> Any:
    match kind:
        case "string":
            return random_.choice(["", "soup", "Gemüse", "x" * 300])
        case "bytes" | "records":
            return random_.randbytes(random_.choice([0, 5, 200]))
        case "bool":
            return random_.random() < 0.5
        case "float64":
            return random_.random()
        case "uuid":
            return UUID(bytes=random_.randbytes(16))
        case "error_code":
            return random_.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=random_.randrange(0, 2**31))
        case "datetime_i64":
            return datetime.fromtimestamp(random_.randrange(0, 2**31), UTC)
        case _:
            bits = int(kind.removeprefix("u").removeprefix("int"))
            value = random_.getrandbits(bits)
            return value if kind.startswith("u") else value - (1 << bits - 1)


def plain(value: Any) -> Any:
    """kio's instance as the plain facts we use."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, ErrorCode):
        return int(value)
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def kio_bytes(instance: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(instance))(out, instance)
    return out.getvalue()


def without_defaults(facts: Any, read: Any) -> Any:
    """`facts` reduced to what `read` has: a tagged field with its default value is not sent."""
    if isinstance(facts, dict) and isinstance(read, dict):
        return {name: without_defaults(facts[name], read[name]) for name in read}
    if isinstance(facts, list) and isinstance(read, list):
        return [without_defaults(one, other) for one, other in zip(facts, read, strict=True)]
    return facts


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_request_that_kio_wrote_reads_as_it_was_meant(api: int, version: int) -> None:
    random_ = random.Random(api * 100 + version)
    entity: Any = load_request_schema(api, version)
    for _ in range(20):
        instance = any_entity(entity, random_)
        raw = kio_bytes(instance)
        read, end = request_schema(api, version).read(raw, 0)
        assert end == len(raw)
        assert read == without_defaults(plain(instance), read)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_that_we_wrote_is_what_kio_would_have_written(api: int, version: int) -> None:
    random_ = random.Random(api * 100 + version)
    entity: Any = load_response_schema(api, version)
    for _ in range(20):
        instance = any_entity(entity, random_)
        answer = Response()
        response_schema(api, version).write(answer, plain(instance))
        again, _ = entity_reader(entity)(bytes(answer.buffer), 0)
        assert plain(again) == plain(instance)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EVERY_VERSION), st.randoms(use_true_random=False), st.data())
def test_hostile_bytes_are_refused_or_read_and_nothing_else(which: tuple[int, int], random_: random.Random, data: st.DataObject) -> None:
    """Cut, flipped and overwritten requests: a MalformedRequest at worst, and no list longer than the frame."""
    api, version = which
    raw = bytearray(b"\x00" if request_schema(api, version).flexible else b"") + kio_bytes(
        any_entity(load_request_schema(api, version), random_)
    )
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 5))] = data.draw(
            st.sampled_from([b"", b"\xff" * 5, b"\x7f\xff\xff\xff", b"\x00", b"\x80" * 9])
        )
    try:
        body = read_request(bytes(raw), 0, api, version)
    except MalformedRequest:
        return
    assert _longest(body) <= len(raw)


_SLOTS = st.lists(st.tuples(st.sampled_from(sorted(set(FIXED) - {"bool"})), st.sampled_from(["given", "none", "left out"])), min_size=1)


@settings(deadline=None)
@given(_SLOTS, st.randoms(use_true_random=False), st.booleans())
def test_fields_that_are_read_and_written_at_once_are_the_same_as_one_by_one(
    which: list[tuple[str, str]], random_: random.Random, has_defaults: bool
) -> None:
    """Also where a value is None, or is left out and has a default or none; what is refused alone is refused among others."""
    slots, facts = [], {}
    for at, (kind, how) in enumerate(which):
        default = plain(_a_value(kind, random_)) if has_defaults else MISSING
        slots.append(messages._Slot(f"f{at}", default, *primitive(kind, True, False), FIXED[kind], "Entity v0"))
        if how != "left out":
            facts[f"f{at}"] = plain(_a_value(kind, random_)) if how == "given" else None
    apart = [messages._alone(slot) for slot in slots]
    read_run, write_run = messages._run(slots)

    one_by_one, at_once = Response(), Response()
    try:
        for _, write in apart:
            write(one_by_one, facts)
    except (KeyError, struct.error) as error:
        with pytest.raises(type(error), match=error.args[0]):
            write_run(at_once, facts)
        return
    write_run(at_once, facts)
    raw = bytes(at_once.buffer)
    assert raw == bytes(one_by_one.buffer)

    read_apart: dict[str, Any] = {}
    end = 0
    for read, _ in apart:
        end = read(raw, end, read_apart)
    read_at_once: dict[str, Any] = {}
    assert read_run(raw, 0, read_at_once) == end == len(raw)
    assert read_at_once == read_apart
    with pytest.raises(struct.error):
        read_run(raw[:-1], 0, {})


def test_a_field_that_is_needed_is_named() -> None:
    with pytest.raises(KeyError, match="FetchPartition v12 needs fetch_offset"):
        request_schema(1, 12).write(Response(), a_fetch(("soup", 0, 0)) | {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]})


def _longest(value: Any) -> int:
    if isinstance(value, dict):
        return max(map(_longest, value.values()), default=0)
    if isinstance(value, list):
        return max(len(value), *map(_longest, value), 0)
    return 0


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08"])
def test_an_array_is_not_longer_than_the_frame_that_holds_it(count: bytes) -> None:
    """kio's native reader asks for 32 GiB here and takes the process with it."""
    frame = b"\x00" + bytes(25) + count
    with pytest.raises(MalformedRequest):
        read_request(frame, 0, 1, 12)


def test_librdkafka_asks_for_all_topics_with_a_null_array_of_the_older_kind() -> None:
    """What its 2.16 sends as Metadata 13: three bytes more than the message has. Brokers let them pass."""
    body = read_request(bytes(1) + bytes.fromhex("0000000000000000"[2:]), 0, 3, 13)
    assert body["topics"] is None
