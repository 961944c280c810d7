"""Commits and reads by position, one case at a time; any order of them is segment_machine's."""

from collections.abc import Iterator

import pytest

from headwater_core.errors import CorruptData, SourceChanged, TransientError, TruncatedData, UnknownOutcome, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

APPEND = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.APPEND)
FIXED = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.FIXED)
VARIANTS = pytest.mark.parametrize("place", [APPEND, FIXED], ids=["append", "fixed"])


def opened(store: ObjectStore, place: SegmentPlace, chunk_bytes: int = 10) -> ChunkSegment:
    return ChunkSegment.open(store, place, chunk_bytes=chunk_bytes)


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key)[0] for info in store.list("")}


def test_an_append_is_one_object_and_one_request() -> None:
    store = MemoryStore()
    metered = MeteredStore(store)
    segment = opened(metered, APPEND)
    metered.calls.clear()
    assert segment.commit0(0, b"0123456") == 7
    assert segment.commit0(7, b"789") == 10
    assert dict(metered.calls) == {"put": 2}
    stem = "chunks/cluster/node.7/orders/0/commitLog/seg-5/chunk-"
    assert contents(store) == {stem + "0": b"0123456", stem + "7": b"789"}


def test_a_fixed_chunk_is_rewritten_until_it_is_full() -> None:
    store = MemoryStore()
    segment = opened(store, FIXED)
    stem = "chunks/cluster/node.7/orders/0/commitLog-5/chunk-"
    segment.commit0(0, b"0123")
    assert contents(store) == {stem + "0": b"0123"}
    segment.commit0(4, b"45678")
    assert contents(store) == {stem + "0": b"012345678"}
    segment.commit0(9, b"9abcdefghijklm")
    assert contents(store) == {stem + "0": b"0123456789", stem + "10": b"abcdefghij", stem + "20": b"klm"}
    assert segment.read0(8, 14) == b"89abcdefghijkl"


@VARIANTS
def test_a_restart_continues_where_the_objects_end(place: SegmentPlace) -> None:
    store = MemoryStore()
    for position in range(0, 60, 6):
        segment = opened(store, place)
        assert (segment.end, segment.found.state) == (position, SegmentState.OPEN if position else SegmentState.NEW)
        segment.commit0(position, b"abcdef")
    assert opened(store, place).read0(0, 60) == b"abcdef" * 10


@VARIANTS
def test_what_is_there_already_is_compared_and_not_sent(place: SegmentPlace) -> None:
    store = MemoryStore()
    segment = opened(store, place)
    segment.commit0(0, b"0123456789ab")
    before = contents(store)
    metered = MeteredStore(store)
    again = opened(metered, place)
    assert again.commit0(0, b"0123456789ab") == 12
    assert again.commit0(4, b"4567") == 8
    assert contents(store) == before
    assert again.commit0(10, b"abcd") == 14
    assert again.read0(0, 14) == b"0123456789abcd"
    with pytest.raises(SourceChanged):
        again.commit0(12, b"cX")
    assert again.end == 14


@VARIANTS
def test_there_are_no_gaps(place: SegmentPlace) -> None:
    segment = opened(MemoryStore(), place)
    segment.commit0(0, b"0123")
    for position in (5, -1):
        with pytest.raises(UsageError):
            segment.commit0(position, b"x")
    for position, length in ((0, 5), (4, 1), (5, 0), (-1, 2)):
        with pytest.raises(TruncatedData):
            segment.read0(position, length)
    assert segment.read0(4, 0) == b""
    assert segment.commit0(4, b"") == 4


@VARIANTS
def test_of_two_writers_of_one_place_neither_undoes_the_other(place: SegmentPlace) -> None:
    """A fence keeps them apart; should one ever be taken twice, what the store confirmed to either stays."""
    store = MemoryStore()
    one, other = opened(store, place), opened(store, place)
    one.commit0(0, b"same")
    other.commit0(0, b"same")
    one.commit0(4, b"one")
    with pytest.raises(SourceChanged):
        other.commit0(4, b"other")
    assert opened(store, place).read0(0, 7) == b"sameone"


