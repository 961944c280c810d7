"""What the proxy offers, against the message definitions in the newest Kafka's own jar."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from headwater.gateway.proxy.address_walk import has_addresses
from headwater.gateway.proxy.offered_apis import HIDDEN, OFFERED, is_flexible
from recovery.kafka_releases import NEWEST
from tests.peers.java_client import kafka_jars

pytestmark = pytest.mark.peer
OWN_ENDPOINTS = {88, 89}  # of applications (Kafka Streams)


@cache
def messages(kind: str) -> dict[int, Any]:
    """By key, those that brokers have."""
    [jar] = Path(kafka_jars(NEWEST).removesuffix("/*")).glob("kafka-clients-*.jar")
    found = {}
    with ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                message = json.loads(re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE))
                if message["type"] == kind and message["validVersions"] != "none":
                    found[message["apiKey"]] = message
    assert len(found) > 80
    return found


def versions(text: str, newest: int) -> range:
    """ "3-13", "16+", "0" or "none"."""
    if text == "none":
        return range(0)
    first, _, last = text.removesuffix("+").partition("-")
    return range(int(first), (newest if text.endswith("+") else int(last or first)) + 1)


def newest(message: Any) -> int:
    return versions(message["validVersions"], 0)[-1]


def structures(message: Any) -> Iterator[tuple[Sequence[Any], range]]:
    """The fields of each structure, with the versions that have it."""

    def inner(fields: Sequence[Any], known: range) -> Iterator[tuple[Sequence[Any], range]]:
        yield fields, known
        for field in fields:
            if "fields" in field:
                there = versions(field["versions"], newest(message))
                yield from inner(field["fields"], range(max(known.start, there.start), min(known.stop, there.stop)))

    yield from inner(message["fields"], versions(message["validVersions"], 0))
    for common in message.get("commonStructs", ()):
        yield from inner(common["fields"], versions(common["versions"], newest(message)))


def with_addresses(message: Any) -> set[int]:
    """The versions in which something has a host and its port."""
    found: set[int] = set()
    for fields, known in structures(message):
        names = {field["name"].lower(): field for field in fields}
        if {"host", "port"} <= names.keys():
            found |= {*known} & {*versions(names["host"]["versions"], newest(message))}
    return found


def test_all_that_brokers_answer_is_offered_or_hidden() -> None:
    for key, message in messages("request").items():
        if "broker" in message["listeners"]:
            assert (key in OFFERED) is not (key in HIDDEN), message["name"]
            assert key in HIDDEN or OFFERED[key].version_max <= newest(message), message["name"]


def test_the_newest_versions_are_offered_and_no_address_is_in_them_that_is_not_rewritten() -> None:
    for key, message in messages("response").items():
        if key not in OFFERED:
            continue
        assert OFFERED[key].version_max == newest(message), message["name"]
        if key not in OWN_ENDPOINTS:
            valid = versions(message["validVersions"], 0)
            assert with_addresses(message) == {version for version in valid if has_addresses(key, version)}, message["name"]


def test_lengths_are_compact_from_the_version_on_that_kafka_says() -> None:
    for key, message in messages("request").items():
        if key in OFFERED:
            flexible = versions(message.get("flexibleVersions", "none"), newest(message))
            for version in versions(message["validVersions"], 0):
                assert is_flexible(key, version) is (version in flexible), (message["name"], version)
