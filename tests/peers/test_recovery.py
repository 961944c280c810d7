"""A real Kafka broker starts on what recovery wrote and serves the same records at the same offsets."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import recovery
from manifests.repository import ManifestRepository
from model.clock import SystemClock
from objectstore.memory import MemoryStore
from tests.fixtures import Isolation, expected, expected_cluster, expected_offsets, unpack
from tests.peers.kafka import KafkaBroker, expect_same, java_consume
from tests.recovery.archived import archive

pytestmark = pytest.mark.peer

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
DIRECTORIES = {
    "pantry": ["pantry"],
    "pantry-live": ["pantry-live"],
    "kitchen": ["kitchen"],
    "brigade": ["brigade/node1", "brigade/node2", "brigade/node3"],
    "brigade-node2-dead-branch": ["brigade-node2-dead-branch", "brigade/node3", "brigade/node2", "brigade/node1"],
}


def log_dir(place: str) -> Path:
    name, _, node = place.partition("/")
    return unpack(name) / node


def archived(places: Sequence[str]) -> tuple[MemoryStore, ManifestRepository]:
    store = MemoryStore(SystemClock())
    for place in places:
        archive(log_dir(place), store)
    return store, ManifestRepository(store)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_broker_serves_the_same_records_from_a_recovered_directory(name: str, tmp_path: Path) -> None:
    store, repository = archived(DIRECTORIES[name])
    wanted = expected_offsets(name, "read_uncommitted")
    topics = sorted({line["topic"] for line in wanted})
    recovery.apply(recovery.plan(repository, topics), tmp_path / "kafka", store)
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        assert [topic for topic in broker.topics() if not topic.startswith("__")] == topics
        for isolation in ISOLATIONS:
            read = java_consume(broker.bootstrap, topics, isolation)
            expect_same(read.records, expected(name, isolation), f"{name} {isolation}")
            end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
            bounds = {(line["topic"], line["partition"]): (line["start"], line[end]) for line in expected_offsets(name, isolation)}
            assert read.bounds == bounds
        ids = {line["name"]: line["topic_id"] for line in expected_cluster(name)["topics"]}
        assert broker.topic_ids(topics) == {topic: ids[topic] for topic in topics}


def test_groups_and_open_transactions_come_back_with_the_internal_topics(tmp_path: Path) -> None:
    store, repository = archived(["pantry"])
    recovery.apply(recovery.plan(repository, None), tmp_path / "kafka", store)
    topics = sorted({line["topic"] for line in expected_offsets("pantry", "read_uncommitted")})
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        read = java_consume(broker.bootstrap, topics, "read_uncommitted")
        expect_same(read.records, expected("pantry", "read_uncommitted"), "pantry")
        for group in expected_cluster("pantry")["groups"]:
            assert broker.committed(group["group"]) == {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}


def test_a_broker_that_finds_no_indexes_makes_the_same(tmp_path: Path) -> None:
    store, repository = archived(["pantry"])
    topics = sorted({line["topic"] for line in expected_offsets("pantry", "read_uncommitted")})
    recovery.apply(recovery.plan(repository, topics), tmp_path / "kafka", store)
    made = {path: path.read_bytes() for suffix in ("index", "timeindex") for path in tmp_path.rglob(f"*.{suffix}")}
    assert len(made) > 20
    for path in made:
        path.unlink()
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work", compaction=False) as broker:
        broker.topics()
    assert {path: path.read_bytes() for path in made} == made
