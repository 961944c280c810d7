"""A cluster with users, ACLs, quotas and settings is lost, and a real broker starts on what recovery made of its archive."""

import json
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourceType,
)

import recovery
from headwater import cli
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.record_schemas import SCRAM
from recovery.kafka_releases import METADATA_VERSION, NEWEST, RELEASES
from tests.fixtures import unpack
from tests.peers.guarded import GuardedBroker, acl, acls, add_acls, add_users, read_error, refused, users
from tests.peers.java_client import class_path, java_consume, wait_for_markers
from tests.peers.kafka import KafkaBroker, commit, produce
from tests.recovery.test_cluster_state import Kitchen
from tests.recovery.written_archive import batches_in

pytestmark = pytest.mark.peer

CHEF = ("--entity-type", "users", "--entity-name", "chef")
BROKER = ("--entity-type", "brokers", "--entity-name", "1")


def furnish(broker: GuardedBroker) -> None:
    """Users, ACLs, a quota, settings, records, and a group that has read some."""
    broker.create_topic("soup", 2, retention_ms=86_400_000)
    broker.create_topic("secret", 1, cleanup_policy="compact")
    produce(broker.producer(), "soup", [b"%d" % number for number in range(20)])
    produce(broker.producer(), "secret", [b"recipe"], keys=[b"key"])
    admin = broker.admin
    add_users(admin, "chef", "waiter")
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    rules = [
        acl(ResourceType.TOPIC, "soup", "chef", AclOperation.ALL, allow),
        acl(ResourceType.TOPIC, "*", "waiter", AclOperation.READ, allow),
        acl(ResourceType.TOPIC, "secret", "waiter", AclOperation.READ, deny),
        acl(ResourceType.GROUP, "table-5", "waiter", AclOperation.READ, allow),
    ]
    add_acls(admin, rules)
    broker.configs(*CHEF, "--alter", "--add-config", "producer_byte_rate=2048000,consumer_byte_rate=1024000")
    broker.configs(*BROKER, "--alter", "--add-config", "log.cleaner.threads=2")
    waiter = Consumer({**broker.login("waiter"), "group.id": "table-5", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    commit(waiter, "soup", {0: 7})
    waiter.close()


def described(broker: GuardedBroker) -> dict[str, object]:
    """What the admin client says of the cluster."""
    admin = broker.admin
    return {
        "topics": broker.topic_ids(["soup", "secret"]),
        "users": users(admin),
        "acls": acls(admin),
        "quotas": broker.configs(*CHEF, "--describe"),
        "settings": broker.configs(*BROKER, "--describe"),
    }


def test_old_passwords_log_in_denied_stays_denied_and_a_group_resumes(tmp_path: Path) -> None:
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    with GuardedBroker(tmp_path / "kafka", tmp_path / "one") as broker:
        furnish(broker)
        before = described(broker)
    assert cli.run(["flush", "--log-dir", str(tmp_path / "kafka"), *options]) == 0
    assert cli.run(["recover", "apply", "cluster", "--into", str(tmp_path / "recovered"), *options]) == 0
    with GuardedBroker(tmp_path / "recovered", tmp_path / "two") as broker:
        assert described(broker) == before
        waiter = Consumer({**broker.login("waiter"), "group.id": "table-5", "auto.offset.reset": "error"})
        waiter.assign([TopicPartition("soup", 0)])
        first = waiter.poll(30)
        assert first is not None
        assert (first.error(), first.offset()) == (None, 7)
        waiter.close()
        assert refused(broker, "chef", "soup") is None
        denied = refused(broker, "waiter", "soup")
        assert denied is not None
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        unread = read_error(broker, "waiter", "table-5", "secret")
        assert unread is not None
        assert unread.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        stranger = AdminClient({**broker.login("chef", "another password"), "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=5)


LEVELS = [
    {"metadata.version": 7},
    {"metadata.version": 17},
    {"metadata.version": 22, "group.version": 1},
    {"metadata.version": 25, "group.version": 1, "transaction.version": 2},
    {"metadata.version": 27, "group.version": 1, "transaction.version": 2, "eligible.leader.replicas.version": 1, "share.version": 1},
    {"metadata.version": 29, "eligible.leader.replicas.version": 1, "streams.version": 1},
]


@pytest.mark.parametrize("features", LEVELS, ids=lambda features: str(features["metadata.version"]))
def test_a_broker_starts_on_older_levels_and_keeps_them(features: dict[str, int], tmp_path: Path) -> None:
    state = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    has_users = features["metadata.version"] >= 11  # since 3.5-IV2: brokers below do not start on records of users
    kitchen = Kitchen(features=features, others={kind: held for kind, held in state.others.items() if kind != SCRAM or has_users})
    plan = kitchen.plan()
    recovery.apply(plan, tmp_path / "recovered", kitchen.store)
    menu = next(topic for topic in plan.topics if topic.topic == "menu")
    with KafkaBroker(tmp_path / "recovered", tmp_path / "broker") as broker:
        assert broker.topic_ids(["menu"]) == {"menu": menu.topic_id}
        produce(broker.producer(), "menu", [b"new"], keys=[b"key"])
    assert levels_in(tmp_path / "recovered") == features


def levels_in(log_dir: Path) -> dict[str, int]:
    return {name: level for name, level in MetadataLog(log_dir / DIRECTORY).read().features.items() if name != "kraft.version"}


def test_levels_are_those_of_the_snapshot_and_higher_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster of Kafka 4.0's levels is archived, raised while it runs and archived again; and recovered at both, the old ones raised."""
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "one")
    broker.format("", "--release-version", "4.0")
    with broker:
        broker.create_topic("soup")
        produce(broker.producer(), "soup", [b"%d" % number for number in range(5)])
        flushed(broker, options)
        tool = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(), "org.apache.kafka.tools.FeatureCommand"]
        command = [*tool, "--bootstrap-server", broker.bootstrap, "upgrade", "--release-version", NEWEST]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
        produce(broker.producer(), "soup", [b"5"])
        flushed(broker, options)
    plan = ["recover", "plan", "cluster", *options]
    capsys.readouterr()
    assert cli.run([*plan, "--kafka-release", "4.0"]) == 2
    level = RELEASES[NEWEST][METADATA_VERSION]
    assert f"Kafka 4.0 does not start on metadata.version {level} (it knows 25)" in (said := capsys.readouterr().err)
    assert f"that takes Kafka {NEWEST} or newer" in said
    assert cli.run([*plan, "--metadata-version", "4.0"]) == 2
    assert f"the archived cluster has metadata.version {level}: 25 would be lower" in capsys.readouterr().err
    assert cli.run([*plan, "--at", "1", "--metadata-version", "4.1", "--kafka-release", "4.0"]) == 2
    assert "Kafka 4.0 does not start on metadata.version 27" in capsys.readouterr().err
    older = {name: level for name, level in RELEASES["4.0"].items() if name != "eligible.leader.replicas.version"}
    for name, which, wanted in (
        ("raised", ["--at", "1", "--metadata-version", NEWEST], older | {METADATA_VERSION: level}),
        ("newest", [], RELEASES[NEWEST]),
    ):
        into = tmp_path / name
        assert cli.run(["recover", "apply", "cluster", *which, "--into", str(into), *options]) == 0
        with KafkaBroker(into, tmp_path / f"{name} broker") as broker:
            read = java_consume(broker.bootstrap, ["soup"], "read_uncommitted")
            assert (len(read.records), read.bounds["soup", 0]) == (6, (0, 6))
            produce(broker.producer(), "soup", [b"new"])
            broker.create_topic("stew")
        assert levels_in(into) == wanted


def flushed(broker: KafkaBroker, options: list[str], *selection: str) -> None:
    assert (
        cli.run(["flush", *selection, "--log-dir", str(broker.log_dir), "--set", f"log.bootstrap_servers={broker.bootstrap}", *options])
        == 0
    )


def in_transaction(producer: Producer, *records: tuple[int, bytes]) -> None:
    """Begun, and written to orders; not ended."""
    producer.begin_transaction()
    for partition, value in records:
        producer.produce("orders", value, partition=partition)
    assert producer.flush(30) == 0


def committed_records(broker: KafkaBroker, partition: int) -> list[bytes]:
    """Up to the end, as readers of committed data see it."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True, "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition("orders", partition, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = reader.poll(60)
            assert message is not None, "readers of committed data do not reach the end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                _, high = reader.get_watermark_offsets(TopicPartition("orders", partition))
                if (message.offset() or 0) >= high:
                    return found
                continue
            found.append(message.value() or b"")
    finally:
        reader.close()


def test_transactions_groups_and_producer_ids_agree_with_the_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The broker is killed while a transaction is open. The tail of orders:0 was archived inside another one, which was committed later."""
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    with KafkaBroker(tmp_path / "kafka", tmp_path / "one") as broker:
        broker.create_topic("orders", 2)
        first, second = (broker.producer(**{"transactional.id": name, "transaction.timeout.ms": 600_000}) for name in ("first", "second"))
        for producer in (first, second):
            producer.init_transactions(30)
        in_transaction(first, (0, b"paid"), (1, b"paid"))
        first.commit_transaction(30)
        in_transaction(first, (0, b"split"), (1, b"split"))
        flushed(broker, options, "orders:0")
        first.commit_transaction(30)
        wait_for_markers(broker.bootstrap)
        produce(broker.producer(), "orders", [b"late"] * 5)
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "kitchen", "enable.auto.commit": False})
        commit(group, "orders", {0: 8, 1: 2})
        group.close()
        in_transaction(second, (1, b"open"))
        for topic in ("orders:1", "__consumer_offsets", "__transaction_state"):
            flushed(broker, options, topic)
        assert cli.run(["archive", "--log-dir", str(broker.log_dir), *options]) == 0  # the cluster, and no tail
        broker.kill()
    capsys.readouterr()
    cli.run(["recover", "plan", "cluster", "-o", "json", *options])
    plan = json.loads(capsys.readouterr().out)
    cut = plan["cut"]
    ends = {(each["topic"], each["partition"]): each for each in cut["partitions"]}
    assert [(each["partition"], each["producer_id"] >= 0, each["outcome"], each["coordinator"]) for each in cut["transactions"]] == [
        (0, True, "aborted", "complete-commit"),
        (1, True, "aborted", "ongoing"),
    ]
    assert [(each["transactional_id"], each["partitions"], each.get("missing", [])) for each in cut["unfinished"]] == [
        ("second", ["orders:1"], [])
    ]
    assert [(each["committed"], each["missing"], each["missing_from"]) for each in cut["torn"]] == [(["orders:1"], ["orders:0"], [2])]
    ahead = [(each["group"], each["partition"], each["offset"], each["log_end"]) for each in plan["offsets_ahead"]]
    assert ahead == [("kitchen", 0, 8, ends["orders", 0]["log_end"])]
    assert ends["orders", 0]["end"] == ends["orders", 0]["head"] == 3  # paid, its marker, split
    assert cli.run(["recover", "plan", "cluster", *options]) == 3
    said = capsys.readouterr()
    assert "2 open transactions aborted" in said.err
    assert "1 group offset beyond, set back" in said.err
    assert cli.run(["recover", "apply", "cluster", "--into", str(tmp_path / "recovered"), *options]) == 3  # half of `split`
    with KafkaBroker(tmp_path / "recovered", tmp_path / "two") as broker:
        assert committed_records(broker, 0) == [b"paid"]
        assert broker.committed("kitchen") == {("orders", 0): ends["orders", 0]["log_end"], ("orders", 1): 2}
        again, fresh = (broker.producer(**{"transactional.id": name}) for name in ("second", "third"))
        again.init_transactions(60)  # fences the open one, which is aborted
        assert committed_records(broker, 1) == [b"paid", b"split"]
        fresh.init_transactions(60)
        for producer, value in ((again, b"again"), (fresh, b"fresh")):
            in_transaction(producer, (0, value))
            producer.commit_transaction(60)
        wait_for_markers(broker.bootstrap)
        assert committed_records(broker, 0) == [b"paid", b"again", b"fresh"]
        resumed = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "kitchen", "auto.offset.reset": "error"})
        resumed.assign([TopicPartition("orders", 0)])
        first_after = resumed.poll(60)
        assert first_after is not None
        assert (first_after.error(), first_after.value()) == (None, b"again")
        resumed.close()
    ids = {header.producer_id for header, _ in batches_in(tmp_path / "recovered" / "orders-0") if header.is_transactional}
    assert max(ids) >= cut["next_producer_id"] > max(each["producer_id"] for each in cut["transactions"])