@VARIANTS
@pytest.mark.parametrize("added", [b"one", b"one mo", b"one more"], ids=["a part", "the rest", "more than the rest"])
def test_a_chunk_that_grew_since_it_was_looked_at_is_compared_first(place: SegmentPlace, added: bytes) -> None:
    store = MemoryStore()
    opened(store, place).commit0(0, b"same")
    one, other, third = (opened(store, place) for _ in range(3))
    one.commit0(4, added)
    with pytest.raises(SourceChanged):
        other.commit0(4, b"other bytes")
    assert third.commit0(4, b"one more byte") == 17
    assert opened(store, place).read0(0, 17) == b"sameone more byte"


def test_a_chunk_that_has_shrunk_is_damage() -> None:
    store = MemoryStore()
    opened(store, FIXED).commit0(0, b"same")
    segment = opened(store, FIXED)
    store.delete(FIXED.chunk_key(0))
    store.create(FIXED.chunk_key(0), b"sa")
    with pytest.raises(CorruptData):
        segment.commit0(4, b"more")


class Forgetful(MemoryStore):
    """Never does a write, and never says so."""

    def put(self, *args: object, **kwargs: object) -> str:
        raise UnknownOutcome("no answer")

    def create(self, key: str, document: bytes) -> str:
        raise UnknownOutcome("no answer")

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        raise UnknownOutcome("no answer")


@VARIANTS
def test_the_commit_position_moves_only_when_the_store_has_confirmed(place: SegmentPlace) -> None:
    segment = opened(Forgetful(), place)
    for _ in range(2):
        with pytest.raises(TransientError):
            segment.commit0(0, b"0123")
        assert segment.end == 0


def test_a_fixed_segment_is_not_continued_with_another_size_of_chunk() -> None:
    store = MemoryStore()
    opened(store, FIXED).commit0(0, bytes(23))
    with pytest.raises(UsageError, match="chunk size"):
        opened(store, FIXED, chunk_bytes=16).commit0(23, b"x")
    assert opened(store, FIXED).commit0(23, b"x") == 24


def test_other_objects_in_the_directory_mean_nothing() -> None:
    store = MemoryStore()
    segment = opened(store, APPEND)
    segment.commit0(0, b"0123")
    for name in ("chunk-04", "chunk-", "chunk-4x", "chunk-4.index", "chunks-4", "chunk-4/0", "chunk-99999999999999999999"):
        store.create(APPEND.prefix + name, b"other")
    store.create(APPEND.prefix[:-1] + "5/chunk-4", b"other")  # of base 55
    assert opened(store, APPEND).commit0(4, b"45") == 6


@VARIANTS
def test_an_interrupted_deletion_leaves_what_can_be_read(place: SegmentPlace) -> None:
    store = MemoryStore()
    segment = opened(store, place)
    for position in range(0, 150, 10):
        segment.commit0(position, b"0123456789")
    deleted: list[str] = []
    delete = store.delete

    def stop_after_three(key: str) -> None:
        if len(deleted) == 3:
            raise TransientError("slow down")
        deleted.append(key)
        delete(key)

    store.delete = stop_after_three  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        segment.delete()
    left = opened(store, place)
    assert (left.found.state, left.read0(0, left.end)) == (SegmentState.OPEN, b"0123456789" * 12)
    store.delete = delete  # type: ignore[method-assign]
    left.delete()
    assert list(store.list("")) == []


@VARIANTS
def test_an_empty_object_where_a_chunk_is_to_be_ends_the_segment(place: SegmentPlace) -> None:
    """Nobody's chunk is empty; who only tried again would do so without an end."""
    store = MemoryStore()
    segment = opened(store, place)
    segment.commit0(0, b"0123456789")
    store.create(place.chunk_key(10), b"")
    for _ in range(2):
        with pytest.raises(SourceChanged, match="empty"):
            segment.commit0(10, b"ab")
    assert opened(store, place).read0(0, 10) == b"0123456789"


def test_the_second_look_asks_for_a_chunk_that_can_exist() -> None:
    """A listing that knows an older, short state of the first chunk, and the third one."""

    class Lagging(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            for info in super().list(prefix, start_after=start_after):
                yield ObjectInfo(info.key, 4, info.tag) if info.key == FIXED.chunk_key(0) else info

    store = Lagging()
    for position, content in ((0, b"0123456789"), (20, b"ab")):
        store.create(FIXED.chunk_key(position), content)
    segment = opened(store, FIXED)
    assert (segment.end, segment.found.state) == (10, SegmentState.LOST)
    with pytest.raises(CorruptData, match="chunk-10"):
        segment.read0(9, 2)
