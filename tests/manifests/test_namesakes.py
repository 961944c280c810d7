"""Whether an object whose key names no incarnation may be another one's."""

import pytest

from headwater_core.errors import CorruptData
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.namesakes import Namesakes
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest, encode_topic
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, a_head, an_entry

OTHER = PartitionId(PARTITION.cluster_id, "AAAAAAAAAAAAAAAAAAAAAQ", PARTITION.partition, PARTITION.topic)
LISTED, UNKNOWN = "a" * 32, "b" * 32


def bucket(*, fence: int = 4) -> MemoryStore:
    """Where another incarnation of the name has a head."""
    store = MemoryStore()
    entry = an_entry(0, 9, uid=LISTED, fence=1, key=keys.data(OTHER, 0, 9, 1, LISTED))
    head = a_head(entry, partition=OTHER, fence=fence, writer="b")
    ManifestRepository(store).commit(None, head)
    return store


def namesakes(store: MemoryStore) -> Namesakes:
    return Namesakes(ManifestRepository(store), PARTITION)


def test_alone_everything_is_ones_own() -> None:
    assert not namesakes(MemoryStore()).may_have(UNKNOWN, 1)
    assert namesakes(MemoryStore()).highest_fence() == 0


def test_what_another_one_lists_or_may_list_yet_is_its_own() -> None:
    found = namesakes(bucket())
    assert found.may_have(LISTED, 1)
    assert found.may_have(UNKNOWN, 4), "its writer holds that fence"
    assert not found.may_have(UNKNOWN, 3), "no commit adds what has an earlier one"
    assert not found.may_have(UNKNOWN, 5), "nor one that it has not reached"
    assert found.highest_fence() == 4


def test_one_whose_manifest_is_gone_may_have_anything() -> None:
    store = bucket()
    store.delete(keys.head(OTHER))
    assert not namesakes(store).may_have(UNKNOWN, 1), "there is nothing left of it at all"
    topic = TopicManifest(cluster_id=OTHER.cluster_id, topic=OTHER.topic, topic_id=OTHER.topic_id, partitions=OTHER.partition + 1)
    store.create(keys.topic_manifest(OTHER.topic, OTHER.topic_id), encode_topic(topic))
    assert namesakes(store).may_have(UNKNOWN, 1)


def test_a_damaged_manifest_leaves_it_open() -> None:
    store = bucket()
    store.delete(keys.head(OTHER))
    store.create(keys.head(OTHER), b"{}")
    with pytest.raises(CorruptData):
        namesakes(store).may_have(UNKNOWN, 1)
    assert namesakes(store).highest_fence() == 0, "it stops no archiving"
