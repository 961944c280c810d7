import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.offered_apis import HIDDEN, OFFERED
from headwater.gateway.proxy.version_ranges import intersected, offered_range, unsupported
from headwater_core.segments import flexible
from tests.headwater.gateway.test_messages import any_entity, kio_bytes

UNKNOWN = 900


def read(version: int, raw: bytes) -> Any:
    found, _ = entity_reader(load_response_schema(Api.API_VERSIONS, version))(raw, 0)
    return found


@pytest.mark.parametrize("version", range(5))
def test_all_but_the_ranges_is_the_broker_s(version: int) -> None:
    random_ = random.Random(version)
    for _ in range(50):
        instance = any_entity(load_response_schema(Api.API_VERSIONS, version), random_)
        if instance.error_code == Code.UNSUPPORTED_VERSION:
            continue
        found = read(version, intersected(kio_bytes(instance), version))
        for name in {*instance.__dataclass_fields__} - {"api_keys"}:
            assert getattr(found, name) == getattr(instance, name)
        expected = [(each.api_key, offered_range(each.api_key, (each.min_version, each.max_version))) for each in instance.api_keys]
        assert [(each.api_key, (each.min_version, each.max_version)) for each in found.api_keys] == [each for each in expected if each[1]]


@pytest.mark.parametrize(
    ("api_key", "brokers", "expected"),
    [
        (Api.PRODUCE, (0, 13), (0, 13)),  # old librdkafka compresses where the lowest is 0
        (Api.FETCH, (4, 99), (4, OFFERED[Api.FETCH].version_max)),
        (Api.FETCH, (4, 11), (4, 11)),
        (Api.FETCH, (90, 99), None),
        (UNKNOWN, (0, 1), None),
        *((hidden, (0, 0), None) for hidden in HIDDEN),
    ],
)
def test_newer_and_unknown_ones_are_hidden(api_key: int, brokers: tuple[int, int], expected: tuple[int, int] | None) -> None:
    assert offered_range(api_key, brokers) == expected


def test_unknown_ones_pass_on_request_and_what_is_hidden_does_not() -> None:
    assert offered_range(UNKNOWN, (0, 7), passes_unknown=True) == (0, 7)
    assert offered_range(Api.FETCH, (4, 99), passes_unknown=True) == (4, OFFERED[Api.FETCH].version_max)
    assert [offered_range(hidden, (0, 0), passes_unknown=True) for hidden in HIDDEN] == [None] * len(HIDDEN)


def test_a_broker_that_is_older_than_its_client_answers_in_version_0() -> None:
    body = flexible.i16(Code.UNSUPPORTED_VERSION) + flexible.i32(1) + b"".join(map(flexible.i16, (Api.API_VERSIONS, 0, 4)))
    assert intersected(body, 5) == body


def test_a_client_that_is_newer_than_the_proxy_is_told_the_versions() -> None:
    found = read(0, unsupported())
    assert found.error_code == Code.UNSUPPORTED_VERSION
    assert [(each.api_key, each.min_version, each.max_version) for each in found.api_keys] == [(Api.API_VERSIONS, 0, 5)]


@given(st.binary(max_size=100), st.integers(0, 5))
def test_hostile_bytes_are_refused_or_read_and_nothing_else(body: bytes, version: int) -> None:
    try:
        intersected(body, version)
    except MalformedRequest:
        return
