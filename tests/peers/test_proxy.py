"""Unchanged clients through the proxy, before a real broker whose logs begin in the middle: what is below is archived."""

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.fixtures import Isolation
from tests.headwater.gateway.readers import read_with_librdkafka
from tests.headwater.gateway.test_clients import ISOLATIONS, assert_same
from tests.peers.java_client import console_consume, java_consume
from tests.peers.kafka import expect_same
from tests.peers.proxied import Served, bounds_of, places_of, proxied_pantry, records_of

pytestmark = pytest.mark.peer
TOPIC = "door.events"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with proxied_pantry(tmp_path_factory.mktemp("proxy")) as found:
        yield found


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
