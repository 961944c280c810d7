"""What keys below chunks/ say."""

from bisect import bisect_right
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headwater_core.errors import CorruptData
from headwater_core.layouts.chunks import SegmentPlace, Variant
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId, TopicPartition
from manifests import chunk_keys, keys
from manifests.entry import Entry, check_entry, from_listed, to_listed
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, an_entry

PLACE = TopicPartition("orders", 3)
QUEUE = chunk_keys.queue("cluster-1", "node.a", 7, PLACE)


@pytest.mark.parametrize("variant", list(Variant))
def test_a_key_says_whose_object_it_is_and_where_it_lies(variant: Variant) -> None:
    place = SegmentPlace(QUEUE, "commitLog", 500, variant)
    for key, position in ((place.chunk_key(0), 0), (place.chunk_key(4_096), 4_096), (place.segment_key, None)):
        name = chunk_keys.named(key)
        assert (name.topic, name.partition, name.node, name.fence) == ("orders", 3, "node.a", 7)
        assert (name.place, name.position, name.key) == (place, position, key)
        assert chunk_keys.named(keys.index(key)) == name, "the index beside it is of the same entry"
        assert keys.parse_object(key) == (7, name.uid)
        assert keys.partition_of(key) == "orders:3"


def test_each_object_has_a_name_of_its_own() -> None:
    places = [SegmentPlace(QUEUE, "commitLog", 0, variant) for variant in Variant]
    objects = [key for place in places for key in (place.chunk_key(0), place.chunk_key(9), place.segment_key)]
    assert len({chunk_keys.named(key).uid for key in objects}) == len(objects)


@pytest.mark.parametrize(
    "key",
    [
        "chunks/c/n.1/orders/3/commitLog/seg-0/chunk-00",
        "chunks/c/n.1/orders/3/commitLog/seg-0/chunk-0.tmp",
        "chunks/c/n.1/orders/3/commitLog-0-segment",
        "chunks/c/n.1/orders/3/consumeQueue/seg-0/chunk-0",
        "chunks/c/n.01/orders/3/commitLog/seg-0/chunk-0",
        "chunks/c/n/orders/3/commitLog/seg-0/chunk-0",
        "chunks/c/n.1/orders/03/commitLog/seg-0/chunk-0",
        "chunks/c/n.1/../3/commitLog/seg-0/chunk-0",
        "chunks/c d/n.1/orders/3/commitLog/seg-0/chunk-0",
        "data/c/n.1/orders/3/commitLog/seg-0/chunk-0",
    ],
)
def test_other_names_are_not_ours(key: str) -> None:
    assert chunk_keys.parse(key) is None
    assert keys.parse_object(key) is None


def a_chunk(key: str, **fields: object) -> Entry:
    name = chunk_keys.named(key)
    plain = an_entry(10, 19, uid=name.uid, fence=name.fence, key=key, index_key=keys.index(key), layout="chunks", held=(10, 19))
    return replace(plain, context={"version": "1"}, **fields)


def test_an_entry_spells_its_key_and_what_it_held() -> None:
    key = SegmentPlace(chunk_keys.queue("c", "a", 1, PARTITION.topic_partition), "commitLog", 10, Variant.APPEND).chunk_key(70)
    for entry in (a_chunk(key), a_chunk(key, held=(5, 30))):
        listed = to_listed(entry)
        assert listed["key"] == key
        assert "index_key" not in listed
        assert ("held" in listed) is (entry.held != (10, 19))
        assert from_listed(listed, PARTITION) == check_entry(PARTITION, entry) == entry


def test_an_entry_names_no_chunk_of_another_partition() -> None:
    other = PartitionId(PARTITION.cluster_id, PARTITION.topic_id, PARTITION.partition + 1, PARTITION.topic)
    key = SegmentPlace(chunk_keys.queue("c", "a", 1, other.topic_partition), "commitLog", 10, Variant.APPEND).chunk_key(70)
    check_entry(other, a_chunk(key))
    for wrong in (a_chunk(key), a_chunk(key, uid="0" * 32), a_chunk(key, fence=2), a_chunk(key, index_key=key)):
        with pytest.raises(CorruptData, match="not a key of this partition"):
            check_entry(PARTITION if wrong == a_chunk(key) else other, wrong)


def test_chunks_of_a_name_are_found_by_few_requests() -> None:
    store = MemoryStore()
    places = [TopicPartition("orders", 3), TopicPartition("orders", 30), TopicPartition("orders.x", 3)]
    for node, fence in (("a", 1), ("a", 10), ("a.b", 2)):
        for place in places:
            for position in range(4):
                segment = SegmentPlace(chunk_keys.queue("c", node, fence, place), "commitLog", 0, Variant.APPEND)
                store.create(segment.chunk_key(position), b"x")
    store.create("chunks/notes.txt", b"x")
    found = list(chunk_keys.stored_chunks(store, places[0]))
    assert [(name.node, name.fence) for _, name in found] == [*[("a", 1)] * 4, *[("a", 10)] * 4, *[("a.b", 2)] * 4]
    assert {(name.topic, name.partition) for _, name in found} == {places[0]}
    assert sorted(chunk_keys.queues(store)) == sorted(places)
    assert chunk_keys.highest_fence(store, places[2], 10**10) == 10
    assert chunk_keys.highest_fence(store, TopicPartition("other", 0), 10**10) == -1


class Listing(MemoryStore):
    """Lists names, and counts requests as S3 has them: a thousand each, as they are read."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names, self.requests = sorted(names), 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = [name for name in self._names[bisect_right(self._names, start_after) :] if name.startswith(prefix)]
        for at in range(0, max(1, len(found)), 1000):
            self.requests += 1
            yield from (ObjectInfo(name, 1, "") for name in found[at : at + 1000])


@pytest.mark.parametrize(
    ("fences", "topics", "objects", "most"),
    [(3000, 1, 1, 4), (1000, 2, 2, 5), (3, 3, 1999, 13), (4, 3, 500, 9)],
    ids=["many small directories", "with another's", "few large ones", "of several topics in a request"],
)
def test_directories_of_many_fences_are_listed_together(fences: int, topics: int, objects: int, most: int) -> None:
    places = [TopicPartition(f"topic{number}", 0) for number in range(topics)]
    queues = [chunk_keys.queue("c", "node", fence, place) for fence in range(1, fences + 1) for place in places]
    store = Listing([f"{queue}/commitLog/seg-0/chunk-{at}" for queue in queues for at in range(objects)])
    for place in places:
        store.requests = 0
        found = [name for _, name in chunk_keys.stored_chunks(store, place)]
        assert {name.topic for name in found} == {place.topic}
        assert len({name.key for name in found}) == len(found) == fences * objects
        assert store.requests <= most
        store.requests = 0
        assert chunk_keys.highest_fence(store, place, 10**10) == fences
        assert store.requests <= most
    store.requests = 0
    assert list(chunk_keys.queues(store)) == places
    assert store.requests <= most
