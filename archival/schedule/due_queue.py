"""Which partition is next: a choice among plain values, with no thread, no clock and no disk.

A partition is due, in the hands of a worker, postponed after a failure, or none of these. It is in the queue once, however often
it is added. Those that are due are taken in two ways by turns, each of which gets half of what is sent:

* in turn: after a step a partition waits until all others have had as much, where a step counts as one, and one more for each whole
  QUANTUM_BYTES that it sent. One that was idle has saved nothing up, and owes nothing.
* by deadline: what the broker's retention will delete first. That costs a partition nothing of its turn.

So half of the capacity goes where data would be lost first, and nobody waits for more than twice as long as turns alone would take.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple

from headwater_core.partition import TopicPartition

PAUSE_S = 1.0  # after the first failure; it doubles with each one more
PAUSE_MAX_S = 60.0  # few enough tries for ten thousand partitions without a store, soon enough after it has come back
CHANGES_MAX = 5  # how often in a row a log that changes while it is read is tried again without a pause
QUANTUM_BYTES = 1 << 20  # a store is busy for about as long with these as with the requests of a step


class QueuePlace(NamedTuple):
    """One partition's. due_before: how many became due before it; again_in_s: when it is due again; None where it is neither."""

    in_hand: bool
    due_before: int | None
    again_in_s: float | None


@dataclass(slots=True)
class _InHand:
    """A partition that was taken.

    start        its place among those in turn, as _Lane has it
    by_deadline  was it taken by its deadline?
    added        has it been added since?
    """

    start: int
    by_deadline: bool
    added: bool = False


class _Lane:
    """What is due in one order; the partition that has waited longest comes first among equals."""

    def __init__(self, due: dict[TopicPartition, int]) -> None:
        self._due = due  # the number of each that is due: what else lies in the heap is no longer so
        self._heap: list[tuple[int, int, TopicPartition]] = []

    def push(self, rank: int, number: int, partition: TopicPartition) -> None:
        heappush(self._heap, (rank, number, partition))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [each for each in self._heap if self._due.get(each[2]) == each[1]]
            heapify(self._heap)

    def first(self, passed_over: Callable[[TopicPartition], bool]) -> tuple[int, TopicPartition] | None:
        """The first one, which stays, and its rank."""
        kept: list[tuple[int, int, TopicPartition]] = []
        found = None
        while self._heap and found is None:
            rank, number, partition = self._heap[0]
            if self._due.get(partition) != number:
                heappop(self._heap)
            elif passed_over(partition):
                kept.append(heappop(self._heap))
            else:
                found = rank, partition
        for each in kept:
            heappush(self._heap, each)
        return found


