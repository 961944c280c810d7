"""Three brokers and three agents: producers with acks=all write through leaders and agents that are killed, restarts, compaction, and a
topic that is deleted and created again. All the while agents merge, trim and collect the archive, and what is archived is deleted at the
brokers, by request or by their own retention. In the end the archive holds every acknowledged record once, and nothing local went before.

CLUSTER_S sets for how long things go wrong (seconds), CLUSTER_SEED which.
"""

import contextlib
import itertools
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from headwater.agent_api import AgentApi, NoAgent
from headwater.pipeline.runner import Threads
from headwater.pipeline.scrub.scrubber import Scrubber, ScrubScope
from headwater.wiring import Bucket, open_bucket
from headwater_core.clock import SystemClock
from headwater_core.errors import Partial, TransientError
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.records import Record, decode_batch
from manifests.head import Head
from tests.peers.agent import Headwater
from tests.peers.cluster import Chaos, Cluster

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.xdist_group("lost")]  # one cluster of three brokers at a time

CLUSTER_S = float(os.environ.get("CLUSTER_S", "15"))
SEED = int(os.environ.get("CLUSTER_SEED", "3"))
PLAIN, COMPACTED, REBORN = "plain.events", "stock.state", "reborn.orders"
SHORT, BRIEF = "short.lived", "brief.audit"  # the archive keeps little of one, the brokers of the other
AWAY = (NoAgent, TransientError, Partial)  # an agent, or the store for one of its partitions
RELEASED = (PLAIN, SHORT, REBORN)
# Who leads, and who does when that one is away: never the broker whose agent cannot ask it to delete, and the other way round at first.
PLACED = [[1, 2, 3], [3, 1, 2]]
BRIEF_MS = 60_000 if CLUSTER_S <= 60 else 90_000  # archiving must not take longer, whatever was killed
CAUGHT_UP_S = 180
SIGNS = {"info runs_merged", "info archive_trimmed", "info segments_released"}
ARCHIVAL = 'gc_interval = "60s"\nreader_lease = "20s"\nsuperseded_retention = "30s"\nmerge_bytes = "64KiB"\nmerge_after = "2s"'
TOPICS = "".join(f'[topics."{topic}"]\nrelease = true\n' + ('retention_bytes = "64KiB"\n' if topic == SHORT else "") for topic in RELEASED)


@dataclass
class Acknowledged:
    """What the brokers have acknowledged: values by partition and offset. `refused`: what they said no to, which may be there or not."""

    values: dict[tuple[str, int], dict[int, tuple[bytes | None, bytes]]] = field(default_factory=lambda: defaultdict(dict))
    refused: Counter[str] = field(default_factory=Counter)

    def heard(self, error: Any, message: Message) -> None:
        if error is not None:
            self.refused[error.name()] += 1
            return
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        key = message.key()
        before = self.values[topic, partition].setdefault(offset, (key if isinstance(key, bytes) else None, value))
        assert before[1] == value, f"{topic}:{partition}@{offset} was acknowledged twice"


class Writer(threading.Thread):
    """Writes to all topics but one, with acks=all, until `stop` is set."""

    def __init__(self, cluster: Cluster, acknowledged: Acknowledged, seed: int) -> None:
        super().__init__(daemon=True)
        self.stop, self.failure = threading.Event(), ""
        self._acknowledged, self._random, self._seed = acknowledged, Random(seed), seed
        self._producer = a_producer(cluster)

    def run(self) -> None:
        try:
            number = 0
            while not self.stop.is_set():
                for _ in range(20):
                    number += 1
                    value = b"%d-%d-" % (self._seed, number) + self._random.randbytes(200)
                    heard = self._acknowledged.heard
                    self._producer.produce(PLAIN, value, partition=self._random.randrange(2), on_delivery=heard)
                    key = b"key-%d" % self._random.randrange(12)
                    self._producer.produce(SHORT, value, partition=self._random.randrange(2), on_delivery=heard)
                    self._producer.produce(COMPACTED, value, key, self._random.randrange(2), on_delivery=heard)
                    if number % 4 == 0:
                        self._producer.produce(BRIEF, value, partition=0, on_delivery=heard)
                self._producer.poll(0)
                self.stop.wait(0.05)
                if len(self._producer) > 2_000:
                    self._producer.flush(1)
            assert self._producer.flush(60) == 0
        except Exception as failure:
            self.failure = repr(failure)


