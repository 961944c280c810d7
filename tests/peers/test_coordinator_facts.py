"""The rules of tests/recovery/coordinator_model.py, by which recoveries are judged, on a real broker: it starts on logs with batches of
ours behind its own, and must make of them what the model makes of them."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException

from headwater_core.segments import flexible
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.markers import ABORT
from headwater_core.segments.records import Record
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.peers.java_client import java_consume, java_coordinated
from tests.peers.kafka import KafkaBroker, commit, free_port, produce
from tests.recovery.coordinator_model import OFFSETS_RETENTION_MS, GroupCoordinator, LeaderLog, Row, TransactionCoordinator
from tests.recovery.transaction_cluster import TWO_PHASE_MS, State, Status
from tests.recovery.written_archive import batches_in, text

pytestmark = pytest.mark.peer

SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.retention.check.interval.ms": 1000,
}
STATUSES = {"Empty": 0, "Ongoing": 1, "PrepareCommit": 2, "PrepareAbort": 3, "CompleteCommit": 4, "CompleteAbort": 5}
COORDINATOR_EPOCH = 1_000_000  # of a coordinator later than any here
SOON_MS = 20_000
PATIENCE_S = 90


class LogFile:
    """A partition's log while no broker runs. What is derived from it goes, so that the broker reads it again."""

    def __init__(self, log_dir: Path, name: str) -> None:
        self._directory = log_dir / name
        for path in (log_dir / ".kafka_cleanshutdown", log_dir / "recovery-point-offset-checkpoint", *self._directory.iterdir()):
            if path.suffix not in (".log", ".metadata") and path.name != "leader-epoch-checkpoint":
                path.unlink(missing_ok=True)
        last = batches_in(self._directory)[-1][0]
        self.end, self._epoch = last.next_offset, last.leader_epoch

    def append(self, raw: bytes) -> None:
        path = max(self._directory.glob("*.log"))
        path.write_bytes(path.read_bytes() + raw)
        self.end += 1

    def record(self, key: bytes, value: bytes | None) -> None:
        self.append(a_batch(self.end, [Record(self.end, now_ms(), key, value, ())], epoch=self._epoch))

    def data(self, producer_id: int, epoch: int) -> None:
        record = Record(self.end, now_ms(), None, b"open", ())
        self.append(a_batch(self.end, [record], epoch=self._epoch, producer=Producer(id=producer_id, epoch=epoch), transactional=True))

    def abort(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        self.append(
            encode_marker(
                self.end,
                ABORT,
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                leader_epoch=self._epoch,
                timestamp_ms=now_ms(),
            )
        )


class OffsetsLog(LogFile):
    """One of __consumer_offsets."""

    def committed(self, group: str, committed_ms: int, expires_ms: int | None = None) -> None:
        key = b"".join((flexible.i16(1), text(group), text("orders"), flexible.i32(0)))
        version = flexible.i16(3 if expires_ms is None else 1)
        epoch = flexible.i32(-1) if expires_ms is None else b""
        expires = b"" if expires_ms is None else flexible.i64(expires_ms)
        self.record(key, version + flexible.i64(1) + epoch + text("") + flexible.i64(committed_ms) + expires)

    def empty_since(self, group: str, since_ms: int) -> None:
        none = flexible.i16(-1)
        head = b"".join((flexible.i16(3), text("consumer"), flexible.i32(3), none, none, flexible.i64(since_ms)))
        self.record(flexible.i16(2) + text(group), head + flexible.i32(0))

    def consumer_group(self, group: str) -> None:
        for kind, value in ((3, flexible.i32(1)), (6, flexible.i32(1))):  # its epoch, and that of its assignment
            self.record(flexible.i16(kind) + text(group), flexible.i16(0) + value + flexible.tags({}))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows(log_dir: Path, name: str) -> list[Row]:
    return [Row.of(*batch) for batch in batches_in(log_dir / name)]


def state(producer_id: int, epoch: int, status: Status, version: int, timeout_ms: int = 1000) -> bytes:
    prepared = State(producer_id, epoch, timeout_ms, version, status, {("orders", 0)}, now_ms() - 5000, now_ms() - 5000)
    return prepared.encode(is_flexible=True)


def test_transactions_end_as_the_model_says(tmp_path: Path) -> None:
    """An open transaction of each id in the log has producer epoch 5."""
    log_dir = tmp_path / "kafka"
    broker = KafkaBroker(log_dir, tmp_path / "work", properties=SETTINGS)
    with broker:
        broker.create_topic("orders")
        produce(broker.producer(), "orders", [b"plain"])
        client = broker.producer(transactional_id="own")
        client.init_transactions(60)
        client.begin_transaction()
        client.produce("orders", b"own")
        client.commit_transaction(60)
    cases = {
        "lower": state(900_001, 4, Status.PREPARE_ABORT, 1),
        "equal-1": state(900_002, 5, Status.PREPARE_COMMIT, 1),
        "equal-2": state(900_003, 5, Status.PREPARE_COMMIT, 2),
        "higher-1": state(900_004, 6, Status.PREPARE_ABORT, 1),
        "higher-2": state(900_005, 6, Status.PREPARE_ABORT, 2),
        "fenced": state(900_006, 6, Status.PREPARE_ABORT, 2),
        "ongoing": state(900_007, 5, Status.ONGOING, 2),
        "two-phase": state(900_008, 5, Status.ONGOING, 2, TWO_PHASE_MS),
        "ended": state(900_009, 5, Status.PREPARE_COMMIT, 2),
        "later": state(900_010, 3, Status.ONGOING, 2),
        "tombstoned": state(900_011, 5, Status.ONGOING, 2),
    }
    orders, states = LogFile(log_dir, "orders-0"), LogFile(log_dir, "__transaction_state-0")
    for number, (name, value) in enumerate(cases.items(), 900_001):
        if name == "fenced":
            orders.data(number, 5)
            orders.abort(number, 5, COORDINATOR_EPOCH)
        orders.data(number, 5)
        if name in ("ended", "tombstoned"):
            orders.abort(number, 5 + (name == "tombstoned"), 0)
        states.record(flexible.i16(0) + text(name), value)
    states.record(flexible.i16(0) + text("tombstoned"), None)
    log = LeaderLog(rows(log_dir, "orders-0"), 0)
    model = TransactionCoordinator({("orders", 0): log}, 0)
    model.load(batches_in(log_dir / "__transaction_state-0"), 2)
    model.run(now_ms())
    expected = {name: int(found.status) for name, found in model.states.items() if name in cases}
    assert len({*expected.values()}) > 4
    with broker:
        wait_for_states(broker, expected)
        bounds = java_consume(broker.bootstrap, ["orders"], "read_committed").bounds
        assert bounds["orders", 0][1] == log.last_stable_offset
        for name, is_free in {"tombstoned": True, "higher-2": True, "equal-1": True, "ongoing": True, "lower": False}.items():
            session = broker.producer(transactional_id=name)
            if is_free:
                session.init_transactions(60)
            else:
                with pytest.raises(KafkaException):
                    session.init_transactions(5)
        ids = {line["transactional_id"]: line["producer_id"] for line in java_coordinated(broker.bootstrap).transactions}
        assert ids["tombstoned"] not in range(900_001, 900_100)
        assert ids["higher-2"] == 900_005


def wait_for_states(broker: KafkaBroker, expected: Mapping[str, int]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        lines = java_coordinated(broker.bootstrap).transactions
        found = {line["transactional_id"]: STATUSES[line["state"]] for line in lines if line["transactional_id"] in expected}
        if found == expected:
            return
        assert time.monotonic() < until_s, {
            name: (found.get(name), status) for name, status in expected.items() if found.get(name) != status
        }
        time.sleep(0.5)


def test_a_surviving_producer_of_a_tombstoned_id_is_refused(tmp_path: Path) -> None:
    log_dir, ports = tmp_path / "kafka", (free_port(), free_port())
    broker = KafkaBroker(log_dir, tmp_path / "work", properties=SETTINGS, ports=ports)
    with broker:
        broker.create_topic("orders")
        survivor = broker.producer(transactional_id="survivor", transaction_timeout_ms=600_000)
        survivor.init_transactions(60)
        survivor.begin_transaction()
        survivor.produce("orders", b"first half")
        survivor.flush(60)
    header = batches_in(log_dir / "orders-0")[-1][0]
    LogFile(log_dir, "orders-0").abort(header.producer_id, header.producer_epoch + 1, 0)
    LogFile(log_dir, "__transaction_state-0").record(flexible.i16(0) + text("survivor"), None)
    with broker:
        survivor.produce("orders", b"second half")
        with pytest.raises(KafkaException):
            survivor.commit_transaction(60)
        read = java_consume(broker.bootstrap, ["orders"], "read_committed")
        assert (read.records, read.bounds["orders", 0][1]) == ([], 2)


def test_committed_offsets_expire_as_the_model_says(tmp_path: Path) -> None:
    log_dir = tmp_path / "kafka"
    broker = KafkaBroker(log_dir, tmp_path / "work", properties=SETTINGS)
    with broker:
        broker.create_topic("orders")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "own", "enable.auto.commit": False})
        commit(consumer, "orders", {0: 0})
        consumer.close()
    new, old = now_ms(), now_ms() - OFFSETS_RETENTION_MS - 60_000
    offsets = OffsetsLog(log_dir, "__consumer_offsets-0")
    offsets.committed("simple-old", old)
    offsets.committed("simple-new", new)
    for group, since_ms, committed_ms in (("empty-old", old, new), ("empty-new", new, old), ("empty-unknown", -1, old)):
        offsets.empty_since(group, since_ms)
        offsets.committed(group, committed_ms)
    for group, committed_ms in (("consumer-old", old), ("consumer-new", new)):
        offsets.consumer_group(group)
        offsets.committed(group, committed_ms)
    offsets.committed("expires-past", new, new - 1000)
    offsets.committed("expires-never", old, -1)
    offsets.committed("expires-later", old, new + 3_600_000)
    offsets.committed("expires-soon", new, new + SOON_MS)  # once it is gone, the others have been checked several times
    model = GroupCoordinator()
    model.load(batches_in(log_dir / "__consumer_offsets-0"))
    loaded = {key.group for key in model.commits}
    model.expire(new + SOON_MS)
    kept = {key.group for key in model.commits}
    assert len(loaded - kept) > 3
    assert len(kept) > 3
    with broker:
        until_s = time.monotonic() + PATIENCE_S
        while (found := {group for group in loaded if broker.committed(group)}) != kept:
            assert time.monotonic() < until_s, (found, kept)
            time.sleep(0.5)
