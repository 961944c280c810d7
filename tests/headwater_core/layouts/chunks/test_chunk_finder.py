"""A map out of a store whose listing is late, and the bytes of two places compared."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from headwater_core.layouts.chunks import SegmentPlace, SegmentState, Variant
from headwater_core.layouts.chunks.chunk_finder import find_map, holds_same
from headwater_core.layouts.chunks.chunk_map import Tile
from headwater_core.objectstore.store import ObjectInfo
from tests.headwater_core.objectstore.memory import MemoryStore

APPEND = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.APPEND)
FIXED = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.FIXED)


class LateListing(MemoryStore):
    """Lists nothing of some keys, and others at the size that they had."""

    def __init__(self, *, missed: Iterable[str] = (), outdated: dict[str, int] | None = None) -> None:
        super().__init__()
        self.missed, self.outdated = set(missed), outdated or {}

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            if info.key not in self.missed:
                yield replace(info, size_bytes=self.outdated.get(info.key, info.size_bytes))


def put(store: MemoryStore, key: str, content: bytes) -> None:
    store.put(key, io.BytesIO(content), size_bytes=len(content))


@pytest.mark.parametrize("missed", [[0], [10], [20], [10, 20], [0, 10, 20]])
@pytest.mark.parametrize("place", [APPEND, FIXED], ids=["append", "fixed"])
def test_chunks_that_a_listing_missed_are_found_by_name(place: SegmentPlace, missed: list[int]) -> None:
    store = LateListing(missed=[place.chunk_key(at) for at in missed])
    for at in (0, 10, 20):
        put(store, place.chunk_key(at), bytes(10))
    found = find_map(store, place, is_full=True, chunk_bytes=10)
    assert (found.damage, found.end) == (None, 30)


def test_a_fixed_chunk_that_grew_since_it_was_listed_has_its_size() -> None:
    store = LateListing(outdated={FIXED.chunk_key(10): 3})
    put(store, FIXED.chunk_key(0), bytes(10))
    put(store, FIXED.chunk_key(10), bytes(8))
    assert find_map(store, FIXED, is_full=False, chunk_bytes=10).end == 18


def test_a_chunk_that_is_gone_is_a_hole_at_its_name() -> None:
    store = MemoryStore()
    for at in (0, 20):
        put(store, FIXED.chunk_key(at), bytes(10))
    found = find_map(store, FIXED, is_full=True, chunk_bytes=10)
    assert found.state is SegmentState.LOST
    assert found.damage is not None
    assert (found.damage.is_hole, found.damage.key) == (True, FIXED.chunk_key(10))


@pytest.mark.parametrize(("at", "same"), [(0, False), (1 << 20, False), ((1 << 20) + 4, False), ((1 << 20) + 5, True)])
def test_places_are_compared_to_their_last_byte_and_no_further(at: int, same: bool) -> None:
    store, one = MemoryStore(), bytes((1 << 20) + 10)
    other = bytearray(one)
    other[at] = 1
    put(store, "one", one)
    put(store, "other", bytes(other))
    assert holds_same(store, Tile(0, (1 << 20) + 5, "one"), Tile(0, (1 << 20) + 5, "other")) is same
