"""The agent's loop, turn by turn: every partition gets its turn, and one partition's trouble is its own."""

import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from archival.config import ArchivalConfig, ArchiveMode
from archival.fleet import GLIMPSE_S, LATE_S, LOG_DIRS, LOOK_S, MERGE_AGAIN_S, OLDER_EVERY_S, READ_AGAIN_S, MergeTurn, PartitionOutcome
from archival.partition import archiver
from archival.partition.announcer import claim_of
from archival.partition.archiver import MergeOutcome
from archival.plan.merge_plan import MergePlan, plan_merge
from archival.plan.policy import Policy, PolicyFor
from archival.schedule.due_queue import PAUSE_MAX_S
from archival.schedule.scheduler import QUIET_S, Scheduler
from archival.schedule.store_breaker import OPENS_AT, PROBE_MAX_S
from archival.schedule.upload_permit import StepWatch
from headwater_core.clock import SystemClock
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, Fenced, HeadwaterError, TransientError, Unauthorised, UnknownOutcome, UploadStopped
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import Glimpse, Listing, LogDirs
from headwater_core.segments.metadata.cluster_metadata import Retention
from manifests.repository import ManifestRepository
from tests.archival.builders import SendingStore, number_of
from tests.events import written_events
from tests.headwater.broker import CLUSTER, Bench, topic_id
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_segment
from tests.hung_disk import within

WORKERS = ArchivalConfig().uploads_in_flight


def test_a_partition_that_never_ends_keeps_no_other_waiting(bench: Bench, store: SendingStore) -> None:
    """While one of its segments is sent, the next one rolls."""
    bench.broker.partition("busy", 0, 1, 2, 3, segments=3)
    bench.broker.partition("quiet", 0, 1, 2, 3, segments=4)
    store.sending = lambda key: bench.broker.roll("busy", number_of(key)) if "/busy/" in key else None
    bench.scheduler.rescan()
    for _ in range(8 * 4 + 4):  # a claim and three segments; then the busy ones are alone
        assert bench.scheduler.turn()
    assert [bench.last_offset("quiet", number) for number in range(4)] == [29] * 4
    assert [bench.last_offset("busy", number) for number in range(4)] == [39] * 4


def test_what_retention_takes_first_is_archived_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline is known after its first step."""
    bench.broker.partition("long", 0, 1, 2, segments=7)
    bench.broker.partition("short", 0, segments=7)
    look = LogDirs.look

    def with_retention(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        return replace(look(dirs, place), retention=Retention(1000 if place.topic == "short" else 2000, None))

    monkeypatch.setattr(LogDirs, "look", with_retention)
    bench.scheduler.rescan()
    while bench.last_offset("short", 0) < 59:
        assert bench.scheduler.turn()
    assert all(bench.last_offset("long", number) < 49 for number in range(3))


def test_events_and_rescans_only_add(bench: Bench) -> None:
    bench.broker.partition("soup", 0, 1)
    bench.scheduler.rescan()
    bench.scheduler.rescan()
    assert bench.turns() == 2 * 2  # a claim and a segment
    bench.broker.roll("soup", 1)
    bench.scheduler.add([TopicPartition("soup", 1)])
    assert bench.turns() == 1
    assert (bench.last_offset("soup", 0), bench.last_offset("soup", 1)) == (9, 19)


def test_what_happens_during_the_last_step_of_a_partition_makes_it_due(bench: Bench, store: SendingStore) -> None:
    """That step has looked before, and found that nothing more was to be done."""
    bench.broker.partition("soup", 0)

    def roll(key: str) -> None:
        store.sending = lambda key: None
        bench.broker.roll("soup", 0)
        bench.scheduler.add([TopicPartition("soup", 0)])

    store.sending = roll
    bench.scheduler.rescan()
    assert bench.turns() == 3
    assert bench.last_offset("soup", 0) == 19


def test_a_tail_waits_from_the_commit_before_it(bench: Bench) -> None:
    """Though no other step looks at it then."""
    bench.settings = ArchivalConfig(seal_timeout_s=60)
    bench.broker.partition("soup", 0)
    bench.broker.commit("soup", 0, 15)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.last_offset("soup", 0) == 9
    bench.clock.advance(60_000)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.last_offset("soup", 0) == 14


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    looks: list[TopicPartition] = []
    look = LogDirs.look

    def counted(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        looks.append(place)
        return look(dirs, place)

    monkeypatch.setattr(LogDirs, "look", counted)
    return looks


def test_a_rescan_looks_only_where_something_has_happened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition is caught up, of one the tail waits, one rolls."""
    bench.broker.partition("idle", 0, segments=3)
    bench.broker.partition("tail", 0, segments=3)
    bench.broker.partition("busy", 0, segments=3)
    bench.broker.commit("tail", 0, 25)
    bench.broker.wait()

    def rescanned() -> set[str]:
        looks.clear()
        bench.scheduler.rescan()
        bench.turns()
        return {place.topic for place in looks}

    looks = counted_looks(monkeypatch)
    assert rescanned() == {"idle", "tail", "busy"}
    assert rescanned() == {"tail"}
    bench.broker.roll("busy", 0)
    assert rescanned() == {"tail", "busy"}
    assert bench.last_offset("busy", 0) == 29
    bench.broker.wait()
    assert rescanned() == {"tail", "busy"}  # it was too young to tell
    assert rescanned() == {"tail"}
    bench.broker.commit("idle", 0, 22)
    assert rescanned() == {"tail", "idle"}
    bench.clock.advance(int(1000 * QUIET_S))
    assert rescanned() == {"tail", "idle", "busy"}


