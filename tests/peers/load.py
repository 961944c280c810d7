"""What a cluster does until it is lost: python -m tests.peers.load BOOTSTRAP LIFE

A transactional producer for each partition of a topic, a producer of plain records, a classic and a KIP-848 group that commit. Each record
that a group reads is a line GROUP PARTITION OFFSET. When its input ends, producers end what they have begun, groups read what there is, and
it ends. Load.java is its counterpart in Java.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

TRANSACTIONAL, SHARED, COUNTED = "orders", "soup", "in"
PARTITIONS = {TRANSACTIONAL: 3, SHARED: 2, COUNTED: 2}
GROUPS = {"cooks": "classic", "guests": "consumer"}
KEYS = [b"soup", b"salad", b"stew", b"bread", b"tea"]
PATIENCE_S = 120
EXPELLED = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
)


def delivered(error: KafkaError | None, message: Message) -> None:
    assert error is None, f"{message.topic()}: {error}"


class Load:
    """ends: how far groups read, once everything is written"""

    def __init__(self, bootstrap: str, life: str) -> None:
        self._common: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._life, self._stop = life, threading.Event()
        self._ends: dict[int, int] | None = None

    def run(self) -> None:
        writers = [self._start(self._transact, f"rdkafka-{own}", str(own)) for own in range(PARTITIONS[TRANSACTIONAL])]
        writers.append(self._start(self._write))
        readers = [self._start(self._read, group, protocol) for group, protocol in GROUPS.items()]
        sys.stdin.read()
        self._stop.set()
        for writer in writers:
            writer.join()
        consumer = Consumer({**self._common, "group.id": "ends"})
        places = {number: TopicPartition(SHARED, number) for number in range(PARTITIONS[SHARED])}
        self._ends = {number: consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1] for number, place in places.items()}
        for reader in readers:
            reader.join()

    def _start(self, work: Callable[..., None], *arguments: str) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _transact(self, name: str, own: str) -> None:
        """Transactions over its own partition and others, some with an offset of its group. A value is ID/LIFE/NUMBER/SIZE/AT/END."""
        random, number = Random(name + self._life), 0
        producer = Producer({**self._common, "transactional.id": name, "transaction.timeout.ms": 900_000, "linger.ms": 0})
        group = Consumer({**self._common, "group.id": f"group-{name}"}).consumer_group_metadata()
        producer.init_transactions(PATIENCE_S)
        while not self._stop.is_set():
            size, end = random.randint(1, 4), "commit" if random.random() < 0.75 else "abort"
            producer.begin_transaction()
            for at in range(size):
                value = "/".join((name, self._life, str(number), str(size), str(at), end))
                partition = random.randrange(PARTITIONS[TRANSACTIONAL]) if at else int(own)
                producer.produce(TRANSACTIONAL, value, partition=partition, on_delivery=delivered)
                assert producer.flush(PATIENCE_S) == 0
                self._stop.wait(random.uniform(0, 0.08))
            if random.random() < 0.5:
                producer.send_offsets_to_transaction([TopicPartition(TRANSACTIONAL, int(own), number)], group, PATIENCE_S)
            if end == "commit":
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
            number += 1

    def _write(self) -> None:
        """Plain records for groups and for what counts them."""
        producer, number = Producer({**self._common, "enable.idempotence": True, "linger.ms": 0}), 0
        while not (self._stop.is_set() and number):
            for key in KEYS:
                producer.produce(COUNTED, b"%d" % number, key, KEYS.index(key) % PARTITIONS[COUNTED], on_delivery=delivered)
            for partition in range(PARTITIONS[SHARED]):
                producer.produce(SHARED, f"{self._life}/{number}", partition=partition, on_delivery=delivered)
            assert producer.flush(PATIENCE_S) == 0
            self._stop.wait(0.2)
            number += 1

    def _read(self, group: str, protocol: str) -> None:
        settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "group.id": group, "group.protocol": protocol}
        if protocol == "classic":
            settings["session.timeout.ms"] = 6_000
        consumer = Consumer({**self._common, **settings})
        consumer.subscribe([SHARED])
        following: dict[int, int] = {}
        while self._ends is None or any(following.get(partition, -1) < end for partition, end in self._ends.items()):
            messages = consumer.consume(10, 0.2)
            for message in messages:
                error, partition, offset = message.error(), message.partition(), message.offset()
                assert error is None, error
                assert partition is not None
                assert offset is not None
                os.write(1, f"{group} {partition} {offset}\n".encode())  # at once: threads of both groups write
                following[partition] = offset + 1
            if messages:
                try:
                    consumer.commit(offsets=[TopicPartition(SHARED, *each) for each in following.items()], asynchronous=False)
                except KafkaException as refused:  # it was silent for too long, joins again, and reads again what it had not committed
                    if refused.args[0].code() not in EXPELLED:
                        raise
        consumer.close()


if __name__ == "__main__":
    Load(*sys.argv[1:]).run()
