"""A cluster of three brokers is lost twice, with everything but the bucket: users, groups, a transaction that is open. Each time real
brokers start on what recovery made of the bucket and hold what was held before, and clients and archiving go on. The last of them are of
the minor release before."""

import shutil
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from headwater import cli
from headwater_core.segments.checkpoints import LOG_STARTS
from tests.peers.cluster import NODES, PATIENT, Cluster, wait_in_sync
from tests.peers.guarded import GuardedBroker, acl, acls, add_acls, add_users, read_error, refused, users
from tests.peers.java_client import java_client, java_consume, java_coordinated, kafka_jars, wait_for_markers
from tests.peers.kafka import KafkaBroker, expect_compacted, expect_same
from tests.peers.load import delivered

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("lost")]  # three brokers at once are enough

ISOLATIONS = ("read_uncommitted", "read_committed")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN, COMPACTED = ("codecs", "ledger", "short", "soup"), "stock"
TOPICS = (*PLAIN, COMPACTED)
GROUPS = {"cooks": "classic", "guests": "consumer"}
PREVIOUS, PREVIOUS_LEVEL = "4.3", "4.3-IV0"
SESSION_MS = 10_000  # of a group's members: the least is 6 s, for which one may stand still on a busy machine
SOON = {
    **PATIENT,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "log.flush.start.offset.checkpoint.interval.ms": 200,  # where logs begin is in no file for up to a minute, by default
}
_PATIENCE_S = 120
NEVER_MS, AT_ONCE_MS = "86400000", "0"  # min.compaction.lag.ms


class Bistro(Cluster):
    """Guarded brokers at a level that the release before starts on, and an agent beside each once they are started.

    jars  of another release
    """

    starts_agents = False

    def __init__(self, root: Path, bucket: Path, log_dirs: Sequence[Path] = (), jars: str = "") -> None:
        self.guarded: list[GuardedBroker] = []

        def broker(log_dir: Path, work: Path, properties: Mapping[str, object], **settings: Any) -> KafkaBroker:
            self.guarded.append(GuardedBroker(log_dir, work, properties={**properties, **SOON}, jars=jars, **settings))
            return self.guarded[-1]

        level = ("--release-version", PREVIOUS_LEVEL)
        super().__init__(root, "", "", log_dirs=log_dirs, bucket=bucket, broker=broker, format_options=level)

    def set_config(self, kind: str, name: str, **values: str) -> None:
        entries = [ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
        admin = self.admin  # held: its futures die with it
        for done in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
            done.result(30)

    def configs(self) -> dict[str, dict[str, str]]:
        """What was set for topics and brokers."""
        admin = self.admin
        topics = [ConfigResource("topic", topic) for topic in admin.list_topics(timeout=20).topics]
        brokers = [ConfigResource("broker", str(node)) for node in range(1, NODES + 1)]
        asked: list[Any] = [admin.describe_configs(of) for of in (topics, *([each] for each in brokers))]  # one broker a request
        set_here = {each.value for each in (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)}
        return {
            resource.name: {name: entry.value for name, entry in done.result(30).items() if entry.source in set_here}
            for answers in asked
            for resource, done in answers.items()
        }

    def producer(self, **settings: str | int) -> Producer:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "acks": "all", **config})

    def start_agents(self) -> None:
        for at in range(NODES):
            self.start_agent(at)

    def archive(self) -> None:
        """Everything there is, as an operator asks for it before the night."""
        wait_in_sync(self.bootstrap, NODES)
        wait_for_markers(self.bootstrap)
        ends = {place: end for place, (_, end) in self.bounds().items()}
        self.wait_for_agents()
        for headwater in self.headwaters:
            assert cli.run(["flush", "--config", str(headwater.file)]) == 0
        agent = self.agents[0]
        assert agent
        agent.caught_up(ends)


def until(look: Callable[[], object], what: str, between: Callable[[], object] = lambda: None) -> None:
    """Until `look` finds something; `between` comes after each time that it does not."""
    until_s = time.monotonic() + _PATIENCE_S
    while not look():
        assert time.monotonic() < until_s, what
        between()


