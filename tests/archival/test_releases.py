"""When what is archived is released, and by whom: in an owned directory, and by a broker at the agent's request."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival.archive_pass import archive_all
from archival.broker.broker_view import CommittedEnd, Group, LeaderLog, PinnedBroker
from archival.config import ArchivalConfig
from archival.plan.policy import Policy
from headwater_core.epochs import EpochHistory
from headwater_core.errors import DeletionRefused, HeadwaterError, TransientError, Unauthorised
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import LogDirs
from tests.archival.builders import led_by
from tests.headwater.broker import Bench, topic_id

SOUP = TopicPartition("soup", 0)


class Deleting:
    """A broker that leads all its partitions alone, and deletes what it is asked to."""

    def __init__(self, dirs: Path) -> None:
        self.dirs = dirs
        self.deleted: list[tuple[TopicPartition, int]] = []
        self.refuses: HeadwaterError | None = None
        self.listed: list[Group] | HeadwaterError = []
        self.listings = 0

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        return {}

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        self.listings += 1
        if isinstance(self.listed, HeadwaterError):
            raise self.listed
        return self.listed

    @contextmanager
    def pinned(self) -> Iterator[PinnedBroker]:
        yield self

    def leader_log(self, place: TopicPartition, leader_epoch: int, history: EpochHistory) -> LeaderLog:
        end = max(int(path.stem) for path in (self.dirs / f"{place.topic}-{place.partition}").glob("*.log"))
        start = max((end for each, end in self.deleted if each == place), default=0)
        return LeaderLog(topic_id(place.topic), start, end, {0: (0, end)})

    def topic_id(self, topic: str) -> str | None:
        return topic_id(topic)

    def metadata_end(self) -> int:
        return 7

    def delete_records(self, place: TopicPartition, end: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.deleted.append((place, end))


def a_request(root: Path, *, refused: HeadwaterError | None = None) -> tuple[Deleting, Bench]:
    """A broker that is asked to release a topic, and the agent beside it."""
    broker = Deleting(root / "log")
    broker.refuses = refused
    bench = Bench(root, asked=broker)
    bench.settings = ArchivalConfig(release=True)
    bench.broker.partition("soup", 0, segments=4)
    return broker, bench


def a_group(name: str, offset: int, *, has_members: bool = True) -> Group:
    return Group(name, has_members, {SOUP: offset}, frozenset({"soup"}))


def turns_later(bench: Bench) -> None:
    """Until something is due again, and that; where nothing is, for a minute."""
    wait_s = bench.scheduler.idle_s()
    bench.clock.advance(int(1000 * (60 if wait_s is None else wait_s)) + 1)
    bench.turns()


def test_owned_segments_leave_while_the_partition_continues(tmp_path: Path) -> None:
    bench = Bench(tmp_path, owned=True)
    bench.broker.partition("soup", 0, segments=5)
    bench.scheduler.rescan()
    left = []
    while bench.scheduler.turn():
        left.append(len(bench.broker.segments("soup", 0)))
    assert left[:5] == [5, 4, 3, 2, 1]


def test_a_start_in_an_owned_directory_releases_what_is_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, owned=True)
    bench.broker.partition("soup", 0, segments=4)
    bench.settings = ArchivalConfig(release=False)
    bench.scheduler.rescan()
    bench.turns()
    assert len(bench.broker.segments("soup", 0)) == 4
    bench.settings = ArchivalConfig()
    bench.start()
    bench.scheduler.rescan()
    bench.turns()
    assert len(bench.broker.segments("soup", 0)) == 1


@pytest.mark.usefixtures("led")
def test_beside_a_broker_nothing_is_released_unless_requested(tmp_path: Path) -> None:
    broker = Deleting(tmp_path / "log")
    bench = Bench(tmp_path, asked=broker)
    bench.broker.partition("soup", 0, segments=4)
    bench.scheduler.rescan()
    bench.turns()
    assert not broker.deleted
    bench.settings = ArchivalConfig(release=True)
    bench.scheduler.reconsider()  # the settings were reloaded, and nothing has happened to the log
    bench.turns()
    assert broker.deleted == [(TopicPartition("soup", 0), 30)]
    for _ in range(3):
        bench.scheduler.reconsider()
        bench.turns()
    assert len(broker.deleted) == 1  # though the broker has not removed the files yet
    bench.broker.roll("soup", 0)
    bench.scheduler.rescan()
    bench.turns()
    turns_later(bench)
    assert broker.deleted[1:] == [(TopicPartition("soup", 0), 40)]


def test_the_newest_bytes_of_an_owned_log_are_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, owned=True)
    bench.broker.partition("soup", 0, segments=4)
    bench.settings = ArchivalConfig(release_keep_bytes=1 << 20)
    bench.scheduler.rescan()
    bench.turns()
    assert len(bench.broker.segments("soup", 0)) == 4
    bench.settings = ArchivalConfig()
    bench.scheduler.reconsider()
    bench.turns()
    assert len(bench.broker.segments("soup", 0)) == 1


@pytest.mark.usefixtures("led")
def test_a_segment_is_released_when_its_time_is_over_though_nothing_is_written(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    bench.settings = ArchivalConfig(release=True, release_keep_ms=60_000)
    now_ns = bench.clock.now_ms() * 1_000_000
    for path in (tmp_path / "log").glob("*/*.log"):
        os.utime(path, ns=(now_ns, now_ns))
    bench.scheduler.rescan()
    bench.turns()
    assert bench.last_offset("soup", 0) == 29
    assert not broker.deleted
    bench.clock.advance(60_000)
    bench.scheduler.rescan()
    bench.turns()
    assert broker.deleted == [(TopicPartition("soup", 0), 30)]


@pytest.mark.usefixtures("led")
def test_a_release_that_fails_holds_nothing_up_and_is_tried_again(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path, refused=TransientError("no answer"))
    bench.scheduler.rescan()
    bench.turns()
    assert bench.last_offset("soup", 0) == 29
    assert not broker.deleted
    assert bench.fleet.troubles == {}
    broker.refuses = None
    turns_later(bench)
    turns_later(bench)
    assert broker.deleted == [(TopicPartition("soup", 0), 30)]


def test_a_topic_that_is_compacted_only_is_left_alone_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, leads = LogDirs.look, led_by(1, 0, replicas=(1,), in_sync=(1,))
    monkeypatch.setattr(LogDirs, "look", lambda self, place: replace(look(self, place), leadership=leads, compacted_only=True))
    broker, bench = a_request(tmp_path)
    with capture_logs() as logs:
        bench.scheduler.rescan()
        bench.turns()
    assert not broker.deleted
    assert not [each for each in logs if each["event"] == "release_postponed"]
    record = bench.fleet.released(bench.fleet.look(TopicPartition("soup", 0))[0].partition)
    assert record is not None
    assert "compact alone" in record.reason


@pytest.mark.usefixtures("led")
def test_a_policy_that_forbids_deletion_is_asked_about_seldom(tmp_path: Path) -> None:
    _, bench = a_request(tmp_path, refused=DeletionRefused("compact alone"))
    with capture_logs() as logs:
        bench.scheduler.rescan()
        bench.turns()
        for _ in range(4):
            bench.clock.advance(30_000)
            bench.scheduler.reconsider()
            bench.turns()
    assert [each["log_level"] for each in logs if each["event"] == "release_postponed"] == ["error"]


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize(("offset", "deleted"), [(9, []), (10, [10]), (19, [10]), (20, [20]), (29, [20])])
def test_nothing_is_released_that_a_group_has_not_read(tmp_path: Path, offset: int, deleted: list[int]) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = [a_group("bills", offset), a_group("mail", 30)]
    bench.scheduler.rescan()
    for _ in range(6):
        bench.turns()
        turns_later(bench)
    assert bench.last_offset("soup", 0) == 29
    assert [end for _, end in broker.deleted][-1:] == deleted
    record = bench.fleet.released(bench.fleet.look(SOUP)[0].partition)
    assert record is not None
    assert record.blocked is not None
    assert record.blocked[:2] == ("bills", offset)
    assert f"group bills has not read from offset {offset} on" in record.reason
    broker.listed = [a_group("bills", 30), a_group("mail", 30)]
    for _ in range(12):
        turns_later(bench)
    assert broker.deleted[-1] == (SOUP, 30)
    record = bench.fleet.released(bench.fleet.look(SOUP)[0].partition)
    assert record is not None
    assert record.blocked is None


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("error", [TransientError("no answer"), Unauthorised("GROUP_AUTHORIZATION_FAILED")])
def test_groups_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path, error: HeadwaterError) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = error
    bench.scheduler.rescan()
    for _ in range(20):
        bench.turns()
        turns_later(bench)
    assert bench.last_offset("soup", 0) == 29
    assert not broker.deleted
    broker.listed = []
    for _ in range(20):
        turns_later(bench)
    assert broker.deleted[-1] == (SOUP, 30)


@pytest.mark.usefixtures("led")
def test_a_refused_listing_is_tried_again_when_the_next_one_is_due(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = Unauthorised("GROUP_AUTHORIZATION_FAILED")
    bench.scheduler.rescan()
    bench.turns()
    turns_later(bench)
    broker.listed = []
    for _ in range(30):
        bench.clock.advance(1000)
        bench.turns()
    assert broker.deleted[-1] == (SOUP, 30)  # and not after the ten minutes of a refused deletion


@pytest.mark.usefixtures("led")
def test_a_listing_that_began_before_the_choice_does_not_count(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = [a_group("bills", 100)]
    bench.scheduler.rescan()
    bench.turns()
    for _ in range(3):
        turns_later(bench)
    assert broker.deleted[-1] == (SOUP, 30)
    listings = broker.listings
    bench.broker.roll("soup", 0)
    broker.listed = [a_group("bills", 30)]  # it was reset since
    bench.scheduler.rescan()
    for _ in range(3):
        bench.turns()
        turns_later(bench)
    assert broker.listings > listings
    assert broker.deleted[-1] == (SOUP, 30)


@pytest.mark.usefixtures("led")
def test_partitions_share_a_listing(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    bench.broker.partition("bread", *range(20), segments=4)
    bench.scheduler.rescan()
    for _ in range(5):
        bench.turns()
        turns_later(bench)
    assert {place for place, end in broker.deleted if end == 30} == {SOUP, *(TopicPartition("bread", number) for number in range(20))}
    assert broker.listings <= 4


@pytest.mark.usefixtures("led")
def test_a_pass_waits_for_no_other_partition(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    bench.broker.partition("bread", 0, 1, segments=4)
    assert not [outcome.error for outcome in archive_all(bench.fleet, Policy.of) if outcome.error]
    assert {place for place, end in broker.deleted if end == 30} == {SOUP, TopicPartition("bread", 0), TopicPartition("bread", 1)}


@pytest.mark.usefixtures("led")
def test_past_groups_is_released_with_a_warning(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = [a_group("bills", 9)]
    bench.settings = ArchivalConfig(release=True, release_past_groups=True)
    with capture_logs() as logs:
        bench.scheduler.rescan()
        bench.turns()
    assert broker.deleted[-1] == (SOUP, 30)
    warned = [(each["group"], each["offset"]) for each in logs if each["event"] == "consumers_behind_release"]
    assert warned == [("bills", 9)]


@pytest.mark.usefixtures("led")
def test_a_group_that_blocks_a_release_for_long_is_reported_once(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed = [a_group("bills", 9)]
    with capture_logs() as logs:
        bench.scheduler.rescan()
        bench.turns()
        since_ms = bench.clock.now_ms()
        while bench.clock.now_ms() < since_ms + 3_600_000:
            turns_later(bench)
    blocked = [(each["group"], each["offset"]) for each in logs if each["event"] == "release_blocked"]
    assert blocked == [("bills", 9)]
    assert broker.listings < 40
    assert not broker.deleted


@pytest.mark.usefixtures("led")
def test_a_disk_that_fills_while_a_release_waits_is_foreseen(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    broker.listed, bench.free_bytes = [a_group("bills", 0)], [1_000_000]
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet.disk_full_in_s() is None
    for _ in range(20):
        bench.free_bytes[0] -= 1000
        turns_later(bench)
    left_s = bench.fleet.disk_full_in_s()
    assert left_s is not None
    assert left_s > 600
    bench.settings = ArchivalConfig(release=True, release_ignore_groups_after_s=600)
    assert bench.fleet.disk_full_in_s() is None  # the group counts as gone before


@pytest.mark.usefixtures("led")
def test_a_group_counts_as_gone_across_restarts_of_the_agent(tmp_path: Path) -> None:
    broker, bench = a_request(tmp_path)
    bench.settings = ArchivalConfig(release=True, release_ignore_groups_after_s=7200)
    broker.listed = [a_group("bills", 9, has_members=False)]

    def run(time_ms: int) -> None:
        bench.scheduler.rescan()
        bench.turns()
        end_ms = bench.clock.now_ms() + time_ms
        while bench.clock.now_ms() < end_ms:
            turns_later(bench)

    run(4_000_000)
    bench.clock.advance(90 * 24 * 3_600_000)  # nobody looked
    bench.start()
    run(2_000_000)
    assert not broker.deleted
    run(2_000_000)
    assert broker.deleted == [(SOUP, 30)]
