"""A histogram of durations."""

from headwater_core.durations import Durations


def test_each_duration_falls_into_one_class_and_a_bound_belongs_to_the_lower() -> None:
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        durations.add(seconds)
    assert durations.counts == [2, 1, 1]
    assert durations.sum_s == 7.65


def test_a_copy_does_not_change_with_it() -> None:
    durations = Durations((1.0,))
    copy = durations.copy()
    durations.add(0.5)
    assert (copy.counts, copy.sum_s) == ([0, 0], 0.0)
