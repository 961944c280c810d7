"""A live broker with streaming topics, a producer that never rests, and a consumer that reads all of it from the bucket meanwhile, while
the agent is killed every few seconds, or stopped: every record once, in order.

LIVES_S sets for how long that goes on (seconds).
"""

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headwater_core.layouts.streaming.stream_objects import PART_BYTES
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker
from tests.s3server import S3Server

pytestmark = [pytest.mark.peer, pytest.mark.slow]

LIVES_S = float(os.environ.get("LIVES_S", "12"))
SEED = int(os.environ.get("LIVES_SEED", "1"))
LIVES = 3  # at least, however slow the machine
PATIENCE_S = 90.0
LIFE_S = (0.5, 4.0)  # of an agent, from when it serves
FAST, SLOW = "fast.events", "slow.events"
VALUE_BYTES = {FAST: 4096, SLOW: 160}
PARTITIONS = {FAST: 1, SLOW: 2}
EACH_TURN = {FAST: 10, SLOW: 1}  # records of each partition
TURN_S = 0.02
Place = tuple[str, int]
PLACES: tuple[Place, ...] = tuple((topic, partition) for topic, count in PARTITIONS.items() for partition in range(count))
SETTINGS = f"""
[topics."*.events"]
offload = "streaming"
max_segment_age = "2s"
[topics."{FAST}"]
max_segment_age = "6s"
max_segment_bytes = "6MiB"
"""  # so that the fast one's are closed by size, in two parts and of several local segments; the others by age
CHUNKS = """
[topics."*"]
layout = "chunks"
chunk_variant = "{}"
chunk_bytes = "256KiB"
chunk_commit_bytes = "2MiB"
chunk_commit_age = "600ms"
"""


def value_of(topic: str, number: int) -> bytes:
    return number.to_bytes(8, "big") * (VALUE_BYTES[topic] // 8)


class Writer(threading.Thread):
    """Writes to every partition, until `stop` is set. A record's number is its offset.

    ends  the next offset of each partition, once it has ended
    """

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(daemon=True)
        self.ends, self.stop, self.failures = Counter[Place](), threading.Event(), list[str]()
        self._producer = broker.producer(acks="all", linger_ms=5, enable_idempotence="true")

    def run(self) -> None:
        begun_s = time.monotonic()
        turn = 0
        while not self.stop.is_set():
            turn += 1
            for topic, partition in PLACES:
                for _ in range(EACH_TURN[topic]):
                    number = self.ends[topic, partition]
                    self._producer.produce(topic, value_of(topic, number), partition=partition, on_delivery=self._delivered)
                    self.ends[topic, partition] += 1
            self._producer.poll(0)
            self.stop.wait(max(0.0, begun_s + turn * TURN_S - time.monotonic()))
        if self._producer.flush(30):
            self.failures.append("not delivered within 30 s")

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))


