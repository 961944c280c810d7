import pytest

from headwater_core.epochs import EpochHistory

HISTORY = EpochHistory.of(((2, 10), (5, 10), (6, 30)))


def test_the_newest_of_two_epochs_at_one_offset_wrote_it() -> None:
    assert HISTORY.epoch_at(10) == 5
    assert HISTORY.epoch_at(29) == 5
    assert HISTORY.epoch_at(30) == 6


def test_nothing_is_known_below_the_first_step() -> None:
    assert HISTORY.epoch_at(9) is None
    assert EpochHistory().epoch_at(0) is None


@pytest.mark.parametrize("steps", [((2, 10), (2, 20)), ((2, 10), (3, 9)), ((-1, 0),), ((0, -1),)])
def test_a_history_out_of_order_cannot_be_made(steps: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError):
        EpochHistory.of(steps)


@pytest.mark.parametrize(
    ("one", "other", "offset"),
    [
        ([(0, 0)], [(0, 0)], None),
        ([(0, 0)], [(0, 0), (2, 7)], 7),
        ([(0, 0), (1, 5)], [(0, 0), (2, 7)], 5),
        ([(0, 0), (1, 5)], [(1, 6)], None),  # nothing is known of what lies below its first offset
        ([(0, 0), (1, 5)], [(2, 6)], 6),
        ([(0, 0)], [], None),
    ],
)
def test_two_histories_part_where_they_first_differ(one: list[tuple[int, int]], other: list[tuple[int, int]], offset: int | None) -> None:
    first, second = EpochHistory.of(one), EpochHistory.of(other)
    assert first.parts_at(second) == second.parts_at(first) == offset


def test_an_epoch_began_late_where_it_has_records_and_begins_after_an_offset() -> None:
    history = EpochHistory.of(((0, 0), (1, 20), (2, 20), (3, 50)))
    assert history.began_late(3, 49)
    assert history.began_late(2, 5)
    assert not history.began_late(1, 5)  # it wrote nothing: its offset went to the next one
    assert not history.began_late(3, 50)
    assert not history.began_late(4, 5)
