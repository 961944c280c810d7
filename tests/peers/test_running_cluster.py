"""Topics of a destroyed cluster come back in one that runs, beside its own, and everything goes on there."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import recovery
from headwater import cli
from headwater.broker.broker_connection import BrokerAddress
from headwater.broker.client_properties import load_client_properties
from headwater.broker.running_admin import RunningKafkaAdmin
from headwater_core import milestones
from headwater_core.clock import SystemClock
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.record_schemas import ACL
from recovery.given_state import acls_of, hand_over, quotas_of, reassignment
from recovery.partition_swap import NamedLogDir, place
from recovery.topic_creation import with_created_topics
from tests.fixtures import Isolation, expected, expected_cluster, expected_offsets, private_copy, unpack
from tests.peers.agent import Headwater
from tests.peers.cluster import BROKER_PROPERTIES, PATIENT, wait_in_sync
from tests.peers.guarded import GuardedBroker
from tests.peers.java_client import class_path, console_consume, java_consume
from tests.peers.kafka import KafkaBroker, commit, expect_same, free_port, produce
from tests.recovery.test_cluster_state import Kitchen, replicated

pytestmark = pytest.mark.peer

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
END = {"read_uncommitted": "high_watermark", "read_committed": "last_stable"}
INTERNAL = ("__consumer_offsets", "__transaction_state")


def admin_of(bootstrap: str) -> RunningKafkaAdmin:
    return RunningKafkaAdmin([BrokerAddress.parse(each) for each in bootstrap.split(",")], load_client_properties(None))


def furnish(broker: KafkaBroker) -> None:
    """Topics, records and a group of its own."""
    broker.create_topic("own", 3, retention_ms=86_400_000)
    for partition in range(3):
        produce(broker.producer(), "own", [b"%d" % number for number in range(20)], partition=partition)
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "mine", "enable.auto.commit": False})
    commit(group, "own", {0: 7})
    group.close()


def own_of(broker: KafkaBroker) -> object:
    return broker.topic_ids(["own"]), java_consume(broker.bootstrap, ["own"], "read_uncommitted").records, broker.committed("mine")


def without_epoch(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "leader_epoch"} for record in records]


def expect_archived(bootstrap: str, name: str, ended: Sequence[str] = ()) -> None:
    """Every record and every bound; ended: topics whose open transaction recovery ends, with a marker after everything else"""
    topics = sorted({line["topic"] for line in expected_offsets(name, "read_uncommitted")} - set(INTERNAL))
    for isolation in ISOLATIONS:
        read = java_consume(bootstrap, topics, isolation)
        assert {record["leader_epoch"] for record in read.records} == {0}
        mine = [record for record in expected(name, isolation) if record["topic"] in topics]
        shown = {(record["topic"], record["partition"], record["offset"]) for record in mine}
        found = [each for each in read.records if each["topic"] not in ended or (each["topic"], each["partition"], each["offset"]) in shown]
        expect_same(without_epoch(found), without_epoch(mine), f"{name} {isolation}")
        bounds = {(line["topic"], line["partition"]): (line["start"], line[END[isolation]]) for line in expected_offsets(name, isolation)}
        assert {place: each for place, each in read.bounds.items() if place[0] not in ended} == {
            place: each for place, each in bounds.items() if place[0] in topics and place[0] not in ended
        }


def first_of(broker: KafkaBroker, group: str, topic: str, partition: int) -> int:
    """The offset at which a group goes on."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, partition)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.offset() or 0