def test_what_is_due_and_looks_the_same_is_not_looked_at_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a roll, when checkpoints and the next listing make it due once more each."""
    place = TopicPartition("soup", 0)
    bench.broker.partition("soup", 0, segments=3)
    bench.scheduler.rescan()
    bench.turns()
    bench.broker.roll("soup", 0)
    bench.broker.wait()
    looks = counted_looks(monkeypatch)

    def looked() -> int:
        looks.clear()
        bench.scheduler.add([place])
        assert bench.turns() == 1
        return len(looks)

    assert looked() == 2  # the second one before the commit
    assert bench.last_offset("soup", 0) == 29
    assert [looked() for _ in range(3)] == [0, 0, 0]
    assert bench.fleet.step(place, Policy.of).last_offset == 29
    bench.settings = ArchivalConfig(seal_timeout_s=60)  # another policy
    assert [looked(), looked()] == [1, 0]
    bench.clock.advance(int(GLIMPSE_S * 1000))
    assert [looked(), looked()] == [1, 0]
    bench.broker.commit("soup", 0, 35)
    assert [looked(), looked()] == [1, 1]  # a tail waits
    bench.broker.drop("soup", 0)
    assert bench.fleet.step(place, Policy.of).gone


def test_a_compacted_log_is_looked_at_in_every_rescan(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its cleaner was last seen where decides what may follow the archive."""
    bench.broker.partition("soup", 0, segments=3)
    (bench.broker.root / checkpoints.CLEANED).write_bytes(checkpoints.encode_offsets({TopicPartition("soup", 0): 10}))
    bench.broker.wait()
    bench.scheduler.rescan()
    bench.turns()
    looks = counted_looks(monkeypatch)
    bench.scheduler.rescan()
    bench.turns()
    assert looks


def test_a_step_looks_at_its_own_partition_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.partition("soup", *range(20))
    bench.scheduler.rescan()
    bench.turns()
    looks = counted_looks(monkeypatch)
    bench.broker.roll("soup", 3)
    bench.scheduler.add([TopicPartition("soup", 3)])
    bench.turns()
    assert set(looks) == {TopicPartition("soup", 3)}


class Defect(Exception):
    """Nobody planned for it."""


def test_settings_are_read_whenever_they_are_needed(bench: Bench) -> None:
    """What was switched off is archived once it is switched on; as many steps as may be are in hand at once."""
    bench.settings = ArchivalConfig(archive=ArchiveMode.OFF)
    bench.broker.partition("soup", 0, 1)
    bench.broker.wait()
    bench.scheduler.rescan()
    assert bench.turns() == 2
    bench.scheduler.rescan()
    assert (bench.turns(), list(bench.store.list(""))) == (0, [])
    bench.settings = ArchivalConfig()
    bench.scheduler.reconsider()
    bench.turns()
    assert [bench.last_offset("soup", number) for number in range(2)] == [9, 9]


def deleted(bench: Bench) -> None:
    shutil.rmtree(bench.broker.directory("soup", 0))


def deleted_and_created_again(bench: Bench) -> None:
    deleted(bench)
    bench.broker.partition("soup", 0, incarnation=1)


def switched_off(bench: Bench) -> None:
    bench.settings_of["soup"] = ArchivalConfig(archive=ArchiveMode.OFF)


