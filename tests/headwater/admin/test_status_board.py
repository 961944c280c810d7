"""The status of each partition, kept in memory: what is looked at again, what becomes older, what is known without a store."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archival import partition_status
from archival.broker.broker_logs import Watermark
from archival.broker.broker_release import Blocked, ReleaseRecord
from archival.config import ArchivalConfig, ArchiveMode
from archival.partition_status import KnownHead
from archival.plan.policy import Policy
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater.admin import status_board
from headwater.admin.status_board import BoardEntry, BoardSources, StatusBoard
from headwater.admin.status_page import PageFacts, sum_of
from headwater_core.control.state import PartitionState
from headwater_core.errors import CorruptData, HeadwaterError, NeedsReplacement, NotFound, SourceChanged, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.disk import DiskHangs, Progressed
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from tests.fixtures import private_copy
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import a_head, an_entry

ORDERS = TopicPartition("orders.in", 0)
OLD_S = 1_600_000_000


class Stage:
    """A board over a real log directory, with what else an agent knows."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        log = private_copy("kitchen", root)
        for path in [*log.rglob("*"), log]:
            os.utime(path, (OLD_S, OLD_S))  # what is young may change without a trace
        self.dirs = LogDirs([log])
        self.heads: dict[PartitionId, KnownHead] = {}
        self.archived_to: dict[TopicPartition, int] = {}  # by the control log
        self.policy, self.errors = Policy(tail_after_ms=0), dict[TopicPartition, HeadwaterError]()
        self.unlookable: dict[TopicPartition, Exception] = {}
        self.recovered, self.hanging = False, set[TopicPartition]()
        self.looks: list[TopicPartition] = []
        self.marks: dict[TopicPartition, Watermark] = {}  # by the broker
        self.released: dict[PartitionId, ReleaseRecord] = {}
        self.archived: dict[PartitionId, PartitionState | None] = {}
        sources = BoardSources(
            look=self._look,
            read=self._read,
            head=self.heads.get,
            offsets=self._offsets,
            policy=lambda place: self.policy,
            trouble=self.errors.get,
            tail_age_ms=lambda *_: 0,
            recovered=lambda _: self.recovered,
            released=self.released.get,
            archived=lambda: self.archived,
        )
        self.board = StatusBoard(sources, self.clock)

    def _look(self, place: TopicPartition) -> tuple[LocalLog, WatermarkOrigin]:
        self.looks.append(place)
        if place in self.unlookable:
            raise self.unlookable[place]
        log = self.dirs.look(place)
        if place in self.marks:
            mark = self.marks[place]
            return replace(log, high_watermark=mark.offset), WatermarkOrigin(WatermarkSource.BROKER, mark.age_s)
        return log, WatermarkOrigin(WatermarkSource.CHECKPOINT, 2.0)

    def _read(self, log: LocalLog, work: Callable[[Progressed], BoardEntry]) -> BoardEntry:
        if log.partition.topic_partition in self.hanging:
            self.clock.advance(3_000)
            raise DiskHangs("its disk has not answered")
        return self.dirs.read(log, work)

    def _offsets(self, partition: PartitionId) -> PartitionState | None:
        if (known := self.archived.get(partition)) is not None:
            return known
        end = self.archived_to.get(partition.topic_partition)
        return None if end is None else PartitionState(manifest_version=1, fence=1, owner="me", start_offset=0, last_offset=end - 1)

    def list_and_look(self) -> None:
        self.board.listed(self.dirs.listing(), self.clock.monotonic_s())
        self.board.round()

    def entry(self, place: TopicPartition = ORDERS) -> BoardEntry:
        return next(each for each in self.board.entries() if (each.status.topic, each.status.partition) == place)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    high_watermark = stage.dirs.look(ORDERS).high_watermark
    assert high_watermark
    stage.archived_to[ORDERS] = high_watermark
    return stage


