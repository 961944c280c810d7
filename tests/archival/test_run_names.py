"""Names that follow from what is listed, and those that are taken."""

import pytest

from archival.partition.run_names import ChunkNames, UniqueNames, names_for
from archival.plan.chunk_place import ChunkLimits
from headwater_core.errors import PlaceTaken
from headwater_core.layouts import open_layout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from manifests import chunk_keys, keys
from manifests.entry import Entry
from tests.archival.builders import PARTITION
from tests.manifests.builders import an_entry


def chunk_names(variant: Variant = Variant.APPEND, segment_bytes: int = 1_000) -> ChunkNames:
    return ChunkNames(PARTITION, "node", ChunkLimits(variant, segment_bytes))


def listed(key: str, base: int, last: int, size_bytes: int, context: dict[str, str]) -> Entry:
    name = chunk_keys.named(key)
    return an_entry(
        base,
        last,
        uid=name.uid,
        fence=name.fence,
        key=key,
        index_key=keys.index(key),
        layout="chunks",
        held=(base, last),
        size_bytes=size_bytes,
        live_bytes=size_bytes,
        context={"version": "1", **context},
    )


def test_a_chunk_continues_the_one_that_is_listed_last() -> None:
    names = chunk_names()
    first = names.following(None, 0, 9, 400, 2)
    assert first.key.endswith("/node.2/soup/0/commitLog/seg-0/chunk-0")
    last = listed(first.key, 0, 9, 400, first.context)
    second = names.following(last, 10, 19, 600, 2)
    assert second.key.endswith("/seg-0/chunk-400")
    assert second.context == {"chunk": "1"}
    for base, size_bytes, fence, why in ((10, 601, 2, "it is full"), (10, 1, 3, "another fence"), (12, 1, 2, "something lies in between")):
        assert names.following(last, base, base + 9, size_bytes, fence).key.endswith(f"/seg-{base}/chunk-0"), why
    assert (
        ChunkNames(PARTITION, "other", names.limits).following(last, 10, 19, 1, 2).key.endswith("/other.2/soup/0/commitLog/seg-10/chunk-0")
    )
    assert chunk_names(Variant.FIXED).following(last, 10, 19, 1, 2).key.endswith("/commitLog-10/chunk-0")


def test_a_segment_has_a_thousand_chunks_at_most() -> None:
    names = chunk_names(segment_bytes=10**9)
    key = names.following(None, 0, 0, 10, 1).key
    for number, ends in (("998", "/seg-0/chunk-10"), ("999", "/seg-1/chunk-0")):
        assert names.following(listed(key, 0, 0, 10, {"chunk": number}), 1, 1, 10, 1).key.endswith(ends)


def test_a_name_that_is_taken_is_not_used_again() -> None:
    names = chunk_names()
    last = listed(names.following(None, 0, 9, 400, 1).key, 0, 9, 400, {})
    continued = names.following(last, 10, 19, 10, 1).key
    names.spoil(continued)
    begun = names.following(last, 10, 19, 10, 1).key
    assert begun.endswith("/seg-10/chunk-0")
    names.spoil(begun)
    with pytest.raises(PlaceTaken, match="seg-0/chunk-400"):
        names.following(last, 10, 19, 10, 1)
    assert ".2/" in names.following(last, 10, 19, 10, 2).key


def test_a_consolidated_object_has_the_fence_of_its_commit() -> None:
    names = chunk_names()
    place = chunk_keys.named(names.following(None, 0, 9, 400, 1).key).place
    name = names.consolidated(place, 3)
    assert name.key.endswith("/node.3/soup/0/commitLog/seg-0/segment")
    names.spoil(name.key)
    with pytest.raises(PlaceTaken):
        names.consolidated(place, 3)


def test_other_layouts_have_unique_names() -> None:
    assert isinstance(names_for(PARTITION, ChunksLayout(), "node-1a2b", lambda: "0" * 32), ChunkNames)
    uids = iter(("1" * 32, "2" * 32))
    names = names_for(PARTITION, open_layout("blocks"), "node-1a2b", lambda: next(uids))
    assert isinstance(names, UniqueNames)
    found = [names.following(None, 0, 9, 400, 1) for _ in range(2)]
    assert [each.uid for each in found] == ["1" * 32, "2" * 32]
    assert found[0].key.endswith(".blocks")
