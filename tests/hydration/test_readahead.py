"""How far ahead to download."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from hydration.archive.readahead import Ahead, Streams
from tests.headwater_core.manual_clock import ManualClock

CHUNK = 1000  # bytes; a read below takes as many, and one offset for each


def depths(limit: int, chunks: int, rate: Callable[[int], int]) -> list[int]:
    """The depth at each of so many chunks read one after the other, `rate` telling chunks per second by depth."""
    clock = ManualClock()
    streams, found = Streams(limit, CHUNK, clock), []
    for offset in range(0, chunks * CHUNK, CHUNK):
        found.append(streams.ahead(offset).gets)
        clock.advance(1_000_000 // max(1, rate(found[-1])) // 1000)
        streams.moved(offset, offset + CHUNK, CHUNK)
    return found


def test_far_from_the_store_a_sequential_reader_gets_more_and_more_up_to_the_limit() -> None:
    found = depths(8, 80, lambda depth: 10 * (1 + depth))
    assert found[:3] == [0, 1, 1]
    assert found == sorted(found)
    assert set(found) == {0, 1, 2, 4, 8}
    assert found.count(8) > 50


def test_near_it_no_more_are_in_flight_than_help() -> None:
    found = depths(8, 400, lambda depth: 100 if depth < 2 else 200)
    assert found.count(2) > 250
    assert 8 not in found
    assert 4 in found[100:], "it is tried again from time to time"


def test_a_slow_reader_has_one_chunk_ready() -> None:
    found = depths(8, 400, lambda depth: 5)
    assert found.count(1) > 300
    assert max(found) == 2


def test_what_proved_right_once_is_tried_again_when_it_gets_slow() -> None:
    speed = iter([1000] * 50 + [0] * 350)  # the first chunks are in the cache
    found = depths(8, 400, lambda depth: next(speed) or 10 * (1 + depth))
    assert found.count(8) > 200


def test_the_limit_is_kept_and_need_be_no_power_of_two() -> None:
    assert max(depths(5, 100, lambda depth: 10 * (1 + depth))) == 5


def test_a_reader_that_jumps_gets_nothing() -> None:
    streams = Streams(8, CHUNK, ManualClock())
    for offset in (50, 10, 90, 30):
        assert streams.ahead(offset).gets == 0
        streams.moved(offset, offset + 10, CHUNK)


def test_several_readers_are_followed_apart() -> None:
    clock = ManualClock()
    streams = Streams(8, CHUNK, clock)
    for step in range(4):
        for start, size_bytes in ((0, CHUNK), (1_000, 1)):
            assert streams.ahead(start + step).gets == ([0, 1, 1, 2] if start == 0 else [0, 1, 1, 1])[step]
            clock.advance(1)
            streams.moved(start + step, start + step + 1, size_bytes)


def test_it_can_be_switched_off_and_remembers_no_more_than_it_should() -> None:
    off, on = Streams(0, CHUNK, ManualClock()), Streams(8, CHUNK, ManualClock())
    for offset in range(0, 20_000, 2):
        off.moved(offset, offset + 1, CHUNK)
        on.moved(offset, offset + 1, CHUNK)
    assert off.ahead(1).gets == 0
    assert on.ahead(1).gets == 0
    assert on.ahead(19_999).gets == 1


def test_who_reads_on_gets_more_chunks_a_request_within_the_limit() -> None:
    clock = ManualClock()
    streams, found = Streams(8, CHUNK, clock), []
    for offset in range(0, 20 * CHUNK, CHUNK):
        found.append(streams.ahead(offset))
        clock.advance(1)
        streams.moved(offset, offset + CHUNK, CHUNK)
    assert found[:3] == [(0, 1), (1, 1), (1, 1)]
    assert max(each.chunks for each in found) == 4
    assert all(each.gets * each.chunks <= 8 for each in found)


@given(number=st.integers(-1, 40), count=st.integers(0, 40), gets=st.integers(0, 8), chunks=st.sampled_from([1, 2, 4]))
def test_what_is_ahead_is_the_rest_of_a_group_and_whole_groups(number: int, count: int, gets: int, chunks: int) -> None:
    ranges = Ahead(gets, chunks).ranges(number, count)
    flat = [at for each in ranges for at in each]
    assert flat == list(range(number + 1, number + 1 + len(flat)))
    assert len(flat) < (gets + 1) * chunks
    assert all(each.stop % chunks == 0 or each.stop == count for each in ranges)
    assert not gets or len(flat) >= min(count - number - 1, gets * chunks)


def test_what_was_got_ready_for_a_chunk_is_not_asked_for_at_every_read_in_it() -> None:
    streams = Streams(8, CHUNK, ManualClock())
    first, second = object(), object()
    streams.moved(0, 10, CHUNK // 4)
    assert streams.ahead(10, first).gets == 1
    assert streams.ahead(10, first).gets == 1, "until it is said to be done"
    streams.got_ready(10, first)
    streams.moved(10, 20, CHUNK // 4)
    assert streams.ahead(20, first).gets == 0
    assert streams.ahead(20, second).gets == 1
