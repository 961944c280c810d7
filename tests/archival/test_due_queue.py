from random import Random

import pytest

from archival.due_queue import CHANGES_MAX, PAUSE_MAX_S, PAUSE_S, DueQueue
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