class Collecting(threading.Thread):
    """Asks each agent to collect, one after the other, until `stop` is set: an agent begins by itself ten minutes after its start."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.stop, self.failures, self.deleted_bytes = threading.Event(), list[str](), 0
        self._cluster = cluster

    def run(self) -> None:
        while not self.stop.wait(1):
            for headwater in self._cluster.headwaters:
                with contextlib.suppress(*AWAY):
                    self._collect(headwater)

    def _collect(self, headwater: Headwater) -> None:
        try:
            for row in AgentApi(headwater.config.node.data_dir).rows("/v1/gc", timeout_s=60):
                self.deleted_bytes += row["deleted_bytes"]
        except AWAY:
            raise
        except Exception as failure:
            self.failures.append(repr(failure))


class Watching(threading.Thread):
    """Compares where the logs of released topics begin with what is archived, until `stop` is set. The log comes first: what it has let go
    by then must be in the archive by then, and so it is when that is read."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.stop, self.failures, self.looks = threading.Event(), list[str](), 0
        self._cluster = cluster

    def run(self) -> None:
        places = [TopicPartition(topic, partition) for topic in (PLAIN, SHORT) for partition in range(2)]
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "watching", "log_level": 0})
        while not self.stop.wait(1):
            starts = {}
            for place in places:
                with contextlib.suppress(KafkaException):  # no leader for a moment
                    starts[place.topic, place.partition], _ = consumer.get_watermark_offsets(place, timeout=5)
            try:
                heads = self._cluster.headwaters[0].heads()
            except Exception as failure:
                self.failures.append(repr(failure))
                continue
            archived = {place: heads[place].next_offset if place in heads else 0 for place in starts}
            self.failures += [f"{place} begins at {start}" for place, start in starts.items() if start > archived[place]]
            self.looks += len(starts)
        consumer.close()


def a_producer(cluster: Cluster) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 3_500,  # a batch must fit a segment
            "delivery.timeout.ms": 120_000,
            "log_level": 0,
        }
    )


