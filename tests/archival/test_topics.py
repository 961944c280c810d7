import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from archival.partition.topics import NAME_RETRY_S, RECENT_MOVE_MS, TopicFacts, TopicRecords
from headwater_core.errors import ForeignOwner, StoreGone
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import PartitionId, topic_id_text
from manifests.repository import ManifestRepository
from manifests.topic import Sight
from tests.archival.builders import PARTITION
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.manifests import builders


def test_a_topic_is_written_once_and_again_when_it_changes() -> None:
    store = MeteredStore(MemoryStore())
    facts = TopicFacts(partitions=3, configs={"cleanup.policy": "compact"})
    records = TopicRecords(ManifestRepository(store), lambda _: facts)
    records.ensure(PARTITION)
    calls = sum(store.calls.values())
    records.ensure(PARTITION)
    assert sum(store.calls.values()) == calls
    facts = TopicFacts(partitions=4, configs={"cleanup.policy": "delete"})
    records.ensure(PARTITION)
    manifest = ManifestRepository(store).resolve(PARTITION.topic)
    assert (manifest.partitions, manifest.configs) == (4, {"cleanup.policy": "delete"})


def test_without_metadata_a_topic_has_the_partitions_that_were_seen() -> None:
    repository = ManifestRepository(MemoryStore())
    records = TopicRecords(repository, lambda _: TopicFacts())
    for number in (2, 0):
        records.ensure(PartitionId(PARTITION.cluster_id, PARTITION.topic_id, number, PARTITION.topic))
    assert repository.resolve(PARTITION.topic).partitions == 3


def test_another_clusters_bucket_is_refused() -> None:
    repository = ManifestRepository(MemoryStore())
    repository.ensure_owner("another")
    with pytest.raises(ForeignOwner, match="another"):
        TopicRecords(repository, lambda _: TopicFacts()).ensure(PARTITION)


def test_a_partition_does_not_begin_in_what_an_unmounted_disk_leaves(tmp_path: Path) -> None:
    root, mounted = tmp_path / "archive", tmp_path / "elsewhere"
    root.mkdir()
    repository = ManifestRepository(DirectoryStore(root))
    records = TopicRecords(repository, lambda _: TopicFacts())
    records.ensure(PARTITION, is_first=True)
    root.rename(mounted)
    root.mkdir()  # the mount point
    another = PartitionId(PARTITION.cluster_id, PARTITION.topic_id, 1, PARTITION.topic)
    with pytest.raises(StoreGone, match="mount it again"):
        records.ensure(another, is_first=True)
    assert list(root.rglob("*")) == []
    root.rmdir()
    mounted.rename(root)
    records.ensure(another, is_first=True)
    assert repository.resolve(PARTITION.topic).partitions == 2


class Gates(MemoryStore):
    """The first write of a topic's manifest waits until two topics are being written; two at once of one topic are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)
        self.writing: Counter[str] = Counter()
        self.twice = False

    def create(self, key: str, document: bytes) -> str:
        if not key.endswith("topic.json"):
            return super().create(key, document)
        self.writing[key] += 1
        self.twice |= self.writing[key] > 1
        self.both.wait(30)
        self.writing[key] -= 1
        return super().create(key, document)


def test_topics_do_not_wait_for_each_other_and_one_is_written_by_one_thread_at_a_time() -> None:
    store = Gates()
    records = TopicRecords(ManifestRepository(store), lambda _: TopicFacts(partitions=2, configs={}))
    places = [PartitionId(PARTITION.cluster_id, topic_id_text(topic * 16), number, "t") for topic in (b"a", b"b") for number in (0, 1)]
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(records.ensure, places))
    assert not store.twice


def test_a_topic_that_is_gone_is_forgotten() -> None:
    store = MeteredStore(MemoryStore())
    records = TopicRecords(ManifestRepository(store), lambda _: TopicFacts(partitions=3, configs={}))
    records.ensure(PARTITION)
    calls = sum(store.calls.values())
    records.retain([PARTITION])
    records.ensure(PARTITION)
    assert sum(store.calls.values()) == calls
    records.retain([])
    records.ensure(PARTITION)
    assert sum(store.calls.values()) > calls


def test_a_name_does_not_leave_an_incarnation_that_moves_until_it_has_stood_still() -> None:
    """Without a metadata log a deleted topic and a broker's old disk look alike."""
    clock = ManualClock()
    repository = ManifestRepository(MemoryStore(clock))
    records = TopicRecords(repository, lambda _: TopicFacts(), clock=clock)
    newcomer = PartitionId(PARTITION.cluster_id, topic_id_text(b"n" * 16), 0, PARTITION.topic)
    records.ensure(PARTITION)
    repository.commit(None, builders.a_head(partition=PARTITION))
    clock.advance(RECENT_MOVE_MS)
    with structlog.testing.capture_logs() as logs:
        records.ensure(newcomer)
    command = f"headwater topics set {newcomer.topic} --incarnation {newcomer.topic_id}"
    assert [(each["event"], each["topic_id"], each["command"]) for each in logs] == [("topic_name_kept", newcomer.topic_id, command)]
    assert repository.resolve(PARTITION.topic).topic_id == PARTITION.topic_id
    clock.advance(1)
    records.ensure(newcomer)
    assert repository.resolve(PARTITION.topic).topic_id == PARTITION.topic_id  # not asked again so soon
    clock.advance(int(NAME_RETRY_S * 1000))
    with structlog.testing.capture_logs() as logs:
        records.ensure(newcomer)
    assert not logs
    assert repository.resolve(PARTITION.topic).topic_id == newcomer.topic_id


def test_a_former_incarnation_is_no_reason_for_a_warning() -> None:
    clock = ManualClock()
    repository = ManifestRepository(MemoryStore(clock))
    newcomer = PartitionId(PARTITION.cluster_id, topic_id_text(b"n" * 16), 0, PARTITION.topic)
    for partition in (PARTITION, newcomer):
        TopicRecords(repository, lambda _: TopicFacts(), clock=clock).ensure(partition)
    with structlog.testing.capture_logs() as logs:
        TopicRecords(repository, lambda _: TopicFacts(), clock=clock).ensure(PARTITION)
    assert not logs
    assert repository.resolve(PARTITION.topic).topic_id == newcomer.topic_id


def test_an_incarnation_that_the_cluster_has_replaced_is_no_reason_for_a_warning() -> None:
    clock = ManualClock()
    repository = ManifestRepository(MemoryStore(clock))
    TopicRecords(repository, lambda _: TopicFacts(sight=Sight(as_of=20)), clock=clock).ensure(PARTITION)
    former = PartitionId(PARTITION.cluster_id, topic_id_text(b"f" * 16), 0, PARTITION.topic)
    with structlog.testing.capture_logs() as logs:
        TopicRecords(repository, lambda _: TopicFacts(sight=Sight(is_replaced=True)), clock=clock).ensure(former)
    assert not logs


def test_the_clusters_word_turns_the_name_at_once() -> None:
    clock = ManualClock()
    repository = ManifestRepository(MemoryStore(clock))
    newcomer = PartitionId(PARTITION.cluster_id, topic_id_text(b"n" * 16), 0, PARTITION.topic)
    for partition, as_of in ((PARTITION, 10), (newcomer, 20), (PARTITION, 15)):
        TopicRecords(repository, lambda _, as_of=as_of: TopicFacts(sight=Sight(as_of=as_of)), clock=clock).ensure(partition)  # type: ignore[misc]
        if not repository.load(partition):
            repository.commit(None, builders.a_head(partition=partition))
    assert repository.resolve(PARTITION.topic).topic_id == newcomer.topic_id
