"""Which partition is next: a choice among plain values, with no thread, no clock and no disk.

A partition is due, in the hands of a worker, postponed after a failure, or none of these. It is in the queue once, however often
it is added, and those that are due wait in the order in which they became due: a partition that has had a step is put after all others.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Any

from headwater_core.partition import TopicPartition

PAUSE_S = 1.0  # after the first failure; it doubles with each one more
PAUSE_MAX_S = 60.0  # few enough tries for ten thousand partitions without a store, soon enough after it has come back
CHANGES_MAX = 5  # how often in a row a log that changes while it is read is tried again without a pause


class DueQueue:
    """Not safe to use from many threads. Times are seconds of one monotonic clock.

    Every partition that `take` gives must come back by one of `again`, `done`, `changed` and `failed`.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: OrderedDict[TopicPartition, None] = OrderedDict()
        self._taken: dict[TopicPartition, bool] = {}  # has it been added since it was taken?
        self._postponed: dict[TopicPartition, float] = {}  # until when
        self._ends: list[tuple[float, TopicPartition]] = []  # heap of the same, and of some that are no longer so
        self._failures: Counter[TopicPartition] = Counter()  # in a row
        self._changes: Counter[TopicPartition] = Counter()  # in a row

    def __len__(self) -> int:
        """How many are due, in hand or postponed."""
        return len(self._due) + len(self._taken) + len(self._postponed)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Something may have happened to them. What is postponed stays so."""
        for each in partitions:
            if each in self._taken:
                self._taken[each] = True
            elif each not in self._postponed:
                self._due.setdefault(each)

    def retain(self, partitions: Container[TopicPartition]) -> None:
        """Forget all others."""
        tables: tuple[dict[TopicPartition, Any], ...] = (self._due, self._postponed, self._failures, self._changes)
        for table in tables:
            for each in [each for each in table if each not in partitions]:
                del table[each]
        for each in self._taken:
            self._taken[each] = self._taken[each] and each in partitions

    def take(self, now_s: float, passed_over: Callable[[TopicPartition], bool] = lambda _: False) -> TopicPartition | None:
        """The next one; None when none is due, apart from those to pass over: they keep their places."""
        while (first_s := self._first_end()) is not None and first_s <= now_s:
            _, partition = heappop(self._ends)
            del self._postponed[partition]
            self._due[partition] = None
        found = next((each for each in self._due if not passed_over(each)), None)
        if found is not None:
            del self._due[found]
            self._taken[found] = False
        return found

    def wait_s(self, now_s: float) -> float | None:
        """How long until one is due, 0 when one is; None when that takes an `add`."""
        if self._due:
            return 0.0
        first_s = self._first_end()
        return None if first_s is None else max(0.0, first_s - now_s)

    def again(self, partition: TopicPartition) -> None:
        """It had a step that did something: there may be more to do."""
        del self._taken[partition]
        self._forgive(partition)
        self._due[partition] = None

    def done(self, partition: TopicPartition) -> None:
        """Nothing is left to do."""
        added = self._taken.pop(partition)
        self._forgive(partition)
        if added:
            self._due[partition] = None

    def changed(self, partition: TopicPartition, now_s: float) -> bool:
        """Its log changed while it was read. It is due again at once; False when that was so too often, and it is postponed."""
        self._changes[partition] += 1
        if self._changes[partition] >= CHANGES_MAX:
            self.failed(partition, now_s)
            return False
        del self._taken[partition]
        self._due[partition] = None
        return True

    def failed(self, partition: TopicPartition, now_s: float) -> None:
        """It is due again after a pause of chance length, so that those who failed together do not come back together."""
        del self._taken[partition]
        self._changes.pop(partition, None)
        self._failures[partition] += 1
        longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._failures[partition] - 1, 30))
        self._postponed[partition] = until_s = now_s + longest_s * self._random.uniform(0.5, 1.0)
        heappush(self._ends, (until_s, partition))

    def _forgive(self, partition: TopicPartition) -> None:
        self._failures.pop(partition, None)
        self._changes.pop(partition, None)

    def _first_end(self) -> float | None:
        while self._ends and self._postponed.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)  # forgotten since
        return self._ends[0][0] if self._ends else None