def test_every_partition_of_a_listing_gets_a_status(stage: Stage) -> None:
    stage.list_and_look()
    assert {(each.status.topic, each.status.partition) for each in stage.board.entries()} == set(stage.dirs.listing().partitions)
    assert stage.board.unseen == 0
    status = stage.entry().status
    assert (status.state, status.lag_bytes, status.lag_s) == ("archived", 0, 0.0)


def test_what_is_listed_is_unknown_until_it_was_looked_at_and_becomes_older(stage: Stage) -> None:
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    began_s = stage.clock.monotonic_s()
    assert {(each.status.topic, each.status.partition) for each in stage.board.entries()} == set(stage.dirs.listing().partitions)
    assert (stage.entry().status.state, stage.entry().status.lag_s, stage.entry().status.reason) == ("unknown", None, "not looked at yet")
    stage.clock.advance(5_000)
    stage.unlookable[ORDERS] = TransientError("the disk hangs")
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    stage.board.round()
    assert (stage.entry().status.reason, stage.entry().now_s) == ("the disk hangs", began_s)


def test_what_looks_as_it_did_is_not_looked_at_again_and_is_as_young_as_the_listing(stage: Stage) -> None:
    stage.list_and_look()
    before = len(stage.looks)
    stage.clock.advance(30_000)
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    stage.board.round()
    assert stage.looks[before:] == []
    assert stage.clock.monotonic_s() == stage.entry().now_s > stage.entry().at_s


@pytest.mark.parametrize("archived_to", [0, None])
def test_what_is_excluded_is_not_measured(stage: Stage, archived_to: int | None) -> None:
    stage.archived_to = {} if archived_to is None else {ORDERS: archived_to}
    stage.list_and_look()
    stage.policy = Policy.of(ArchivalConfig(archive=ArchiveMode.OFF))
    stage.board.reconsider()
    stage.board.round()
    status = stage.entry().status
    assert (status.state, status.reason, status.lag_bytes, status.lag_s) == ("excluded", "archive = off", None, None)
    assert {entry.status.state for entry in stage.board.entries()} == {"excluded"}
    whole = sum_of(stage.board.entries(), PageFacts(), stage.clock.monotonic_s())
    assert (whole.lag_bytes, whole.lag_s, whole.unknown_lags, whole.worst) == (None, None, 0, None)
    stage.policy = Policy(tail_after_ms=0)
    stage.board.reconsider()
    stage.board.round()
    assert stage.entry().status.state in ("waiting", "unknown")


def test_what_looks_otherwise_is_looked_at_again(stage: Stage) -> None:
    stage.list_and_look()
    before = len(stage.looks)
    os.utime(stage.dirs.look(ORDERS).directory, (OLD_S + 1, OLD_S + 1))
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    stage.board.round()
    assert stage.looks[before:] == [ORDERS]


def test_what_waits_becomes_older_by_itself_and_what_does_not_wait_does_not(stage: Stage) -> None:
    stage.archived_to[ORDERS] = 1
    stage.list_and_look()
    entry = stage.entry()
    assert entry.status.lag_bytes
    assert entry.status.lag_s is not None
    later = entry.lag_s(stage.clock.monotonic_s() + 60)
    assert later == pytest.approx(entry.status.lag_s + 60)
    stage.archived_to[ORDERS] = entry.status.high_watermark or 0
    stage.board.happened([ORDERS])
    stage.board.round()
    assert stage.entry().lag_s(stage.clock.monotonic_s() + 60) == 0


def test_of_a_partition_that_nothing_is_known_of_the_lag_is_unknown_and_not_all_of_the_log(stage: Stage) -> None:
    stage.archived_to.clear()
    stage.list_and_look()
    assert (stage.entry().status.state, stage.entry().status.lag_bytes, stage.entry().status.lag_s) == ("unknown", None, None)
    stage.board.stepped(ORDERS, "")  # a step has found no head
    stage.board.round()
    assert stage.entry().status.state == "due"
    assert stage.entry().status.lag_bytes
    stage.errors[ORDERS] = TransientError("the store is silent")  # it found out nothing
    stage.board.happened([ORDERS])
    stage.board.round()
    assert (stage.entry().status.state, stage.entry().status.reason) == ("unknown", "the store is silent")