class DueQueue:
    """Not safe to use from many threads. Times are seconds of one monotonic clock; deadlines are milliseconds of the wall clock.

    Every partition that `take` gives must come back by one of `again`, `done`, `later`, `changed` and `failed`.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: dict[TopicPartition, int] = {}  # and its number: in the order in which they became due
        self._numbers = count()
        self._in_turn, self._by_deadline = _Lane(self._due), _Lane(self._due)
        self._turn = 0  # the start of the one that was last taken in turn
        self._starts: dict[TopicPartition, int] = {}  # of those that have had more than others
        self._deadlines: dict[TopicPartition, int] = {}
        self._credit = 0  # what those taken by deadline have to get until they have had as much as those taken in turn
        self._taken: dict[TopicPartition, _InHand] = {}
        self._postponed: dict[TopicPartition, float] = {}  # until when
        self._sooner: set[TopicPartition] = set()  # of these, those that are due when they are added
        self._ends: list[tuple[float, TopicPartition]] = []  # heap of the same, and of some that are no longer so
        self._failures: Counter[TopicPartition] = Counter()  # in a row
        self._changes: Counter[TopicPartition] = Counter()  # in a row

    def __len__(self) -> int:
        """How many are due, in hand or postponed."""
        return len(self._due) + len(self._taken) + len(self._postponed)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Something may have happened to them. What is postponed stays so, but for what `later` says."""
        for each in partitions:
            if each in self._taken:
                self._taken[each].added = True
            elif each in self._sooner:
                self._sooner.discard(each)
                del self._postponed[each]
                self._push(each)
            elif each not in self._postponed and each not in self._due:
                self._push(each)

    def retain(self, partitions: Container[TopicPartition]) -> None:
        """Forget all others."""
        tables: tuple[dict[TopicPartition, Any], ...] = (
            self._due,
            self._postponed,
            self._failures,
            self._changes,
            self._starts,
            self._deadlines,
        )
        for table in tables:
            for each in [each for each in table if each not in partitions]:
                del table[each]
        self._sooner &= self._postponed.keys()
        for each, hand in self._taken.items():
            hand.added = hand.added and each in partitions

    def take(self, now_s: float, passed_over: Callable[[TopicPartition], bool] = lambda _: False) -> TopicPartition | None:
        """The next one; None when none is due, apart from those to pass over: they keep their places."""
        while (first_s := self._first_end()) is not None and first_s <= now_s:
            _, partition = heappop(self._ends)
            del self._postponed[partition]
            self._sooner.discard(partition)
            self._push(partition)
        in_turn = self._in_turn.first(passed_over)
        if in_turn is None:
            return None
        by_deadline = self._by_deadline.first(passed_over)
        if by_deadline is None:
            self._credit = 0
        start, partition = in_turn
        rushed = by_deadline is not None and self._credit > 0
        if rushed:
            assert by_deadline
            partition = by_deadline[1]
            start = self._starts.get(partition, self._turn)
        else:
            self._turn = max(self._turn, start)
        del self._due[partition]
        self._taken[partition] = _InHand(start, rushed)
        self._charge(self._taken[partition], 1)
        return partition

    def wait_s(self, now_s: float) -> float | None:
        """How long until one is due, 0 when one is; None when that takes an `add`."""
        if self._due:
            return 0.0
        first_s = self._first_end()
        return None if first_s is None else max(0.0, first_s - now_s)

    def is_due(self, partition: TopicPartition) -> bool:
        return partition in self._due

    def place_of(self, partition: TopicPartition, now_s: float) -> "QueuePlace":
        """Where a partition stands, without moving it."""
        number = self._due.get(partition)
        return QueuePlace(
            in_hand=partition in self._taken,
            due_before=None if number is None else sum(other < number for other in self._due.values()),
            again_in_s=max(0.0, self._postponed[partition] - now_s) if partition in self._postponed else None,
        )

    def again(self, partition: TopicPartition, sent_bytes: int = 0, deadline_ms: int | None = None) -> None:
        """It had a step that did something: there may be more to do.

        sent_bytes   by the step
        deadline_ms  when the broker's retention will take what is next; None: never, or that is not known
        """
        self._give_back(partition, sent_bytes)
        self._forgive(partition)
        if deadline_ms is None:
            self._deadlines.pop(partition, None)
        else:
            self._deadlines[partition] = deadline_ms
        self._push(partition)

    def done(self, partition: TopicPartition, sent_bytes: int = 0) -> None:
        """Nothing is left to do. sent_bytes: by the step"""
        added = self._give_back(partition, sent_bytes).added
        self._forgive(partition)
        self._deadlines.pop(partition, None)
        if added:
            self._push(partition)
        elif not self._due and not self._taken:
            self._starts.clear()  # nobody was kept waiting

    def changed(self, partition: TopicPartition, now_s: float) -> bool:
        """Its log changed while it was read. It is due again at once; False when that was so too often, and it is postponed."""
        self._changes[partition] += 1
        if self._changes[partition] >= CHANGES_MAX:
            self.failed(partition, now_s)
            return False
        self._give_back(partition)
        self._push(partition)
        return True

    def later(self, partition: TopicPartition, until_s: float, *, or_added: bool = False) -> None:
        """It waits for something that no event reports, and is due again then; `or_added`: or when it is added before."""
        added = self._give_back(partition).added
        self._forgive(partition)
        if added and or_added:
            self._push(partition)
            return
        self._postpone(partition, until_s)
        if or_added:
            self._sooner.add(partition)

    def failed(self, partition: TopicPartition, now_s: float) -> None:
        """It is due again after a pause of chance length, so that those who failed together do not come back together."""
        self._give_back(partition)
        self._changes.pop(partition, None)
        self._failures[partition] += 1
        longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._failures[partition] - 1, 30))
        self._postpone(partition, now_s + longest_s * self._random.uniform(0.5, 1.0))

    def _postpone(self, partition: TopicPartition, until_s: float) -> None:
        self._postponed[partition] = until_s
        heappush(self._ends, (until_s, partition))

    def _push(self, partition: TopicPartition) -> None:
        """It is due from now on."""
        self._due[partition] = number = next(self._numbers)
        self._in_turn.push(max(self._turn, self._starts.get(partition, 0)), number, partition)
        if partition in self._deadlines:
            self._by_deadline.push(self._deadlines[partition], number, partition)

    def _give_back(self, partition: TopicPartition, sent_bytes: int = 0) -> _InHand:
        hand = self._taken.pop(partition)
        more = sent_bytes // QUANTUM_BYTES
        self._charge(hand, more)
        self._starts[partition] = hand.start if hand.by_deadline else hand.start + 1 + more
        if self._starts[partition] <= self._turn:
            del self._starts[partition]
        return hand

    def _charge(self, hand: _InHand, cost: int) -> None:
        self._credit += -cost if hand.by_deadline else cost

    def _forgive(self, partition: TopicPartition) -> None:
        self._failures.pop(partition, None)
        self._changes.pop(partition, None)

    def _first_end(self) -> float | None:
        while self._ends and self._postponed.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)  # forgotten since
        return self._ends[0][0] if self._ends else None