def write(producer: Producer, topic: str, values: Sequence[bytes | None], partition: int = 0, keys: Sequence[bytes | None] = ()) -> None:
    """In one batch, or few."""
    for at, value in enumerate(values):
        headers = [("at", b"%d" % at), ("none", None)] if at % 3 else []
        key = keys[at] if keys else None
        producer.produce(topic, value, key, partition, on_delivery=delivered, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(30) == 0


def in_transaction(cluster: Bistro, name: str, value: bytes) -> Producer:
    """Begun, and written to both partitions of the ledger; not ended. A transaction of that name that is open has ended."""
    producer = cluster.producer(transactional_id=name, transaction_timeout_ms=900_000)
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(2):
        write(producer, "ledger", [value, value], partition)
    return producer


def write_all(cluster: Bistro, life: bytes) -> Producer:
    """To every topic, in every codec, and to the ledger in transactions: the one that is returned is open."""
    for partition, codec in enumerate(CODECS):
        producer = cluster.producer(compression_type=codec, linger_ms=50)
        for _ in range(2):
            write(producer, "codecs", [b"%s %s %d " % (life, codec.encode(), at) * 9 for at in range(40)], partition, [b"k", None] * 20)
        write(producer, "codecs", [None], partition, [b"tombstone"])
    plain = cluster.producer(linger_ms=50)
    for partition in range(2):
        write(plain, "soup", [b"%s %d" % (life, at) for at in range(20)], partition)
        write(plain, "ledger", [life + b" plain"], partition)
    write(plain, "short", [life] * 10)
    in_transaction(cluster, "paid", life + b" paid").commit_transaction(60)
    in_transaction(cluster, "undone", life + b" undone").abort_transaction(60)
    kept = in_transaction(cluster, "open", life + b" open")
    write(plain, "ledger", [life + b" behind it"])
    return kept


@contextmanager
def reading(cluster: Bistro, **settings: object) -> Iterator[Consumer]:
    common = {"bootstrap.servers": cluster.bootstrap, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**common, **{key.replace("_", "."): value for key, value in settings.items()}})
    try:
        yield consumer
    finally:
        consumer.close()


def stock(cluster: Bistro) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    with reading(cluster, group_id="look", enable_partition_eof=True, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(COMPACTED, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.offset() or 0, message.key(), message.value()))


def let_the_cleaner_work(cluster: Bistro, life: bytes) -> None:
    """Until it has let go what `life` begins with, and all of the key that is deleted then."""
    cluster.set_config("topic", COMPACTED, min_compaction_lag_ms=AT_ONCE_MS)
    producer = cluster.producer()
    keys = [b"key-%d" % at for at in range(12)]
    write(producer, COMPACTED, [life + b" first " + b"x" * 300] * 12, keys=keys)
    write(producer, COMPACTED, [b"y" * 300, None], keys=[b"deleted", b"deleted"])

    def cleaned() -> bool:
        rows = stock(cluster)
        return not [key for _, key, value in rows if key == b"deleted" or (value or b"").startswith(life + b" first")]

    until(cleaned, "the cleaner lets go nothing", lambda: write(producer, COMPACTED, [life + b" last " + b"x" * 300] * 12, keys=keys))
    cluster.set_config("topic", COMPACTED, min_compaction_lag_ms=NEVER_MS)  # what is compared now stays as it is


def furnish(cluster: Bistro) -> None:
    """Topics, users, ACLs, quotas, settings."""
    broker, admin = cluster.brokers[0], cluster.admin
    broker.create_topic("codecs", len(CODECS), NODES, internal_segment_bytes=16_384)
    broker.create_topic("ledger", 2, NODES)
    broker.create_topic("short", 1, NODES)
    broker.create_topic("soup", 2, NODES, retention_ms=86_400_000, compression_type="zstd")
    cleaning = {"delete_retention_ms": 100, "min_cleanable_dirty_ratio": 0.01, "segment_ms": 86_400_000}
    broker.create_topic(COMPACTED, 1, NODES, cleanup_policy="compact", internal_segment_bytes=6_000, **cleaning)
    cluster.set_config("broker", "2", log_cleaner_io_max_bytes_per_second="10000000.0")
    add_users(admin, "chef", "waiter")
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    rules = [
        acl(ResourceType.TOPIC, "soup", "chef", AclOperation.ALL, allow),
        acl(ResourceType.TOPIC, "*", "waiter", AclOperation.READ, allow),
        acl(ResourceType.TOPIC, "ledger", "waiter", AclOperation.READ, deny),
        acl(ResourceType.GROUP, "guests", "waiter", AclOperation.READ, allow),
    ]
    add_acls(admin, rules)
    java_client().request("quota", cluster.bootstrap, "user=chef", "producer_byte_rate", "2048000")
    java_client().request("quota", cluster.bootstrap, "user=waiter,client-id=tablet", "consumer_byte_rate", "1024000")


def trim(cluster: Bistro, offset: int) -> None:
    """The log of short begins there from now on, in the middle of a batch; where brokers have written that down."""
    admin = cluster.admin
    for done in admin.delete_records([TopicPartition("short", 0, offset)]).values():
        assert done.result(30).low_watermark == offset

    def is_noted() -> bool:
        lines = [(each.log_dir / LOG_STARTS).read_text().splitlines() for each in cluster.brokers]
        return all(f"short 0 {offset}" in each for each in lines)

    until(is_noted, "brokers do not note where the log begins", lambda: time.sleep(0.1))


