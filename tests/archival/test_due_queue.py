from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from archival.schedule.due_queue import CHANGES_MAX, PAUSE_MAX_S, PAUSE_S, QUANTUM_BYTES, DueQueue, _InHand
from headwater_core.partition import TopicPartition

A, B, C = (TopicPartition("soup", number) for number in range(3))


@pytest.fixture
def queue() -> DueQueue:
    return DueQueue(Random(7))


def taken(queue: DueQueue, now_s: float = 0.0) -> list[TopicPartition]:
    found = []
    while (each := queue.take(now_s)) is not None:
        found.append(each)
    return found


def test_partitions_come_in_the_order_they_were_added_and_once(queue: DueQueue) -> None:
    queue.add([B, A])
    queue.add([A, C, B])
    assert taken(queue) == [B, A, C]


def test_a_partition_that_continues_waits_after_all_others(queue: DueQueue) -> None:
    queue.add([A, B, C])
    order = []
    for _ in range(7):
        each = queue.take(0.0)
        assert each
        order.append(each)
        queue.again(each)
    assert order == [A, B, C, A, B, C, A]


def test_a_partition_in_hand_is_given_to_no_other(queue: DueQueue) -> None:
    queue.add([A])
    assert queue.take(0.0) == A
    queue.add([A])
    assert queue.take(0.0) is None
    queue.done(A)
    assert queue.take(0.0) == A  # something happened to it meanwhile
    queue.done(A)
    assert (queue.take(0.0), len(queue)) == (None, 0)


def fail(queue: DueQueue, partition: TopicPartition, now_s: float) -> float:
    """How long it is postponed."""
    assert queue.take(now_s) == partition
    queue.failed(partition, now_s)
    wait_s = queue.wait_s(now_s)
    assert wait_s is not None
    return wait_s


def test_the_pause_after_failures_grows_up_to_a_bound_and_ends_by_itself(queue: DueQueue) -> None:
    queue.add([A])
    now_s, longest_s = 100.0, PAUSE_S
    for _ in range(40):
        wait_s = fail(queue, A, now_s)
        assert longest_s / 2 <= wait_s <= longest_s
        assert queue.take(now_s + wait_s * 0.99) is None
        now_s += wait_s
        longest_s = min(PAUSE_MAX_S, 2 * longest_s)
    assert longest_s == PAUSE_MAX_S
    assert queue.take(now_s) == A
    queue.again(A)  # a success ends the series
    assert fail(queue, A, now_s) <= PAUSE_S


def test_events_do_not_shorten_a_pause(queue: DueQueue) -> None:
    queue.add([A, B])
    fail(queue, A, 0.0)
    queue.add([A])
    assert taken(queue) == [B]


def test_those_that_failed_together_do_not_come_back_together(queue: DueQueue) -> None:
    places = [TopicPartition("soup", number) for number in range(200)]
    queue.add(places)
    for each in taken(queue):
        queue.failed(each, 0.0)
    early = taken(queue, PAUSE_S * 0.75)
    assert 50 < len(early) < 150
    assert sorted(early + taken(queue, PAUSE_S)) == places


def test_a_changing_log_is_tried_again_at_once_a_few_times(queue: DueQueue) -> None:
    queue.add([A])
    for _ in range(2):
        tries = 0
        while queue.take(0.0):
            tries += 1
            if not queue.changed(A, 0.0):
                break
        assert tries == CHANGES_MAX
        assert queue.take(0.0) is None
        assert queue.take(PAUSE_MAX_S) == A
        queue.again(A)


def test_steps_that_go_well_in_between_end_a_series_of_changes(queue: DueQueue) -> None:
    queue.add([A])
    for _ in range(5 * CHANGES_MAX):
        assert queue.take(0.0) == A
        assert queue.changed(A, 0.0)
        assert queue.take(0.0) == A
        queue.again(A)


def test_what_is_gone_is_forgotten_wherever_it_is(queue: DueQueue) -> None:
    queue.add([A, B, C])
    fail(queue, A, 0.0)
    assert queue.take(0.0) == B
    queue.add([B])
    queue.retain([])
    queue.done(B)
    assert (taken(queue, PAUSE_MAX_S), len(queue), queue.wait_s(0.0)) == ([], 0, None)
    queue.add([A])
    assert fail(queue, A, 0.0) <= PAUSE_S  # as if for the first time


def test_how_long_nothing_is_due(queue: DueQueue) -> None:
    assert queue.wait_s(0.0) is None
    queue.add([A, B])
    assert queue.wait_s(0.0) == 0.0
    wait_s = fail(queue, A, 0.0) if queue.take(0.0) == B else 0.0
    assert wait_s == 0.0


