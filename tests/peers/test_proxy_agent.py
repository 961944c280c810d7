"""The agent as a proxy before its broker, as its users have it: brokers lose what is old, clients do not notice."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.peers.agent import OFTEN, Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port, produce

pytestmark = pytest.mark.peer
TOPIC = "orders"
SMALL = {"internal_segment_bytes": 4096}


def consumer(address: str, group: str, **settings: str | int) -> Consumer:
    found = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings}
    )
    found.subscribe([TOPIC])
    return found


def read(consumer: Consumer, count: int, patience_s: float = 60) -> list[tuple[int, int, bytes | None]]:
    """So many records, of which the last is committed."""
    found: list[tuple[int, int, bytes | None]] = []
    until_s = time.monotonic() + patience_s
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records"
        if (message := consumer.poll(1.0)) is None:
            continue
        assert message.error() is None, message.error()
        found.append((message.partition() or 0, message.offset() or 0, message.value()))
    consumer.commit(asynchronous=False)
    return found


def test_a_group_reads_from_the_bucket_to_the_live_end_and_over_a_restart_of_its_proxy(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker")
    listen, port = free_port(), free_port()
    headwater = Headwater(
        tmp_path / "headwater",
        tmp_path / "kafka",
        archival=OFTEN,
        gateway=f'upstream = {json.dumps(broker.bootstrap)}\nupstream_port_map = "1:{port}"',
    )
    headwater.file.write_text(headwater.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{listen}"))
    address = f"127.0.0.1:{listen}"
    with broker:
        broker.create_topic(TOPIC, 1, **SMALL)
        producer = broker.producer()
        values = [b"%d-" % at + b"x" * 400 for at in range(100)]
        produce(producer, TOPIC, values)
        with Agent(headwater) as agent:
            assert agent.address() == address
            agent.caught_up({(TOPIC, 0): 100})
            admin = broker.admin  # held: its futures die with it
            deleted = admin.delete_records([TopicPartition(TOPIC, 0, 60)])
            assert next(iter(deleted.values())).result(30).low_watermark == 60
            with_group = consumer(address, "readers")
            assert read(with_group, 40) == [(0, at, values[at]) for at in range(40)]
            agent.stop()
        with Agent(headwater) as agent:
            agent.address()
            through_proxy = broker_of(address)
            more = [b"%d-more" % at for at in range(100, 110)]
            produce(through_proxy, TOPIC, more)
            wanted = [(0, at, value) for at, value in enumerate(values + more)]
            assert read(with_group, 70) == wanted[40:]
            with_group.close()
            assert read(consumer(address, "others"), 110) == wanted
            agent.stop()
    assert "Traceback" not in agent.log_text()


def broker_of(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "enable.idempotence": True})
