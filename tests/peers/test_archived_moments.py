"""Clusters whose coordinators were archived at another moment than their data, lost and recovered: whatever the order, and for transactions
of both versions, nobody waits for anything, and no transaction is there in part."""

import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import recovery
from headwater.broker.broker_connection import BrokerAddress
from headwater.broker.client_properties import load_client_properties
from headwater.broker.running_admin import RunningKafkaAdmin
from headwater_core.clock import SystemClock
from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import decode_transaction_key, decode_transaction_value
from headwater_core.segments.records import decode_batch
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.java_client import java_client, java_consume, java_coordinated, wait_for_markers
from tests.peers.kafka import KafkaBroker
from tests.peers.test_coordinator_facts import LogFile, OffsetsLog, now_ms
from tests.recovery.archived import archive
from tests.recovery.written_archive import batches_in, text

pytestmark = pytest.mark.peer

STATES = {  # how the last transaction of an id ends in its first life, after one that is committed; None: there is no other
    "empty": None,
    "ongoing": "open",
    "prepare-commit": "commit",
    "prepare-abort": "abort",
    "complete-commit": "commit",
    "complete-abort": "abort",
    "tombstoned": "commit",
}
CLIENTS = ("java", "rdkafka")
PARTITIONS = 16  # of __transaction_state: each id has one of its own, which can be cut where that id is prepared
SETTINGS = {
    "transaction.state.log.num.partitions": PARTITIONS,
    "offsets.topic.num.partitions": 1,
    "offsets.retention.check.interval.ms": 1000,
}
OLD_GROUPS = ("old-simple", "old-empty", "old-consumer")
OLD_MS = 40 * 86_400_000  # offsets.retention.minutes is a week
COORDINATORS = ("__transaction_state", "__consumer_offsets")


def partition_of(transactional_id: str) -> int:
    """As Kafka finds its coordinator: Java's hash of the text, without its sign."""
    found = 0
    for letter in transactional_id:
        found = (found * 31 + ord(letter)) & 0xFFFFFFFF
    return (0 if found == 1 << 31 else found if found < 1 << 31 else (1 << 32) - found) % PARTITIONS


def _ids() -> Iterator[tuple[str, str, str]]:
    """(id, client, state)"""
    for place, (client, state) in enumerate((client, state) for client in CLIENTS for state in STATES):
        number = next(number for number in range(10_000) if partition_of(f"{client}-{state}-{number}") == place)
        yield f"{client}-{state}-{number}", client, state


IDS = list(_ids())


class Sessions:
    """What the producers of a broker do. librdkafka's stay open until the broker ends: nothing is aborted by closing them."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, self._open = broker, list[Producer]()

    def transact(self, transactional_id: str, client: str, *transactions: tuple[str, str]) -> None:
        """(end, value) of each"""
        if client == "java":
            listed = ",".join(f"{end}:{value}" for end, value in transactions)
            arguments = ("transact", self._broker.bootstrap, transactional_id, f"group-{transactional_id}", "orders", listed)
            java_client().request(*filter(None, arguments))
            return
        producer = self._broker.producer(transactional_id=transactional_id, transaction_timeout_ms=600_000)
        group = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": f"group-{transactional_id}"})
        producer.init_transactions(60)
        for end, value in transactions:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("orders", value.encode(), partition=partition)
            producer.send_offsets_to_transaction([TopicPartition("orders", 0, len(value))], group.consumer_group_metadata(), 60)
            producer.flush(60)
            if end == "commit":
                producer.commit_transaction(60)
            elif end == "abort":
                producer.abort_transaction(60)
        group.close()
        self._open.append(producer)


def first_life(broker: KafkaBroker) -> None:
    sessions = Sessions(broker)
    for name, client, state in IDS:
        end = STATES[state]
        sessions.transact(name, client, ("commit", f"{name}/1"), *([(end, f"{name}/2+")] if end else []))
        if end is None:
            sessions.transact(name, client)
    wait_for_markers(broker.bootstrap)


def second_life(broker: KafkaBroker) -> None:
    sessions = Sessions(broker)
    for name, client, state in IDS:
        end = "abort" if state == "prepare-abort" else "commit"
        sessions.transact(name, client, (end, f"{name}/3++"), *([("open", f"{name}/4+++")] if not state.startswith("prepare") else []))
    wait_for_markers(broker.bootstrap)


def committed_after(life: int) -> set[str]:
    first = {f"{name}/1" for name, *_ in IDS} | {f"{name}/2+" for name, _, state in IDS if STATES[state] == "commit"}
    return first if life == 1 else first | {f"{name}/3++" for name, _, state in IDS if state != "prepare-abort"}


def cut_where_prepared(log_dir: Path, transactional_id: str, status: str) -> None:
    """The coordinator's log ends with the last time that it had decided, and had not heard of all markers."""
    directory = log_dir / f"__transaction_state-{partition_of(transactional_id)}"
    (path,) = directory.glob("*.log")
    size = end = 0
    for _, raw in batches_in(directory):
        size += len(raw)
        for record in decode_batch(raw):
            assert record.key is not None
            is_of_id = decode_transaction_key(record.key, "test") == transactional_id
            if is_of_id and record.value and decode_transaction_value(record.value, "test").status == status:
                end = size
    assert 0 < end < size
    path.write_bytes(path.read_bytes()[:end])