def test_a_cluster_comes_back_in_a_running_one_and_goes_on_beside_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    into, log_dir = str(tmp_path / "staging"), tmp_path / "kafka"
    assert cli.run(["flush", "--log-dir", str(unpack("kitchen")), *options]) == 0
    state = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    with GuardedBroker(log_dir, tmp_path / "work") as broker:
        furnish(broker)
        before = own_of(broker)
        verb = ["--running", "--bootstrap-servers", broker.bootstrap, *options]
        capsys.readouterr()
        assert cli.run(["recover", "plan", "cluster", *verb]) == 3  # users and this broker's settings
        said = capsys.readouterr().err
        assert "SCRAM users baker, chef, waiter" in said
        assert broker.topics() == ["__consumer_offsets", "own"]
        assert cli.run(["recover", "apply", "cluster", "--into", into, *verb]) == 3
        assert cli.run(["recover", "place", "--into", into, "--log-dir", str(log_dir)]) == 7  # it runs
    assert cli.run(["recover", "place", "--into", into, "--log-dir", f"1={log_dir}"]) == 0
    assert cli.run(["recover", "place", "--into", into, "--log-dir", str(log_dir)]) == 0  # nothing is left to do
    assert (log_dir / ".kafka_cleanshutdown").exists()
    topics = sorted({line["topic"] for line in expected_offsets("kitchen", "read_uncommitted")} - set(INTERNAL))
    with broker:
        expect_archived(broker.bootstrap, "kitchen")
        ids = {each["name"]: each["topic_id"] for each in expected_cluster("kitchen")["topics"]}
        found = broker.topic_ids(topics)
        assert all(found[topic] != ids[topic] for topic in topics)
        finish = ["recover", "finish", "--into", into, "--bootstrap-servers", broker.bootstrap, *options]
        assert cli.run(finish) == 0
        assert cli.run(finish) == 0  # nothing is done again
        with admin_of(broker.bootstrap) as cluster:
            assert set(acls_of(state)) <= set(cluster.acls())
            assert len(state.others[ACL]) == len(acls_of(state))
            assert {entity: dict(values) for entity, values in cluster.quotas().items()} == quotas_of(state)
            retention = cluster.values({topic: ["retention.ms"] for topic in topics})
            assert retention["specials"] == {"retention.ms": state.topics["specials"].configs["retention.ms"]}
        for group in expected_cluster("kitchen")["groups"]:
            wanted = {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}
            assert broker.committed(group["group"]) == wanted
        assert first_of(broker, "hosts", "bills", 0) == 17  # the other topics have their retention again, which takes old records
        assert own_of(broker) == before
        # What a group commits while it reads old records has their leader epoch: it goes on all the same, after a restart too. Here are
        # those that retention leaves alone.
        read = console_consume(broker.bootstrap, "bills", "--group", "new", "--from-beginning", "--max-messages", "10")
        assert "Processed a total of 10 messages" in read
        produce(broker.producer(enable_idempotence="true"), "bills", [b"new"] * 3, partition=1)
    with broker:
        rest = sum(record["topic"] == "bills" for record in expected("kitchen", "read_uncommitted")) - 10 + 3
        more = "--group", "new", "--from-beginning", "--max-messages", str(rest), "--timeout-ms", "30000"
        assert f"Processed a total of {rest} messages" in console_consume(broker.bootstrap, "bills", *more)
        assert own_of(broker) == before


class Killed(BaseException):
    pass


def killed_at(step: str, times: int) -> Callable[[str], None]:
    left = times

    def kill(name: str) -> None:
        nonlocal left
        left -= name == step
        if not left:
            raise Killed

    return kill


