import pytest

from archival.topics import TopicFacts, TopicRecords
from manifests.repository import ManifestRepository
from model.errors import ForeignOwner
from model.partition import PartitionId
from objectstore.memory import MemoryStore
from objectstore.metered import MeteredStore
from tests.archival.builders import PARTITION


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
