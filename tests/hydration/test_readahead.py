"""How far ahead to download."""

from hydration.readahead import Streams


def test_a_sequential_reader_gets_more_and_more_up_to_the_limit() -> None:
    streams, depths = Streams(8), []
    for offset in range(0, 70, 10):
        depths.append(streams.depth(offset))
        streams.moved(offset, offset + 10)
    assert depths == [0, 1, 2, 4, 8, 8, 8]


def test_a_reader_that_jumps_gets_nothing() -> None:
    streams = Streams(8)
    for offset in (50, 10, 90, 30):
        assert streams.depth(offset) == 0
        streams.moved(offset, offset + 10)


def test_several_readers_are_told_apart() -> None:
    streams = Streams(8)
    for step in range(4):
        for start in (0, 1_000):
            assert streams.depth(start + step) == [0, 1, 2, 4][step]
            streams.moved(start + step, start + step + 1)


def test_it_can_be_switched_off_and_remembers_no_more_than_it_should() -> None:
    off, on = Streams(0), Streams(8)
    for offset in range(0, 20_000, 2):
        off.moved(offset, offset + 1)
        on.moved(offset, offset + 1)
    assert off.depth(1) == 0
    assert on.depth(1) == 0
    assert on.depth(19_999) == 1