def test_what_has_stopped_says_why(stage: Stage) -> None:
    stage.errors[ORDERS] = CorruptData("a segment", 7, "bit rot")
    stage.list_and_look()
    assert (stage.entry().status.state, stage.entry().status.reason) == ("stopped", "a segment, byte 7: bit rot")


def test_what_has_stopped_before_anything_was_archived_says_so_too(stage: Stage) -> None:
    stage.archived_to.clear()
    stage.errors[ORDERS] = CorruptData("a segment", 7, "bit rot")
    stage.list_and_look()
    assert (stage.entry().status.state, stage.entry().status.reason) == ("stopped", "a segment, byte 7: bit rot")


def test_what_a_person_has_to_do_is_named_without_a_head(stage: Stage) -> None:
    stage.errors[ORDERS] = NeedsReplacement("needs replacement: compaction went past the archive")
    stage.list_and_look()
    assert stage.entry().status.state == "needs replacement"
    stage.archived_to.clear()
    stage.board.happened([ORDERS])
    stage.board.round()
    assert stage.entry().status.state == "needs replacement"


def test_what_passes_by_itself_has_stopped_nothing(stage: Stage) -> None:
    stage.archived_to[ORDERS] = 1
    stage.errors[ORDERS] = TransientError("the store is silent")
    stage.list_and_look()
    assert (stage.entry().status.state, stage.entry().status.reason) == ("waiting", "the store is silent")


def test_a_partition_that_is_behind_stays_so_after_its_head_was_dropped_until_the_archive_goes_on(stage: Stage) -> None:
    partition = stage.dirs.look(ORDERS).partition
    head = a_head(an_entry(0, 3, partition=partition), partition=partition, leader_epoch=99)
    stage.heads[partition] = KnownHead(head, 0.0)
    stage.archived_to[ORDERS] = head.next_offset
    stage.list_and_look()
    known = stage.entry().status
    assert known.state == "behind"
    stage.heads.clear()
    for _ in range(2):
        stage.board.happened([ORDERS])
        stage.board.round()
        assert (stage.entry().status.state, stage.entry().status.reason) == ("behind", known.reason)
    stage.archived_to[ORDERS] += 1
    stage.board.happened([ORDERS])
    stage.board.round()
    assert stage.entry().status.state == "waiting"


def test_a_look_that_fails_for_now_leaves_what_was_known_and_is_repeated(stage: Stage) -> None:
    stage.list_and_look()
    known = stage.entry()
    stage.unlookable[ORDERS] = TransientError("the disk hangs")
    stage.board.happened([ORDERS])
    stage.board.round()
    assert stage.entry() is known
    assert stage.board.unseen == 1
    del stage.unlookable[ORDERS]
    stage.board.round()
    assert stage.entry() is not known


def test_a_disk_that_hangs_while_files_are_read_holds_up_no_other_partition(stage: Stage) -> None:
    stage.list_and_look()
    known, places, waited = stage.entry(), list(stage.dirs.listing().partitions), list[float]()
    stage.hanging.add(ORDERS)
    stage.board.happened([ORDERS, *places])
    before = len(stage.looks)
    stage.board.round(waited.append)
    assert stage.looks[before:] == [ORDERS, *(each for each in places if each != ORDERS)]
    assert sum(waited) == 0  # nothing has worked for three seconds
    assert (stage.entry() is known, stage.board.unseen) == (True, 1)


def test_files_are_read_in_the_threads_of_their_disk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    there, go_on = threading.Event(), threading.Event()
    stage.dirs = LogDirs(stage.dirs.dirs, patience_s=0.05)

    def hang(*_: object) -> None:
        there.set()
        assert go_on.wait(30)

    monkeypatch.setattr(status_board, "backlog", hang)
    stage.board.happened([ORDERS])
    try:
        for _ in range(1000):
            stage.board.round()
            if there.is_set():  # a busy machine may not begin the work in the time that a disk has
                break
        assert there.is_set()
        assert "its disk has not answered" in stage.entry().status.reason
    finally:
        go_on.set()