def test_all_topics_come_back_on_several_disks_and_the_cleaner_works_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    into, disks = str(tmp_path / "staging"), [tmp_path / "disk-1", tmp_path / "disk-2"]
    assert cli.run(["flush", "--log-dir", str(unpack("pantry")), *options]) == 0
    properties = {
        "log.dirs": ",".join(map(str, disks)),
        "log.cleaner.backoff.ms": 200,
        "log.cleaner.min.cleanable.ratio": 0.01,
    }
    broker = KafkaBroker(disks[0], tmp_path / "work", properties=properties)
    with broker:
        furnish(broker)
        before = own_of(broker)
        verb = ["--all", "--running", "--bootstrap-servers", broker.bootstrap, *options]
        assert cli.run(["recover", "apply", "topic", *verb, "--into", into]) == 0
    some = [f"--log-dir={disk}" for disk in disks]
    assert cli.run(["recover", "place", "--into", into, some[0]]) == 4  # those of the other disk are not found
    assert cli.run(["recover", "place", "--into", into]) == 0  # what can be done before
    monkeypatch.setattr(milestones, "observer", killed_at("place.emptied", 5))
    with pytest.raises(Killed):
        place(tmp_path / "staging", [NamedLogDir(each) for each in disks], SystemClock())
    monkeypatch.undo()
    with broker:  # some partitions are in place, one is not there, the others are empty
        assert own_of(broker) == before
    assert cli.run(["recover", "place", "--into", into, *some]) == 0
    assert min(len([each for each in disk.iterdir() if each.is_dir()]) for disk in disks) > 5
    with broker:
        expect_archived(broker.bootstrap, "pantry", ended=["refunds"])
        for group in expected_cluster("pantry")["groups"]:
            assert broker.committed(group["group"]) == {}
        assert cli.run(["recover", "finish", "--into", into, "--bootstrap-servers", broker.bootstrap, *options]) == 0
        topics = [topic for topic in broker.topics() if topic not in INTERNAL]
        ends = {place: end for place, (_, end) in java_consume(broker.bootstrap, topics, "read_uncommitted").bounds.items()}
        for group in expected_cluster("pantry")["groups"]:
            wanted = {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}
            assert broker.committed(group["group"]) == {place: min(offset, ends[place]) for place, offset in wanted.items()}
        stable = java_consume(broker.bootstrap, topics, "read_committed").bounds
        assert {place: end for place, (_, end) in stable.items()} == ends  # what was open is ended
        assert own_of(broker) == before
        with admin_of(broker.bootstrap) as cluster:
            compacted = next(
                topic
                for topic, values in cluster.values({topic: ["cleanup.policy"] for topic in broker.topics()}).items()
                if values.get("cleanup.policy") == "compact" and topic not in INTERNAL
            )
            cluster.change({compacted: {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"}})
        for number in range(200):
            produce(broker.producer(), compacted, [b"%d" % number], keys=[b"the key"])
            values = [
                record for record in java_consume(broker.bootstrap, [compacted], "read_committed").records if record["partition"] == 0
            ]
            if number > 3 and sum(record["key"] == "dGhlIGtleQ==" for record in values) < number:
                break
        else:
            raise AssertionError("the cleaner does not work")
    with broker:
        assert own_of(broker) == before


def test_parts_come_back_in_a_running_cluster_and_a_gateway_over_the_old_archive_has_the_rest(tmp_path: Path) -> None:
    headwater = Headwater(tmp_path / "lost", private_copy("pantry", tmp_path), owned=True)  # an agent deletes in it
    headwater.archive(tails=True)
    options = ["--config", str(headwater.file)]
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "work")
    parts = {
        "instant": (["--mode", "instant"], ["till.sales", "recipes.lz4"]),
        "partial": (["--mode", "partial", "--keep-bytes", "3000"], ["orders.placed", "cookbook.1990", "menu.prices"]),
    }
    with broker:
        for name, (mode, topics) in parts.items():
            into = ["--into", str(tmp_path / name), "--running", "--bootstrap-servers", broker.bootstrap]
            assert cli.run(["recover", "apply", "topic", *topics, *mode, *into, *options]) == 0
    for name in parts:
        assert cli.run(["recover", "place", "--into", str(tmp_path / name), "--log-dir", str(broker.log_dir)]) == 0
    topics = [topic for _, some in parts.values() for topic in some]
    wanted = [record for record in expected("pantry", "read_uncommitted") if record["topic"] in topics]
    ends = {(line["topic"], line["partition"]): line["high_watermark"] for line in expected_offsets("pantry", "read_uncommitted")}
    with broker:
        read = java_consume(broker.bootstrap, topics, "read_uncommitted")
        for name in parts:
            assert cli.run(["recover", "finish", "--into", str(tmp_path / name), "--bootstrap-servers", broker.bootstrap, *options]) == 0
        starts = {place: start for place, (start, _) in read.bounds.items()}
        assert {place: end for place, (_, end) in read.bounds.items()} == {place: ends[place] for place in read.bounds}
        assert all(starts[place] == ends[place] for place in starts if place[0] in parts["instant"][1])
        assert all(0 < starts[place] < ends[place] for place in starts if place[0] in ("orders.placed", "cookbook.1990"))
        assert starts["menu.prices", 0] == 0  # compacted: as a whole
        kept = [each for each in wanted if each["offset"] >= starts[each["topic"], each["partition"]]]
        expect_same(without_epoch(read.records), without_epoch(kept), "the part")
        produce(broker.producer(enable_idempotence="true"), "till.sales", [b"new"])
        assert java_consume(broker.bootstrap, ["till.sales"], "read_committed").bounds["till.sales", 0][1] == ends["till.sales", 0] + 1
    with Headwater(tmp_path / "reader", None, store=f'url = "file://{headwater.bucket}"').gateway() as bootstrap:
        expect_same(java_consume(bootstrap, topics, "read_uncommitted").records, wanted, "the rest")


def test_a_deleted_topic_comes_back_in_its_own_cluster_and_is_archived_on_beside_its_past(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    into, log_dir = str(tmp_path / "staging"), tmp_path / "kafka"
    flush = ["flush", "--log-dir", str(log_dir), *options]
    broker = KafkaBroker(log_dir, tmp_path / "work")
    with broker:
        furnish(broker)
        broker.create_topic("soup", retention_ms=86_400_000)
        produce(broker.producer(enable_idempotence="true"), "soup", [b"%d" % number for number in range(30)])
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "guests", "enable.auto.commit": False})
        commit(group, "soup", {0: 11})
        group.close()
        [old] = broker.topic_ids(["soup"]).values()
    with broker:  # it has written a leader epoch of its own by now
        produce(broker.producer(enable_idempotence="true"), "soup", [b"last"] * 3)
        right = java_consume(broker.bootstrap, ["own"], "read_uncommitted").records
        produce(broker.producer(), "own", [b"a mistake"] * 4, partition=1)
        before = java_consume(broker.bootstrap, ["soup"], "read_uncommitted").records
    assert cli.run(flush) == 0
    with broker:
        own = own_of(broker)
        admin = broker.admin  # held: its futures die with it
        admin.delete_topics(["soup"])["soup"].result(30)
        verb = ["--running", "--bootstrap-servers", broker.bootstrap, *options]
        assert cli.run(["recover", "plan", "topic", "soup", "own", *verb]) == 2  # own is there
        capsys.readouterr()
        assert cli.run(["recover", "plan", "topic", "--all", "-o", "json", *verb]) == 0  # own is not lost
        (tmp_path / "plan.json").write_text(capsys.readouterr().out)
        apply = ["recover", "apply", "--plan", str(tmp_path / "plan.json"), "--into", into, "--bootstrap-servers", broker.bootstrap]
        assert cli.run([*apply, *options]) == 0
        assert cli.run([*apply, *options]) == 0
    assert cli.run(flush) == 0  # an agent meets the empty one before it is replaced
    assert cli.run(["recover", "place", "--into", into, "--log-dir", str(log_dir)]) == 0
    with broker:
        assert cli.run(["recover", "finish", "--into", into, "--bootstrap-servers", broker.bootstrap, *options]) == 0
        found = java_consume(broker.bootstrap, ["soup"], "read_uncommitted").records
        expect_same(without_epoch(found), without_epoch(before), "a deleted topic")
        assert broker.committed("guests") == {("soup", 0): 11}
        assert own_of(broker) == own
        for _ in range(3):  # each gets a producer id that no record of the log has
            produce(broker.producer(enable_idempotence="true"), "soup", [b"more"])
        assert java_consume(broker.bootstrap, ["soup"], "read_uncommitted").bounds["soup", 0] == (0, len(before) + 3)
        [new] = broker.topic_ids(["soup"]).values()
        then = datetime.fromtimestamp(max(record["timestamp"] for record in right) / 1000, UTC).isoformat()
        again = ["recover", "apply", "topic", "own", "--as", "own.restored", "--to-time", then, "--into", f"{into}-again"]
        assert cli.run([*again, *verb]) == 0
    assert cli.run(["recover", "place", "--into", f"{into}-again", "--log-dir", str(log_dir)]) == 0
    with broker:  # as it was before a mistake, beside the topic that has it
        assert cli.run(["recover", "finish", "--into", f"{into}-again", "--bootstrap-servers", broker.bootstrap, *options]) == 0
        found = java_consume(broker.bootstrap, ["own.restored"], "read_uncommitted").records
        expect_same(without_epoch(found), [record | {"topic": "own.restored"} for record in without_epoch(right)], "as it was then")
        assert own_of(broker) == own
    assert cli.run(flush) == 0
    assert new != old
    for incarnation, records in ((old, len(before)), (new, len(before) + 3)):
        capsys.readouterr()
        assert cli.run(["recover", "plan", "topic", f"soup@{incarnation}", "-o", "json", *options]) == 0
        [topic] = json.loads(capsys.readouterr().out)["topics"]
        assert sum(entry["records"] for entry in topic["partitions"][0]["entries"]) == records


BROKERS = (1, 2, 3)


def test_brokers_get_their_parts_one_after_the_other_while_the_cluster_goes_on(tmp_path: Path) -> None:
    """Then the partitions get their replicas back."""
    kitchen = Kitchen(topics=replicated(MetadataLog(unpack("kitchen") / DIRECTORY).read(), 3))
    ports = {node: (free_port(), free_port()) for node in BROKERS}
    voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in ports.items())
    properties = BROKER_PROPERTIES | PATIENT | {"controller.quorum.voters": voters}
    brokers = {
        node: KafkaBroker(
            tmp_path / f"kafka-{node}", tmp_path / f"work-{node}", properties=properties | {"node.id": node}, ports=ports[node]
        )
        for node in BROKERS
    }
    bootstrap, into = ",".join(each.bootstrap for each in brokers.values()), tmp_path / "staging"
    cluster_id = ""
    try:
        for broker in brokers.values():
            cluster_id = broker.format(cluster_id)
            broker.launch()
        for broker in brokers.values():
            broker.wait_ready()
        brokers[1].create_topic("own", 2, replicas=3)
        produce(brokers[1].producer(enable_idempotence="true"), "own", [b"before"] * 5)
        with admin_of(bootstrap) as cluster:
            plan = recovery.plan(kitchen.repository, None, recovery.Options(cluster="latest", running=True), running=cluster)
            assert not plan.problems
            recovery.apply(plan, into, kitchen.store, create=lambda made: with_created_topics(made, cluster))
        for node, broker in brokers.items():
            broker.stop()
            [placed] = place(into, [NamedLogDir(broker.log_dir, node)], SystemClock())
            assert placed.partitions
            others = [each for each in brokers.values() if each is not broker]
            produce(others[0].producer(enable_idempotence="true"), "own", [b"without %d" % node])  # the cluster goes on
            broker.start()
            wait_in_sync(bootstrap)
        expect_archived(bootstrap, "kitchen")
        with admin_of(bootstrap) as cluster:
            handed = hand_over(into, cluster, SystemClock())
            assert handed is not None
            assert {each.state for each in handed if each.kind == "group offset"} == {"given"}
        done = recovery.running_plan(into)
        assert done is not None
        wanted = reassignment(done)
        assert wanted is not None
        (tmp_path / "reassignment.json").write_text(json.dumps(wanted))
        tool = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(), "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"]
        more = ["--bootstrap-server", bootstrap, "--reassignment-json-file", str(tmp_path / "reassignment.json"), "--execute"]
        subprocess.run([*tool, *more], check=True, timeout=120, capture_output=True)
        wait_in_sync(bootstrap, 3)
        brokers[1].stop()
        expect_archived(brokers[2].bootstrap, "kitchen")
        own = java_consume(brokers[2].bootstrap, ["own"], "read_uncommitted").records
        assert len(own) == 5 + len(BROKERS)
    finally:
        for broker in brokers.values():
            broker.kill()
