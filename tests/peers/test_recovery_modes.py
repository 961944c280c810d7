"""A real broker starts on a part of the archive, or on none of it; a gateway beside it serves the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import recovery
from headwater import cli
from headwater.broker.broker_connection import BrokerAddress
from headwater.broker.client_properties import load_client_properties
from headwater.broker.cluster_admin import KafkaAdmin
from headwater.wiring import open_bucket
from manifests.topic_survey import survey_topics
from tests.fixtures import Isolation, expected, expected_offsets, unpack
from tests.peers.agent import Headwater
from tests.peers.java_client import java_consume, java_coordinated
from tests.peers.kafka import KafkaBroker, expect_same, produce

pytestmark = pytest.mark.peer

NEW = "bmV3"  # in base64
UNCOMMITTED: Isolation = "read_uncommitted"
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
TOPICS = sorted({line["topic"] for line in expected_offsets("pantry", UNCOMMITTED)})


def archived(tmp_path: Path) -> Headwater:
    headwater = Headwater(tmp_path / "before", unpack("pantry"))
    headwater.archive(tails=True)
    return headwater


def recovered(headwater: Headwater, into: Path, **options: Any) -> recovery.RecoveryPlan:
    """Under the old cluster's id, or with the archive as its own, so that the gateway serves the rest."""
    bucket = open_bucket(headwater.config)
    owner = bucket.manifests.owner()
    assert owner is not None
    cluster_id = None if options.get("take_over") else owner.cluster_id
    plan = recovery.plan(bucket.manifests, None, recovery.Options(cluster_id=cluster_id, keep_offsets=True, **options))
    assert not plan.problems
    recovery.apply(plan, into, bucket.store)
    return plan