def claimed_by_another_agent(bench: Bench) -> None:
    """Whose announcement has come, and the bucket would refuse the commit."""
    head = bench.head("soup", 0)
    assert head
    bench.control.publish(claim_of(msgspec.structs.replace(head, version=head.version + 1, writer="agent-b")))


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (deleted, "the partition was deleted"),
        (deleted_and_created_again, "the topic was deleted and created again"),
        (switched_off, "archive = off"),
        (claimed_by_another_agent, "the control log knows of another agent's commit"),
    ],
)
def test_an_upload_that_is_not_wanted_any_more_is_stopped(
    bench: Bench, store: SendingStore, happens: Callable[[Bench], None], reason: str
) -> None:
    """And everybody else's goes on."""
    bench.broker.partition("soup", 0)
    bench.broker.partition("stew", 0)

    def sending(key: str) -> None:
        if "/soup/" in key:
            store.sending = lambda key: None
            happens(bench)
            bench.clock.advance(int(1000 * LOOK_S))

    store.sending = sending
    bench.scheduler.rescan()
    with capture_logs() as events:
        for _ in range(5):
            bench.scheduler.turn()
    stopped = [(event["partition"], event["reason"]) for event in events if event["event"] == "upload_stopped"]
    assert stopped == [("soup:0", reason)]
    assert bench.last_offset("stew", 0) == 9
    troubles = {event["event"] for event in events if event["log_level"] in ("warning", "error")}
    assert troubles <= {"topic_name_kept"}  # without a metadata log nobody knows that the name has another meaning


def test_a_claim_by_the_new_leaders_agent_is_no_trouble_of_the_partition(bench: Bench, store: SendingStore) -> None:
    """It comes while a run is uploaded, at each change of a leader. No person has to act."""
    bench.broker.partition("soup", 0)

    def claim(key: str) -> None:
        store.sending = lambda key: None
        repository = ManifestRepository(bench.store)
        held = repository.load(PartitionId(CLUSTER, topic_id("soup"), 0, "soup"))
        assert held
        repository.commit(held, msgspec.structs.replace(held.head, fence=held.head.fence + 1, writer="agent-b"))

    store.sending = claim
    bench.scheduler.rescan()
    with capture_logs() as events:
        bench.scheduler.turn()
        bench.scheduler.turn()
    assert [(event["event"], event["log_level"]) for event in events if event["log_level"] != "info"] == [("archive_postponed", "warning")]
    assert bench.fleet.troubles == {}
    failure = bench.fleet.failures[TopicPartition("soup", 0)]
    assert isinstance(failure.error, Fenced)
    assert "agent-b" in str(failure.error)


def test_what_the_control_log_wrongly_says_stops_no_upload_for_ever(bench: Bench) -> None:
    """It is a hint: the bucket has been read again before the upload, and knows of no such commit."""
    bench.broker.partition("soup", 0)
    bench.scheduler.rescan()
    assert bench.scheduler.turn()
    claimed_by_another_agent(bench)
    bench.turns()
    assert bench.last_offset("soup", 0) == 9


def test_an_unplanned_exception_is_one_partitions_trouble(bench: Bench, store: SendingStore) -> None:
    bench.broker.partition("bad", 0)
    bench.broker.partition("soup", 0, 1)

    def fail(key: str) -> None:
        if "/bad/" in key:
            raise Defect("a table with two legs")

    store.sending = fail
    with written_events(bench.clock) as events:
        bench.scheduler.rescan()
        bench.turns()
        for _ in range(5):
            bench.clock.advance(int(PAUSE_MAX_S * 1000))
            bench.turns()
    bad = TopicPartition("bad", 0)
    assert [bench.last_offset("soup", number) for number in (0, 1)] == [9, 9]
    assert "Defect: a table with two legs" in bench.fleet.troubles[bad]
    assert bench.fleet.unexpected == 6
    [traceback] = [event for event in events if event["event"] == "archive_failed"]
    assert isinstance(traceback["exc_info"], Defect)
    assert [event["log_level"] for event in events if event["event"] == "archive_stopped"] == ["error"]
    store.sending = lambda key: None
    bench.clock.advance(int(PAUSE_MAX_S * 1000))
    bench.turns()
    assert (bench.fleet.troubles, bench.last_offset("bad", 0)) == ({}, 9)