def test_a_directory_that_is_damaged_or_gone(stage: Stage) -> None:
    stage.list_and_look()
    stage.unlookable[ORDERS] = CorruptData("orders.in-0", 0, "cut")
    stage.board.happened([ORDERS])
    stage.board.round()
    assert (stage.entry().status.state, stage.entry().status.lag_s) == ("stopped", None)
    stage.unlookable[ORDERS] = NotFound("gone")
    stage.board.happened([ORDERS])
    stage.board.round()
    assert ORDERS not in {(each.status.topic, each.status.partition) for each in stage.board.entries()}


def test_what_is_not_retained_is_forgotten(stage: Stage) -> None:
    stage.list_and_look()
    stage.board.retain({ORDERS})
    assert [(each.status.topic, each.status.partition) for each in stage.board.entries()] == [ORDERS]


def test_a_defect_at_one_partition_leaves_the_others_to_be_looked_at(stage: Stage) -> None:
    stage.unlookable[ORDERS] = ZeroDivisionError("a defect")
    stage.list_and_look()
    unseen = [each.status for each in stage.board.entries() if each.glimpse is None]
    assert [(each.topic, each.partition, each.state) for each in unseen] == [(*ORDERS, "unknown")]


def test_a_round_leaves_most_of_the_time_to_others_and_ends_when_it_is_to(stage: Stage) -> None:
    waited: list[float] = []
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())

    def end(seconds: float) -> bool:
        waited.append(seconds)
        return True

    stage.board.round(end)
    assert len(waited) == len(stage.looks) == 1


def test_a_recovered_directory_is_no_trouble_and_has_no_lag_of_ours(stage: Stage) -> None:
    stage.recovered, stage.archived_to[ORDERS] = True, 1
    stage.list_and_look()
    assert stage.entry().status.state == "recovered"


# What a person who asks right after a verb sees


def test_what_was_done_with_a_partition_is_looked_at_before_what_was_listed(stage: Stage) -> None:
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    last = list(stage.dirs.listing().partitions)[-1]
    assert last != ORDERS
    stage.board.stepped(last, "")

    def committed(_: float) -> None:
        if len(stage.looks) == 2:
            stage.board.stepped(ORDERS, "within the round")

    stage.board.round(committed)
    assert stage.looks[0] == last
    assert stage.looks[2] == ORDERS
    assert len(stage.looks) == len(set(stage.looks)) == len(stage.dirs.listing().partitions)


def test_who_waits_is_called_when_what_was_done_so_far_has_been_looked_at_and_not_for_what_was_not_asked_for(stage: Stage) -> None:
    stage.list_and_look()
    called: list[int] = []
    stage.board.when_seen(lambda place: True, lambda: called.append(len(stage.looks)))
    assert called == [len(stage.looks)]  # nothing was done
    places = list(stage.dirs.listing().partitions)
    stage.looks.clear()
    for place in places:
        stage.board.stepped(place, "")
    wanted = places[-1]
    stage.board.when_seen(lambda place: place == wanted, lambda: called.append(len(stage.looks)))
    stage.board.round()
    assert stage.looks[0] == wanted
    assert called[1:] == [1]


def test_before_the_first_listing_who_waits_waits_for_that_and_for_its_looks(stage: Stage) -> None:
    called: list[int] = []
    stage.board.when_seen(lambda place: place.topic == ORDERS.topic, lambda: called.append(len(stage.looks)))
    stage.board.round()
    assert not called
    wanted = [place for place in stage.dirs.listing().partitions if place.topic == ORDERS.topic]
    stage.list_and_look()
    assert called == [len(wanted)]