def order(
    queue: DueQueue, turns: int, step: Callable[[TopicPartition], tuple[int, int | None]] = lambda _: (0, None)
) -> list[TopicPartition]:
    """Who is taken in so many turns, where every partition has always more to do. `step`: what each sends, and its deadline then."""
    found = []
    for _ in range(turns):
        each = queue.take(0.0)
        assert each
        found.append(each)
        queue.again(each, *step(each))
    return found


def test_turns_are_fair_by_bytes(queue: DueQueue) -> None:
    queue.add([A, B])
    had = Counter(order(queue, 1000, lambda each: (9 * QUANTUM_BYTES if each == A else 0, None)))
    assert had[B] == pytest.approx(10 * had[A], rel=0.02)


def test_what_retention_takes_first_goes_first_by_half(queue: DueQueue) -> None:
    queue.add([A, B, C])
    deadlines = {A: None, B: 2000, C: 1000}
    had = Counter(order(queue, 1200, lambda each: (0, deadlines[each])))
    assert [had[A], had[B], had[C]] == pytest.approx([200, 200, 800], abs=5)


def test_a_deadline_ends_with_the_work(queue: DueQueue) -> None:
    queue.add([A, B])
    assert queue.take(0.0) == A
    queue.again(A, 0, 1000)
    for each in (A, B):
        assert queue.take(0.0) == each
        queue.done(each)
    queue.add([B, A])
    assert taken(queue) == [B, A]


def test_a_partition_that_is_passed_over_keeps_its_places(queue: DueQueue) -> None:
    queue.add([A, B])
    assert order(queue, 3, lambda each: (0, 1 if each == A else 2)) == [A, A, B]
    assert queue.take(0.0, lambda each: each == A) == B
    assert (queue.take(0.0), queue.take(0.0)) == (A, None)


def test_one_that_comes_back_after_much_was_sent_for_it_waits_as_if_it_had_never_been_away(queue: DueQueue) -> None:
    """A partition at full speed is often idle for a moment, and must not come first each time."""
    queue.add([A, B])
    assert queue.take(0.0) == A
    queue.again(A, 5 * QUANTUM_BYTES)
    assert order(queue, 1) == [B]
    assert order(queue, 4) == [B] * 4
    assert order(queue, 1) == [B]
    assert queue.take(0.0) == A
    queue.done(A)
    queue.add([A])
    assert order(queue, 1) == [B]


class Everyone(RuleBasedStateMachine):
    """Some partitions in any order of additions, steps, failures and disappearances, several in hand at once."""

    PLACES = tuple(TopicPartition("soup", number) for number in range(5))

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.now_s = DueQueue(Random(7)), 0.0
        self.waiting: dict[TopicPartition, int] = {}  # due now: the work that others have had since
        self.in_hand: dict[TopicPartition, bool] = {}  # added meanwhile?
        self.postponed: set[TopicPartition] = set()
        self.most = 1  # that one step has cost

    @rule(places=st.sets(st.sampled_from(PLACES)))
    def add(self, places: set[TopicPartition]) -> None:
        self.queue.add(sorted(places))
        for each in places:
            if each in self.in_hand:
                self.in_hand[each] = True
            elif each not in self.postponed:
                self.waiting.setdefault(each, 0)

    @rule()
    def take(self) -> None:
        found = self.queue.take(self.now_s)
        assert (found is None) == (not self.waiting)
        if found is None:
            return
        waited = self.waiting.pop(found)
        others = len(self.PLACES) - 1
        assert waited <= 2 * (2 * others + 1) * self.most, "as long as turns take, twice"
        self.in_hand[found] = False
        self._count(1)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), sent=st.integers(0, 6), deadline_ms=st.none() | st.integers(0, 9))
    def continues(self, data: st.DataObject, sent: int, deadline_ms: int | None) -> None:
        each = self._back(data)
        self.queue.again(each, sent * QUANTUM_BYTES, deadline_ms)
        self.most = max(self.most, 1 + sent)
        self._count(sent)
        self.waiting[each] = 0

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def is_done(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(sorted(self.in_hand)))
        self.queue.done(each)
        if self.in_hand.pop(each):
            self.waiting[each] = 0

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        each = self._back(data)
        self.queue.failed(each, self.now_s)
        self.postponed.add(each)

    @rule()
    def time_passes(self) -> None:
        self.now_s += PAUSE_MAX_S
        for each in self.postponed:
            self.waiting[each] = 0
        self.postponed.clear()

    @rule(places=st.sets(st.sampled_from(PLACES)))
    def only_these_are_left(self, places: set[TopicPartition]) -> None:
        self.queue.retain(places)
        self.waiting = {each: waited for each, waited in self.waiting.items() if each in places}
        self.postponed &= places
        self.in_hand = {each: added and each in places for each, added in self.in_hand.items()}

    @invariant()
    def it_holds_each_once(self) -> None:
        assert len(self.queue) == len(self.waiting) + len(self.in_hand) + len(self.postponed)

    def _back(self, data: st.DataObject) -> TopicPartition:
        each = data.draw(st.sampled_from(sorted(self.in_hand)))
        del self.in_hand[each]
        return each

    def _count(self, cost: int) -> None:
        for each in self.waiting:
            self.waiting[each] += cost


