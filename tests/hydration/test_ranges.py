"""Which whole batches of a file make an answer, by their headers and by what is known of where batches begin."""

from functools import partial

import pytest

from headwater_core.errors import CorruptData
from hydration.ranges import Boundary, Range, cut, first_at, headers
from tests.headwater_core.segments.builders import a_batch

SMALL = [a_batch(at) for at in range(6)]
SIZE = len(SMALL[0])


class File:
    """Bytes that are read by position, and how often they were."""

    where = "a segment"

    def __init__(self, content: bytes) -> None:
        self.content, self.reads = content, 0

    def read(self, position: int, size_bytes: int) -> bytes:
        self.reads += 1
        return self.content[position : position + size_bytes]


def a_file(*batches: bytes) -> File:
    return File(b"".join(batches))


def test_small_batches_are_found_with_one_read() -> None:
    file = a_file(*SMALL)
    found = [(position, header.base_offset) for position, header in headers(file, 0, len(file.content))]
    assert found == [(at * SIZE, at) for at in range(6)]
    assert file.reads == 1


def test_a_batch_beyond_the_window_takes_another_read() -> None:
    file = a_file(a_batch(0, [b"x" * 70_000]), a_batch(1))
    assert [header.base_offset for _, header in headers(file, 0, len(file.content))] == [0, 1]
    assert file.reads == 2


@pytest.mark.parametrize("missing", [1, SIZE - 1])
def test_a_torn_batch_at_the_end_is_not_there_yet(missing: int) -> None:
    file = a_file(*SMALL)
    assert len(list(headers(file, 0, len(file.content) - missing))) == 5


def test_offsets_that_do_not_rise_are_damage() -> None:
    file = a_file(a_batch(3), a_batch(3))
    with pytest.raises(CorruptData, match="batch at offset 3 follows offset 3"):
        list(headers(file, 0, len(file.content)))


def test_the_first_batch_that_reaches_an_offset() -> None:
    file = a_file(a_batch(0, 4), a_batch(9, 2))
    find = partial(headers, file)
    positions = [found and found[0] for found in (first_at(find, offset, 0, len(file.content)) for offset in (2, 5, 10, 11))]
    assert positions == [0, len(a_batch(0, 4)), len(a_batch(0, 4)), None]


def a_cut(offset: int, batches: int, *known: int, walk: bool = True) -> Range | None:
    """Of SMALL from its start, with room for so many batches; the `known` ones begin where an index says."""

    def boundary(position: int, most: int) -> Boundary | None:
        return max((Boundary(at * SIZE, at) for at in known if position < at * SIZE <= position + most), default=None)

    file = a_file(*SMALL)
    end = Boundary(len(file.content), len(SMALL))
    return cut(partial(headers, file), offset, start=Boundary(0, 0), end=end, max_bytes=batches * SIZE, boundary=boundary, walk=walk)


def test_all_that_fits_is_taken() -> None:
    assert a_cut(2, 10) == Range(2 * SIZE, 4 * SIZE, 6)
    assert a_cut(6, 10) is None


def test_a_known_boundary_ends_an_answer_unless_it_leaves_too_little() -> None:
    assert a_cut(0, 4, 3) == Range(0, 3 * SIZE, 3)
    assert a_cut(0, 4, 1) == Range(0, 4 * SIZE, 4)  # so headers are walked, from there on
    assert a_cut(0, 4, 1, walk=False) == Range(0, SIZE, 1)
    assert a_cut(0, 4, walk=False) is None


def test_at_least_one_batch_is_taken_however_large() -> None:
    assert a_cut(1, 0) == Range(SIZE, SIZE, 2)
