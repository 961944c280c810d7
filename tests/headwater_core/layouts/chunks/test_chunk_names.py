"""Keys of segments, and whose they are."""

import pytest

from headwater_core.errors import UsageError
from headwater_core.layouts.chunks import SegmentPlace, Variant, find_bases
from tests.headwater_core.objectstore.memory import MemoryStore

QUEUE = "chunks/cluster/node.7/orders/0"


def test_the_keys_of_both_variants() -> None:
    append, fixed = (SegmentPlace(QUEUE, "commitLog", 42, variant) for variant in Variant)
    assert (append.chunk_key(4096), append.segment_key) == (f"{QUEUE}/commitLog/seg-42/chunk-4096", f"{QUEUE}/commitLog/seg-42/segment")
    assert (fixed.chunk_key(4096), fixed.segment_key) == (f"{QUEUE}/commitLog-42/chunk-4096", f"{QUEUE}/commitLog-42-seg")
    for place in (append, fixed):
        assert place.position_of(place.chunk_key(2**40)) == 2**40
        for key in (place.segment_key, place.prefix + "chunk-01", place.prefix + "chunk-1.index", place.prefix[:-1] + "0/chunk-1"):
            assert place.position_of(key) is None


@pytest.mark.parametrize("variant", Variant)
def test_a_base_that_begins_as_another_does_is_another(variant: Variant) -> None:
    store = MemoryStore()
    for base in (1, 10, 2):
        store.create(SegmentPlace(QUEUE, "commitLog", base, variant).chunk_key(0), b"x")
    for base in (2, 100):
        store.create(SegmentPlace(QUEUE, "commitLog", base, variant).segment_key, b"x")
    store.create(f"{QUEUE}/commitLogs/seg-7/segment", b"x")
    store.create(f"{QUEUE}/commitLogs-7-seg", b"x")
    store.create(SegmentPlace(QUEUE, "commitLog", 3, variant).prefix + "other", b"x")
    assert find_bases(store, QUEUE, "commitLog", variant) == [1, 2, 10, 100]


@pytest.mark.parametrize("hostile", [("../x", "commitLog", 0), (QUEUE, "a/b", 0), (QUEUE, "commitLog", -1), ("", "commitLog", 0)])
def test_a_place_that_no_store_can_hold_is_refused(hostile: tuple[str, str, int]) -> None:
    with pytest.raises(UsageError):
        SegmentPlace(*hostile, Variant.APPEND)