class Reader(threading.Thread):
    """Reads every partition from its beginning, at `bootstrap`, until `stop` is set.

    ends  the offset after what it has read of each partition
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.ends, self.stop, self.failures = Counter[Place](), threading.Event(), list[str]()
        self._address = bootstrap

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "follower",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "topic.metadata.propagation.max.ms": 300_000,  # there may be no archive for a while
                "check.crcs": True,
                "log_level": 2,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in PLACES])
            while not self.stop.is_set() and not self.failures:
                for message in consumer.consume(500, 0.2):
                    place = str(message.topic()), int(message.partition() or 0)
                    number = self.ends[place]
                    if (error := message.error()) is not None:
                        self.failures.append(f"{place} at {number}: {error}")
                    elif message.offset() != number or message.value() != value_of(place[0], number):
                        self.failures.append(f"{place}: offset {message.offset()} of {(message.value() or b'')[:8]!r} after {number - 1}")
                    else:
                        self.ends[place] += 1
        finally:
            consumer.close()


@contextmanager
def at_work(thread: Writer | Reader) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.stop.set()
        thread.join()


def wait(holds: Callable[[], object], agent: Agent, what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert not agent.has_ended(), agent.log_text()[-4000:]
        assert time.monotonic() < until_s, f"{what}\n{agent.log_text()[-6000:]}"
        time.sleep(0.1)


def has_read(reader: Reader) -> bool:
    """Something of each partition?"""
    return all(reader.ends[place] for place in PLACES)


def open_uploads(server: S3Server, bucket: str, but: Set[str] = frozenset()) -> set[str]:
    """Uploads in parts that are neither completed nor aborted, of agents that died and of the present one; except these."""
    with closing(server.client()) as client:
        return {each["UploadId"] for each in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())} - but


def serves(agent: Agent, lives: int) -> None:
    """All lives write into one file."""
    wait(lambda: len(re.findall("^serving on", agent.log_text(), re.MULTILINE)) == lives, agent, f"life {lives}")


@pytest.mark.parametrize("kind", ["streaming", "append", pytest.param("fixed", marks=pytest.mark.long)])
def test_every_record_is_read_once_from_the_bucket_while_the_agent_that_streams_it_dies_again_and_again(
    tmp_path: Path, s3_environ: S3Server, kind: str
) -> None:
    rng, bucket = random.Random(SEED), s3_environ.bucket()
    store = f'url = "s3://{bucket}/archive"\nendpoint_url = "{s3_environ.endpoint_url}"'
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker, ExitStack() as stack:
        for topic, partitions in PARTITIONS.items():
            broker.create_topic(topic, partitions, internal_segment_bytes=VALUE_BYTES[topic] << 9)
        asks = f'bootstrap_servers = "{broker.bootstrap}"'
        headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", store=store, archival='rescan = "1s"', log=asks)
        in_chunks = "" if kind == "streaming" else CHUNKS.format(kind)
        headwater.file.write_text(headwater.file.read_text() + SETTINGS + in_chunks)
        writer, reader, lives, cut_short, begun_s = Writer(broker), None, 0, set[str](), time.monotonic()
        stack.enter_context(at_work(writer))

        def has_enough(read: Reader) -> bool:
            """On a busy machine few lives are long enough for an object: then there are more of them."""
            passed_s = time.monotonic() - begun_s
            return lives >= LIVES and passed_s >= LIVES_S and (has_read(read) or passed_s >= LIVES_S + PATIENCE_S)

        while reader is None or not has_enough(reader):
            lives += 1
            with Agent(headwater) as agent:
                serves(agent, lives)
                if reader is None:  # from now on there is an archive
                    reader = Reader(stack.enter_context(Headwater(tmp_path / "reader", None, store=store).gateway()))
                    stack.enter_context(at_work(reader))
                writer.stop.wait(rng.uniform(*LIFE_S))
                assert not agent.has_ended(), agent.log_text()[-4000:]
                if lives % 2 and not in_chunks:
                    wait(partial(open_uploads, s3_environ, bucket, but=frozenset(cut_short)), agent, "an object that is written in parts")
                if lives == LIVES:
                    wait(partial(has_read, reader), agent, "something of each partition is listed, and read")
                if lives % 3:
                    agent.kill()
                    time.sleep(0.5)  # the server may still be at work on what was requested last
                    cut_short |= open_uploads(s3_environ, bucket)
                else:
                    agent.stop()
                    assert not open_uploads(s3_environ, bucket, but=cut_short), "what was open is dropped"
        meanwhile = {place: reader.ends[place] for place in PLACES}
        with Agent(headwater) as agent:
            writer.stop.set()
            writer.join()
            agent.caught_up(dict(writer.ends), patience_s=180)
            wait(lambda: reader.ends == writer.ends or reader.failures, agent, f"{reader.ends} was read")
            agent.stop()
        assert (reader.failures, writer.failures) == ([], [])
        assert reader.ends == writer.ends
        assert all(meanwhile.values()), meanwhile
        agent.verb("verify", "--data")
    print(
        f"\n{lives} lives, a third of them stopped in order; {len(cut_short)} uploads were cut short; "
        f"read meanwhile {meanwhile} of {dict(writer.ends)}"
    )
    heads, layout = headwater.heads(), "chunks" if in_chunks else "streaming"
    for place, head in heads.items():
        ends = [0, *(entry.next_offset for entry in head.entries)]
        assert [(entry.base_offset, entry.layout, entry.gap) for entry in head.entries] == [(end, layout, False) for end in ends[:-1]]
        print(f"{place}: {len(head.entries)} entries, {sum(each.size_bytes for each in head.entries)} bytes")
    if not in_chunks:
        assert max(entry.size_bytes for entry in heads[FAST, 0].entries) > PART_BYTES
    else:
        assert max(int(entry.context.get("chunk", entry.size_bytes >> 18)) for entry in heads[FAST, 0].entries) > 1, "of several chunks"
