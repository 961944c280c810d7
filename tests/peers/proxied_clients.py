"""A reader and a writer in processes of their own, which know the addresses of proxies alone. Each prints what it has, in JSON lines.

read   a member of a group from the earliest offset on, records of committed transactions, committed after each
write  plain records and transactions, of which some are aborted: what was acknowledged, by the offsets that the brokers have told
"""

import json
import sys
import time
from contextlib import suppress
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

WAIT_S = 30.0


def told(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def read(settings: dict[str, Any], topics: list[str]) -> None:
    consumer = Consumer(
        {
            **settings,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 45_000,
            "fetch.wait.max.ms": 200,
        }
    )
    consumer.subscribe(topics)
    while True:
        messages = consumer.consume(500, 0.5)
        for message in messages:
            if (error := message.error()) is not None:
                told(error=error.name(), text=error.str())
                continue
            value = message.value()
            assert isinstance(value, bytes)
            told(topic=message.topic(), partition=message.partition(), offset=message.offset(), value=value.decode())
        if messages:
            commit(consumer, messages)


def commit(consumer: Consumer, messages: list[Message]) -> None:
    ends = {(message.topic(), message.partition()): message.offset() or 0 for message in messages if message.error() is None}
    offsets = [TopicPartition(topic or "", partition or 0, offset + 1) for (topic, partition), offset in ends.items()]
    until_s = time.monotonic() + WAIT_S
    while offsets:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if time.monotonic() > until_s:
                raise
            told(retried=error.args[0].name())
            consumer.poll(0.0) if error.args[0].code() == KafkaError._NO_OFFSET else time.sleep(0.2)
        else:
            return


def write(settings: dict[str, Any], topics: list[str]) -> None:
    random, number = Random(1), 0
    plain = Producer({**settings, "enable.idempotence": True, "delivery.timeout.ms": 120_000})
    paid = a_transactional(settings)
    while True:
        for _ in range(10):
            number += 1
            plain.produce(topics[0], f"{number} ".encode() + b"x" * 300, partition=random.randrange(2), on_delivery=delivered)
        plain.poll(0)
        is_committed = random.random() < 0.7
        acknowledged: list[Message] = []

        def heard(error: KafkaError | None, message: Message, acknowledged: list[Message] = acknowledged) -> None:
            if error is None:
                acknowledged.append(message)

        try:
            paid.begin_transaction()
            for _ in range(random.randrange(1, 6)):
                number += 1
                fate = "committed" if is_committed else "aborted"
                value = f"{number} {fate} ".encode() + b"x" * 300
                paid.produce(topics[1], value, partition=random.randrange(2), on_delivery=heard)
            paid.commit_transaction(WAIT_S) if is_committed else paid.abort_transaction(WAIT_S)
        except KafkaException as error:
            told(failed=error.args[0].name())
            if error.args[0].fatal():
                paid = a_transactional(settings)
                continue
            with suppress(KafkaException):  # its outcome is not known: the next one finds out
                paid.abort_transaction(WAIT_S)
            continue
        for message in acknowledged if is_committed else ():
            delivered(None, message)


def a_transactional(settings: dict[str, Any]) -> Producer:
    until_s = time.monotonic() + 4 * WAIT_S
    while True:
        made = Producer({**settings, "transactional.id": "writer", "transaction.timeout.ms": 60_000, "delivery.timeout.ms": 50_000})
        try:
            made.init_transactions(WAIT_S)
        except KafkaException as error:
            told(failed=error.args[0].name())
            if time.monotonic() > until_s:
                raise
        else:
            return made


def delivered(error: KafkaError | None, message: Message) -> None:
    value = message.value()
    assert isinstance(value, bytes)
    if error is None:
        told(topic=message.topic(), partition=message.partition(), offset=message.offset(), value=value.decode())
    else:
        told(failed=error.name())


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](json.loads(sys.argv[2]), sys.argv[3:])
