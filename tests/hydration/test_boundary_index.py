from hydration.local.boundary_index import POINT_SPACING_BYTES, BoundaryIndex, End, Witness
from hydration.local.file_version import FileVersion
from hydration.ranges import Boundary

FAR = POINT_SPACING_BYTES


def an_index(*places: Boundary) -> BoundaryIndex:
    index = BoundaryIndex(FileVersion(1, 1))
    for place in places:
        index.note(place)
    return index


def test_the_last_boundary_at_or_before_an_offset_or_a_position_is_found() -> None:
    first, second = Boundary(FAR, 10), Boundary(3 * FAR, 30)
    index = an_index(second, first)
    assert [index.by_offset(offset) for offset in (9, 10, 29, 30, 99)] == [None, first, first, second, second]
    assert [index.by_position(at) for at in (FAR - 1, FAR, 3 * FAR - 1, 3 * FAR)] == [None, first, first, second]


def test_a_boundary_near_a_known_one_is_not_kept() -> None:
    known = Boundary(FAR, 10)
    index = an_index(known, Boundary(FAR - 1, 9), Boundary(2 * FAR - 1, 19))
    assert index.by_position(9 * FAR) == known
    assert index.by_offset(9) is None


def test_ends_are_remembered_until_the_file_is_cut() -> None:
    index, end = an_index(Boundary(FAR, 10)), End(Boundary(2 * FAR, 20), Witness(FAR, 10, leader_epoch=3))
    index.note_end(20, end)
    assert (index.end_at(20), index.end_at(21)) == (end, None)
    index.forget()
    assert (index.end_at(20), index.by_offset(99)) == (None, None)


def test_only_a_few_ends_are_remembered() -> None:
    index = an_index()
    for offset in range(100):
        index.note_end(offset, End(Boundary(offset, offset), None))
    assert index.end_at(99)
    assert sum(index.end_at(offset) is not None for offset in range(100)) < 5