TestEveryone = Everyone.TestCase


def longest_wait(seed: int) -> float:
    """In turns that others have had, as multiples of those that a round of everybody takes. Each has always something to do; some say so
    by `again`, with a deadline, and some are idle for no time."""
    random, queue = Random(seed), DueQueue(Random(7))
    places = [TopicPartition("soup", number) for number in range(6)]
    sent_bytes = {each: random.choice((0, 0, 3)) * QUANTUM_BYTES for each in places}
    deadlines = {each: random.choice((None, 1, 2)) for each in places}
    restless = {each for each in places if random.random() < 0.3}
    queue.add(places)
    turns, since, longest = 0, dict.fromkeys(places, 0), 0
    for _ in range(500):
        each = queue.take(0.0)
        assert each
        longest = max(longest, *(turns - since[other] for other in places if not sent_bytes[other]))
        turns += 1 + sent_bytes[each] // QUANTUM_BYTES
        if each in restless:
            queue.done(each)
            queue.add([each])
        else:
            queue.again(each, sent_bytes[each], deadlines[each])
        since[each] = turns
    return longest / (len(places) + sum(sent_bytes.values()) // QUANTUM_BYTES)


def test_nobody_waits_for_more_than_two_rounds() -> None:
    assert max(map(longest_wait, range(200))) <= 2.5  # and what is sent in one step too many


def _deadlines_cost_nothing(queue: DueQueue, hand: _InHand, cost: int) -> None:
    queue._credit += 0 if hand.by_deadline else cost


def _the_last_is_the_first(queue: DueQueue, partition: TopicPartition) -> None:
    queue._due[partition] = number = -next(queue._numbers)
    queue._in_turn.push(queue._turn, number, partition)


@pytest.mark.parametrize(("method", "mistake"), [("_charge", _deadlines_cost_nothing), ("_push", _the_last_is_the_first)])
def test_a_planted_mistake_of_the_choice_is_caught(monkeypatch: pytest.MonkeyPatch, method: str, mistake: Callable[..., None]) -> None:
    monkeypatch.setattr(DueQueue, method, mistake)
    assert max(map(longest_wait, range(200))) > 2.5


def test_what_is_no_longer_due_does_not_pile_up(queue: DueQueue) -> None:
    queue.add([A, B])
    order(queue, 10_000, lambda each: (0, 0 if each == A else 10))
    assert max(len(queue._in_turn._heap), len(queue._by_deadline._heap)) < 100


def test_what_waits_for_something_else_is_due_when_it_is_added_or_at_its_time(queue: DueQueue) -> None:
    queue.add([A, B])
    assert {queue.take(0.0), queue.take(0.0)} == {A, B}
    queue.later(A, 600.0, or_added=True)
    queue.later(B, 600.0)
    assert queue.take(1.0) is None
    queue.add([A, B])
    assert (queue.take(1.0), queue.take(1.0)) == (A, None)
    queue.add([A])  # while it is in hand
    queue.later(A, 600.0, or_added=True)
    assert queue.take(2.0) == A
    queue.later(A, 600.0, or_added=True)
    assert {queue.take(600.0), queue.take(600.0)} == {A, B}
    queue.failed(A, 600.0)
    queue.add([A])
    assert queue.take(600.0) is None
    queue.done(B)
    queue.retain([])
    queue.add([A])
    assert queue.take(600.0) == A
    queue.later(A, 700.0, or_added=True)
    queue.retain([B])
    queue.add([A])
    assert queue.take(600.0) == A


def test_what_waits_is_due_again_at_its_time_and_has_not_failed(queue: DueQueue) -> None:
    queue.add([A])
    assert queue.take(0.0) == A
    queue.later(A, 0.2)
    queue.add([A])
    assert queue.take(0.1) is None
    assert queue.wait_s(0.1) == pytest.approx(0.1)
    assert queue.take(0.2) == A
    queue.failed(A, 0.2)
    assert (queue.wait_s(0.2) or 0) <= PAUSE_S  # the first failure
