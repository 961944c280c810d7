"""When what is archived is released, and by whom: in an owned directory, and by a broker at the agent's request."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival.broker.broker_view import CommittedEnd, GroupOffset, LeaderLog, PinnedBroker
from archival.config import ArchivalConfig
from headwater_core.epochs import EpochHistory
from headwater_core.errors import DeletionRefused, HeadwaterError, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import LogDirs
from tests.archival.builders import led_by
from tests.headwater.broker import Bench, topic_id


class Deleting:
    """A broker that leads all its partitions alone, and deletes what it is asked to."""

    def __init__(self, dirs: Path) -> None:
        self.dirs = dirs
        self.deleted: list[tuple[TopicPartition, int]] = []
        self.refuses: HeadwaterError | None = None

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        return {}

    def lowest_commits(self) -> Mapping[TopicPartition, GroupOffset]:
        return {}

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
    wait_s = bench.scheduler.idle_s()
    assert wait_s is not None
    bench.clock.advance(int(1000 * wait_s) + 1)
    bench.turns()
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