def with_old_groups(log_dir: Path) -> None:
    """Without members, and with commits that were made long ago."""
    offsets, old_ms = OffsetsLog(log_dir, "__consumer_offsets-0"), now_ms() - OLD_MS
    offsets.empty_since("old-empty", old_ms)
    offsets.consumer_group("old-consumer")
    for group in OLD_GROUPS:
        offsets.committed(group, old_ms)


def with_every_state(log_dir: Path) -> None:
    """The ids are in the states that they have their names of, as far as a log's end can make them."""
    for name, _, state in IDS:
        if state.startswith("prepare"):
            cut_where_prepared(log_dir, name, state)
        elif state == "tombstoned":
            LogFile(log_dir, f"__transaction_state-{partition_of(name)}").record(flexible.i16(0) + text(name), None)
    ends = []
    for directory in sorted(path for path in log_dir.iterdir() if (path / "partition.metadata").exists()):
        topic, _, number = directory.name.rpartition("-")
        held = batches_in(directory)
        ends.append(f"{topic} {number} {held[-1][0].next_offset if held else 0}")
        for path in directory.iterdir():
            if path.suffix not in (".log", ".metadata") and path.name != "leader-epoch-checkpoint":
                path.unlink()
    (log_dir / "replication-offset-checkpoint").write_text("\n".join(["0", str(len(ends)), *ends, ""]))


# Of the second version the first is a part: librdkafka's producers use it, whatever the cluster has.
@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["version-1", "version-2"])
def lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The log directory of one cluster at two moments."""
    root = tmp_path_factory.mktemp("lives")
    broker = KafkaBroker(root / "kafka", root / "broker", properties=SETTINGS)
    broker.format("", "--feature", f"transaction.version={request.param}")
    with broker:
        broker.create_topic("orders", 2)
        first_life(broker)
    shutil.copytree(root / "kafka", root / "first")
    with broker:
        second_life(broker)
        broker.kill()
    return {"first": root / "first", "last": root / "kafka"}


@pytest.mark.xdist_group("archived moments")
@pytest.mark.parametrize(("coordinators", "data"), [("first", "last"), ("last", "first"), ("first", "first")])
def test_whatever_was_archived_first_a_recovered_cluster_goes_on(
    coordinators: str, data: str, lives: Mapping[str, Path], tmp_path: Path
) -> None:
    """coordinators, data: at the end of which life their logs were archived. Groups keep their commits, how old these are does not matter:
    a broker has looked for expired ones."""
    log_dir, store = tmp_path / "kafka", MemoryStore(SystemClock())
    shutil.copytree(lives[coordinators], log_dir)
    with_old_groups(log_dir)
    with_every_state(log_dir)
    for moment in sorted({coordinators, data}):
        topics = [*(COORDINATORS if moment == coordinators else ()), *(("orders",) if moment == data else ())]
        repository = archive(log_dir if moment == coordinators else lives[moment], store, topics)
    plan = recovery.plan(repository, None, recovery.Options())
    assert plan.problems == ()
    recovery.apply(plan, tmp_path / "recovered", store)
    with KafkaBroker(tmp_path / "recovered", tmp_path / "broker", properties=SETTINGS) as broker:
        assert not java_coordinated(broker.bootstrap).transactions
        with RunningKafkaAdmin([BrokerAddress.parse(broker.bootstrap)], load_client_properties(None)) as admin:
            admin.pass_expiry_check(["control"], "orders")
        assert {group: broker.committed(group) for group in OLD_GROUPS} == {key: {("orders", 0): 1} for key in OLD_GROUPS}
        shown = read_at(broker)
        assert shown == committed_after(2 if data == "last" else 1)
        for name, *_ in IDS:
            (offset,) = broker.committed(f"group-{name}").values()  # none is pending: this would wait for it
            has_read = [value for value in shown if value.startswith(f"{name}/") and len(value) == offset]
            assert has_read or any(repr(name) in line for line in plan.torn), (name, offset, plan.torn)
        if coordinators == data:
            assert not plan.torn
        sessions = Sessions(broker)
        for name, client, _ in IDS:
            sessions.transact(name, client, ("commit", f"{name}/again"))
        again = shown | {f"{name}/again" for name, *_ in IDS}
        assert read_at(broker) == again
        broker.stop()
        broker.start()
        assert read_at(broker) == again


def read_at(broker: KafkaBroker) -> set[str]:
    """What readers of committed data get, to the very end: of each transaction all that it wrote, once."""
    wait_for_markers(broker.bootstrap)
    everything, committed = (java_consume(broker.bootstrap, ["orders"], isolation) for isolation in ("read_uncommitted", "read_committed"))
    assert committed.bounds == everything.bounds
    by_partition: Sequence[list[str]] = ([], [])
    for record in committed.records:
        by_partition[record["partition"]].append(record["value"])
    assert sorted(by_partition[0]) == sorted(by_partition[1])
    assert len(set(by_partition[0])) == len(by_partition[0])
    return {b64decode(value).decode() for value in by_partition[0]}
