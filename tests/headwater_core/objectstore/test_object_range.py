"""How ranges are cut into the parts of a copy, and how they are read."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, NotFound
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.object_range import CopyPart, RangeSource, plan_copy
from headwater_core.objectstore.store import ObjectRange
from tests.headwater_core.objectstore.memory import MemoryStore


def planned(sizes: list[int], *, parts_max: int = 10_000) -> list[CopyPart]:
    ranges = [ObjectRange(str(number), 7, size_bytes) for number, size_bytes in enumerate(sizes)]
    return plan_copy(ranges, part_bytes_min=50, part_bytes_max=200, parts_max=parts_max)


def shape(parts: list[CopyPart]) -> list[tuple[str, list[int]]]:
    return [("sent" if part.is_sent else "copied", [each.size_bytes for each in part.ranges]) for part in parts]


def test_what_is_large_is_copied() -> None:
    assert shape(planned([50, 60, 200, 100])) == [("copied", [50]), ("copied", [60]), ("copied", [200]), ("copied", [100])]


def test_what_is_too_large_for_one_request_goes_in_equal_pieces() -> None:
    assert shape(planned([401])) == [("copied", [134]), ("copied", [134]), ("copied", [133])]


def test_what_is_small_is_joined_and_sent_with_the_beginning_of_what_follows() -> None:
    assert shape(planned([20, 20, 20, 5])) == [("sent", [20, 20, 20]), ("sent", [5])]
    assert shape(planned([20, 200])) == [("sent", [20, 30]), ("copied", [170])]
    assert shape(planned([20, 60])) == [("sent", [20, 60])]
    assert shape(planned([200, 20])) == [("copied", [200]), ("sent", [20])]
    assert shape(planned([0, 0])) == []


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(2, 40))
@example([50] * 40, 40)
def test_every_plan_has_all_bytes_in_order_in_parts_that_s3_takes(sizes: list[int], parts_max: int) -> None:
    parts = planned(sizes, parts_max=parts_max)
    assert len(parts) <= parts_max
    assert all(part.size_bytes >= 50 for part in parts[:-1])
    for part in parts:
        assert part.is_sent or (len(part.ranges) == 1 and part.size_bytes >= 50)
    found = [(each.key, byte) for part in parts for each in part.ranges for byte in range(each.start, each.start + each.size_bytes)]
    assert found == [(str(number), byte) for number, size_bytes in enumerate(sizes) for byte in range(7, 7 + size_bytes)]


def test_of_many_small_ranges_little_is_held_at_once() -> None:
    """What is sent is held: at most twice the least size."""
    assert max(part.size_bytes for part in planned([7, 49, 1, 300, 10, 99, 3] * 50) if part.is_sent) < 100 + 50


def test_ranges_read_as_one_file_and_other_bytes_end_it_before_its_end() -> None:
    store = MemoryStore()
    store.create("a", bytes(3 << 20))
    store.create("b", b"0123456789")
    ranges = [ObjectRange("b", 3, 2), ObjectRange("a", 0, 3 << 20), ObjectRange("b", 0, 0), ObjectRange("b", 9, 1)]
    whole = b"34" + bytes(3 << 20) + b"9"
    source = RangeSource(store, ranges, digest_of(whole))
    assert source.size_bytes == len(whole)
    assert b"".join(iter(lambda: source.read(1 << 20), b"")) == whole
    other = RangeSource(store, ranges, digest_of(whole[:-1] + b"8"))
    with pytest.raises(CorruptData):
        list(iter(other.read, b""))
    with pytest.raises(NotFound):
        RangeSource(store, [ObjectRange("c", 0, 1)]).read()