def watermarks(broker: KafkaBroker) -> dict[tuple[str, int], tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bounds", "isolation.level": UNCOMMITTED})
    found = {}
    for name, topic in broker.admin.list_topics(timeout=20).topics.items():
        for number in topic.partitions:
            found[name, number] = bounds(consumer, TopicPartition(name, number))
    consumer.close()
    return found


def bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Once the broker leads it."""
    for _ in range(60):
        try:
            found = consumer.get_watermark_offsets(place, timeout=20)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            consumer.poll(0.5)
            continue
        assert found is not None
        return found[0], found[1]
    raise AssertionError(f"nothing leads {place}")


def in_plan(plan: recovery.RecoveryPlan) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic.topic, each.partition): (each.start_offset, each.next_offset) for topic in plan.topics for each in topic.partitions}


@pytest.mark.parametrize(
    "options", [{"mode": "instant", "take_over": True}, {"mode": "partial", "keep_bytes": 3000}], ids=["instant", "partial"]
)
def test_a_broker_goes_on_where_the_archive_ends_and_a_gateway_serves_the_rest(options: dict[str, Any], tmp_path: Path) -> None:
    headwater, log_dir = archived(tmp_path), tmp_path / "kafka"
    ends = {place: head.next_offset for place, head in headwater.heads().items()}
    plan = recovered(headwater, log_dir, **options)
    left = {(topic.topic, each.partition): each.left for topic in plan.topics for each in topic.partitions if each.left}
    assert left
    compacted = {topic.topic for topic in plan.topics if topic.compacted}
    wanted = in_plan(plan)
    assert all(wanted[place][1] == end for place, end in ends.items())
    if options["mode"] == "instant":
        assert all(wanted[place] == (end, end) for place, end in ends.items() if place[0] not in compacted)
    with KafkaBroker(log_dir, tmp_path / "work") as broker:
        held = watermarks(broker)
        assert {place: held[place][0] for place in wanted} == {place: start for place, (start, _) in wanted.items()}
        short = {place: (held[place], end) for place, (_, end) in wanted.items() if held[place][1] < end}
        assert not short  # it may be longer: recovery has ended what was open
        places = sorted(place for place in left if held[place][1] == ends[place])
        assert places
        for topic, partition in places:
            assert first_offset(broker, topic, partition) == ends[topic, partition]
        before = watermarks(broker)
        broker.stop()
        broker.start()
        assert watermarks(broker) == before  # a second start cuts nothing off either
        assert not java_coordinated(broker.bootstrap).transactions  # recovery left the coordinator nothing to do
        local = java_consume(broker.bootstrap, TOPICS, UNCOMMITTED).records
    beside = Headwater(tmp_path / "after", log_dir, store=f'url = "file://{headwater.bucket}"')
    with beside.gateway() as bootstrap:
        for isolation in ISOLATIONS:
            read = java_consume(bootstrap, TOPICS, isolation)
            old = [each for each in read.records if each["value"] != NEW]
            expected_records = expected("pantry", isolation)
            if isolation == "read_committed":  # the open transaction of before is over, and what follows it can be read
                shown = {key(each) for each in expected_records}
                old = [each for each in old if key(each) in shown]
            expect_same(old, expected_records, f"{options} {isolation}")
        starts = {(line["topic"], line["partition"]): line["start"] for line in expected_offsets("pantry", UNCOMMITTED)}
        assert {place: start for place, (start, _) in read.bounds.items()} == starts
    assert {key(each) for each in local if each["value"] != NEW} == {
        key(each) for each in expected("pantry", UNCOMMITTED) if each["offset"] >= wanted[each["topic"], each["partition"]][0]
    }


def key(record: dict[str, Any]) -> tuple[str, int, int]:
    return record["topic"], record["partition"], record["offset"]


def first_offset(broker: KafkaBroker, topic: str, partition: int) -> int:
    """Where the broker puts a record that is produced now."""
    produce(broker.producer(), topic, [b"new"], partition=partition)
    return watermarks(broker)[topic, partition][1] - 1


def test_a_broker_starts_on_logs_that_end_at_a_point_in_time(tmp_path: Path) -> None:
    """Readers of committed data come to the end of every log, and what had not been committed by then is not there."""
    headwater, log_dir = archived(tmp_path), tmp_path / "kafka"
    wanted = expected("pantry", UNCOMMITTED)
    time_ms = sorted(record["timestamp"] for record in wanted if record["topic"] == "orders.placed")[40]
    bucket = open_bucket(headwater.config)
    plan = recovery.plan(bucket.manifests, None, recovery.Options(to_time_ms=time_ms))
    ends = {(topic.topic, each.partition): each.next_offset for topic in plan.topics for each in topic.partitions}
    assert [each for topic in plan.topics if topic.topic == "orders.placed" for each in topic.partitions if each.end]
    recovery.apply(plan, log_dir, bucket.store)
    with KafkaBroker(log_dir, tmp_path / "work") as broker:
        topics = sorted({topic for topic, _ in ends if topic in TOPICS})
        read = {isolation: java_consume(broker.bootstrap, topics, isolation) for isolation in ISOLATIONS}
        before = [record for record in wanted if record["offset"] < ends[record["topic"], record["partition"]]]
        expect_same(read[UNCOMMITTED].records, before, f"until {time_ms}")
        assert all(record["timestamp"] <= time_ms for record in before)
        committed = {key(record) for record in expected("pantry", "read_committed")}
        shown = {key(record) for record in read["read_committed"].records}
        assert shown <= committed
        for place, (_, stable) in read["read_committed"].bounds.items():
            if place[0] not in ("__consumer_offsets", "__transaction_state"):
                assert stable == read[UNCOMMITTED].bounds[place][1]
        produce(broker.producer(), "orders.placed", [b"new"])


def test_retention_is_put_back_at_a_running_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headwater, log_dir = archived(tmp_path), tmp_path / "kafka"
    bucket = open_bucket(headwater.config)
    recovery.apply(recovery.plan(bucket.manifests, None), log_dir, bucket.store)
    wanted = {each.topic: each.configs or {} for each in survey_topics(bucket.store).manifests}
    assert [topic for topic, configs in wanted.items() if "retention.ms" in configs]
    verb = ["--config", str(headwater.file), "recover", "finish", "--into", str(log_dir), "--bootstrap-servers"]
    with KafkaBroker(log_dir, tmp_path / "work", compaction=False) as broker:
        assert watermarks(broker)  # it leads everything
        admin = KafkaAdmin([BrokerAddress.parse(broker.bootstrap)], load_client_properties(None))
        with admin as cluster:
            assert cluster.offsets_retention_ms() == 7 * 86_400_000
            names = ("retention.ms", "retention.bytes")
            held = cluster.values(dict.fromkeys(wanted, names))
            assert any(each.get("retention.ms") == "-1" for each in held.values())
            assert cli.run([*verb, broker.bootstrap]) == 0
            found = cluster.values(dict.fromkeys(wanted, names))
            assert found == {topic: {name: configs[name] for name in names if name in configs} for topic, configs in wanted.items()}
            cluster.change({topic: {"retention.ms": "1234567"} for topic in TOPICS})
            assert cli.run([*verb, broker.bootstrap]) == 0
            later = cluster.values(dict.fromkeys(TOPICS, names))
            assert all(each["retention.ms"] == "1234567" for each in later.values())
        assert cli.run(["recover", "status", "--into", str(log_dir), "-o", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["held"] == []
