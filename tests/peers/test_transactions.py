"""Transactions as a real broker writes them, while the agent archives tails every few seconds: no reader through the port sees an
aborted record, misses a committed one, or sees one twice.

SOAK_S sets for how long writers write (seconds).
"""

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker

pytestmark = [pytest.mark.peer, pytest.mark.slow]

WRITE_S = float(os.environ.get("SOAK_S", "40"))
PATIENCE_S = 60
LOCAL, OFFLOADED = "paid.local", "paid.offloaded"  # by read priority: the broker's log first, or the archive first
PLACES = [(LOCAL, 0), (OFFLOADED, 0)]
Log = dict[tuple[str, int], dict[int, bytes]]  # what was read or written, by offset


class Writer(threading.Thread):
    """Transactions over all places, of one to six records with pauses in between; two in five abort."""

    def __init__(self, broker: KafkaBroker, name: str, end_s: float) -> None:
        super().__init__(name=name)
        self.committed: Log = defaultdict(dict)
        self.aborted = 0
        self.failure: Exception | None = None
        self._producer: Producer = broker.producer(transactional_id=name)
        self._random, self._end_s, self._pause = random.Random(name), end_s, threading.Event()

    def run(self) -> None:
        try:
            self._producer.init_transactions(30)
            number = 0
            while time.monotonic() < self._end_s:
                self._transaction(number, commits=self._random.random() < 0.6)
                number += 1
        except Exception as failure:
            self.failure = failure

    def _transaction(self, number: int, *, commits: bool) -> None:
        written: Log = defaultdict(dict)
        self._producer.begin_transaction()
        for at in range(self._random.randint(1, 6)):
            topic, partition = self._random.choice(PLACES)
            value = f"{self.name} {number} {at} {'paid' if commits else 'void'} ".encode() + b"." * self._random.randrange(3_000)

            def delivered(error: object, message: object, value: bytes = value) -> None:
                assert error is None, error
                written[message.topic(), message.partition()][message.offset()] = value  # type: ignore[attr-defined]

            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
            if self._producer.flush(30):
                raise AssertionError("not delivered within 30 s")
            self._pause.wait(self._random.uniform(0, 0.4))
        if not commits:
            self._producer.abort_transaction(30)
            self.aborted += 1
            return
        self._producer.commit_transaction(30)
        for place, records in written.items():
            self.committed[place].update(records)


class Reader(threading.Thread):
    """read_committed from offset 0 on through the port: once, tailing, or from the start again whenever the end is reached."""

    def __init__(self, address: str, *, tails: bool) -> None:
        super().__init__()
        self.scans: list[Log] = [defaultdict(dict)]
        self.failure: Exception | None = None
        self.stop = threading.Event()
        self._address, self._tails = address, tails

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._scan(self.scans[-1])
                if not self._tails:
                    self.scans.append(defaultdict(dict))
        except Exception as failure:
            self.failure = failure

    def _scan(self, into: Log) -> None:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": self._address,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in PLACES])
            ended: set[tuple[str, int]] = set()
            while not self.stop.is_set() and (self._tails or len(ended) < len(PLACES)):
                message = consumer.poll(0.2)
                if message is None:
                    continue
                topic, partition, error = message.topic(), message.partition(), message.error()
                assert topic is not None
                assert partition is not None
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add((topic, partition))
                    continue
                seen, offset = into[topic, partition], message.offset()
                assert offset is not None
                assert not seen or offset > max(reversed(seen)), f"{topic}:{partition}: {offset} after {max(reversed(seen))}"
                seen[offset] = message.value() or b""
        finally:
            consumer.close()


def missing(read: Log, committed: Log) -> list[str]:
    """What a scan of everything lacks."""
    return [
        f"{place} {offset}: {committed[place][offset][:60]!r}"
        for place in PLACES
        for offset in committed[place].keys() - read[place].keys()
    ]


def wrong(read: Log, committed: Log) -> list[str]:
    """What a scan shows that it should not, and what it lacks up to where it got."""
    found = []
    for place in PLACES:
        got, wanted = read[place], committed[place]
        end = max(got, default=-1)
        found += [f"{place} {offset}: {value[:60]!r} is not committed" for offset, value in got.items() if wanted.get(offset) != value]
        found += [f"{place} {offset}: {value[:60]!r} is missing" for offset, value in wanted.items() if offset <= end and offset not in got]
    return found


def test_no_reader_sees_an_aborted_record_or_misses_a_committed_one(tmp_path: Path) -> None:
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka")
    headwater.file.write_text(headwater.file.read_text() + f'[topics."{OFFLOADED}"]\nread_priority = "offloaded-first"\n')
    properties = {"replica.high.watermark.checkpoint.interval.ms": 5_000}  # Kafka's own default
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=properties) as broker:
        for topic in (LOCAL, OFFLOADED):
            broker.create_topic(topic, 1, internal_segment_bytes=8_192)
        with Agent(headwater) as agent:
            address = agent.address()
            end_s = time.monotonic() + WRITE_S
            writers = [Writer(broker, name, end_s) for name in ("till-1", "till-2")]
            readers = [Reader(address, tails=True), Reader(address, tails=False)]
            for thread in (*writers, *readers):
                thread.start()
            for writer in writers:
                writer.join()
            committed: Log = {place: {**writers[0].committed[place], **writers[1].committed[place]} for place in PLACES}
            tail, again = readers
            deadline = time.monotonic() + PATIENCE_S
            while tail.is_alive() and time.monotonic() < deadline and missing(tail.scans[0], committed):
                tail.join(0.5)
            for reader in readers:
                reader.stop.set()
                reader.join()
            agent.stop()
    failures = [writer.failure for writer in writers] + [reader.failure for reader in readers]
    assert failures == [None] * 4, agent.log_text()[-3000:]
    scans = again.scans[:-1]
    assert [line for scan in (*tail.scans, *scans) for line in wrong(scan, committed)] == []
    assert missing(tail.scans[0], committed) == []
    assert len(scans) > 3
    assert all(writer.aborted > 3 for writer in writers)
    assert all(len(head.entries) > 3 for place, head in headwater.heads().items() if place in PLACES)