def test_a_look_that_fails_holds_up_nobody_who_waits(stage: Stage) -> None:
    stage.list_and_look()
    stage.hanging.add(ORDERS)
    stage.board.stepped(ORDERS, "")
    called: list[int] = []
    stage.board.when_seen(lambda place: True, lambda: called.append(1))
    stage.board.round()
    assert called == [1]


def test_who_waits_no_longer_is_not_called(stage: Stage) -> None:
    called: list[int] = []

    def done() -> None:
        called.append(1)

    stage.board.when_seen(lambda place: True, done)
    stage.board.forget(done)
    stage.list_and_look()
    assert not called


def test_a_round_begins_as_soon_as_something_was_done(stage: Stage) -> None:
    stop, seen = threading.Event(), threading.Event()
    thread = threading.Thread(target=stage.board.run, args=(stop,))
    thread.start()
    try:
        stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
        stage.board.when_seen(lambda place: True, seen.set)
        assert seen.wait(30)
        assert stage.entry().status.state == "archived"
    finally:
        stop.set()
        stage.board.wake()
        thread.join(30)
    assert not thread.is_alive()


# What a row needs beside its log


def test_what_is_archived_and_not_here_has_a_row_too(stage: Stage) -> None:
    here = stage.dirs.look(ORDERS).partition
    gone = replace(here, topic="gone", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    listed = replace(here, topic="listed", topic_id="AAAAAAAAAAAAAAAAAAAAAg")
    known = PartitionState(manifest_version=1, fence=1, owner="me", start_offset=3, last_offset=9)
    stage.archived = {here: known, gone: known, listed: None}
    stage.list_and_look()
    [entry] = stage.board.elsewhere()
    status = entry.status
    assert (status.topic, status.state, status.archive_start, status.last_offset, status.local_start) == (
        "gone",
        "archive-only",
        3,
        9,
        None,
    )
    assert not entry.is_sized
    assert set(stage.board.unsized()) >= {gone, listed}
    head = a_head(an_entry(3, 9, partition=gone), partition=gone)
    assert (head.start_offset, head.last_offset) == (3, 9)
    stage.board.head_read(gone, head, asked_s=0.0)
    stage.board.head_read(listed, None, asked_s=0.0)  # none of it was ever archived
    stage.board.round()
    [entry] = stage.board.elsewhere()
    assert (entry.is_sized, entry.status.objects) == (True, 1)
    assert not {gone, listed} & set(stage.board.unsized())
    stage.archived = {here: known}
    stage.clock.advance(60_000)
    stage.board.round()
    assert stage.board.elsewhere() == []


def test_a_head_that_was_restored_replaces_what_the_board_knows(stage: Stage) -> None:
    here = stage.dirs.look(ORDERS).partition
    gone = replace(here, topic="gone", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")

    def known(last_offset: int, commit_id: str) -> PartitionState:
        return PartitionState(manifest_version=5, fence=1, owner="me", start_offset=0, last_offset=last_offset, commit_id=commit_id)

    def row() -> int | None:
        stage.board.round()
        [entry] = stage.board.elsewhere()
        return entry.status.last_offset

    stage.archived = {gone: known(19, "a")}
    stage.list_and_look()
    stage.board.head_read(gone, a_head(an_entry(0, 19, partition=gone), partition=gone, version=5, commit_id="a"), asked_s=0.0)
    assert row() == 19
    stage.clock.advance(3_600_000)
    stage.board.head_read(
        gone, a_head(an_entry(0, 9, partition=gone), partition=gone, version=5, commit_id="b"), asked_s=stage.clock.monotonic_s()
    )
    assert row() == 9, "another commit of the version that the control log knows"
    stage.clock.advance(3_600_000)
    assert gone in stage.board.unsized()


def test_what_is_here_has_one_row_though_the_archive_was_known_first(stage: Stage) -> None:
    here = stage.dirs.look(ORDERS).partition
    stage.archived = {here: PartitionState(manifest_version=1, fence=1, owner="me", start_offset=0, last_offset=9)}
    stage.board.round()  # before the first listing
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    assert stage.board.elsewhere() == []
    assert ORDERS in [entry.place for entry in stage.board.entries()]


def test_what_leaves_the_log_directories_is_archive_only_at_once(stage: Stage) -> None:
    here = stage.dirs.look(ORDERS).partition
    stage.archived = {here: PartitionState(manifest_version=1, fence=1, owner="me", start_offset=0, last_offset=9)}
    stage.list_and_look()
    assert stage.board.elsewhere() == []
    stage.unlookable[ORDERS] = NotFound("gone")
    stage.board.happened([ORDERS])
    stage.board.round()
    assert [entry.partition for entry in stage.board.elsewhere()] == [here]


def test_the_size_of_an_archive_that_nobody_holds_a_head_of_is_read_once(stage: Stage) -> None:
    partition = stage.dirs.look(ORDERS).partition
    head = a_head(an_entry(0, 3, partition=partition), partition=partition)
    stage.archived_to[ORDERS] = head.next_offset
    stage.list_and_look()
    assert (stage.entry().is_sized, stage.entry().status.known_age_s) == (False, None)
    assert stage.board.unsized() == [partition]
    stage.board.head_read(partition, head, asked_s=0.0)
    stage.clock.advance(2_000)
    stage.board.round()
    assert (stage.entry().is_sized, stage.entry().status.objects, stage.entry().status.known_age_s) == (True, 1, 2.0)
    assert stage.board.unsized() == []
    stage.archived_to[ORDERS] += 1  # by another agent
    assert stage.board.unsized() == []
    stage.clock.advance(3_600_000)
    assert stage.board.unsized() == [partition]


def test_a_size_asked_for_before_the_first_commit_is_read_again_after_it(stage: Stage) -> None:
    partition = stage.dirs.look(ORDERS).partition
    stage.archived = {partition: None}
    stage.list_and_look()
    stage.board.head_read(partition, None, asked_s=stage.clock.monotonic_s())
    assert stage.board.unsized() == []
    head = a_head(an_entry(0, 3, partition=partition), partition=partition)
    stage.archived_to[ORDERS] = head.next_offset  # by another agent, whose head is not here
    assert stage.board.unsized() == [partition]
    stage.board.head_read(partition, None, asked_s=stage.clock.monotonic_s())  # as the control log alone knows it: once, not for ever
    assert stage.board.unsized() == []
    asked_s = stage.clock.monotonic_s()
    stage.clock.advance(1_000)
    stage.board.committed(head)
    stage.board.head_read(partition, None, asked_s=asked_s)  # overtaken
    stage.board.round()
    assert (stage.entry().is_sized, stage.entry().status.objects) == (True, 1)


def test_a_commit_says_how_large_the_archive_is(stage: Stage) -> None:
    partition = stage.dirs.look(ORDERS).partition
    head = a_head(an_entry(0, 3, partition=partition), partition=partition)
    stage.list_and_look()
    stage.archived_to[ORDERS] = head.next_offset
    stage.board.committed(head)
    stage.board.round()
    assert (stage.entry().is_sized, stage.entry().status.objects, stage.entry().status.last_offset) == (True, 1, 3)


def test_a_high_watermark_says_whose_word_it_is_and_becomes_younger_when_it_is_confirmed(stage: Stage) -> None:
    stage.list_and_look()
    entry, now_s = stage.entry(), stage.clock.monotonic_s()
    assert (entry.status.high_watermark_source, entry.said_s) == ("checkpoint", now_s - 2.0)
    stage.clock.advance(30_000)
    listing = stage.dirs.listing()
    written_ms = stage.clock.now_ms() - 4_000
    stage.board.listed(replace(listing, checkpoints_ms=dict.fromkeys(listing.checkpoints_ms, written_ms)), stage.clock.monotonic_s())
    assert stage.entry().said_s == pytest.approx(stage.clock.monotonic_s() - 4.0)
    mark = (entry.status.high_watermark or 0) + 5
    stage.marks[ORDERS] = Watermark(mark, 0.5)
    stage.board.said({ORDERS: mark}, stage.clock.monotonic_s())
    stage.board.round()
    assert (stage.entry().status.high_watermark, stage.entry().status.high_watermark_source) == (mark, "broker")
    stage.clock.advance(5_000)
    looks = len(stage.looks)
    stage.board.said({ORDERS: mark}, stage.clock.monotonic_s())
    stage.board.round()
    assert len(stage.looks) == looks
    assert stage.entry().said_s == stage.clock.monotonic_s()


def test_what_was_released_at_the_broker_stands_there(stage: Stage) -> None:
    partition = stage.dirs.look(ORDERS).partition
    stage.released[partition] = ReleaseRecord(end=7, size_bytes=100, reason="the rest is not archived")
    stage.list_and_look()
    status = stage.entry().status
    assert (status.released_end, status.released_bytes, status.release_reason) == (7, 100, "the rest is not archived")
    stage.released[partition] = ReleaseRecord(reason="it waits", blocked=Blocked("bills", 15, 1_700_000_000_000, 2, 900))
    stage.board.stepped(ORDERS, "")
    stage.board.round()
    status = stage.entry().status
    assert (status.release_group, status.release_group_offset, status.release_blocked_bytes) == ("bills", 15, 900)
    assert status.release_blocked_ms == 1_700_000_000_000
    stage.released[partition] = ReleaseRecord(reason="not all replicas are in sync")
    stage.board.stepped(ORDERS, "")
    stage.board.round()
    assert stage.entry().status.released_end is None


def test_a_log_that_changes_while_its_backlog_is_walked_has_not_stopped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = stage.dirs.look(ORDERS).partition
    stage.heads[partition] = KnownHead(a_head(an_entry(0, 3, partition=partition), partition=partition), 0.0)
    stage.list_and_look()
    known = stage.entry()

    def gone(*_: object) -> None:
        raise SourceChanged("a segment was deleted")

    monkeypatch.setattr(partition_status, "backlog", gone)
    stage.board.stepped(ORDERS, "")
    stage.board.round()
    assert stage.entry() is known
    monkeypatch.undo()
    stage.board.round()
    assert stage.entry() is not known


def test_what_may_be_archived_is_looked_at_again_when_it_changes(stage: Stage) -> None:
    stage.archived_to[ORDERS] = 1
    stage.list_and_look()
    stage.policy = Policy(off="paused since today")
    stage.board.reconsider()
    stage.board.round()
    assert (stage.entry().status.state, stage.entry().status.reason) == ("paused", "paused since today")


def test_who_comes_within_a_round_waits_for_what_is_left_of_it_and_for_the_look_at_hand(stage: Stage) -> None:
    stage.board.listed(stage.dirs.listing(), stage.clock.monotonic_s())
    last, called = list(stage.dirs.listing().partitions)[-1], list[str]()

    def come(_: float) -> None:
        if len(stage.looks) == 1:
            stage.board.when_seen(lambda place: place == last, lambda: called.append(f"after {len(stage.looks)} looks"))

    stage.board.round(come)
    assert called == ["after 2 looks"]
    look = stage.board._sources.look

    def come_now(place: TopicPartition) -> tuple[LocalLog, WatermarkOrigin]:
        if not called[1:]:
            stage.board.when_seen(lambda place: place == last, lambda: called.append("seen"))
            assert not called[1:]
        return look(place)

    stage.board._sources = replace(stage.board._sources, look=come_now)
    stage.board.stepped(last, "")
    stage.board.round()
    assert called[1:] == ["seen"]


def test_what_is_archived_and_paused_is_paused(stage: Stage) -> None:
    """As where a head is held."""
    stage.policy = Policy(off="paused since today")
    stage.list_and_look()
    assert (stage.entry().status.state, stage.entry().status.lag_bytes) == ("paused", 0)
