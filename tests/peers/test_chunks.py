"""Topics of a real broker in RocketMQ's layout on a real S3 server: both variants, a restart in between, chunks that become one object, a
consumer that reads all of it from the bucket, and a collection that leaves what entries name."""

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from headwater.cli import run
from headwater.wiring import open_bucket
from headwater_core.layouts import open_layout
from manifests.chunk_keys import CHUNKS
from manifests.head import Head
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, produce
from tests.s3server import S3Server

pytestmark = [pytest.mark.peer, pytest.mark.slow]

APPEND, FIXED = "chunks.append", "chunks.fixed"
SETTINGS = """
seal_timeout = "1s"
rescan = "1s"
merge_after = "2s"
merge_bytes = "4KiB"
reader_lease = "0s"
layout = "chunks"
max_segment_bytes = "128KiB"
[topics."chunks.fixed"]
chunk_variant = "fixed"
chunk_bytes = "32KiB"
"""


def read_all(bootstrap: str, topic: str, end: int) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "error", "enable.partition.eof": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} records of {end}"
            for message in consumer.consume(500, 1):
                if message.error():
                    raise KafkaException(message.error())
                value = message.value()
                assert value is not None
                found.append(value)
        return found
    finally:
        consumer.close()


def keys_of(heads: dict[tuple[str, int], Head]) -> set[str]:
    """Of all that entries need below chunks/."""
    found = set[str]()
    for head in heads.values():
        for entry in head.entries:
            found |= {entry.index_key, *(key for key, _ in open_layout(entry.layout).data_objects(entry))}
    return {key for key in found if key.startswith(CHUNKS)}


def wait_until_archived(headwater: Headwater, written: dict[str, list[bytes]], *, is_consolidated: bool = False) -> None:
    deadline = time.monotonic() + 90
    while True:
        heads = headwater.heads()
        ends = {topic: heads[topic, 0].next_offset for topic in written if (topic, 0) in heads}
        whole = all(any(entry.key.endswith(("/segment", "-seg")) for entry in heads[topic, 0].entries) for topic in ends)
        if ends == {topic: len(values) for topic, values in written.items()} and (whole or not is_consolidated):
            return
        assert time.monotonic() < deadline, {topic: [entry.key for entry in heads[topic, 0].entries] for topic in ends}
        time.sleep(0.3)


def test_both_variants_on_a_real_broker_and_a_real_server(tmp_path: Path, s3_environ: S3Server) -> None:
    rng = random.Random(14)
    bucket = s3_environ.bucket()
    place = f'url = "s3://{bucket}/chunks"\nendpoint_url = "{s3_environ.endpoint_url}"'
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", store=place, archival=SETTINGS)
    written: dict[str, list[bytes]] = {APPEND: [], FIXED: []}
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        for topic in written:
            broker.create_topic(topic, 1)
        producer = broker.producer()

        def write(rounds: int) -> None:
            for _ in range(rounds):
                for topic, values in written.items():
                    more = [rng.randbytes(1_000) for _ in range(60)]
                    produce(producer, topic, more)
                    values += more
                wait_until_archived(headwater, written)

        with Agent(headwater) as agent:
            write(2)
            agent.kill()
            agent.output.unlink()  # it says where the one that is gone was serving
        with Agent(headwater) as agent:
            write(3)
            wait_until_archived(headwater, written, is_consolidated=True)
            for topic, values in written.items():
                assert read_all(agent.address(), topic, len(values)) == values
            agent.stop()
    with headwater.gateway() as address:
        for topic, values in written.items():
            assert read_all(address, topic, len(values)) == values, "from the bucket, without the broker"
    for arguments in (("gc", "--yes"), ("gc", "--yes"), ("verify", "--data")):
        assert run(["--config", str(headwater.file), *arguments]) == 0
    store, heads = open_bucket(headwater.config).store, headwater.heads()
    assert {info.key for info in store.list(CHUNKS)} == keys_of(heads)
    consolidated = {
        topic: [entry.key for entry in heads[topic, 0].entries if entry.key.endswith(("/segment", "-seg"))] for topic in written
    }
    assert all(consolidated.values())
    print({topic: [entry.key.partition("commitLog")[2] for entry in heads[topic, 0].entries] for topic in written})
