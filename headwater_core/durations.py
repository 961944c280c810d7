"""How long things took: a histogram with fixed bounds."""

from bisect import bisect_left
from collections.abc import Sequence


class Durations:
    """For one thread at a time.

    bounds_s  upper bounds of the classes, inclusive and rising; one more class takes what is above the last
    counts    how many durations fell into each class
    sum_s     of all of them
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s, self.counts, self.sum_s = tuple(bounds_s), [0] * (len(bounds_s) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> "Durations":
        other = Durations(self.bounds_s)
        other.counts, other.sum_s = list(self.counts), self.sum_s
        return other
