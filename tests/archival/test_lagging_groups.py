"""Consumer groups that would miss what release deletes are reported, as far as they can be known."""

import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from structlog.testing import capture_logs

from archival.broker.broker_view import CommittedEnd, GroupOffset, PinnedBroker
from archival.broker.lagging_groups import FAILED_S, REFRESH_S, LaggingGroups
from headwater_core.errors import TransientError
from headwater_core.partition import TopicPartition
from tests.archival.builders import PARTITION
from tests.headwater_core.manual_clock import ManualClock


class Groups:
    def __init__(self) -> None:
        self.lowest: dict[TopicPartition, GroupOffset] | None = {PARTITION.topic_partition: GroupOffset("bills", 15)}
        self.asked = 0

    def lowest_commits(self) -> Mapping[TopicPartition, GroupOffset]:
        self.asked += 1
        if self.lowest is None:
            raise TransientError("no answer")
        return self.lowest

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        raise AssertionError

    def pinned(self) -> AbstractContextManager[PinnedBroker]:
        raise AssertionError


def test_a_group_that_is_behind_is_reported_once() -> None:
    broker, clock = Groups(), ManualClock()
    groups = LaggingGroups(broker, clock)
    with capture_logs() as logs:
        groups.check(PARTITION, 15)
        assert not logs
        for end in (20, 30):
            groups.check(PARTITION, end)
        assert [(each["event"], each["group"], each["offset"], each["next_offset"]) for each in logs] == [
            ("consumers_behind_release", "bills", 15, 20)
        ]
        assert broker.asked == 1
        clock.advance(int(1000 * REFRESH_S))
        broker.lowest = {PARTITION.topic_partition: GroupOffset("bills", 25)}
        groups.check(PARTITION, 30)
        assert (broker.asked, len(logs)) == (2, 2)


def test_a_release_waits_for_the_first_look_up_of_another_one() -> None:
    broker, inside, go = Groups(), threading.Event(), threading.Event()
    look_up = broker.lowest_commits

    def slowly() -> Mapping[TopicPartition, GroupOffset]:
        inside.set()
        assert go.wait(10)
        return look_up()

    broker.lowest_commits = slowly  # type: ignore[method-assign]
    groups = LaggingGroups(broker, ManualClock())
    other = replace(PARTITION, partition=1)
    threads = [threading.Thread(target=groups.check, args=(each, 20)) for each in (other, PARTITION)]
    with capture_logs() as logs:
        threads[0].start()
        assert inside.wait(10)
        threads[1].start()
        go.set()
        for each in threads:
            each.join(10)
    assert [each["partition"] for each in logs] == ["soup:0"]


def test_where_groups_cannot_be_looked_up_that_is_said_and_tried_again() -> None:
    broker, clock = Groups(), ManualClock()
    broker.lowest = None
    groups = LaggingGroups(broker, clock)
    with capture_logs() as logs:
        groups.check(PARTITION, 20)
        groups.check(PARTITION, 20)
        clock.advance(int(1000 * FAILED_S))
        broker.lowest = {}
        groups.check(PARTITION, 20)
    assert [each["event"] for each in logs] == ["consumer_groups_unknown"]
    assert broker.asked == 2
