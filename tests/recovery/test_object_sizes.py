"""Sizes of a partition's objects, with one listing for all."""

import io
from collections.abc import Iterator

from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId
from manifests import keys
from recovery.object_sizes import ObjectSizes
from tests.headwater_core.objectstore.memory import MemoryStore

PARTITION = PartitionId("mPtQxumzSB6UIzXMtmWVUg", "le4ruHkrRAmAJUx9PH5t3A", 0, "orders")
KEYS = [keys.data(PARTITION, at * 10, at * 10 + 9, 1, f"{at:032x}") for at in range(50)]


class Counting(MemoryStore):
    """hidden: keys that its listings do not show yet"""

    hidden: frozenset[str] = frozenset()
    listings = stats = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.listings += 1
        return (each for each in super().list(prefix, start_after=start_after) if each.key not in self.hidden)

    def stat(self, key: str) -> ObjectInfo:
        self.stats += 1
        return super().stat(key)


def filled() -> Counting:
    store = Counting()
    for at, key in enumerate(KEYS):
        store.put(key, io.BytesIO(b"x" * (at + 1)), size_bytes=at + 1)
        store.put(keys.index(key), io.BytesIO(b"i"), size_bytes=1)
    return store


def test_keys_in_order_take_one_listing_and_nothing_else() -> None:
    store = filled()
    sizes = ObjectSizes(store, PARTITION)
    assert [(sizes.of(keys.index(key)), sizes.of(key)) for key in KEYS] == [(1, at + 1) for at in range(50)]
    assert (store.listings, store.stats) == (1, 0)


def test_what_a_listing_does_not_show_is_asked_for_by_itself() -> None:
    store = filled()
    store.hidden = frozenset(KEYS[10:12])
    store.delete(KEYS[20])
    sizes = ObjectSizes(store, PARTITION)
    found = [sizes.of(key) for key in KEYS]
    assert found == [None if at == 20 else at + 1 for at in range(50)]
    assert (store.listings, store.stats) == (1, 3)


def test_a_key_out_of_order_is_found_all_the_same() -> None:
    sizes = ObjectSizes(filled(), PARTITION)
    assert [sizes.of(KEYS[at]) for at in (30, 3, 31, 31)] == [31, 4, 32, 32]
