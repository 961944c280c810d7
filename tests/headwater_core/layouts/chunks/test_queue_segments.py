"""Segments of a queue without a manifest: fullness and ends out of what follows, trailers and indexes."""

from collections.abc import Iterator

import pytest

from headwater_core.errors import CorruptData
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, open_own, open_queue
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.runindex import RunIndex, encode_index, new_points
from tests.headwater_core.layouts.chunks.recovery import BOTH, CHUNK_BYTES, WHOLE, put, put_chunks, said
from tests.headwater_core.layouts.chunks.test_rocketmq_buckets import STATES, filled, manifest, queue_of
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

TRAILER = bytes.fromhex("00000010cbd4319400000198f0f0f0f0")


@pytest.mark.parametrize("case", ["A1-open", "A5-queue", "B1-open", "B5-queue"])
@pytest.mark.parametrize("file_type", ["commitLog", "consumeQueue"])
def test_rocketmqs_segments_are_full_where_another_one_begins_at_their_end(case: str, file_type: str) -> None:
    variant = Variant.APPEND if case[0] == "A" else Variant.FIXED
    found = [(each.place.base, each.found.state, each.end) for each in open_queue(filled(case), queue_of(case), file_type, variant)]
    assert found == [
        (each["base"], STATES[each["state"]], each["size"]) for each in manifest(case)["segments"] if each["type"] == file_type
    ]


def test_a_last_chunk_that_is_missing_shows_by_the_next_base() -> None:
    """No listing of its segment shows it."""
    store = filled("A5-queue")

    def middle() -> ChunkSegment:
        return list(open_queue(store, queue_of("A5-queue"), "consumeQueue", Variant.APPEND))[1]

    last = middle().found.tiles[-1]
    store.delete(last.key)
    segment = middle()
    assert segment.found.damage is not None
    assert (segment.found.state, segment.found.damage.key, segment.end) == (SegmentState.LOST, last.key, last.position)
    with pytest.raises(CorruptData, match=last.key):
        segment.read0(last.position, 1)


def test_a_segment_that_is_missing_shows_by_the_next_base() -> None:
    store = filled("B5-queue")
    first, middle, _ = open_queue(store, queue_of("B5-queue"), "consumeQueue", Variant.FIXED)
    assert first.found.state is SegmentState.DONE
    for tile in middle.found.tiles:
        store.delete(tile.key)
    first, _ = open_queue(store, queue_of("B5-queue"), "consumeQueue", Variant.FIXED)
    assert (first.found.state, first.found.broken) == (SegmentState.BROKEN, "bytes 1280 to 2560 of the segment are not in it")


@pytest.mark.parametrize("case", ["A1-open", "B1-open"])
@pytest.mark.parametrize(
    ("tail", "state"), [(TRAILER, SegmentState.FULL), (TRAILER[:-1], SegmentState.OPEN), (bytes(16), SegmentState.OPEN)]
)
def test_the_last_segment_of_rocketmqs_is_full_by_its_trailer(case: str, tail: bytes, state: SegmentState) -> None:
    store, variant = filled(case), Variant.APPEND if case[0] == "A" else Variant.FIXED
    [segment] = open_queue(store, queue_of(case), "commitLog", variant)
    before = segment.end
    writer = ChunkSegment.open(store, segment.place, chunk_bytes=16384)
    writer.commit0(before, tail)
    [segment] = open_queue(store, queue_of(case), "commitLog", variant)
    assert (segment.found.state, segment.end) == (state, before + len(tail))


def put_index(store: ObjectStore, key: str, size_bytes: int) -> None:
    points = new_points()
    points.offsets.append(0)
    points.positions.append(0)
    points.max_timestamps_ms.append(0)
    put(store, f"{key}.index", encode_index(RunIndex(base_offset=0, last_offset=0, size_bytes=size_bytes, points=points)))


@BOTH
@pytest.mark.parametrize("is_full", [False, True])
def test_one_of_ours_is_open_until_another_one_follows(place: SegmentPlace, is_full: bool) -> None:
    store = MemoryStore()
    put_chunks(store, place)
    segment = open_own(store, place, is_full=is_full)
    assert (segment.found.state, segment.end) == (SegmentState.FULL if is_full else SegmentState.OPEN, len(WHOLE))


@BOTH
@pytest.mark.parametrize("missing", [70, 150])
def test_its_last_index_says_how_far_it_is_to_reach(place: SegmentPlace, missing: int) -> None:
    store = MemoryStore()
    put_chunks(store, place, but=missing)
    if place.variant is Variant.FIXED:
        put_index(store, place.chunk_key(0), len(WHOLE))
    else:
        put_index(store, place.chunk_key(0), CHUNK_BYTES)
        put_index(store, place.chunk_key(150), 3)
    segment = open_own(store, place, is_full=False)
    assert segment.found.damage is not None
    assert (segment.found.state, segment.end, segment.found.damage.key) == (SegmentState.LOST, missing, place.chunk_key(missing))
    put(store, place.chunk_key(missing), WHOLE[missing : missing + CHUNK_BYTES])
    is_closed = place.variant is Variant.FIXED  # its index is written when nothing more comes
    assert open_own(store, place, is_full=False).found.state is (SegmentState.FULL if is_closed else SegmentState.OPEN)


@BOTH
def test_an_object_that_its_index_proves_too_short_is_broken(place: SegmentPlace) -> None:
    store = MemoryStore()
    put(store, place.segment_key, WHOLE[:70], said(WHOLE[:70]))
    assert open_own(store, place, is_full=True).found.state is SegmentState.DONE
    put_index(store, place.segment_key, len(WHOLE))
    segment = open_own(store, place, is_full=True)
    assert (segment.found.state, segment.end) == (SegmentState.BROKEN, 70)
    assert segment.found.broken == f"bytes 70 to {len(WHOLE)} of the segment are not in it"


@BOTH
def test_an_index_that_cannot_be_read_says_nothing(place: SegmentPlace) -> None:
    store = MemoryStore()
    put_chunks(store, place)
    for key in (place.segment_key, place.chunk_key(0)):
        put(store, f"{key}.index", b"HWRI?")
    assert open_own(store, place, is_full=False).found.state is SegmentState.OPEN


@BOTH
def test_nothing_is_written(place: SegmentPlace) -> None:
    store = MeteredStore(MemoryStore())
    put_chunks(store, place, but=70)
    put_index(store, place.chunk_key(0), len(WHOLE))
    store.reset()
    assert open_own(store, place, is_full=True).found.state is SegmentState.LOST
    assert store.calls.keys() <= {"list", "stat", "get", "read_into"}


def test_a_queue_of_nothing_has_no_segments() -> None:
    found: Iterator[ChunkSegment] = open_queue(MemoryStore(), "q", "commitLog", Variant.APPEND)
    assert list(found) == []
