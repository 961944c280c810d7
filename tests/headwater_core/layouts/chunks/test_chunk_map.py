"""Maps out of names and sizes: tilings, holes, stale chunks, and the states they show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.layouts.chunks.chunk_map import ChunkObject, Consolidated, SegmentMap, SegmentState, Tile, build_map
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant

APPEND = SegmentPlace("c/n.1/t/0", "commitLog", 0, Variant.APPEND)
FIXED = SegmentPlace("c/n.1/t/0", "commitLog", 0, Variant.FIXED)


def built(
    chunks: list[tuple[int, int]],
    consolidated: Consolidated | None = None,
    *,
    place: SegmentPlace = APPEND,
    is_full: bool = False,
    agree: bool | None = None,
    end: int | None = None,
    chunk_bytes: int | None = None,
) -> SegmentMap:
    def compare(one: Tile, other: Tile) -> bool:
        assert (one.position, one.end) == (other.position, other.end)
        assert agree is not None, f"{one} and {other} need not be compared"
        return agree

    objects = [ChunkObject(*each) for each in chunks]
    return build_map(place, objects, consolidated, is_full=is_full, agree=compare, end=end, chunk_bytes=chunk_bytes)


def tiles(found: SegmentMap) -> list[tuple[int, int, int]]:
    """Position, end and number of the chunk."""
    return [(tile.position, tile.end, int(tile.key.rpartition("-")[2])) for tile in found.tiles]


def test_numbers_are_sorted_as_numbers() -> None:
    found = built([(12288, 4096), (4096, 8192), (0, 4096), (16384, 5)])
    assert tiles(found) == [(0, 4096, 0), (4096, 12288, 4096), (12288, 16384, 12288), (16384, 16389, 16384)]
    assert (found.state, found.damage) == (SegmentState.OPEN, None)


@pytest.mark.parametrize(("is_full", "state"), [(False, SegmentState.OPEN), (True, SegmentState.FULL)])
def test_whether_a_segment_is_full_is_known_from_elsewhere(is_full: bool, state: SegmentState) -> None:
    assert built([(0, 5)], is_full=is_full).state is state
    assert built([], is_full=is_full).state is SegmentState.NEW


def test_a_hole_ends_what_is_readable_and_names_the_chunk() -> None:
    found = built([(0, 10), (10, 10), (30, 5), (35, 5)])
    assert (found.state, found.end, found.beyond) == (SegmentState.LOST, 20, (30, 35))
    assert found.damage is not None
    assert (found.damage.position, found.damage.key, found.damage.is_hole) == (20, APPEND.chunk_key(20), True)
    first = built([(30, 5)])
    assert first.damage is not None
    assert (first.state, first.end, first.damage.key) == (SegmentState.LOST, 0, APPEND.chunk_key(0))


def test_a_fixed_chunk_that_is_too_short_is_the_one_to_blame() -> None:
    found = built([(0, 4096), (4096, 100), (8192, 4096)], place=FIXED)
    assert (found.state, found.end) == (SegmentState.LOST, 4196)
    assert found.damage is not None
    assert found.damage.key == FIXED.chunk_key(4096)


def test_a_stale_chunk_that_others_cover_is_dropped() -> None:
    found = built([(0, 100), (50, 20), (100, 50)], agree=True)
    assert tiles(found) == [(0, 100, 0), (100, 150, 100)]
    assert found.state is SegmentState.OPEN


def test_a_stale_chunk_that_reaches_into_the_next_is_followed_where_that_ends() -> None:
    found = built([(0, 100), (100, 80), (150, 20), (170, 60)], agree=True)
    assert tiles(found) == [(0, 100, 0), (100, 180, 100), (180, 230, 170)]
    assert [tile.start for tile in found.tiles] == [0, 0, 10]


def test_chunks_that_disagree_end_what_is_readable() -> None:
    found = built([(0, 100), (100, 80), (150, 50), (200, 10)], agree=False)
    assert (found.state, found.end, found.beyond) == (SegmentState.LOST, 150, (150, 200))
    assert found.damage is not None
    assert not found.damage.is_hole
    assert APPEND.chunk_key(100) in found.damage.reason
    assert found.damage.key == APPEND.chunk_key(150)


@pytest.mark.parametrize("meant", [None, 20])
def test_a_consolidated_object_wins_over_what_is_left(meant: int | None) -> None:
    assert built([], Consolidated(20, meant)).state is SegmentState.DONE
    found = built([(10, 10)], Consolidated(20, meant))
    assert (found.state, found.leftover) == (SegmentState.LEFTOVER, (Tile(10, 10, APPEND.chunk_key(10)),))
    assert found.tiles == (Tile(0, 20, APPEND.segment_key),)


@pytest.mark.parametrize(
    ("chunks", "consolidated"),
    [
        ([(0, 10), (10, 10)], Consolidated(15)),
        ([(0, 10), (10, 10)], Consolidated(15, 20)),
        ([(0, 10), (10, 10)], Consolidated(10, 10)),
        ([(0, 10), (15, 10)], Consolidated(15)),
    ],
)
def test_a_consolidated_object_that_lacks_something_is_not_trusted(chunks: list[tuple[int, int]], consolidated: Consolidated) -> None:
    found = built(chunks, consolidated, agree=True)
    assert (found.state, found.leftover) == (SegmentState.BROKEN, ())
    if consolidated.meant_bytes != consolidated.size_bytes:
        assert all(tile.key != APPEND.segment_key for tile in found.tiles)
        assert found.tiles[0] == Tile(0, 10, APPEND.chunk_key(0))


def test_a_chunk_that_reaches_further_is_stale_only_where_the_end_is_known() -> None:
    chunks = [(0, 10), (10, 15)]
    assert built(chunks, Consolidated(20, 20), end=20).state is SegmentState.LEFTOVER
    assert built(chunks, Consolidated(20), end=20).state is SegmentState.BROKEN
    for known in (None, 21, 25):
        found = built(chunks, Consolidated(20, 20), end=known)
        assert (found.state, found.leftover, found.end) == (SegmentState.BROKEN, (), 25)
        assert [tile.key for tile in found.tiles] == [APPEND.chunk_key(0), APPEND.chunk_key(10)]


def test_an_end_that_is_known_and_not_reached_is_a_lost_chunk() -> None:
    """No listing shows that the last chunk is missing."""
    found = built([(0, 10), (10, 10)], end=25, is_full=True)
    assert (found.state, found.end) == (SegmentState.LOST, 20)
    assert found.damage is not None
    assert (found.damage.key, found.damage.is_hole) == (APPEND.chunk_key(20), True)
    assert built([(0, 10), (10, 10)], end=20, is_full=True).state is SegmentState.FULL
    assert built([], end=1).state is SegmentState.LOST
    assert built([], end=0).state is SegmentState.NEW


@pytest.mark.parametrize(
    ("chunks", "chunk_bytes", "blamed"),
    [
        ([(0, 100), (200, 50)], None, 100),
        ([(0, 30), (200, 20)], None, 0),  # no chunk that is full, so that all that is known is what divides the numbers
        ([(0, 30), (200, 20)], 100, 0),
        ([(0, 30), (200, 20)], 10, 0),  # longer chunks than that: what is there counts
        ([(0, 50), (200, 20)], 50, 50),
        ([(0, 50), (200, 20)], 100, 0),
        ([(200, 20)], 100, 0),
    ],
)
def test_a_hole_names_a_fixed_chunk_that_can_exist(chunks: list[tuple[int, int]], chunk_bytes: int | None, blamed: int) -> None:
    found = built(chunks, place=FIXED, chunk_bytes=chunk_bytes)
    assert found.damage is not None
    assert found.damage.key == FIXED.chunk_key(blamed)


def test_a_short_last_chunk_is_the_one_that_an_end_misses() -> None:
    found = built([(0, 100), (100, 40)], place=FIXED, chunk_bytes=100, end=150)
    assert found.damage is not None
    assert found.damage.key == FIXED.chunk_key(100)
    full = built([(0, 100), (100, 100)], place=FIXED, chunk_bytes=100, end=250)
    assert full.damage is not None
    assert full.damage.key == FIXED.chunk_key(200)


_MIB = 1 << 20


@pytest.mark.parametrize("chunk_bytes", [None, 6 * _MIB])
def test_our_own_names_are_bytes_though_they_look_like_kib(chunk_bytes: int | None) -> None:
    """The first chunk is short, since its rewrite has failed, of a length that divides what follows."""
    found = built([(0, 4 * _MIB), (6 * _MIB, 100)], place=FIXED, chunk_bytes=chunk_bytes)
    assert (found.is_foreign, found.beyond) == (False, (6 * _MIB,))
    assert found.damage is not None
    assert (found.damage.position, found.damage.key) == (4 * _MIB, FIXED.chunk_key(0))


def test_kib_are_recognised_though_the_chunk_size_is_known() -> None:
    found = built([(0, 16384), (16, 16384), (32, 5)], place=FIXED, chunk_bytes=16384)
    assert (found.is_foreign, found.end) == (True, 2 * 16384 + 5)


def test_a_late_chunk_after_a_sound_object_is_read_after_it_and_kept() -> None:
    found = built([(20, 5)], Consolidated(20, 20))
    assert (found.state, found.leftover, found.end, found.damage) == (SegmentState.BROKEN, (), 25, None)
    assert [tile.key for tile in found.tiles] == [APPEND.segment_key, APPEND.chunk_key(20)]
    assert built([(20, 5)], Consolidated(20)).end == 0


def test_an_object_that_is_not_as_long_as_it_says_is_readable_as_far_as_it_goes() -> None:
    found = built([], Consolidated(20, 25))
    assert (found.state, found.end) == (SegmentState.BROKEN, 20)
    assert found.damage is not None


@pytest.mark.parametrize(
    ("chunks", "is_foreign"),
    [
        ([(0, 16384), (16, 16384), (32, 5)], True),
        ([(0, 16384), (32, 16384), (48, 5)], True),  # with a hole
        ([(0, 16384), (16384, 5)], False),
        ([(0, 5)], False),
        ([(0, 1000), (1000, 5)], False),
    ],
)
def test_names_in_kib_are_recognised(chunks: list[tuple[int, int]], is_foreign: bool) -> None:
    found = built(chunks, place=FIXED)
    assert found.is_foreign is is_foreign
    if is_foreign:
        assert [tile.position for tile in found.tiles] == [number * 1024 for number, _ in chunks[: len(found.tiles)]]
        assert found.damage is None or found.damage.key == FIXED.chunk_key(16)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12, unique_by=lambda each: each[0]))
def test_any_listing_gives_a_tiling_of_what_the_chunks_hold(chunks: list[tuple[int, int]]) -> None:
    held = {byte for position, size_bytes in chunks for byte in range(position, position + size_bytes)}
    readable = next(byte for byte in range(100) if byte not in held)
    found = built(chunks, agree=True)
    assert found.end == readable
    assert (found.damage is not None) == (max(held, default=-1) >= readable)
    position = 0
    for tile in found.tiles:
        number = int(tile.key.rpartition("-")[2])
        assert (tile.position, tile.start) == (position, position - number)
        assert (number, tile.start + tile.size_bytes) in [(each[0], min(each[1], readable - each[0])) for each in chunks]
        position = tile.end
