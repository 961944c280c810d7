"""When what can wait is to be done for which partition. Values only: no thread, no clock."""

from collections.abc import Callable, Container, Iterable
from heapq import heappop, heappush

from headwater_core.partition import TopicPartition


class Timetable:
    """Not safe to use from many threads. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._at_s: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []  # of the same, and some that are no longer so

    def __len__(self) -> int:
        return len(self._at_s)

    def add(self, partition: TopicPartition, at_s: float) -> None:
        """At that time, or earlier where that is known already."""
        if at_s < self._at_s.get(partition, float("inf")):
            self._at_s[partition] = at_s
            heappush(self._heap, (at_s, partition))

    def take(self, now_s: float, passed_over: Callable[[TopicPartition], bool] = lambda _: False) -> TopicPartition | None:
        """The one that has been due longest, which leaves; None when none is due, apart from those to pass over."""
        kept: list[tuple[float, TopicPartition]] = []
        found = None
        while found is None and (first := self._first()) is not None and first[0] <= now_s:
            heappop(self._heap)
            if passed_over(first[1]):
                kept.append(first)
            else:
                found = first[1]
                del self._at_s[found]
        for each in kept:
            heappush(self._heap, each)
        return found

    def wait_s(self, now_s: float) -> float | None:
        """How long until one is due; None when there is none."""
        first = self._first()
        return None if first is None else max(0.0, first[0] - now_s)

    def retain(self, partitions: Container[TopicPartition]) -> None:
        """Forget all others."""
        for each in [each for each in self._at_s if each not in partitions]:
            del self._at_s[each]

    def _first(self) -> tuple[float, TopicPartition] | None:
        while self._heap and self._at_s.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


def earliest(*waits_s: float | None) -> float | None:
    """The shortest of these waits; None: without an end."""
    known: Iterable[float] = (each for each in waits_s if each is not None)
    return min(known, default=None)
