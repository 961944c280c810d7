"""What a real broker wrote, read by real clients through the gateway, against what the Java consumer got from that broker."""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from headwater.gateway.config import GatewayConfig
from headwater.gateway.server import GatewayServer
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.codecs import GZIP, NONE
from headwater_core.segments.log_dirs import LogDirs
from hydration.config import HydrationConfig
from hydration.logs import open_logs
from tests.fixtures import Isolation, expected, expected_offsets, unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.readers import (
    Places,
    Rows,
    in_order,
    librdkafka_watermarks,
    read_with_aiokafka,
    read_with_kafka_python,
    read_with_librdkafka,
)
from tests.headwater_core.objectstore.memory import MemoryStore

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
NAMES = ("pantry", "pantry-live", "kitchen")


def places_of(name: str, isolation: Isolation) -> Places:
    return [(each["topic"], each["partition"]) for each in expected_offsets(name, isolation)]


@pytest.fixture(scope="module", params=[f"{name} {tiers}" for name in NAMES for tiers in ("local", "archive")])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, GatewayServer]]:
    """Every fixture once from the broker's own directory and once from nothing but the bucket."""
    name, tiers = request.param.split()
    store = MemoryStore()
    if tiers == "archive":
        archive(unpack(name), store)
    logs = open_logs(
        HydrationConfig(chunk_bytes=64 << 10),
        store=store,
        cache_directory=tmp_path_factory.mktemp("cache"),
        dirs=LogDirs([unpack(name)]) if tiers == "local" else None,
    )
    try:
        with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
            yield name, server
    finally:
        logs.close()


def without(rows: Rows, field: str) -> Rows:
    return [{key: value for key, value in row.items() if key != field} for row in rows]


def assert_same(rows: Rows, wanted: list[dict[str, Any]]) -> None:
    wanted = in_order(wanted)
    assert wanted
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (row["topic"], row["partition"], row["offset"]) for row in wanted
    ]
    for row, other in zip(rows, wanted, strict=True):
        assert row == other


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_librdkafka_reads_what_the_java_client_read_from_the_broker(served: tuple[str, GatewayServer], isolation: Isolation) -> None:
    name, server = served
    places = places_of(name, isolation)
    assert_same(read_with_librdkafka(server.bootstrap_servers, places, isolation), expected(name, isolation))
    marks = librdkafka_watermarks(server.bootstrap_servers, places, isolation)
    end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
    for each in expected_offsets(name, isolation):
        assert marks[each["topic"], each["partition"]] == (each["start"], each[end]), each


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_aiokafka_does(served: tuple[str, GatewayServer], isolation: Isolation) -> None:
    name, server = served
    rows = asyncio.run(read_with_aiokafka(server.bootstrap_servers, places_of(name, isolation), isolation))
    assert_same(rows, without(expected(name, isolation), "leader_epoch"))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kafka_python_does_where_it_has_the_codec(served: tuple[str, GatewayServer], isolation: Isolation) -> None:
    name, server = served
    places = [place for place in places_of(name, isolation) if place in plain_places(name)]
    rows = read_with_kafka_python(server.bootstrap_servers, places, isolation)
    assert_same(rows, [row for row in expected(name, isolation) if (row["topic"], row["partition"]) in places])


@cache
def plain_places(name: str) -> set[tuple[str, int]]:
    """Partitions without a batch that needs more than the standard library to decompress."""
    found = set()
    for log in LogDirs([unpack(name)]).partitions():
        codecs = set()
        for segment in log.segments:
            with segment.path.open("rb") as file:
                codecs |= {header.codec for _, header in headers(file, 0, segment.size_bytes, where="segment")}
        if codecs <= {NONE, GZIP}:
            found.add((log.partition.topic, log.partition.partition))
    return found