class Member:
    """Of a group that reads soup; it never leaves."""

    def __init__(self, cluster: Bistro, group: str, reset: str) -> None:
        settings = {"session.timeout.ms": SESSION_MS} if GROUPS[group] == "classic" else {}
        common = {"bootstrap.servers": cluster.bootstrap, "enable.auto.commit": False, "log_level": 0, "auto.offset.reset": reset}
        self._consumer = Consumer({**common, **settings, "group.id": group, "group.protocol": GROUPS[group]})
        self._consumer.subscribe(["soup"])

    def read(self, until_offsets: Mapping[int, int]) -> dict[int, list[int]]:
        """The offsets that it sees next, by partition, up to these and maybe further; what it has seen is committed."""
        seen: dict[int, list[int]] = {partition: [] for partition in until_offsets}
        until_s = time.monotonic() + _PATIENCE_S
        while any(not offsets or offsets[-1] + 1 < until_offsets[partition] for partition, offsets in seen.items()):
            assert time.monotonic() < until_s, seen
            message = self._consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                seen[message.partition() or 0].append(message.offset() or 0)
        places = [TopicPartition("soup", partition, offsets[-1] + 1) for partition, offsets in seen.items()]
        self._consumer.commit(offsets=places, asynchronous=False)
        return seen


def held(cluster: Bistro) -> dict[str, Any]:
    """All that clients can see of it."""
    reads = {isolation: java_consume(cluster.bootstrap, TOPICS, isolation) for isolation in ISOLATIONS}
    coordinated = java_coordinated(cluster.bootstrap)
    return {
        "records": {isolation: read.records for isolation, read in reads.items()},
        "bounds": {isolation: read.bounds for isolation, read in reads.items()},
        "ids": cluster.brokers[0].topic_ids(cluster.brokers[0].topics()),
        "configs": cluster.configs(),
        "users": users(cluster.admin),
        "acls": acls(cluster.admin),
        "groups": [{key: value for key, value in group.items() if key != "state"} for group in coordinated.groups],  # members time out
        "transactions": coordinated.transactions,
        "quotas": coordinated.quotas,
    }


def of(records: list[dict[str, Any]], topics: Sequence[str]) -> list[dict[str, Any]]:
    return [record for record in records if record["topic"] in topics]


def without_transactions(before: dict[str, Any]) -> dict[str, Any]:
    """What is there once recovery has aborted the open transaction: a marker more in each part of the ledger, all committed records to the
    end, and no transactional id."""
    everything, committed = (before["records"][isolation] for isolation in ISOLATIONS)
    stable = {place: end for place, (_, end) in before["bounds"]["read_committed"].items()}
    after = [
        record
        for record in everything
        if record["offset"] >= stable[record["topic"], record["partition"]] and not b64decode(record["value"] or "").endswith(b" open")
    ]
    shown = sorted(committed + after, key=lambda record: (record["topic"], record["partition"], record["offset"]))
    bounds = {place: (start, end + (stable[place] < end)) for place, (start, end) in before["bounds"]["read_uncommitted"].items()}
    return {
        **before,
        "records": dict(zip(ISOLATIONS, (everything, shown), strict=True)),
        "bounds": dict.fromkeys(ISOLATIONS, bounds),
        "transactions": [],
    }


def expect_held(cluster: Bistro, before: dict[str, Any]) -> None:
    def are_loaded() -> bool:
        return len(java_coordinated(cluster.bootstrap).groups) >= len(before["groups"])

    until(are_loaded, "coordinators do not know what they knew")
    before, found = without_transactions(before), held(cluster)
    for isolation, records in found["records"].items():
        wanted = before["records"][isolation]
        expect_same(of(records, PLAIN), of(wanted, PLAIN), isolation)
        expect_compacted(of(records, [COMPACTED]), of(wanted, [COMPACTED]), isolation)
    assert {**found, "records": {}} == {**before, "records": {}}


def expect_guarded(cluster: Bistro) -> None:
    """Who logs in with the old password may do what was allowed, and may not what was denied."""
    broker = cluster.guarded[0]
    assert refused(broker, "chef", "soup") is None
    for error in (refused(broker, "waiter", "soup"), read_error(broker, "waiter", "guests", "ledger")):
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def expect_resumed(cluster: Bistro) -> list[Member]:
    """A new member of each group goes on where the lost one was, and sees all that follows."""
    ends = {partition: end for (topic, partition), (_, end) in cluster.bounds().items() if topic == "soup"}
    committed = {
        group["group"]: {each["partition"]: each["offset"] for each in group["offsets"]}
        for group in java_coordinated(cluster.bootstrap).groups
    }
    members = []
    for group in GROUPS:
        wanted = {partition: list(range(committed[group][partition], end)) for partition, end in ends.items()}
        assert all(wanted.values())
        members.append(Member(cluster, group, "error"))
        assert members[-1].read(ends) == wanted
    return members


