"""One pass over what is there, beside a loop or alone."""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from archival.archive_pass import ArchivePass, archive_all
from archival.broker.broker_view import CommittedEnd, Group, PinnedBroker
from archival.config import ArchivalConfig, OffloadMode
from archival.fleet import PartitionOutcome
from headwater.session import PassRequest
from headwater_core.errors import TransientError
from headwater_core.partition import TopicPartition
from tests.archival.builders import SEALED, SendingStore, number_of
from tests.headwater.broker import Bench, topic_id


def test_a_one_shot_pass_ends_however_fast_a_partition_grows(bench: Bench, store: SendingStore) -> None:
    bench.broker.partition("busy", 0, segments=3)
    bench.broker.partition("quiet", 0)
    store.sending = lambda key: bench.broker.roll("busy", 0) if "/busy/" in key else None
    rows = {each.place.topic: each for each in archive_all(bench.fleet, lambda _: SEALED)}
    assert {topic: (row.objects, row.last_offset, row.error) for topic, row in rows.items()} == {
        "busy": (2, 19, None),
        "quiet": (1, 9, None),
    }
    assert len(bench.broker.segments("busy", 0)) == 5


def test_a_pass_and_the_loop_run_side_by_side(bench: Bench, store: SendingStore) -> None:
    """The pass is asked for while the loop is in the middle of a step."""
    bench.broker.partition("soup", 0, 1, segments=3)
    rows: list[PartitionOutcome] = []

    def ask(key: str) -> None:
        store.sending = lambda _: None
        rows.extend(archive_all(bench.fleet, lambda _: SEALED, wanted=lambda place: place.partition != number_of(key)))

    store.sending = ask
    bench.scheduler.rescan()
    bench.turns()
    [row] = rows
    assert (row.objects, row.last_offset, row.error) == (2, 19, None)
    assert [bench.last_offset("soup", number) for number in (0, 1)] == [19, 19]
    assert len(list(store.list("data/"))) == 2 * 2 * 2  # each once, with its index


def test_a_pass_archives_nothing_at_or_past_the_ends_that_it_was_given(bench: Bench) -> None:
    bench.broker.partition("soup", 0, 1, segments=3)
    places = [TopicPartition("soup", number) for number in (0, 1)]
    one_pass = ArchivePass(bench.fleet, lambda _: SEALED, {places[0]: 10, places[1]: None}, threading.Event())
    while one_pass.turn():
        pass
    assert [bench.last_offset("soup", number) for number in (0, 1)] == [9, 19]


class Ahead:
    """A broker that leads all, and has committed more than its checkpoint says."""

    def __init__(self, **ends: int) -> None:
        self.is_silent = False
        self.ends = {TopicPartition(topic, 0): CommittedEnd(topic_id(topic), 0, end) for topic, end in ends.items()}

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        if self.is_silent:
            raise TransientError("the broker does not answer")
        return {place: end for place, end in self.ends.items() if place in places}

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        return []

    def pinned(self) -> AbstractContextManager[PinnedBroker]:
        raise NotImplementedError


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("offload", list(OffloadMode))
def test_a_pass_ends_where_the_broker_says_that_the_log_is_committed(tmp_path: Path, offload: OffloadMode) -> None:
    bench = Bench(tmp_path, asked=Ahead(soup=20))
    bench.settings = ArchivalConfig(offload=offload)
    bench.broker.partition("soup", 0, segments=3)
    bench.broker.commit("soup", 0, 15)
    [row] = archive_all(bench.fleet, PassRequest().policy)
    assert (row.last_offset, row.error) == (19, None)


@pytest.mark.usefixtures("led")
def test_a_pass_lists_what_is_open_though_that_goes_past_its_end(tmp_path: Path) -> None:
    broker = Ahead(soup=18)
    bench = Bench(tmp_path, asked=broker)
    bench.settings = ArchivalConfig(offload=OffloadMode.STREAMING)
    bench.broker.partition("soup", 0)
    bench.scheduler.rescan()
    bench.turns()  # the agent has taken all 18
    one_pass = ArchivePass(bench.fleet, PassRequest().policy, {TopicPartition("soup", 0): 14}, threading.Event())
    while one_pass.turn():
        pass
    assert bench.last_offset("soup", 0) == 17


@pytest.mark.usefixtures("led")
def test_a_pass_lists_what_is_open_beyond_the_checkpoint_of_a_broker_that_is_silent_now(tmp_path: Path) -> None:
    broker = Ahead(soup=15)
    bench = Bench(tmp_path, asked=broker)
    bench.settings = ArchivalConfig(offload=OffloadMode.STREAMING)
    bench.broker.partition("soup", 0)
    bench.broker.commit("soup", 0, 15)
    [row] = archive_all(bench.fleet, PassRequest().policy)
    assert (row.last_offset, row.error) == (14, None)
    broker.ends = Ahead(soup=18).ends
    bench.clock.advance(60_000)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet.held_to(TopicPartition("soup", 0)) == 18
    broker.is_silent = True
    [row] = archive_all(bench.fleet, PassRequest().policy)
    assert (row.last_offset, row.error) == (17, None)


def test_a_pass_that_is_stopped_before_it_begins_does_nothing(bench: Bench) -> None:
    bench.broker.partition("soup", 0)
    stop = threading.Event()
    stop.set()
    assert list(archive_all(bench.fleet, lambda _: SEALED, stop=stop)) == []
    assert bench.head("soup", 0) is None
