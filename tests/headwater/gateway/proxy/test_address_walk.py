"""Every address in a response is replaced or hidden, and nothing else is touched: by kio's schemas, which know nothing of the walk."""

import random
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.messages import response_schema
from headwater.gateway.protocol import Api
from headwater.gateway.proxy.address_walk import LENGTH_KEPT, NO_NODE, AddressWalk, has_addresses
from headwater.gateway.proxy.offered_apis import OFFERED
from headwater_core.segments.varint import encode_uvarint
from tests.headwater.gateway.test_messages import any_entity, kio_bytes

TAG = encode_uvarint(1) + encode_uvarint(9) + encode_uvarint(3) + b"new"  # in a response's header, where nobody has one yet


def versions_of(api: int) -> range:
    offered = OFFERED[api]
    first = {Api.SHARE_FETCH: 1, Api.SHARE_ACKNOWLEDGE: 1}.get(Api(api), offered.addresses_from or 0)
    return range(first, offered.version_max + 1)


WITH_ADDRESSES = [api for api, offered in OFFERED.items() if offered.addresses_from is not None]
EVERY_VERSION = [(int(api), version) for api in WITH_ADDRESSES for version in versions_of(api)]


def ours(node_id: int, host: str, port: int) -> tuple[str, int]:
    return f"proxy-{node_id}.{host}", (port + 7) % 2**31


def replaced(value: Any) -> Any:
    """kio's instance with our addresses."""
    if isinstance(value, tuple):
        return tuple(replaced(each) for each in value)
    if not hasattr(value, "__dataclass_fields__"):
        return value
    if type(value).__name__ == "Node":  # DescribeQuorum's, of controllers
        return replace(value, listeners=())
    names = {field.name for field in fields(value)}
    changed = {name: replaced(getattr(value, name)) for name in names}
    if {"host", "port"} <= names:
        node_id = next(changed[name] for name in ("node_id", "broker_id") if name in names)
        if node_id != NO_NODE and value.host:
            changed["host"], changed["port"] = ours(node_id, value.host, value.port)
    if changed.get("endpoint_type") == 2:
        changed["brokers"] = ()
    return type(value)(**changed)


def a_response(api: int, version: int, random_: random.Random) -> tuple[Any, bytes]:
    """An instance, and its bytes from behind the correlation id on."""
    entity: Any = load_response_schema(api, version)
    instance = any_entity(entity, random_)
    is_flexible = entity.__header_schema__.__version__ == 1
    return instance, (random_.choice([b"\0", TAG]) if is_flexible else b"") + kio_bytes(instance)


def header_bytes(api: int, version: int, raw: bytes) -> int:
    entity: Any = load_response_schema(api, version)
    if entity.__header_schema__.__version__ == 0:
        return 0
    return len(TAG) if raw.startswith(TAG) else 1


def read(api: int, version: int, raw: bytes) -> Any:
    instance, _ = entity_reader(load_response_schema(api, version))(raw, header_bytes(api, version, raw))
    return instance


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_addresses_become_ours(api: int, version: int) -> None:
    random_ = random.Random(api * 100 + version)
    for _ in range(40):
        instance, raw = a_response(api, version, random_)
        walk = AddressWalk(api, version, ours, len(raw))
        for end in sorted(random_.randrange(len(raw) + 1) for _ in range(random_.randrange(3))):  # it arrives in parts
            walk.advance(memoryview(raw)[:end])
        walk.advance(memoryview(raw))
        assert walk.is_done
        assert read(api, version, b"".join(walk.edited(memoryview(raw)))) == replaced(instance)
        assert walk.cluster_id == getattr(instance, "cluster_id", None)


@pytest.mark.parametrize(("api", "version"), [each for each in EVERY_VERSION if each[0] in LENGTH_KEPT])
def test_what_is_too_long_to_be_changed_keeps_its_length_and_has_no_address(api: int, version: int) -> None:
    random_ = random.Random(api * 100 + version)
    for _ in range(40):
        _, raw = a_response(api, version, random_)
        walk, sent, held = AddressWalk(api, version, ours, len(raw), keeps_length=True), b"", bytearray()
        for byte in raw:
            held.append(byte)
            done = walk.advance(memoryview(held))
            sent, held = sent + held[:done], held[done:]
        assert walk.is_done
        assert not held
        assert len(sent) == len(raw)
        schema, start = response_schema(api, version), header_bytes(api, version, raw)  # kio's reader knows no unknown tags
        (found, _), (expected, _) = schema.read(sent, start), schema.read(raw, start)
        expected.pop("node_endpoints", [])
        endpoints = found.pop("node_endpoints", [])
        assert endpoints == []
        assert found == expected


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=200), st.booleans())
def test_hostile_bytes_are_refused_or_walked_and_nothing_else(which: tuple[int, int], raw: bytes, keeps_length: bool) -> None:
    walk = AddressWalk(*which, ours, len(raw), keeps_length=keeps_length and which[0] in LENGTH_KEPT)
    try:
        walk.advance(memoryview(bytearray(raw)))
    except MalformedRequest:
        return
    walk.edited(memoryview(raw))


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_that_ends_too_early_or_names_too_many_items_is_refused(api: int, version: int) -> None:
    random_ = random.Random(api * 100 + version)
    for _ in range(20):
        _, raw = a_response(api, version, random_)
        for broken in (raw[: random_.randrange(len(raw))], raw[:20] + b"\x7f\xff\xff\xff" + bytes(20)):
            walk = AddressWalk(api, version, ours, len(broken))
            is_whole = api in (Api.PRODUCE, Api.FETCH) and raw.startswith(broken)  # of the others the last bytes do not matter
            with pytest.raises(MalformedRequest) if is_whole else suppress(MalformedRequest):
                walk.advance(memoryview(broken))


def test_a_response_that_was_never_decoded_has_no_addresses() -> None:
    assert not has_addresses(Api.PRODUCE, 9)
    assert not has_addresses(Api.FETCH, 15)
    assert not has_addresses(Api.API_VERSIONS, 3)
    assert not has_addresses(999, 0)
    assert has_addresses(Api.METADATA, 0)
