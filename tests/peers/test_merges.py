"""A real broker's tails are merged on a real S3 server, while librdkafka reads through the gateway and the agent is killed."""

import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from headwater.wiring import open_bucket
from manifests import keys
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, produce
from tests.s3server import S3Server

pytestmark = [pytest.mark.peer, pytest.mark.slow]

TOPIC = "merged.tails"
ROUNDS = 25
MERGES = 'seal_timeout = "1s"\nrescan = "1s"\nmerge_bytes = "64KiB"\nmerge_after = "3s"'


def read_all(bootstrap: str, end: int, *, isolation: str = "read_committed") -> list[tuple[int, bytes]]:
    """Every record up to offset `end` that the gateway serves, with its offset."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer(settings | {"auto.offset.reset": "error", "enable.partition.eof": False})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + 180
        while not found or found[-1][0] < end:
            assert time.monotonic() < deadline, f"{len(found)} records, up to {found[-1:]}"
            for message in consumer.consume(500, 1):
                if message.error():
                    raise KafkaException(message.error())
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                found.append((offset, value))
        return found
    finally:
        consumer.close()


def test_tails_are_merged_while_they_are_read_and_the_agent_is_killed(tmp_path: Path, s3_environ: S3Server) -> None:
    rng, written = random.Random(11), list[bytes]()
    bucket = s3_environ.bucket()
    place = f'url = "s3://{bucket}/merges"\nendpoint_url = "{s3_environ.endpoint_url}"'
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", store=place, archival=MERGES)
    wrong: list[str] = []
    stop = threading.Event()
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        broker.create_topic(TOPIC, 1)
        producer = broker.producer()
        with Agent(headwater) as agent:
            reading = threading.Thread(target=read_on, args=(agent, written, stop, wrong))
            reading.start()
            try:
                write(producer, rng, written, ROUNDS)
            finally:
                stop.set()
                reading.join()
            agent.kill()  # in the middle of whatever it did
            merged = agent.log_text().count("runs_merged")
            agent.output.unlink()
        with Agent(headwater) as agent:
            write(producer, rng, written, 5)
            deadline = time.monotonic() + 180
            while True:
                head, merges = headwater.heads()[TOPIC, 0], merged + agent.log_text().count("runs_merged")
                if head.next_offset == len(written) and len(head.entries) <= 8 and merges:
                    break
                assert time.monotonic() < deadline, [(each.base_offset, each.size_bytes) for each in head.entries]
                time.sleep(0.5)
            assert read_all(agent.address(), len(written) - 1) == list(enumerate(written))
            agent.stop()
    assert not wrong, wrong
    store = open_bucket(headwater.config).store
    held = [info for info in store.list(keys.data_prefix(head.partition_id)) if info.key.endswith(".log")]
    print(f"{len(head.entries)} entries of {len(held)} objects, {merges} merges, {sum(each.size_bytes for each in held)} bytes")


def write(producer: object, rng: random.Random, written: list[bytes], rounds: int) -> None:
    for _ in range(rounds):
        values = [rng.randbytes(rng.randrange(20, 200)) for _ in range(rng.randrange(1, 12))]
        produce(producer, TOPIC, values)  # type: ignore[arg-type]
        written += values
        time.sleep(1.2)


def read_on(agent: Agent, written: list[bytes], stop: threading.Event, wrong: list[str]) -> None:
    """All over again, from the start."""
    address = agent.address()
    while not stop.is_set():
        known = list(written)
        if not known:
            time.sleep(0.2)
            continue
        try:
            if (found := read_all(address, len(known) - 1)[: len(known)]) != list(enumerate(known)):
                wrong.append(f"{len(found)} records, {len(known)} were written")
        except Exception as error:
            wrong.append(repr(error))
