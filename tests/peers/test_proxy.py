"""Unchanged clients through the proxy, before a real broker whose logs begin in the middle: what is below is archived."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from hydration.config import HydrationConfig
from hydration.logs import open_logs
from tests.fixtures import Isolation, expected, expected_offsets, private_copy, unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.proxy.running_proxy import running_proxy
from tests.headwater.gateway.readers import Places, read_with_librdkafka
from tests.headwater.gateway.test_clients import ISOLATIONS, assert_same
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.java_client import console_consume, java_consume
from tests.peers.kafka import KafkaBroker, expect_same

pytestmark = pytest.mark.peer
TOPIC = "door.events"
OPEN = "refunds"  # its broker ends a transaction that is open in the fixture


def bounds_of(isolation: Isolation) -> list[dict[str, Any]]:
    return [each for each in expected_offsets("pantry", isolation) if each["topic"] != OPEN]


def records_of(isolation: Isolation) -> list[dict[str, Any]]:
    return [each for each in expected("pantry", isolation) if each["topic"] != OPEN]


def places_of(isolation: Isolation) -> Places:
    return [(each["topic"], each["partition"]) for each in bounds_of(isolation)]


class Served(NamedTuple):
    broker: KafkaBroker
    address: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`pantry`: half of each partition of a topic that is not compacted is in the bucket alone."""
    work, store = tmp_path_factory.mktemp("proxy"), MemoryStore()
    archive(unpack("pantry"), store)
    logs = open_logs(HydrationConfig(chunk_bytes=64 << 10), store=store, cache_directory=work / "cache")
    logs.refresh()
    try:
        with KafkaBroker(private_copy("pantry", work), work / "broker", compaction=False) as broker:
            halves = [
                TopicPartition(each["topic"], each["partition"], (each["start"] + each["high_watermark"]) // 2)
                for each in bounds_of("read_uncommitted")
            ]
            admin = broker.admin  # held: its futures die with it
            deleted = admin.delete_records(halves)
            assert sum(_is_deleted(future) for future in deleted.values()) > 10
            with running_proxy(broker.bootstrap, logs) as address:
                yield Served(broker, address)
    finally:
        logs.close()


def _is_deleted(future: object) -> bool:
    """Compacted topics keep their records."""
    try:
        return future.result(30).low_watermark > 0  # type: ignore[attr-defined,no-any-return]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.POLICY_VIOLATION:
            return False
        raise


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_java_reads_on_from_the_archive_to_the_broker(served: Served, isolation: Isolation) -> None:
    places = bounds_of(isolation)
    seen = java_consume(served.address, sorted({each["topic"] for each in places}), isolation)
    expect_same(seen.records, records_of(isolation), f"java, {isolation}")
    end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
    assert seen.bounds == {(each["topic"], each["partition"]): (each["start"], each[end]) for each in places}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_so_does_librdkafka(served: Served, isolation: Isolation) -> None:
    assert_same(read_with_librdkafka(served.address, places_of(isolation), isolation), records_of(isolation))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_from_the_beginning_of_the_archive_and_goes_on_where_it_was(served: Served, protocol: str) -> None:
    group, wanted = f"readers-{protocol}", [each for each in records_of("read_uncommitted") if each["topic"] == TOPIC]
    options = ("--group", group, "--from-beginning", "--command-property", f"group.protocol={protocol}")
    printed = console_consume(served.address, TOPIC, *options, "--max-messages", "20")
    assert "Processed a total of 20 messages" in printed
    assert sum(served.broker.committed(group).values()) == 20
    left = len(wanted) - 20
    assert f"Processed a total of {left} messages" in console_consume(served.address, TOPIC, *options, "--max-messages", str(left))


def test_offsets_are_those_of_the_whole_log(served: Served) -> None:
    places = [TopicPartition(*place) for place in places_of("read_uncommitted")]
    admin = AdminClient({"bootstrap.servers": served.address})
    wanted = {(each["topic"], each["partition"]): each for each in bounds_of("read_uncommitted")}
    for spec, name in ((OffsetSpec.earliest(), "start"), (OffsetSpec.latest(), "high_watermark")):  # type: ignore[no-untyped-call]
        found = admin.list_offsets(dict.fromkeys(places, spec))
        assert {(each.topic, each.partition): future.result(30).offset for each, future in found.items()} == {
            place: bounds[name] for place, bounds in wanted.items()
        }
