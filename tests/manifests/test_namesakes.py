"""Whether an object whose key names no incarnation may be another one's."""

import pytest

from headwater_core.errors import CorruptData
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.document import seal_lines
from manifests.entry import FENCE_MAX
from manifests.namesakes import Namesakes, next_fence
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest, encode_topic
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, a_head, an_entry
from tests.manifests.trees import TINY

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


def test_a_fence_that_no_claim_comes_to_stops_no_other_incarnation() -> None:
    store = bucket(fence=FENCE_MAX)
    mine = a_head(fence=3, format=(2, 3))
    assert next_fence(mine, namesakes(store)) == 4
    assert namesakes(store).may_have(UNKNOWN, FENCE_MAX)
    store.delete(keys.head(OTHER))
    store.create(keys.head(OTHER), b"{}")
    store.create(f"chunks/c/n.{FENCE_MAX}/{OTHER.topic}/{OTHER.partition}/commitLog/seg-0/chunk-0", b"")
    store.create(f"chunks/c/n.7/{OTHER.topic}/{OTHER.partition}/commitLog/seg-0/chunk-0", b"")
    assert next_fence(mine, namesakes(store)) == 8


def test_after_the_highest_fence_of_its_own_head_there_is_none() -> None:
    with pytest.raises(CorruptData, match="restore an earlier head"):
        next_fence(a_head(fence=FENCE_MAX), namesakes(MemoryStore()))


@pytest.mark.parametrize("left", ["nothing", "topic", "damaged topic", "damaged head"])
def test_one_without_a_readable_manifest_may_have_what_was_there_when_it_was_lost(left: str) -> None:
    store = bucket()
    store.delete(keys.head(OTHER))
    if left == "topic":
        topic = TopicManifest(cluster_id=OTHER.cluster_id, topic=OTHER.topic, topic_id=OTHER.topic_id, partitions=OTHER.partition + 1)
        store.create(keys.topic_manifest(OTHER.topic, OTHER.topic_id), encode_topic(topic))
    elif left == "damaged topic":
        store.create(keys.topic_manifest(OTHER.topic, OTHER.topic_id), b"{}")
    elif left == "damaged head":
        store.create(keys.head(OTHER), b"{}")
    found = namesakes(store)
    if left == "nothing":
        assert not found.may_have(UNKNOWN, 1), "there is nothing left of it at all"
        assert (found.lost, found.trouble, found.free_fence()) == (set(), "", 1)
        return
    assert found.may_have(UNKNOWN, 1)
    assert found.lost == {OTHER.topic_id}
    assert keys.head(OTHER) in found.trouble
    assert found.highest_fence() == 0, "it stops no archiving"
    store.create(f"chunks/c/n.7/{OTHER.topic}/{OTHER.partition}/commitLog/seg-0/chunk-0", b"")
    assert found.free_fence() == 8
    since = Namesakes(ManifestRepository(store), PARTITION, {OTHER.topic_id: 8})
    assert since.may_have(UNKNOWN, 7)
    assert not since.may_have(UNKNOWN, 8)


def test_one_of_a_newer_version_may_have_anything_and_one_without_a_page_what_its_fence_allows() -> None:
    store = bucket()
    store.replace(keys.head(OTHER), seal_lines({"format": (9, 0)}, {}), expected_tag=store.stat(keys.head(OTHER)).tag)
    newer = namesakes(store)
    assert newer.may_have(UNKNOWN, 99)
    assert not newer.lost, "its writer may be at work"
    store = MemoryStore()
    repository = ManifestRepository(store, limits=TINY)
    head = a_head(*(an_entry(base, base, partition=OTHER) for base in range(40)), fence=4, writer="b", partition=OTHER)
    repository.commit(None, head)
    for info in list(store.list(keys.manifest_prefix(OTHER))):
        if keys.parse_page(info.key):
            store.delete(info.key)
    found = namesakes(store)
    assert found.may_have(UNKNOWN, 3)
    assert not found.may_have(UNKNOWN, 5)
    assert not found.lost
    assert "restore it" in found.trouble