def expect_committed(cluster: Bistro) -> None:
    """Readers of committed data come to the end of every log."""
    wait_for_markers(cluster.bootstrap)
    bounds = {isolation: java_consume(cluster.bootstrap, TOPICS, isolation).bounds for isolation in ISOLATIONS}
    assert bounds["read_committed"] == bounds["read_uncommitted"]


def lose(cluster: Bistro, root: Path) -> dict[str, Any]:
    """Everything but the bucket, after it was archived; what there was."""
    cluster.archive()
    before = held(cluster)
    cluster.kill()
    for path in root.iterdir():
        if path.name != "bucket":
            shutil.rmtree(path)
    return before


def operator(root: Path) -> list[str]:
    """Options of somebody with the bucket alone."""
    return ["--store", f"file://{root / 'bucket'}", "--data-dir", str(root / "operator")]


def recovered(root: Path, name: str, *options: str) -> list[Path]:
    """The log directories of its brokers."""
    command = ["recover", "apply", "cluster", "--brokers", str(NODES), "--take-over", "--into", str(root / name), *options]
    assert cli.run([*command, *operator(root)]) == 0
    return [root / name / f"node-{node}" for node in range(1, NODES + 1)]


def put_back(cluster: Bistro, root: Path, name: str) -> None:
    """The retention that was held back."""
    command = ["recover", "finish", "--into", str(root / name), "--bootstrap-servers", cluster.bootstrap]
    assert cli.run([*command, *operator(root)]) == 0


def go_on(cluster: Bistro, root: Path, name: str, before: dict[str, Any]) -> None:
    """All of `before` is there, denied stays denied, and agents archive."""
    wait_in_sync(cluster.bootstrap, NODES)
    put_back(cluster, root, name)
    expect_held(cluster, before)
    cluster.start_agents()
    expect_guarded(cluster)


def test_a_lost_cluster_comes_back_and_goes_on_and_is_lost_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = tmp_path / "bucket"
    with Bistro(tmp_path / "one", bucket) as cluster:
        furnish(cluster)
        for _ in range(2):
            write(cluster.producer(linger_ms=50), "short", [b"nought"] * 10)
        trim(cluster, 13)  # before agents see it: from then on the archive's start is a matter of its own
        cluster.start_agents()
        let_the_cleaner_work(cluster, b"one")
        lost: list[object] = [write_all(cluster, b"one")]
        for group in GROUPS:
            member = Member(cluster, group, "earliest")
            member.read({0: 5, 1: 7})
            lost.append(member)
        before = lose(cluster, tmp_path)
    assert {group["type"] for group in before["groups"]} == {"Classic", "Consumer"}
    assert {each["state"] for each in before["transactions"]} == {"Ongoing", "CompleteCommit", "CompleteAbort"}

    with Bistro(tmp_path / "two", bucket, recovered(tmp_path, "again")) as cluster:
        go_on(cluster, tmp_path, "again", before)
        let_the_cleaner_work(cluster, b"two")
        in_transaction(cluster, "open", b"two").commit_transaction(60)
        expect_committed(cluster)
        lost.append(write_all(cluster, b"two"))
        lost += expect_resumed(cluster)
        trim(cluster, 27)
        leader = cluster.headwaters[cluster.leader("short")]
        assert cli.run(["delete-before", "short:0", "27", "--yes", "--config", str(leader.file)]) == 0
        before = lose(cluster, tmp_path)

    capsys.readouterr()
    assert cli.run(["recover", "plan", "cluster", "--kafka-release", "4.1", *operator(tmp_path)]) != 0
    assert "that takes Kafka 4.3 or 4.4" in capsys.readouterr().err
    jars = kafka_jars(PREVIOUS)
    with Bistro(tmp_path / "three", bucket, recovered(tmp_path, "twice", "--kafka-release", PREVIOUS), jars) as cluster:
        go_on(cluster, tmp_path, "twice", before)
        let_the_cleaner_work(cluster, b"three")
        write_all(cluster, b"three").commit_transaction(60)
        expect_committed(cluster)
        expect_resumed(cluster)
        cluster.archive()
    assert cli.run(["verify", "--data", *operator(tmp_path)]) == 0
