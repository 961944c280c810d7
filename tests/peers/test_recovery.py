"""A real Kafka broker starts on what recovery wrote and serves the same records at the same offsets."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

import recovery
from archival.plan.policy import Policy
from headwater_core.clock import SystemClock
from manifests.repository import ManifestRepository
from tests.fixtures import Isolation, expected, expected_cluster, expected_offsets, unpack
from tests.headwater.test_unfinished_directory import contents
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.java_client import dump_log, java_consume, wait_for_markers
from tests.peers.kafka import KafkaBroker, expect_same, produce
from tests.recovery.archived import archive

pytestmark = pytest.mark.peer

T = TypeVar("T")

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
DIRECTORIES = {
    "pantry": ["pantry"],
    "pantry-live": ["pantry-live"],
    "kitchen": ["kitchen"],
    "brigade": ["brigade/node1", "brigade/node2", "brigade/node3"],
    "brigade-node2-dead-branch": ["brigade-node2-dead-branch", "brigade/node3", "brigade/node2", "brigade/node1"],
}


def log_dir(place: str) -> Path:
    name, _, node = place.partition("/")
    return unpack(name) / node


def archived(places: Sequence[str]) -> tuple[MemoryStore, ManifestRepository]:
    store = MemoryStore(SystemClock())
    for place in places:
        archive(log_dir(place), store)
    return store, ManifestRepository(store)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_broker_serves_the_same_records_from_a_recovered_directory(name: str, tmp_path: Path) -> None:
    store, repository = archived(DIRECTORIES[name])
    wanted = expected_offsets(name, "read_uncommitted")
    topics = sorted({line["topic"] for line in wanted})
    as_it_was = recovery.Options(open_transactions="keep")
    recovery.apply(recovery.plan(repository, topics, as_it_was), tmp_path / "kafka", store)
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        assert [topic for topic in broker.topics() if not topic.startswith("__")] == topics
        for isolation in ISOLATIONS:
            read = java_consume(broker.bootstrap, topics, isolation)
            expect_same(read.records, expected(name, isolation), f"{name} {isolation}")
            end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
            bounds = {(line["topic"], line["partition"]): (line["start"], line[end]) for line in expected_offsets(name, isolation)}
            assert read.bounds == bounds
        ids = {line["name"]: line["topic_id"] for line in expected_cluster(name)["topics"]}
        assert broker.topic_ids(topics) == {topic: ids[topic] for topic in topics}


def test_groups_and_open_transactions_come_back_with_the_internal_topics(tmp_path: Path) -> None:
    store, repository = archived(["pantry"])
    plan = recovery.plan(repository, None, recovery.Options(keep_offsets=True))
    assert [topic.topic for topic in plan.topics if any(each.aborts for partition in topic.partitions for each in partition.written)] == [
        "refunds"
    ]
    recovery.apply(plan, tmp_path / "kafka", store)
    topics = sorted({line["topic"] for line in expected_offsets("pantry", "read_uncommitted")})
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        read = java_consume(broker.bootstrap, topics, "read_uncommitted")
        expect_same(read.records, expected("pantry", "read_uncommitted"), "pantry")
        for group in expected_cluster("pantry")["groups"]:
            assert broker.committed(group["group"]) == {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}
        ended = eventually(lambda: consumed(broker, "refunds", "read_committed", of=(b"after",)), lambda: after(broker, "refunds"))
        assert ended  # what was open is aborted
        assert java_consume(broker.bootstrap, ["refunds"], "read_committed").bounds["refunds", 0][1] > 30


def after(broker: KafkaBroker, topic: str) -> None:
    produce(broker.producer(), topic, [b"after"])


def consumed(
    broker: KafkaBroker, topic: str, isolation: str, of: Sequence[bytes] | None = None
) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of partition 0 from its start to its end, or the last stable offset; `of` these values alone."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(60)) is not None and (error := message.error()) is None:
        found.append((message.offset() or 0, message.key(), message.value()))
    assert message is not None
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF, error
    consumer.close()
    return [each for each in found if of is None or each[2] in of]


def eventually(look: Callable[[], T], between: Callable[[], object]) -> T:
    """What `look` finds in the end; `between` comes after each time that it finds nothing."""
    until_s = time.monotonic() + 120
    while not (found := look()) and time.monotonic() < until_s:
        between()
    return found


def test_readers_of_committed_data_reach_the_end_of_logs_that_were_archived_inside_transactions(tmp_path: Path) -> None:
    """Sealed segments alone: every transactional log ends somewhere inside a transaction, and no coordinator comes back."""
    store = MemoryStore(SystemClock())
    repository = archive(unpack("pantry"), store, policy=Policy())
    plan = recovery.plan(repository, None)
    open_ended = sorted({topic.topic for topic in plan.topics for partition in topic.partitions if partition.written})
    assert "orders.placed" in open_ended
    assert all(partition.open_from is None for topic in plan.topics for partition in topic.partitions)
    recovery.apply(plan, tmp_path / "kafka", store)
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        written = java_consume(broker.bootstrap, open_ended, "read_uncommitted")
        stable = java_consume(broker.bootstrap, open_ended, "read_committed")
        assert stable.bounds == written.bounds
        ended = {(record["topic"], record["partition"], record["offset"]) for record in expected("pantry", "read_committed")}
        shown = {(record["topic"], record["partition"], record["offset"]) for record in stable.records}
        assert shown <= ended  # nothing of a transaction that had been aborted, or is now
        produce(broker.producer(), "orders.placed", [b"plain"])
        for transactional_id in ("new", "new", "tx-beta"):
            producer = broker.producer(transactional_id=transactional_id)
            producer.init_transactions(30)
            producer.begin_transaction()
            produce(producer, "orders.placed", [transactional_id.encode()])
            producer.commit_transaction(30)
        wait_for_markers(broker.bootstrap)
        values = [value for _, _, value in consumed(broker, "orders.placed", "read_committed")]
        assert values[-4:] == [b"plain", b"new", b"new", b"tx-beta"]
        broker.stop()
        broker.start()  # a clean start believes the producer snapshots that the broker made of it
        assert [value for _, _, value in consumed(broker, "orders.placed", "read_committed")] == values


def test_groups_continue_without_skipping_what_is_produced_next(tmp_path: Path) -> None:
    """Their commits were archived later than the records: they lie beyond the recovered logs."""
    store = MemoryStore(SystemClock())
    archive(unpack("kitchen"), store, policy=Policy())
    repository = archive(unpack("kitchen"), store, ["__consumer_offsets"])
    plan = recovery.plan(repository, None)
    [ahead] = [each for each in plan.offsets_ahead if (each.group, each.topic, each.partition) == ("cooks", "orders.in", 0)]
    assert ahead.offset > ahead.log_end
    recovery.apply(plan, tmp_path / "kafka", store)
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        assert broker.committed("cooks")["orders.in", 0] == ahead.log_end
        produce(broker.producer(), "orders.in", [b"new-%d" % at for at in range(30)])
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "cooks", "auto.offset.reset": "latest"})
        consumer.subscribe(["orders.in"])
        seen: list[bytes] = []
        until_s = time.monotonic() + 120
        while len(seen) < 30 and time.monotonic() < until_s:
            message = consumer.poll(1)
            if message is not None and not message.error() and message.partition() == 0:
                seen.append(message.value() or b"")
        consumer.close()
        assert seen == [b"new-%d" % at for at in range(30)]
        assert broker.committed("cooks")["orders.in", 0] == ahead.log_end + 30


def test_the_cleaner_continues_and_deleted_keys_stay_deleted(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "source", tmp_path / "first", compaction=False) as broker:
        broker.create_topic(
            "table",
            1,
            cleanup_policy="compact",
            internal_segment_bytes=300,
            delete_retention_ms=100,
            min_cleanable_dirty_ratio=0.01,
            min_compaction_lag_ms=0,
        )
        producer = broker.producer()
        produce(producer, "table", [b"v1" * 50, b"x" * 120], keys=[b"alice", b"pad1"])
        producer.produce("table", None, b"alice", 0)
        producer.flush(30)
        produce(producer, "table", [b"x" * 120, b"x" * 120], keys=[b"pad2", b"pad3"])
    store = MemoryStore(SystemClock())
    repository = archive(tmp_path / "source", store)
    recovery.apply(recovery.plan(repository, None), tmp_path / "kafka", store)
    cleaning = {"log.cleaner.backoff.ms": 300, "log.cleaner.min.cleanable.ratio": 0.01}
    with KafkaBroker(tmp_path / "kafka", tmp_path / "second", properties=cleaning) as broker:
        before = [(key, value is None) for _, key, value in consumed(broker, "table", "read_uncommitted")]
        rounds = iter(range(1000))

        def write() -> None:
            produce(broker.producer(), "table", [b"y" * 200] * 2, keys=[b"new-%d" % next(rounds), b"filler"])
            consumed(broker, "table", "read_uncommitted")

        def without_tombstone() -> list[bytes | None]:
            """The keys, once the cleaner has dropped the tombstone."""
            rows = consumed(broker, "table", "read_uncommitted")
            return [] if (b"alice", None) in [(key, value) for _, key, value in rows] else [key for _, key, _ in rows]

        left = eventually(without_tombstone, write)
        assert (b"alice", True) in before
        assert left
        assert b"alice" not in left


def test_a_broker_that_finds_no_indexes_makes_the_same(tmp_path: Path) -> None:
    store, repository = archived(["pantry"])
    topics = sorted({line["topic"] for line in expected_offsets("pantry", "read_uncommitted")})
    recovery.apply(recovery.plan(repository, topics), tmp_path / "kafka", store)
    made = {path: path.read_bytes() for suffix in ("index", "timeindex") for path in tmp_path.rglob(f"*.{suffix}")}
    assert len(made) > 20
    for path in made:
        path.unlink()
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work", compaction=False) as broker:
        broker.topics()
    assert {path: path.read_bytes() for path in made} == made


@pytest.mark.parametrize("name", ["kitchen", "pantry"])
def test_kafka_s_own_tool_reads_a_directory_before_finish_and_changes_nothing(name: str, tmp_path: Path) -> None:
    store, repository = archived(DIRECTORIES[name])
    recovery.apply(recovery.plan(repository, None, recovery.Options(open_transactions="keep")), tmp_path / "kafka", store)
    before = contents(tmp_path)
    files = [path for suffix in ("log", "index", "timeindex", "txnindex", "snapshot") for path in sorted(tmp_path.rglob(f"*.{suffix}"))]
    printed = dump_log(files)
    assert contents(tmp_path) == before
    assert len(re.findall("^Dumping ", printed, re.MULTILINE)) == len(files)
    batches = re.findall(r"isvalid: (\w+)", printed)
    assert batches
    assert set(batches) == {"true"}
    indexes = [path for path in files if path.suffix in (".index", ".timeindex")]
    assert len(re.findall(r"passed sanity check\.$|is empty\.$", printed, re.MULTILINE)) == len(indexes)
    assert "ismatch" not in printed