def test_a_listing_that_fails_in_an_unplanned_way_stops_no_partition(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.partition("soup", 0)

    def fail(_: object) -> None:
        raise Defect("no list")

    with monkeypatch.context() as patch:
        patch.setattr(type(bench.fleet.logs), "listing", fail)
        bench.scheduler.rescan()
        assert "no list" in bench.fleet.troubles[LOG_DIRS]
        bench.scheduler.add([TopicPartition("soup", 0)])
        bench.turns()
    assert bench.last_offset("soup", 0) == 9
    bench.scheduler.rescan()
    assert bench.fleet.troubles == {}


def test_a_log_directory_that_cannot_be_listed_is_among_the_troubles(bench: Bench) -> None:
    bench.broker.partition("soup", 0)
    properties = bench.broker.root / "meta.properties"
    raw = properties.read_bytes()
    properties.unlink()
    bench.scheduler.rescan()
    assert "meta.properties" in bench.fleet.troubles[LOG_DIRS]
    properties.write_bytes(raw)
    with capture_logs() as events:
        bench.scheduler.rescan()
    assert bench.fleet.troubles == {}
    assert [(event["event"], event["partition"]) for event in events] == [("archive_resumed", str(LOG_DIRS))]


@pytest.mark.parametrize("error", [TransientError, Unauthorised])
def test_an_outage_of_the_store_is_a_few_lines_and_a_few_requests(bench: Bench, store: SendingStore, error: type[HeadwaterError]) -> None:
    """However many partitions, however long; and when it is over, all go on within the longest pause."""
    partitions = 40
    bench.broker.partition("soup", *range(partitions))
    tries = 0

    def refuse(key: str) -> None:
        nonlocal tries
        tries += 1
        raise error(f"{key}: connection {tries} refused")

    store.sending = refuse
    bench.scheduler.rescan()
    with written_events(bench.clock) as events:
        for _ in range(75):
            bench.clock.advance(1000)
            bench.turns()
            events.summarise()
            bench.scheduler.add([TopicPartition("soup", number) for number in range(partitions)])  # they go on being written to
        names = [event["event"] for event in events if event["log_level"] != "info"]
        single = "archive_postponed" if error is TransientError else "archive_stopped"
        assert set(names) == {single, "archiving_suspended"}
        assert 0 <= (bench.scheduler.probe_in_s() or -1) <= PROBE_MAX_S
        assert names.count(single) <= OPENS_AT - 1
        assert names.count("archiving_suspended") <= 2
        assert tries <= OPENS_AT + 8
        events.clear()
        for _ in range(2 * 60):
            bench.clock.advance(5000)
            bench.turns()
            events.summarise()
        assert {event["event"] for event in events} == {"archiving_suspended"}
        assert 4 <= len(events) <= 10  # no more than one a minute
        assert tries <= OPENS_AT + 8 + 2 * 600 / PROBE_MAX_S
        events.clear()
        store.sending = lambda key: None
        bench.clock.advance(int(PROBE_MAX_S * 1000))
        bench.turns()
        assert sum(bench.last_offset("soup", number) == 9 for number in range(partitions)) > partitions / 2
        bench.clock.advance(int(PAUSE_MAX_S * 1000))
        bench.turns()
    assert {bench.last_offset("soup", number) for number in range(partitions)} == {9}
    assert "archiving_resumed" in [event["event"] for event in events]
    assert bench.scheduler.probe_in_s() is None
    assert bench.fleet.troubles == {}


def test_what_was_uploaded_is_kept_while_commits_are_refused(bench: Bench, store: SendingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By everybody, until the breaker closes: no object is sent twice."""
    bench.broker.partition("soup", *range(10))
    sent: list[str] = []
    store.sending = sent.append
    refused = True
    replace_document = SendingStore.replace

    def refusing(store: SendingStore, key: str, document: bytes, *, expected_tag: str) -> str:
        if refused:
            raise UnknownOutcome(f"{key}: 503 slow down")
        return replace_document(store, key, document, expected_tag=expected_tag)

    monkeypatch.setattr(SendingStore, "replace", refusing)
    bench.scheduler.rescan()
    for _ in range(200):
        bench.clock.advance(1000)
        bench.turns()
    refused = False
    for _ in range(2):
        bench.clock.advance(int(PAUSE_MAX_S * 1000))
        bench.turns()
    assert {bench.last_offset("soup", number) for number in range(10)} == {9}
    assert len(sent) == 10


def test_one_partitions_trouble_with_the_store_is_its_own(bench: Bench, store: SendingStore) -> None:
    """It backs off alone, though nobody else has anything to do with the store for a while."""
    bench.broker.partition("bad", 0)
    bench.broker.partition("soup", 0, 1)

    def refuse(key: str) -> None:
        if "/bad/" in key:
            raise TransientError("refused")

    store.sending = refuse
    bench.scheduler.rescan()
    for _ in range(100):
        bench.clock.advance(1000)
        bench.turns()
    bench.broker.roll("soup", 0)
    bench.scheduler.add([TopicPartition("soup", 0)])
    bench.turns()
    assert bench.last_offset("soup", 0) == 19


def test_a_partition_that_continues_after_it_had_stopped_is_reported(bench: Bench, store: SendingStore) -> None:
    bench.broker.partition("soup", 0)

    def fail(key: str) -> None:
        raise CorruptData(key, 0, "damaged")

    store.sending = fail
    with written_events(bench.clock) as events:
        bench.scheduler.rescan()
        for sending in (fail, lambda key: None, lambda key: None):
            store.sending = sending
            bench.clock.advance(int(READ_AGAIN_S * 1000))
            bench.scheduler.rescan()
            bench.turns()
    reported = [(event["event"], event["partition"]) for event in events if event["event"].startswith("archive_")]
    assert reported == [("archive_stopped", "soup:0"), ("archive_resumed", "soup:0")]


class Once:
    """Says once that all is due, then stops."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done

    def wait(self, stop: threading.Event, rescan_s: float) -> Collection[TopicPartition] | None:
        if self._done():
            stop.set()
        stop.wait(0.01)
        return None


def test_a_mistake_beside_all_partitions_ends_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archival.schedule.scheduler.FAILED_S", 0.01)
    bench.broker.partition("soup", 0)
    asked = 0

    def done() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Defect("events went astray")
        return bench.last_offset("soup", 0) == 9

    with capture_logs() as events:
        bench.scheduler.run(Once(done), threading.Event())
    assert asked > 1
    assert bench.last_offset("soup", 0) == 9
    assert [event["log_level"] for event in events if event["event"] == "scheduler_failed"] == ["error"]


def test_the_workers_archive_everything_and_end_when_stopped(bench: Bench) -> None:
    bench.broker.partition("soup", *range(12), segments=3)
    stop = threading.Event()
    bench.scheduler.run(Once(lambda: all(bench.last_offset("soup", number) == 19 for number in range(12))), stop)
    assert stop.is_set()
    assert {bench.last_offset("soup", number) for number in range(12)} == {19}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("archive")]


class HangingWork:
    """Partitions in two log directories. The steps of those in one of them wait for its disk."""

    def __init__(self) -> None:
        self.answers, self.begun = threading.Event(), threading.Semaphore(0)
        self.stepped: list[str] = []
        glimpse = Glimpse(Path("a"), 0, 0, 0, (0, 0), None, None, None)
        self._listing = Listing(
            partitions={TopicPartition("hanging", number): glimpse for number in range(3 * WORKERS)}
            | {TopicPartition("sound", number): glimpse._replace(directory=Path("b")) for number in range(3)}
        )

    def listing(self) -> Listing:
        return self._listing

    def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
        if place.topic == "hanging":
            self.begun.release()
            assert self.answers.wait(60)
        self.stepped.append(place.topic)
        return PartitionOutcome(place=place)

    def merge(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        raise AssertionError(str(place))

    def note(self, outcome: PartitionOutcome) -> None: ...
    def trouble(self, place: TopicPartition, error: Exception) -> HeadwaterError:
        raise AssertionError(str(place)) from error

    def expect(self, places: Collection[TopicPartition]) -> None: ...

    def retain(self, places: Collection[TopicPartition]) -> None: ...
    def save(self) -> None: ...


class OneRescan:
    """Nothing happens before the end."""

    def wait(self, stop: threading.Event, rescan_s: float) -> Collection[TopicPartition] | None:
        stop.wait(60)
        return ()


@pytest.fixture
def hanging() -> Iterator[HangingWork]:
    work = HangingWork()
    yield work
    work.answers.set()


def test_more_may_be_in_hand_from_one_moment_to_the_next(hanging: HangingWork) -> None:
    settings = ArchivalConfig(uploads_in_flight=1)
    scheduler = Scheduler(hanging, clock=ManualClock(), random=Random(7), settings=lambda: settings)
    scheduler.rescan()
    for most in (1, 3, 2):
        settings = ArchivalConfig(uploads_in_flight=most)
        while len(scheduler._in_hand) < most:
            threading.Thread(target=scheduler.turn, daemon=True).start()
            assert hanging.begun.acquire(timeout=20)
        assert not scheduler.turn()


def test_a_disk_that_hangs_keeps_only_its_own_partitions_from_their_steps(hanging: HangingWork) -> None:
    clock = ManualClock()
    scheduler = Scheduler(hanging, clock=clock, random=Random(7))
    scheduler.rescan()
    for _ in range(WORKERS):
        threading.Thread(target=scheduler.turn, daemon=True).start()
    for _ in range(WORKERS):
        assert hanging.begun.acquire(timeout=20)
    assert not scheduler.turn(), "as many as may be are in hand"
    clock.advance(int(1000 * LATE_S))
    while scheduler.turn():
        pass
    assert hanging.stepped == ["sound"] * 3
    hanging.answers.set()
    within(20, lambda: [None for _ in iter(lambda: scheduler.turn() or len(scheduler) > 0, False)])
    assert hanging.stepped.count("hanging") == 3 * WORKERS


def test_a_step_whose_bytes_move_is_not_late_and_counts_among_those_in_flight() -> None:
    """However long it takes: with a low rate, uploads would else become more and more."""

    class Moving(HangingWork):
        def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
            watches.append(watch)
            return super().step(place, policy_for, watch)

    work, clock, watches = Moving(), ManualClock(), list[StepWatch]()
    scheduler = Scheduler(work, clock=clock, random=Random(7))
    scheduler.rescan()
    for _ in range(WORKERS):
        threading.Thread(target=scheduler.turn, daemon=True).start()
        assert work.begun.acquire(timeout=20)
    for _ in range(5):
        clock.advance(int(1000 * LATE_S) - 1)
        for each in watches:
            each.moved()
        assert not scheduler.turn()
    work.answers.set()


def test_an_agent_that_stops_ends_its_uploads() -> None:
    class Uploading(HangingWork):
        def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
            self.begun.release()
            while not (reason := watch.ends()):
                pause.wait(0.01)
            return PartitionOutcome(place=place, error=UploadStopped(reason))

    work, stop, pause = Uploading(), threading.Event(), threading.Event()
    running = threading.Thread(target=Scheduler(work, clock=SystemClock(), random=Random(7)).run, args=(OneRescan(), stop), daemon=True)
    running.start()
    for _ in range(WORKERS):
        assert work.begun.acquire(timeout=20)
    stop.set()
    running.join(LATE_S / 2)
    assert not running.is_alive()


def test_steps_that_hang_are_replaced_and_left_behind_at_the_end(hanging: HangingWork) -> None:
    """By threads that notice it by themselves; the process can end."""

    class Skipping(SystemClock):
        def monotonic_s(self) -> float:
            return super().monotonic_s() * 20 * LATE_S  # a twentieth of a second is late

    scheduler, stop = Scheduler(hanging, clock=Skipping(), random=Random(7)), threading.Event()
    running = threading.Thread(target=scheduler.run, args=(OneRescan(), stop), daemon=True)
    running.start()
    pause = threading.Event()
    for _ in range(400):
        if hanging.stepped.count("sound") == 3:
            break
        pause.wait(0.05)
    assert hanging.stepped == ["sound"] * 3
    stop.set()
    running.join(20)
    assert not running.is_alive()


def test_what_happens_to_one_partition_wakes_no_more_workers_than_it_needs(hanging: HangingWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most are without work, after a burst of it."""
    scheduler, stop, pause, looked = Scheduler(hanging, clock=SystemClock(), random=Random(7)), threading.Event(), threading.Event(), 0
    running = threading.Thread(target=scheduler.run, args=(OneRescan(), stop), daemon=True)
    running.start()

    def rest() -> None:
        for _ in range(2000):
            if len(scheduler) == 0:
                return
            pause.wait(0.01)
        raise AssertionError("still at work")

    for _ in range(WORKERS):
        assert hanging.begun.acquire(timeout=20)
    hanging.answers.set()
    rest()
    assert len(scheduler._workers) > WORKERS
    take, before = scheduler._take, len(hanging.stepped)

    def counted() -> TopicPartition | None:
        nonlocal looked
        looked += 1
        return take()

    pause.wait(0.1)
    monkeypatch.setattr(scheduler, "_take", counted)
    for _ in range(10):
        scheduler.add([TopicPartition("sound", 0)])
        rest()
    stop.set()
    running.join(20)
    assert not running.is_alive()
    assert len(hanging.stepped) == before + 10
    assert looked <= 10 * 4 + len(scheduler._workers)  # it, another one for what may be due beside it, and it again after the step


class WaitingWork(HangingWork):
    """Each step wants to be made again after a fifth of a second."""

    def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
        self.stepped.append(place.topic)
        return PartitionOutcome(place=place, again_s=0.2 if len(self.stepped) < 4 else None)


def test_a_step_that_waits_for_a_commit_is_made_again_soon() -> None:
    work, clock = WaitingWork(), ManualClock()
    scheduler = Scheduler(work, clock=clock, random=Random(7))
    scheduler.add([TopicPartition("sound", 0)])
    assert scheduler.turn()
    assert not scheduler.turn()
    assert scheduler.idle_s() == pytest.approx(0.2)
    for _ in range(3):
        clock.advance(201)
        assert scheduler.turn()
    assert scheduler.idle_s() is None
    assert len(work.stepped) == 4


class RefusedWork(HangingWork):
    """Of each partition something is archived, and a release is refused for ten minutes."""

    def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
        self.stepped.append(place.topic)
        return PartitionOutcome(place=place, again_s=600.0, for_release=True)


def test_archiving_does_not_wait_for_a_release_that_is_refused() -> None:
    work, clock, place = RefusedWork(), ManualClock(), TopicPartition("sound", 0)
    scheduler = Scheduler(work, clock=clock, random=Random(7))
    scheduler.add([place])
    assert scheduler.turn()
    assert not scheduler.turn()
    assert scheduler.idle_s() == pytest.approx(600.0)
    clock.advance(1000)
    scheduler.add([place])
    assert scheduler.turn()
    assert not scheduler.turn()
    clock.advance(600_000)
    assert scheduler.turn()
    assert len(work.stepped) == 3


# Merges

HOUR_MS = 3_600_000


def a_merging_bench(bench: Bench) -> None:
    """Segments of 900 bytes, some of which make an object."""
    bench.settings = ArchivalConfig(merge_bytes=8 << 10)
    bench.broker.partition("soup", 0, 1, segments=9)
    bench.scheduler.rescan()
    bench.turns()


def entries(bench: Bench, number: int = 0) -> int:
    head = bench.head("soup", number)
    return len(head.entries) if head else 0


def test_small_neighbours_are_merged_an_hour_after_they_were_archived(bench: Bench) -> None:
    a_merging_bench(bench)
    assert (entries(bench, 0), entries(bench, 1)) == (8, 8)
    bench.clock.advance(HOUR_MS - 1_000)
    assert bench.turns() == 0
    assert bench.scheduler.idle_s() == pytest.approx(1, abs=0.1)
    bench.clock.advance(1_000)
    with capture_logs() as logs:
        assert bench.turns() == 4, "each is merged, and looked at once more"
    assert [event["entries"] for event in logs if event["event"] == "runs_merged"] == [8, 8]
    assert (entries(bench, 0), entries(bench, 1)) == (1, 1)
    assert bench.last_offset("soup", 0) == 79


def test_what_is_idle_is_not_looked_at_again_for_merges(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a_merging_bench(bench)
    bench.clock.advance(HOUR_MS)
    bench.turns()
    looks = counted_looks(monkeypatch)
    bench.clock.advance(10 * HOUR_MS)
    assert bench.turns() == 0
    assert not looks
    assert bench.scheduler.idle_s() is None


def test_a_start_reads_older_pages_for_merges_one_partition_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an agent of ten thousand partitions would read every page of all of them an hour after its start."""
    store = MeteredStore(MemoryStore(), log_calls=10_000)
    bench = Bench(tmp_path, store)
    bench.settings = ArchivalConfig(merge_bytes=0)
    bench.broker.partition("soup", *range(4), segments=105)
    bench.scheduler.rescan()
    bench.turns()
    heads = [bench.head("soup", number) for number in range(4)]
    pages = {ref.uid for head in heads if head is not None for ref in head.entries.references}
    assert len(pages) >= 4
    real = plan_merge

    def plan_nothing(*of: Any, **how: Any) -> MergePlan:
        return real(*of, **(how | {"layouts": ("none",)}))

    monkeypatch.setattr(archiver, "plan_merge", plan_nothing)
    bench.settings = ArchivalConfig()
    bench.start()

    def pages_read() -> list[str]:
        """By which partitions, since it was last asked."""
        found = [call.key.split("/")[3] for call in store.log if call.operation == "get" and call.key.endswith(".jsonl.gz")]
        store.log.clear()
        return sorted(set(found))

    store.log.clear()
    bench.scheduler.rescan()
    bench.turns()
    bench.clock.advance(int(QUIET_S * 1000))
    bench.scheduler.rescan()
    bench.turns()
    bench.clock.advance(HOUR_MS - 1)
    bench.turns()
    assert pages_read() == []
    bench.clock.advance(1)
    bench.turns()
    seen = [pages_read()]
    for _ in range(3):
        bench.clock.advance(int(OLDER_EVERY_S * 1000))
        bench.turns()
        seen.append(pages_read())
    assert sorted(seen) == [["0"], ["1"], ["2"], ["3"]]
    bench.clock.advance(24 * HOUR_MS)
    bench.turns()
    assert pages_read() == []
    assert bench.scheduler.idle_s() is None


def test_older_pages_are_merged_as_well(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.settings = ArchivalConfig(merge_bytes=0)
    bench.broker.partition("soup", 0, segments=105)
    bench.scheduler.rescan()
    bench.turns()
    bench.settings = ArchivalConfig(merge_bytes=8 << 10)
    bench.start()
    bench.scheduler.rescan()
    bench.turns()
    bench.clock.advance(int(QUIET_S * 1000))
    bench.scheduler.rescan()
    for _ in range(3):
        bench.turns()
        bench.clock.advance(HOUR_MS)
    assert entries(bench) <= 104 // 8 + 2
    assert bench.scheduler.idle_s() is None


def test_nothing_is_merged_where_the_size_is_none(bench: Bench) -> None:
    bench.settings = ArchivalConfig(merge_bytes=0)
    bench.broker.partition("soup", 0, segments=9)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.scheduler.idle_s() is None


def test_a_merge_ends_when_its_own_partition_has_something_to_archive(bench: Bench, store: SendingStore) -> None:
    a_merging_bench(bench)

    def roll(key: str) -> None:
        store.sending = lambda key: None
        bench.broker.roll("soup", number_of(key))
        bench.scheduler.add([TopicPartition("soup", number_of(key))])

    store.sending = roll
    bench.clock.advance(HOUR_MS)
    assert bench.scheduler.turn()
    assert entries(bench) == 8
    assert bench.scheduler.turn()
    assert (bench.last_offset("soup", 0), entries(bench)) == (89, 9)
    bench.turns()
    assert (bench.last_offset("soup", 0), entries(bench)) == (89, 1)


def test_a_merge_that_something_came_before_is_tried_again(bench: Bench) -> None:
    a_merging_bench(bench)
    bench.broker.roll("soup", 0)  # nobody has reported it
    bench.clock.advance(HOUR_MS)
    bench.turns()
    assert (bench.last_offset("soup", 0), entries(bench)) == (89, 9), "that was archived first"
    bench.clock.advance(int(MERGE_AGAIN_S * 1000))
    bench.turns()
    assert entries(bench) == 1


def test_a_merge_that_has_waited_looks_at_the_log_of_now(bench: Bench) -> None:
    """A collection had the archiver, and what was released has left the log meanwhile."""
    a_merging_bench(bench)

    class Waited:
        """The archiver's lock, when it is given."""

        def __enter__(self) -> None:
            bench.broker.drop_history("soup", 0, 30)

        def __exit__(self, *_: object) -> None:
            pass

    partition = next(each for each in bench.fleet.heads() if each.topic_partition == TopicPartition("soup", 0))
    with bench.fleet._members.archiver_of(partition) as archiver:
        archiver.lock = Waited()  # type: ignore[assignment]
        bench.clock.advance(HOUR_MS)
        with capture_logs() as logs:
            bench.turns()
    assert "merge_postponed" not in {event["event"] for event in logs}
    assert entries(bench) == 1


def test_a_store_that_fails_postpones_merges_and_stops_nothing(bench: Bench, store: SendingStore) -> None:
    a_merging_bench(bench)

    def fail(key: str) -> None:
        raise TransientError("no")

    store.sending = fail
    bench.clock.advance(HOUR_MS)
    with capture_logs() as logs:
        bench.turns()
    assert [event["event"] for event in logs if event["log_level"] == "warning"] == ["merge_postponed"] * 2
    assert not bench.fleet.troubles
    store.sending = lambda key: None
    bench.clock.advance(int(MERGE_AGAIN_S * 1000))
    bench.turns()
    assert entries(bench) == 1


def test_a_merge_gives_its_place_to_what_would_have_to_wait(bench: Bench) -> None:
    """One upload at a time, and another partition has something to archive."""
    a_merging_bench(bench)
    bench.settings = replace(bench.settings, uploads_in_flight=1)
    bench.clock.advance(HOUR_MS)
    seen: list[str] = []
    merge = bench.fleet.merge

    def watched(place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        seen.append(watch.waits())
        bench.broker.roll("soup", 1 - place.partition)
        bench.scheduler.add([TopicPartition("soup", 1 - place.partition)])
        seen.append(watch.waits())
        assert not watch.ends()
        return merge(place, policy_for, watch)

    bench.fleet.merge = watched  # type: ignore[method-assign]
    assert bench.scheduler.turn()
    assert seen == ["", "something is to be archived"]
    assert (entries(bench, 0), entries(bench, 1)) == (8, 8)


def test_a_merge_that_failed_is_tried_again_though_nothing_is_archived(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a_merging_bench(bench)
    monkeypatch.setattr(archiver.PartitionArchiver, "merge", lambda *_, **__: MergeOutcome(passed=0, again_in_s=120.0))
    turn = bench.fleet.merge(TopicPartition("soup", 0), Policy.of, StepWatch(bench.clock))
    assert turn.again_in_s is not None
    assert turn.again_in_s <= 120


def test_what_is_archived_again_after_a_cut_is_merged_too(bench: Bench) -> None:
    bench.settings = ArchivalConfig(merge_bytes=4 << 10)
    bench.broker.partition("soup", 0, segments=12)
    bench.scheduler.rescan()
    bench.turns()
    bench.clock.advance(HOUR_MS)
    bench.turns()
    head = bench.head("soup", 0)
    assert head is not None
    assert [entry.base_offset for entry in head.entries] == [0, 50, 100]
    for segment in bench.broker.segments("soup", 0)[2:]:
        segment.write_bytes(a_segment(int(segment.stem), 10, epoch=2))
    path = bench.broker.directory("soup", 0) / checkpoints.LEADER_EPOCHS
    path.write_bytes(checkpoints.encode_epochs(EpochHistory.of(((0, 0), (2, 20)))))
    bench.scheduler.add([TopicPartition("soup", 0)])
    bench.turns()
    assert entries(bench) == 10
    bench.clock.advance(HOUR_MS)
    bench.turns()
    head = bench.head("soup", 0)
    assert head is not None
    assert [entry.base_offset for entry in head.entries] == [0, 20, 70]