def create_topics(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.create_topic(PLAIN, 2, PLACED, internal_segment_bytes=16_384)
    broker.create_topic(SHORT, 2, PLACED, internal_segment_bytes=16_384)
    broker.create_topic(BRIEF, 1, 3, internal_segment_bytes=16_384, retention_ms=BRIEF_MS)
    broker.create_topic(
        COMPACTED, 2, 3, internal_segment_bytes=8_192, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=0
    )


def bear(cluster: Cluster, acknowledged: Acknowledged, life: int) -> None:
    """The topic is deleted, if it was there, and created again; what was acknowledged of its former life counts no more."""
    broker = cluster.brokers[0]
    if life:
        admin = broker.admin  # held: its futures die with it
        for future in admin.delete_topics([REBORN]).values():
            future.result(30)
        until_s = time.monotonic() + 60
        while REBORN in broker.topics():
            assert time.monotonic() < until_s
        acknowledged.values.pop((REBORN, 0))
    broker.create_topic(REBORN, 1, 3, internal_segment_bytes=4_096)
    producer = a_producer(cluster)
    for _ in range(10):  # batches, which are some segments together
        for number in range(6):
            producer.produce(REBORN, b"life %d, %100d" % (life, number), partition=0, on_delivery=acknowledged.heard)
        producer.flush(60)


def test_every_acknowledged_record_is_archived_once(tmp_path: Path) -> None:
    random, acknowledged, moments = Random(SEED), Acknowledged(), [time.monotonic()]
    with Cluster(tmp_path, ARCHIVAL, TOPICS) as cluster:
        moments.append(time.monotonic())
        create_topics(cluster)
        bear(cluster, acknowledged, 0)
        writers = [Writer(cluster, acknowledged, seed) for seed in range(2)]
        for writer in writers:
            writer.start()
        collecting, watching = Collecting(cluster), Watching(cluster)
        others: list[Collecting | Watching] = [collecting, watching]
        for other in others:
            other.start()
        chaos, until_s, life = Chaos(cluster, random), time.monotonic() + CLUSTER_S, 0
        actions = [lambda: chaos.kill_leader(PLAIN), chaos.kill_agent, chaos.restart_broker, lambda: chaos.pause(PLAIN), chaos.kill_agent]
        turn = 0
        while turn < len(actions) or time.monotonic() < until_s:
            actions[turn % len(actions)]()
            turn += 1
            if turn % 3 == 2:
                life += 1
                bear(cluster, acknowledged, life)
            assert [writer.failure for writer in writers if writer.failure] == []
        moments.append(time.monotonic())
        for writer in writers:
            writer.stop.set()
            writer.join(120)
            assert not writer.is_alive()
        assert [writer.failure for writer in writers if writer.failure] == []
        cluster.wait_in_sync()
        cluster.wait_for_agents()
        await_archive(cluster)
        await_release(cluster)
        await_signs(cluster, collecting)
        moments.append(time.monotonic())
        for other in others:
            other.stop.set()
            other.join(60)
        for agent in cluster.agents:
            assert agent
            agent.stop()
        local = local_records(cluster)
        bounds = cluster.bounds()
        told = events(cluster)
        moments.append(time.monotonic())
    spent = zip(("to start", "of faults", "until all was archived", "to read"), itertools.pairwise(moments), strict=True)
    print(f"\n{', '.join(f'{end_s - begin_s:.0f} s {what}' for what, (begin_s, end_s) in spent)}")
    print(f"{len(chaos.done)} things went wrong: {', '.join(chaos.done)}; {life} times {REBORN} was created again")
    print(f"{sum(map(len, acknowledged.values.values()))} records were acknowledged, and not {dict(acknowledged.refused)}")
    print("\n".join(f"{count} {kind}" for kind, count in sorted(told.items())))
    assert [each.failures for each in others] == [[], []]
    print(f"{collecting.deleted_bytes} bytes were deleted again; logs begin and end at {bounds}")
    assert watching.looks
    bucket = open_bucket(cluster.headwaters[0].config)
    heads = cluster.headwaters[0].heads()
    check_archive(bucket, heads, acknowledged)
    check_local(bounds, heads, local, acknowledged)
    report = Scrubber(bucket.store, ScrubScope(data=True), SystemClock()).run(Threads(bucket.store, 2))
    assert [finding.row() for finding in report.findings] == []
    assert report.verdict(bucket.store.url) is None
    assert [kind for kind in told if kind.startswith(("error", "critical"))] == []


def await_signs(cluster: Cluster, collecting: Collecting) -> None:
    """Until agents have done what they do in their own time."""
    until_s = time.monotonic() + CAUGHT_UP_S
    while not (collecting.deleted_bytes and events(cluster).keys() >= SIGNS):
        assert time.monotonic() < until_s, (collecting.deleted_bytes, events(cluster))
        time.sleep(1)


def await_archive(cluster: Cluster) -> None:
    """Until the archive has all that is committed."""
    until_s = time.monotonic() + CAUGHT_UP_S
    while True:
        bounds, heads = cluster.bounds(), cluster.headwaters[0].heads()
        lacking = {place: end for place, (_, end) in bounds.items() if place not in heads or heads[place].next_offset < end}
        if not {place for place in lacking if not place[0].startswith("__")}:
            return
        assert time.monotonic() < until_s, f"not archived: {lacking}\n{cluster.log_text()}"
        time.sleep(1)


def await_release(cluster: Cluster) -> None:
    """Until the brokers have deleted something of each topic that lets go there, if only of one partition."""
    until_s = time.monotonic() + CAUGHT_UP_S
    while True:
        bounds = cluster.bounds()
        if {PLAIN, SHORT, BRIEF} <= {topic for (topic, _), (start, _) in bounds.items() if start}:
            return
        assert time.monotonic() < until_s, f"nothing released: {bounds}\n{cluster.log_text()}"
        time.sleep(1)


def local_records(cluster: Cluster) -> dict[tuple[str, int], dict[int, bytes | None]]:
    """What the leaders still have, by partition and offset."""
    found: dict[tuple[str, int], dict[int, bytes | None]] = defaultdict(dict)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "local",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    remaining = {place for place, (start, end) in cluster.bounds().items() if start < end and not place[0].startswith("__")}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in remaining])
    until_s = time.monotonic() + CAUGHT_UP_S
    while remaining:
        assert time.monotonic() < until_s, remaining
        for message in consumer.consume(1000, 1):
            place, error, offset = (message.topic() or "", message.partition() or 0), message.error(), message.offset()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                remaining.discard(place)
                continue
            assert offset is not None
            assert offset not in found[place], (place, offset)
            found[place][offset] = message.value()
    consumer.close()
    return found


