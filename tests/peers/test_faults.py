"""A real S3 server behind a network that loses, delays, cuts and holds up three requests in ten: the agent archives its backlog all the
same, each run once, and releases what is archived; its readers get the right bytes or an error that clients retry.

FAULTS_S sets for how long the network is bad (seconds).
"""

import json
import os
import random
import re
import threading
import time
from bisect import bisect
from collections import Counter, defaultdict, deque
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headwater.gateway.protocol import Code
from headwater_core.epochs import EpochHistory
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.partition import PartitionId, TopicPartition, topic_id_text
from headwater_core.segments import checkpoints
from hydration.views import MISS_AGE_S
from manifests.repository import ManifestRepository, Versioned
from manifests.topic_survey import survey_topics
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater_core.objectstore.badnetwork import BadNetwork, bad_network
from tests.headwater_core.segments.builders import a_batch
from tests.peers.agent import Agent, Headwater
from tests.peers.random_faults import RandomFaults
from tests.s3server import S3Server

pytestmark = pytest.mark.peer

FAULTS_S = float(os.environ.get("FAULTS_S", "10"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))
RATE = 0.3
HANG_S = 40.0 if FAULTS_S > 60 else 3.0  # in the long run beyond the store's time-outs
DRAINED_S = 150.0
ANSWERED_S = 25.0  # the gateway's own patience and then some, on a busy machine
TURN_S = 0.5
RECORDS, VALUE_BYTES = 4, 1500
BATCHES = 10  # in a segment
LARGE_BYTES = 70 << 20  # in three parts
SMALL, LARGE = "small", "large"
PARTITIONS = 6
SEGMENTS = int(4 + FAULTS_S / 2)  # of each; more than can be archived while the network is bad
CLUSTER, PREFIX = "faults-1", "archive"
RETRIABLE = {Code.KAFKA_STORAGE_ERROR, Code.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(frozen=True, slots=True)
class Log:
    """One partition as its broker wrote it: whole batches of RECORDS records each."""

    content: bytes
    positions: list[int]

    @property
    def end(self) -> int:
        return len(self.positions) * RECORDS

    def agrees(self, offset: int, records: bytes) -> bool:
        """Whether `records` begin with the batch that holds `offset` and are the log's own bytes."""
        return bool(records) and self.content.startswith(records, self.positions[offset // RECORDS])


Logs = dict[TopicPartition, Log]


def write_logs(root: Path) -> Logs:
    logs = {}
    for topic, partitions, segments, batches, value_bytes in (
        (SMALL, PARTITIONS, SEGMENTS, BATCHES, VALUE_BYTES),
        (LARGE, 1, 1, LARGE_BYTES // (1 << 20), (1 << 20) // RECORDS),
    ):
        for partition in range(partitions):
            logs[TopicPartition(topic, partition)] = _write_log(root / f"{topic}-{partition}", segments, batches, value_bytes)
    identity = checkpoints.MetaProperties(cluster_id=CLUSTER, node_id=1)
    (root / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(identity))
    ends = {place: log.end for place, log in logs.items()}
    (root / checkpoints.HIGH_WATERMARKS).write_bytes(checkpoints.encode_offsets(ends))
    return logs


def _write_log(directory: Path, segments: int, batches: int, value_bytes: int) -> Log:
    """Full segments, and a last one that is as long and still open."""
    directory.mkdir(parents=True)
    draw = random.Random(directory.name)
    content, positions = bytearray(), list[int]()
    for _ in range(segments + 1):
        at, base = len(content), len(positions) * RECORDS
        for _ in range(batches):
            positions.append(len(content))
            content += a_batch(len(positions) * RECORDS - RECORDS, [draw.randbytes(value_bytes) for _ in range(RECORDS)])
        (directory / f"{base:020}.log").write_bytes(content[at:])
        batches = min(batches, BATCHES)
    topic_id = topic_id_text(random.Random(directory.name.rpartition("-")[0]).randbytes(16))
    (directory / checkpoints.PARTITION_METADATA).write_bytes(checkpoints.encode_partition_metadata(topic_id))
    (directory / checkpoints.LEADER_EPOCHS).write_bytes(checkpoints.encode_epochs(EpochHistory.of([(0, 0)])))
    return Log(bytes(content), positions)


def local_segments(root: Path, place: TopicPartition) -> list[Path]:
    return sorted((root / f"{place.topic}-{place.partition}").glob("*.log"))


class Reader(threading.Thread):
    """Reads through the agent's gateway, at random offsets below `ends`, until `stop` is set."""

    def __init__(self, agent: Agent, logs: Logs, seed: int) -> None:
        super().__init__(daemon=True)
        self.ends: dict[TopicPartition, int] = {}
        self.stop, self.failure = threading.Event(), ""
        self.outcomes, self.slowest_s = Counter[str](), 0.0
        self._agent, self._logs, self._random = agent, logs, random.Random(seed)

    def run(self) -> None:
        try:
            host, port = self._agent.address().rsplit(":", 1)
            with RawClient((host, int(port)), ANSWERED_S) as client:
                while not self.stop.wait(0.02):
                    if ends := self.ends:
                        place = self._random.choice(sorted(ends, key=str))
                        self._read(client, place, self._random.randrange(ends[place]))
        except Exception as failure:
            self.failure = self.failure or repr(failure)

    def _read(self, client: RawClient, place: TopicPartition, offset: int) -> None:
        """Fetch until there is a batch or an error, as a client would."""
        began_s = time.monotonic()
        while True:
            answer = client.fetch(a_fetch((place.topic, place.partition, offset), max_wait=500, partition_max_bytes=32 << 10))
            taken_s = time.monotonic() - began_s
            code, records = Code(answer["error_code"]), answer["records"]
            if code or records or taken_s > ANSWERED_S:
                break
        self.slowest_s = max(self.slowest_s, taken_s)
        self.outcomes[code.name] += 1
        if taken_s > ANSWERED_S:
            self.failure = f"{place}@{offset}: nothing within {taken_s:.0f} s"
        elif code and code not in RETRIABLE:
            self.failure = f"{place}@{offset}: {code.name}"
        elif not code and not self._logs[place].agrees(offset, records):
            self.failure = f"{place}@{offset}: wrong bytes"
        assert not self.failure


class Course:
    """What the agent has reported so far, as its readers may count on it."""

    def __init__(self, agent: Agent, readers: list[Reader]) -> None:
        self.agent, self._readers, self._pause = agent, readers, threading.Event()
        self._ends: deque[dict[TopicPartition, int]] = deque()

    def go_on(self) -> None:
        """A little while."""
        self._pause.wait(TURN_S)
        assert not self.agent.has_ended(), self.agent.log_text()[-4000:]
        self._ends.append({place: end for place, end in self.ends().items() if place.topic == SMALL})
        if len(self._ends) * TURN_S > MISS_AGE_S + 1:
            ends = self._ends.popleft()  # by now no answer comes from an older manifest
            for reader in self._readers:
                reader.ends = ends

    def ends(self) -> dict[TopicPartition, int]:
        """The archive's ends."""
        ends: dict[TopicPartition, int] = {}
        for event in events(self.agent):
            if event["event"] == "run_archived":
                topic, _, partition = event["partition"].rpartition(":")
                ends[TopicPartition(topic, int(partition))] = event["last_offset"] + 1
        return ends


def events(agent: Agent) -> list[dict[str, Any]]:
    return [json.loads(line) for line in agent.log_text().splitlines() if line.startswith("{") and line.endswith("}")]


def test_a_backlog_is_archived_once_over_a_network_that_fails_three_times_in_ten(tmp_path: Path, s3_environ: S3Server) -> None:
    logs = write_logs(tmp_path / "kafka")
    bucket = s3_environ.bucket()
    faults = RandomFaults(SEED, RATE, HANG_S)
    with (
        bad_network(s3_environ.endpoint_url, faults) as network,
        closing(S3Store(bucket, PREFIX, endpoint_url=s3_environ.endpoint_url)) as store,
    ):
        place = f'url = "s3://{bucket}/{PREFIX}"\nendpoint_url = "{network.endpoint_url}"'
        headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", owned=True, store=place)
        text = headwater.file.read_text().replace('cache_bytes = "64MiB"', 'cache_bytes = "1MiB"\nchunk_bytes = "64KiB"')
        headwater.file.write_text(text + f'[topics."{SMALL}"]\nread_priority = "offloaded-only"\n')
        with Agent(headwater) as agent:
            readers = [Reader(agent, logs, seed) for seed in range(3)]
            course = Course(agent, readers)
            for reader in readers:
                reader.start()
            agent.address()
            began_s = time.monotonic()
            while time.monotonic() < began_s + FAULTS_S:
                course.go_on()
            faults.stop()
            early, stopped_s = course.ends(), time.monotonic()
            while lacking := what_lacks(store, logs):
                assert time.monotonic() < stopped_s + DRAINED_S, f"{lacking}\n{agent.log_text()[-6000:]}"
                course.go_on()
            drained_s = time.monotonic() - stopped_s
            for reader in readers:
                reader.stop.set()
                reader.join(2 * ANSWERED_S)
            assert network.settle(HANG_S + 30)
            read_whole_logs(agent, logs)
            agent.stop()
            told = events(agent)
        kept = {each: {path.name: path.read_bytes() for path in local_segments(tmp_path / "kafka", each)} for each in logs}
        reads = sum((reader.outcomes for reader in readers), Counter[str]())
        uploads = check_uploads(network)
        orphans = check_archive(store, logs)
        assert all(logs[each].content.endswith(b"".join(files.values())) for each, files in kept.items())
        met, begun, whole = sum(faults.met.values()), sum(early.values()), sum(log.end for log in logs.values())
        print(f"\n{met} of {faults.passed + met} requests met faults: {dict(faults.met)}")
        print(f"meanwhile {begun} of {whole} offsets were archived, the others within {drained_s:.1f} s after it")
        print(f"{sum(map(len, kept.values()))} of {sum(len(log.positions) for log in logs.values()) // BATCHES} segments were not released")
        print(f"reads {dict(reads)}, the slowest in {max(each.slowest_s for each in readers):.1f} s; {uploads} objects, {orphans} orphans")
        print("\n".join(f"{count} {kind}" for kind, count in Counter(map(kind_of, told)).most_common()))
        assert [reader.failure for reader in readers if reader.failure or reader.is_alive()] == []
        assert [event for event in told if event["level"] == "error"] == []
        assert repeated_within_a_minute(told) == []


def what_lacks(store: S3Store, logs: Logs) -> dict[str, int]:
    """Where the server's own manifests do not reach the log's end."""
    ends = {partition.topic_partition: held.head.next_offset for partition, held in archived(store)}
    return {str(place): ends.get(place, 0) for place, log in logs.items() if ends.get(place, 0) < log.end}


def archived(store: S3Store) -> list[tuple[PartitionId, Versioned]]:
    """The heads, as the server has them."""
    manifests = ManifestRepository(store)
    found = []
    for topic in survey_topics(store).manifests:
        for partition in manifests.partitions(topic.topic, topic.topic_id):
            held = manifests.load(partition)
            if held is not None:
                found.append((partition, held))
    return found


def read_whole_logs(agent: Agent, logs: Logs) -> None:
    """Those of small segments, through the gateway, from the archive: every batch once, in order."""
    host, port = agent.address().rsplit(":", 1)
    with RawClient((host, int(port)), ANSWERED_S) as client:
        for place, log in logs.items():
            if place.topic != SMALL:
                continue
            until_s, position = time.monotonic() + DRAINED_S, 0
            while position < len(log.content):
                offset = bisect(log.positions, position) * RECORDS - RECORDS
                answer = client.fetch(a_fetch((place.topic, place.partition, offset), max_wait=500))
                assert not answer["error_code"], (place, offset, answer["error_code"])
                assert log.content.startswith(answer["records"], position), (place, offset)
                position += len(answer["records"])
                assert time.monotonic() < until_s


def check_archive(store: S3Store, logs: Logs) -> int:
    """The server's own view: manifests cover every local offset with the log's bytes, and no bytes are there twice. Returns how many
    objects nothing refers to."""
    listed: set[str] = set()
    digests: list[str] = []
    heads = archived(store)
    assert {partition.topic_partition for partition, _ in heads} == logs.keys()
    for partition, held in heads:
        log, content, next_offset = logs[partition.topic_partition], b"", 0
        for entry in held.head.entries:
            assert (entry.base_offset, entry.gap) == (next_offset, False)
            piece, _ = store.get(entry.key, max_bytes=LARGE_BYTES * 2)
            index, _ = store.get(entry.index_key)
            assert (len(piece), digest_of(piece)) == (entry.size_bytes, entry.digest), entry.key
            assert (len(index), digest_of(index)) == (entry.index_bytes, entry.index_digest), entry.index_key
            content += piece[: entry.live_bytes]
            next_offset = entry.last_offset + 1
            listed |= {entry.key, entry.index_key}
            digests.append(entry.digest)
        assert (next_offset, content == log.content) == (log.end, True), partition
    orphans = [info.key for info in store.list("data/") if info.key not in listed]
    digests += [digest_of(store.get(key, max_bytes=LARGE_BYTES * 2)[0]) for key in orphans if key.endswith(".log")]
    assert [digest for digest, count in Counter(digests).items() if count > 1] == [], orphans
    return len(orphans)


def check_uploads(network: BadNetwork) -> int:
    """What passed: each object was made once. Until it is there its name may be sent again, and the end of one upload in parts may be
    asked for, and granted, twice. Returns how many objects were made."""
    made = defaultdict[str, list[str]](list)
    for each in network.passages:
        place = urlsplit(each.path)
        query = parse_qs(place.query)
        if f"/{PREFIX}/data/" not in place.path or each.status != 200:
            continue
        if each.method == "PUT" and "partNumber" not in query:
            made[place.path].append("whole")
        elif each.method == "POST" and (upload := query.get("uploadId")) and upload[0] not in made[place.path]:
            made[place.path].append(upload[0])
    assert {path: makers for path, makers in made.items() if len(makers) > 1} == {}
    return len(made)


def kind_of(event: dict[str, Any]) -> str:
    """An event and its reason, whatever partition, object or number it names."""
    reason = re.sub(r"\w+://\S+|\b[0-9a-f]{16,}\b|small:\d|\d+(\.\d+)?", "#", str(event.get("reason", "")))
    return f"{event['level']} {event['event']} {reason}"


def repeated_within_a_minute(told: list[dict[str, Any]]) -> list[str]:
    """Kinds of trouble that were logged a second time within a minute. Its summary, each minute, is one of the event."""
    seen_s: dict[str, float] = {}
    repeated = []
    for event in told:
        at_s = datetime.fromisoformat(event["timestamp"]).timestamp()
        kind = f"summary of {event['event']}" if "repeats" in event else kind_of(event)
        if event["level"] != "info" and at_s < seen_s.get(kind, 0) + 59:
            repeated.append(kind)
        seen_s[kind] = at_s
    return repeated
