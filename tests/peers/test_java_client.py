"""The Java client through the gateway, and the broker's own answers beside ours. `make peers`."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from headwater.gateway.config import GatewayConfig
from headwater.gateway.server import GatewayServer
from headwater_core.segments.log_dirs import LogDirs
from hydration.config import HydrationConfig
from hydration.logs import open_logs
from tests.fixtures import Isolation, expected, expected_offsets, private_copy, unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.fakes import FakeLog, FakeLogs, a_batch, a_topic_partition
from tests.headwater.gateway.test_tiers import drop_sealed_segments
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.aborts import GROUP, ISOLATIONS, TOPIC, Answers
from tests.peers.java_client import console_consume, java_consume, java_offsets_for_times, java_seek
from tests.peers.kafka import KafkaBroker

pytestmark = [pytest.mark.peer, GROUP]
_READY_S = 60
FOLLOWING = (KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


@pytest.fixture(scope="module", params=["pantry", "kitchen"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, GatewayServer]]:
    """Archived, and everything but the active segments dropped."""
    name: str = request.param
    root, store = private_copy(name, tmp_path_factory.mktemp("kafka")), MemoryStore()
    archive(root, store)
    drop_sealed_segments(root)
    config = HydrationConfig(chunk_bytes=64 << 10)
    logs = open_logs(config, store=store, cache_directory=tmp_path_factory.mktemp("cache"), dirs=LogDirs([root]))
    try:
        with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
            yield name, server
    finally:
        logs.close()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_java_reads_what_it_read_from_the_broker(served: tuple[str, GatewayServer], isolation: Isolation) -> None:
    name, server = served
    places = expected_offsets(name, isolation)
    seen = java_consume(server.bootstrap_servers, sorted({each["topic"] for each in places}), isolation)
    assert seen.records == expected(name, isolation)
    end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
    assert seen.bounds == {(each["topic"], each["partition"]): (each["start"], each[end]) for each in places}


def test_java_seeks_into_the_archive(served: tuple[str, GatewayServer]) -> None:
    name, server = served
    wanted = [each for each in expected(name, "read_uncommitted") if (each["topic"], each["partition"]) == _longest(name)]
    middle = wanted[len(wanted) // 2]
    seen = java_seek(server.bootstrap_servers, middle["topic"], middle["partition"], middle["offset"], 5)
    assert seen == wanted[len(wanted) // 2 :][:5]


def _longest(name: str) -> tuple[str, int]:
    longest = max(expected_offsets(name, "read_uncommitted"), key=lambda each: each["records"])
    return longest["topic"], longest["partition"]


def test_java_reads_two_thousand_partitions_at_once(tmp_path: Path) -> None:
    logs = [FakeLog(a_topic_partition("wide", at), tmp_path / f"{at}.log", [a_batch(0, [b"v"])]) for at in range(2000)]
    with GatewayServer(FakeLogs(*logs), GatewayConfig(listen="127.0.0.1:0")) as server:
        seen = java_consume(server.bootstrap_servers, ["wide"], "read_committed")
    assert [(each["partition"], each["offset"]) for each in seen.records] == [(at, 0) for at in range(2000)]
    assert set(seen.bounds.values()) == {(0, 1)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_is_told_that_groups_are_refused(served: tuple[str, GatewayServer], protocol: str) -> None:
    name, server = served
    topic, _ = _longest(name)
    printed = console_consume(server.bootstrap_servers, topic, "--from-beginning", "--command-property", f"group.protocol={protocol}")
    assert "GroupAuthorizationException" in printed
    assert "Processed a total of 0 messages" in printed


def test_the_console_consumer_reads_a_partition(served: tuple[str, GatewayServer]) -> None:
    name, server = served
    topic, partition = _longest(name)
    options = ("--partition", str(partition), "--offset", "earliest", "--max-messages", "20")
    assert "Processed a total of 20 messages" in console_consume(server.bootstrap_servers, topic, *options)


def test_times_and_places_are_what_the_broker_says(tmp_path: Path) -> None:
    """What clients request with ListOffsets, for every partition of `pantry`, of a broker on it and of the gateway.

    Times are left out for topics with transactions, whose markers the broker counts as records and we do not (no consumer
    ever sees one, so it reads the same from either answer), and for `compost`, where the broker names a record below its
    own log start.
    """
    root = private_copy("pantry", tmp_path)
    store = MemoryStore()
    archive(unpack("pantry"), store)
    logs = open_logs(HydrationConfig(chunk_bytes=64 << 10), store=store, cache_directory=tmp_path / "cache")
    places = [(each["topic"], each["partition"]) for each in expected_offsets("pantry", "read_uncommitted")]
    unmarked = [place for place in places if place[0] not in ("orders.placed", "refunds", "menu.prices", "compost")]
    times = sorted({row["timestamp"] + more for row in expected("pantry", "read_uncommitted")[::400] for more in (-1, 0, 1)})
    config = GatewayConfig(listen="127.0.0.1:0")
    try:
        with KafkaBroker(root, tmp_path / "work", compaction=False) as broker, GatewayServer(logs, config) as server:
            ours, theirs = (AdminClient({"bootstrap.servers": each}) for each in (server.bootstrap_servers, broker.bootstrap))
            for requested, specs in (
                (places, [OffsetSpec.earliest(), OffsetSpec.latest()]),  # type: ignore[no-untyped-call]
                (unmarked, [OffsetSpec.max_timestamp(), *map(OffsetSpec.for_timestamp, times)]),  # type: ignore[no-untyped-call]
            ):
                for spec in specs:
                    assert _listed(ours, requested, spec) == _listed(theirs, requested, spec), spec
            topic, partition = _longest("pantry")
            found = java_offsets_for_times(server.bootstrap_servers, topic, partition, times[:20])
            assert found == java_offsets_for_times(broker.bootstrap, topic, partition, times[:20])
    finally:
        logs.close()


def _listed(admin: AdminClient, places: list[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], tuple[int, int]]:
    until_s = monotonic() + _READY_S
    while True:
        try:
            futures = admin.list_offsets({TopicPartition(*place): spec for place in places}, request_timeout=20)
            found = {(at.topic, at.partition): future.result() for at, future in futures.items()}
            return {place: (each.offset, each.timestamp) for place, each in found.items()}
        except KafkaException as error:  # a broker that has just started leads, or reports leader epochs that it follows, a moment later
            if error.args[0].code() not in FOLLOWING or monotonic() > until_s:
                raise
            sleep(0.1)


@pytest.fixture(scope="module")
def archived(answers: Answers) -> MemoryStore:
    """The archive of all that the log of aborts holds."""
    store = MemoryStore()
    archive(answers.log_dir, store)
    return store


@pytest.mark.parametrize("local_segments", [0, 1, 3])
def test_aborts_over_several_segments_and_across_the_border(
    tmp_path: Path, answers: Answers, archived: MemoryStore, local_segments: int
) -> None:
    """Abort markers in later segments than their data; some of either in the archive, some on disk."""
    root = tmp_path / "kafka"
    shutil.copytree(answers.log_dir, root)
    segments = sorted((root / f"{TOPIC}-0").glob("*.log"))
    for path in segments[: len(segments) - local_segments]:
        for each in (root / f"{TOPIC}-0").glob(f"{path.stem}.*"):
            each.unlink()
    logs = open_logs(
        HydrationConfig(chunk_bytes=64 << 10),
        store=archived,
        cache_directory=tmp_path / "cache",
        dirs=LogDirs([root]) if local_segments else None,
    )
    try:
        with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
            for isolation in ISOLATIONS:
                seen = java_consume(server.bootstrap_servers, [TOPIC], isolation)
                assert seen.records == answers.reads[isolation].records
                assert seen.bounds == answers.reads[isolation].bounds
    finally:
        logs.close()