def check_archive(bucket: Bucket, heads: dict[tuple[str, int], Head], acknowledged: Acknowledged) -> None:
    """Every acknowledged record is at its offset, once. Of a compacted topic, the newest of each key is; where retention takes the oldest,
    the others are."""
    assert {topic for topic, _ in acknowledged.values} == {PLAIN, COMPACTED, SHORT, BRIEF, REBORN}
    for (topic, partition), written in acknowledged.values.items():
        head = heads[topic, partition]
        assert not [entry for entry in head.entries if entry.gap], (topic, partition)
        found: dict[int, Record] = {}
        for record in archived_records(bucket, head):
            assert record.offset not in found
            assert record.offset > max(found, default=-1)
            found[record.offset] = record
        wanted = written if topic != COMPACTED else newest(written)
        kept = {offset: value for offset, (_, value) in wanted.items() if offset >= head.start_offset}
        assert [offset for offset, value in kept.items() if offset not in found or found[offset].value != value] == [], (topic, partition)
        assert kept
        assert (head.start_offset > 0) <= (topic == SHORT), (topic, head.start_offset)


def check_local(
    bounds: dict[tuple[str, int], tuple[int, int]],
    heads: dict[tuple[str, int], Head],
    local: dict[tuple[str, int], dict[int, bytes | None]],
    acknowledged: Acknowledged,
) -> None:
    """Each acknowledged record that its log has not let go is there, and what the logs have let go is archived: see check_archive."""
    for (topic, partition), written in acknowledged.values.items():
        start, end = bounds[topic, partition]
        head, found = heads[topic, partition], local[topic, partition]
        assert head.start_offset <= start <= head.next_offset <= end, (topic, partition, head.start_offset, start, head.next_offset, end)
        wanted = written if topic != COMPACTED else newest(written)
        kept = {offset: value for offset, (_, value) in wanted.items() if offset >= start}
        assert [offset for offset, value in kept.items() if found.get(offset) != value] == [], (topic, partition)
        assert not start or topic in (*RELEASED, BRIEF), (topic, start)


def newest(written: dict[int, tuple[bytes | None, bytes]]) -> dict[int, tuple[bytes | None, bytes]]:
    last = {key: offset for offset, (key, _) in sorted(written.items())}
    return {offset: written[offset] for offset in last.values()}


def archived_records(bucket: Bucket, head: Head) -> Iterator[Record]:
    for entry in head.entries:
        raw, at = bucket.store.get(entry.key)[0][: entry.live_bytes], 0
        while at < len(raw):
            end = at + read_batch_header(raw, at).size_bytes
            yield from (record for record in decode_batch(raw[at:end]) if record.offset in entry)
            at = end


def events(cluster: Cluster) -> dict[str, int]:
    """How often each event was logged, by its level and name; those of errors with their reason."""
    found: dict[str, int] = defaultdict(int)
    for each in cluster.headwaters:
        for line in each.file.with_name("agent.out").read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):  # the last one may be written now
                event = json.loads(line)
                reason = f": {event.get('reason', '')}" if event["level"] in ("error", "critical") else ""
                found[f"{event['level']} {event['event']}{reason}"] += 1
    return dict(found)
