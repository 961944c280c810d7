"""The table of what is offered, against the messages that kio has of Kafka. tests/peers/test_proxy_facts.py has the newest Kafka's own."""

import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
from kio.index import KioIndexError, load_response_schema

from headwater.gateway.proxy.address_walk import has_addresses
from headwater.gateway.proxy.offered_apis import HIDDEN, OFFERED, is_flexible

KEYS, VERSIONS = 200, 30
OWN_ENDPOINTS = (88, 89)  # StreamsGroupHeartbeat, StreamsGroupDescribe: of applications


def responses_of_brokers() -> Iterator[tuple[int, int, Any]]:
    """Key, version and type of each."""
    for key, version in product(range(KEYS), range(VERSIONS)):
        with suppress(KioIndexError):
            yield key, version, load_response_schema(key, version)


def names_addresses(entity: Any) -> bool:
    """Has it, or anything in it, a host with its port?"""
    names = {field.name for field in fields(entity)}
    hints = typing.get_type_hints(entity).values()
    inner = [each for hint in hints for each in (hint, *typing.get_args(hint)) for each in (each, *typing.get_args(each))]
    return {"host", "port"} <= names or any(names_addresses(each) for each in set(inner) if hasattr(each, "__dataclass_fields__"))


@pytest.fixture(scope="module")
def responses() -> list[tuple[int, int, Any]]:
    return list(responses_of_brokers())


def test_every_response_with_an_address_is_rewritten_or_hidden(responses: list[tuple[int, int, Any]]) -> None:
    assert len({key for key, _, _ in responses}) > 80
    for key, version, entity in responses:
        if key in OFFERED and version <= OFFERED[key].version_max and key not in OWN_ENDPOINTS:
            assert names_addresses(entity) is has_addresses(key, version), (key, version)
        elif names_addresses(entity):
            assert key in HIDDEN or key not in OFFERED or key in OWN_ENDPOINTS, (key, version)


def test_flexible_versions_are_kafka_s(responses: list[tuple[int, int, Any]]) -> None:
    for key, version, entity in responses:
        if key in OFFERED and version <= OFFERED[key].version_max:
            assert is_flexible(key, version) is entity.__flexible__, (key, version)
