"""A sealed segment need not wait for the broker's next checkpoint to be known as committed."""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from archival.broker.broker_logs import BrokerLogs, awaits_commit
from archival.broker.broker_view import CommittedEnd, Group, LeaderLog, PinnedBroker
from headwater_core.epochs import EpochHistory
from headwater_core.errors import TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from tests.archival.builders import PARTITION, a_log, led_by
from tests.headwater_core.manual_clock import ManualClock

PLACE, OTHER = PARTITION.topic_partition, TopicPartition("bread", 0)
ROLLED = a_log(0, 10, 20, hw=15, leadership=led_by(1, 0))


class Directory:
    def __init__(self, log: LocalLog) -> None:
        self.log = log

    def look(self, partition: TopicPartition) -> LocalLog:
        return self.log


class Told:
    """A broker that says what it was told to say."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, CommittedEnd] = {PLACE: CommittedEnd(PARTITION.topic_id, 0, 23)}
        self.asked: list[Collection[TopicPartition]] = []
        self.silent = False

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        self.asked.append(places)
        if self.silent:
            raise TransientError("no answer")
        return {place: end for place, end in self.ends.items() if place in places}

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        return []

    def pinned(self) -> AbstractContextManager[PinnedBroker]:
        raise NotImplementedError


@pytest.fixture
def broker() -> Told:
    return Told()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def over(log: LocalLog, broker: Told, clock: ManualClock) -> BrokerLogs:
    return BrokerLogs(Directory(log), broker, clock)


def test_the_broker_says_that_a_sealed_segment_is_committed(broker: Told, clock: ManualClock) -> None:
    logs = over(ROLLED, broker, clock)
    assert logs.look(PLACE).high_watermark == 23
    clock.advance(5)
    assert logs.look(PLACE).high_watermark == 23  # the second look of a step agrees, and costs no request
    assert len(broker.asked) == 1


def test_a_new_partition_need_not_wait_for_its_first_checkpoint(broker: Told, clock: ManualClock) -> None:
    assert over(replace(ROLLED, high_watermark=None), broker, clock).look(PLACE).high_watermark == 23


@pytest.mark.parametrize(
    "log",
    [
        a_log(0, 10, 20, hw=20, leadership=led_by(1, 0)),
        a_log(0, hw=0, leadership=led_by(1, 0)),
        a_log(0, 10, 20, hw=15, leadership=led_by(2, 0)),
        a_log(0, 10, 20, hw=15, leadership=led_by(-1, 0)),
        a_log(0, 10, 20, hw=15, leadership=led_by(1, 3)),
        a_log(0, 10, 20, hw=15),
    ],
    ids=["committed", "one segment", "follower", "no leader", "epoch not begun", "leader unknown"],
)
def test_nothing_else_is_asked_about(log: LocalLog, broker: Told, clock: ManualClock) -> None:
    assert over(log, broker, clock).look(PLACE) == log
    assert not broker.asked


@pytest.mark.parametrize(
    "end",
    [CommittedEnd("AAAAAAAAAAAAAAAAAAAAAA", 0, 23), CommittedEnd(PARTITION.topic_id, 1, 23), CommittedEnd(PARTITION.topic_id, 0, 14)],
    ids=["another topic of that name", "another leader epoch", "older than the checkpoint"],
)
def test_what_is_said_of_something_else_does_not_count(end: CommittedEnd, broker: Told, clock: ManualClock) -> None:
    broker.ends[PLACE] = end
    assert over(ROLLED, broker, clock).look(PLACE).high_watermark == 15


def test_what_was_said_ends_with_its_leader_epoch(broker: Told, clock: ManualClock) -> None:
    directory = Directory(ROLLED)
    logs = BrokerLogs(directory, broker, clock)
    assert logs.look(PLACE).high_watermark == 23
    directory.log = a_log(0, 10, 20, hw=15, epochs=((0, 0), (1, 18)), leadership=led_by(1, 1))
    assert logs.look(PLACE).high_watermark == 15


def test_a_silent_broker_changes_nothing(broker: Told, clock: ManualClock) -> None:
    broker.silent = True
    logs = over(ROLLED, broker, clock)
    assert logs.look(PLACE) == ROLLED
    assert awaits_commit(logs.look(PLACE))


def test_one_request_covers_all_that_are_expected(broker: Told, clock: ManualClock) -> None:
    logs = over(ROLLED, broker, clock)
    logs.expect([OTHER, PLACE])
    logs.look(PLACE)
    assert broker.asked == [[PLACE, OTHER]]


def test_callers_who_come_meanwhile_share_the_next_request(broker: Told, clock: ManualClock) -> None:
    logs = over(ROLLED, broker, clock)
    inside, go = threading.Event(), threading.Event()
    answer = broker.committed

    def slowly(places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        inside.set()
        assert go.wait(10)
        clock.advance(1)
        return answer(places)

    broker.committed = slowly  # type: ignore[method-assign]
    threads = [threading.Thread(target=logs.look, args=(PLACE,)) for _ in range(6)]
    threads[0].start()
    assert inside.wait(10)
    clock.advance(1)
    for each in threads[1:]:
        each.start()
    go.set()
    for each in threads:
        each.join(10)
    assert len(broker.asked) <= 3  # one in flight, one for those who came meanwhile, and perhaps one for a thread that was late


def test_partitions_that_are_gone_are_forgotten(broker: Told, clock: ManualClock) -> None:
    logs = over(ROLLED, broker, clock)
    logs.look(PLACE)
    logs.retain([OTHER])
    clock.advance(5)
    logs.look(PLACE)
    assert len(broker.asked) == 2


def test_a_leaders_log_confirms_a_history_only_as_a_whole() -> None:
    log = LeaderLog(PARTITION.topic_id, 0, 25, {0: (0, 10), 2: (2, 25)})
    assert log.confirms(EpochHistory.of(((0, 0), (2, 10))))
    assert not log.confirms(EpochHistory.of(((0, 0), (2, 11))))
    assert not log.confirms(EpochHistory.of(((0, 0), (2, 10), (3, 20))))
    assert not log._replace(high_watermark=26).confirms(EpochHistory.of(((0, 0), (2, 10))))


def test_what_the_broker_has_said_is_shown_with_its_age(broker: Told, clock: ManualClock) -> None:
    logs = over(ROLLED, broker, clock)
    assert logs.watermarks([ROLLED], ask=False) == {}
    logs.look(PLACE)
    clock.advance(2_500)
    assert logs.watermarks([ROLLED], ask=False) == {PARTITION: (23, 2.5)}
    assert logs.watermarks([replace(ROLLED, high_watermark=23)], ask=False) == {PARTITION: (23, 2.5)}
    assert logs.watermarks([replace(ROLLED, high_watermark=30)], ask=False) == {}  # the checkpoint is newer
    assert logs.watermarks([replace(ROLLED, leadership=led_by(1, 1))], ask=False) == {}
    assert len(broker.asked) == 1


def test_a_person_gets_what_the_broker_says_now_of_all_that_it_leads(broker: Told, clock: ManualClock) -> None:
    follower, idle = replace(ROLLED, leadership=led_by(2, 0)), a_log(0, hw=15, leadership=led_by(1, 0))
    logs = over(ROLLED, broker, clock)
    assert logs.watermarks([follower], ask=True) == {}
    assert not broker.asked
    assert logs.watermarks([idle], ask=True) == {PARTITION: (23, 0.0)}
    broker.silent = True
    assert logs.watermarks([idle], ask=True) == {}  # nothing of it is kept: there may be very many
    broker.silent = False
    logs.look(PLACE)
    clock.advance(1_000)
    broker.silent = True
    assert logs.watermarks([idle], ask=True) == {PARTITION: (23, 1.0)}
