"""Garbage collection of one partition: what it deletes, when, and what keeps it from deleting anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from msgspec.structs import replace

from archival.collection.collector import Collected, Collector
from archival.collection.sightings import Sightings
from archival.config import ArchivalConfig
from headwater_core import milestones
from headwater_core.errors import CorruptData, DiskFull, Fenced, HeadwaterError, TransientError
from headwater_core.objectstore.store import ObjectInfo
from manifests import keys, page_limits
from manifests.entry_tree import SupersededEntries
from manifests.head import Head
from manifests.page import page_key
from manifests.repository import ManifestRepository
from tests.archival.builders import PARTITION, Agent, Directory, fill, ranges
from tests.archival.stream_objects import STREAM
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.trees import TINY

LEASE_MS = 24 * 3600 * 1000
SETTINGS = ArchivalConfig()
UID = "f" * 32


class Bench:
    """An archived partition of a few runs, and its collector."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = Directory(root / "log")
        clock = ManualClock()
        self.agent = Agent(root / "log", MemoryStore(clock), clock=clock, owned=False)
        self.collector = self.of("agent-a")

    def of(self, writer: str) -> Collector:
        sightings = Sightings(self.root / f"sightings of {writer}", self.agent.clock)
        return Collector(store=self.agent.store, sightings=sightings, clock=self.agent.clock, writer=writer)

    def archive(self, *bases: int, end: int) -> None:
        fill(self.directory, *bases, end=end)
        self.agent.run()

    def collect(self, **how: Any) -> Collected:
        return self.collector.collect(self.agent.archiver, how.pop("settings", SETTINGS), **how)

    def orphan(self, fence: int, uid: str = UID) -> str:
        """An object that nothing lists, of a writer with that fence."""
        key = keys.data(PARTITION, 0, 9, fence, uid)
        self.agent.store.create(key, b"data")
        self.agent.store.create(keys.index(key), b"index")
        return key

    @property
    def head(self) -> Head:
        return self.agent.head

    def names(self, prefix: str = "") -> set[str]:
        return {info.key for info in self.agent.store.list(prefix)}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.archive(0, 10, 20, end=30)
    return bench


def test_what_is_listed_stays_and_costs_no_commit(bench: Bench) -> None:
    names, head = bench.names(), bench.head
    for _ in range(3):
        assert bench.collect() == Collected(partition=PARTITION, start_offset=0, version=head.version, commit_id=head.commit_id)
        bench.agent.clock.advance(10 * LEASE_MS)
    assert (bench.names(), bench.head.version) == (names, head.version)


def test_an_orphan_of_the_own_fence_is_deleted_a_lease_after_the_fence_was_raised(bench: Bench) -> None:
    names, key = bench.names(), bench.orphan(fence=1)
    first = bench.collect()
    assert (first.orphans, first.deleted, first.committed) == (2, 0, True)
    assert bench.head.fence == 2
    assert first.again_ms == bench.agent.clock.now_ms() + LEASE_MS
    bench.agent.clock.advance(LEASE_MS - 1)
    assert bench.collect().deleted == 0
    assert key in bench.names()
    bench.agent.clock.advance(1)
    last = bench.collect()
    assert (last.deleted, last.deleted_bytes, last.committed) == (2, 9, False), "the fence was raised once, for all of them"
    assert bench.names() == names
    assert bench.collect().orphans == 0
    assert list((bench.root / "sightings of agent-a").iterdir()) == []


def test_the_lease_of_an_orphan_of_the_own_fence_begins_when_the_fence_was_raised(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bench.orphan(fence=1)

    def fail(*args: object, **kwargs: object) -> None:
        raise TransientError("no answer")

    with monkeypatch.context() as failing:
        failing.setattr(bench.agent.archiver, "amend", fail)
        with pytest.raises(TransientError):
            bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 0, "until now its writer could have listed it"
    assert key in bench.names()
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 2


def test_an_orphan_of_a_lower_fence_needs_no_commit(bench: Bench) -> None:
    bench.orphan(fence=0)
    version = bench.head.version
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 2
    assert bench.head.version == version


def test_what_carries_a_higher_fence_is_another_ones_to_come(bench: Bench) -> None:
    key, version = bench.orphan(fence=2), bench.head.version
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 0
    assert key in bench.names()
    assert bench.head.version == version


def test_the_lease_outlives_a_restart_and_begins_anew_with_a_lost_file(bench: Bench, tmp_path: Path) -> None:
    bench.orphan(fence=1)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    [kept] = (tmp_path / "sightings of agent-a").iterdir()
    content = kept.read_bytes()
    for damaged in (b"", b"no JSON", content[:-4]):
        kept.write_bytes(damaged)
        bench.collector = bench.of("agent-a")
        assert bench.collect().deleted == 0
    kept.write_bytes(content)
    bench.collector = bench.of("agent-a")
    assert bench.collect().deleted == 2


class Running(ManualClock):
    """Goes on with every look at it."""

    def now_ms(self) -> int:
        self.at_ms += 1
        return self.at_ms


def test_without_a_lease_an_orphan_goes_at_first_sight_while_time_goes_on(bench: Bench) -> None:
    names, key = bench.names(), bench.orphan(fence=0)
    sightings = Sightings(bench.root / "sightings", clock := Running())
    collector = Collector(store=bench.agent.store, sightings=sightings, clock=clock, writer="agent-a")
    done = collector.collect(bench.agent.archiver, ArchivalConfig(reader_lease_s=0))
    assert (done.deleted, key in bench.names()) == (2, False)
    assert bench.names() == names


def test_a_clock_that_was_set_back_makes_the_lease_begin_anew(bench: Bench) -> None:
    bench.orphan(fence=1)
    bench.collect()
    bench.agent.clock.advance(-LEASE_MS)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS - 1)
    assert bench.collect().deleted == 0
    bench.agent.clock.advance(1)
    assert bench.collect().deleted == 2


def test_pages_that_were_written_again_are_deleted_and_those_in_use_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", TINY)
    bench = Bench(tmp_path)
    bench.archive(*range(0, 200, 10), end=200)
    before = list(bench.head.entries)
    collected = bench.collect()
    assert collected.orphans > 0
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == collected.orphans
    fresh = ManifestRepository(bench.agent.store).load(PARTITION)
    assert fresh is not None
    assert list(fresh.head.entries) == before


@pytest.mark.parametrize("how", ["gone", "damaged", "silent"])
def test_a_page_that_cannot_be_read_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", TINY)
    bench = Bench(tmp_path)
    bench.archive(*range(0, 200, 10), end=200)
    bench.orphan(fence=0)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    lost = page_key(PARTITION, bench.head.entries.references[0])
    whole, _ = bench.agent.store.get(lost)
    names = bench.names() - {lost}
    bench.agent = Agent(tmp_path / "log", bench.agent.store, clock=bench.agent.clock, owned=False)  # which has no page in memory
    if how == "silent":
        real = bench.agent.store.get

        def get(key: str, **_: Any) -> tuple[bytes, str]:
            if key == lost:
                raise TransientError("no answer")
            return real(key)

        monkeypatch.setattr(bench.agent.store, "get", get)
    else:
        bench.agent.store.delete(lost)
        if how == "damaged":
            bench.agent.store.create(lost, whole[:-1])
    with pytest.raises(TransientError if how == "silent" else CorruptData):
        bench.collect()
    assert bench.names() - {lost} == names


def test_a_listing_that_breaks_off_is_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.orphan(fence=0)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    names, real = bench.names(), bench.agent.store.list

    def breaking(prefix: str, **_: Any) -> Iterator[ObjectInfo]:
        yield from list(real(prefix))[:-1]
        raise TransientError("cut")

    monkeypatch.setattr(bench.agent.store, "list", breaking)
    with pytest.raises(TransientError, match="cut"):
        bench.collect()
    monkeypatch.undo()
    assert bench.names() == names


def test_a_dry_run_changes_nothing_and_says_what_would_be_deleted(bench: Bench, tmp_path: Path) -> None:
    bench.orphan(fence=1)
    names, version = bench.names(), bench.head.version
    done = bench.collect(dry_run=True, settings=ArchivalConfig(retention_bytes=1))
    assert (done.trimmed_entries, done.start_offset) == (2, 20)
    assert done.orphans == 2 + 2 * 2, "what would be trimmed would be orphans"
    assert (bench.names(), bench.head.version) == (names, version)
    assert not (tmp_path / "sightings of agent-a").exists()


def test_another_agents_partition_is_left_alone(bench: Bench) -> None:
    bench.orphan(fence=0)
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    bench.agent.repository.commit(held, replace(held.head, fence=2, writer="agent-b"))
    with pytest.raises(Fenced, match="agent-b holds"):
        bench.collect()


def test_a_head_of_a_newer_version_is_not_understood(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may list what this version does not see."""
    bench.orphan(fence=0)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    names = bench.names()
    monkeypatch.setattr("manifests.repository.format_after", lambda before, after: (2, 9))
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    bench.agent.repository.commit(held, held.head)
    monkeypatch.undo()
    with pytest.raises(HeadwaterError, match="upgrade"):
        bench.collect()
    assert bench.names() == names


def test_runs_of_a_dead_branch_are_forgotten_after_their_time_and_deleted_a_lease_later(bench: Bench) -> None:
    names, uids = bench.names(), [f"{number:032x}" for number in range(4)]
    template = bench.head.entries[0]
    dead = [
        replace(template, uid=uid, key=key, index_key=keys.index(key))
        for uid, key in ((uid, bench.orphan(fence=1, uid=uid)) for uid in uids)
    ]
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    bench.agent.repository.commit(held, replace(held.head, superseded=SupersededEntries(dead)))
    bench.agent = Agent(bench.root / "log", bench.agent.store, clock=bench.agent.clock, owned=False)
    settings = ArchivalConfig(superseded_retention_s=100)
    for passed_ms, forgotten in ((0, 0), (99_999, 0), (1, 4), (0, 0)):
        bench.agent.clock.advance(passed_ms)
        assert bench.collect(settings=settings).forgotten_entries == forgotten
    assert list(bench.head.superseded) == []
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect(settings=settings).deleted == 8
    assert bench.names() == names


def test_foreign_objects_below_the_prefix_stay(bench: Bench) -> None:
    prefix = keys.data_prefix(PARTITION)
    foreign = {f"{prefix}notes.txt", f"{prefix}deeper/{keys.data(PARTITION, 0, 9, 0, UID).rpartition('/')[2]}", f"{prefix}0-9-x.blocks"}
    for key in foreign:
        bench.agent.store.create(key, b"")
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    bench.collect()
    assert foreign <= bench.names()


def test_an_upload_that_waits_for_its_commit_postpones_the_rise_of_the_fence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be made again."""
    bench.orphan(fence=1)
    real = bench.agent.store.replace
    fill(bench.directory, 0, 10, 20, 30, end=40)

    def refuse(key: str, document: bytes, *, expected_tag: str) -> str:
        raise TransientError("no heads today")

    monkeypatch.setattr(bench.agent.store, "replace", refuse)
    with pytest.raises(TransientError, match="no heads"):
        bench.agent.step()
    monkeypatch.setattr(bench.agent.store, "replace", real)
    objects = bench.names(keys.DATA)
    with pytest.raises(TransientError, match="waits for its commit"):
        bench.collect()
    assert bench.agent.run()[:-1] == ["archived"]
    assert bench.names(keys.DATA) == objects, "nothing was uploaded again"
    assert bench.collect().orphans == 2


def wait_for_a_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is uploaded that the bucket refuses to list."""
    fill(bench.directory, 0, 10, 20, 30, end=40)

    def refuse(*_: object, **__: object) -> str:
        raise TransientError("no heads today")

    with monkeypatch.context() as refusing:
        refusing.setattr(bench.agent.store, "replace", refuse)
        with pytest.raises(TransientError, match="no heads"):
            bench.agent.step()
    assert bench.agent.archiver.is_waiting


def test_who_requests_a_collection_does_not_wait_for_an_upload_that_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic may be paused for good. What it had is an orphan then, and is uploaded again when it goes on."""
    wait_for_a_commit(bench, monkeypatch)
    with pytest.raises(TransientError, match="waits for its commit"):
        bench.collect(border=lambda _: 10)
    done = bench.collect(border=lambda _: 10, discards=True)
    assert (done.start_offset, done.orphans, done.committed) == (10, 4, True)
    assert not bench.agent.archiver.is_waiting
    assert bench.agent.run()[:-1] == ["archived"]
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 4
    assert ranges(bench.head.entries) == [(10, 19), (20, 29), (30, 39)]


def test_what_was_uploaded_before_another_claim_waits_no_longer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_a_commit(bench, monkeypatch)
    Agent(bench.root / "log", bench.agent.store, writer="agent-b", clock=bench.agent.clock, owned=False).run()
    bench.agent.archiver.load()
    assert not bench.agent.archiver.is_waiting


def test_the_archiver_continues_under_the_new_fence(bench: Bench) -> None:
    bench.orphan(fence=1)
    bench.collect()
    bench.archive(0, 10, 20, 30, end=40)
    assert ranges(bench.head.entries) == [(0, 9), (10, 19), (20, 29), (30, 39)]
    assert [entry.fence for entry in bench.head.entries] == [1, 1, 1, 2]
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 2


def test_a_paused_uploader_cannot_publish_what_was_collected(bench: Bench) -> None:
    """Its object is deleted while it sleeps, so its commit must fail."""
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    key = bench.orphan(fence=1)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    bench.collect()
    assert key not in bench.names()
    late = keys.data(PARTITION, 30, 39, 1, UID)
    entry = replace(
        bench.head.entries[-1], base_offset=30, last_offset=39, uid=UID, fence=1, key=late, index_key=keys.index(late), epochs=()
    )
    with pytest.raises(Fenced):
        bench.agent.repository.commit(held, replace(held.head, entries=(*held.head.entries, entry), last_offset=39))


def test_unfinished_uploads_of_before_the_fence_are_aborted_after_the_lease(bench: Bench) -> None:
    store = bench.agent.store
    assert isinstance(store, MemoryStore)
    orphaned = store.begin(keys.data(PARTITION, 30, 39, 1, UID))
    finished = store.begin(bench.head.entries[0].key)
    later = store.begin(keys.data(PARTITION, 30, 39, 7, "e" * 32))
    young = keys.data_prefix(PARTITION)

    def collect() -> Collected:
        return bench.collect(uploads=list(store.unfinished(young)))

    assert collect().aborted == 0
    assert bench.head.fence == 1
    bench.agent.clock.advance(LEASE_MS)
    assert collect().aborted == 2
    assert bench.head.fence == 2
    assert list(store.unfinished("")) == [later]
    assert {orphaned, finished}.isdisjoint(store.unfinished(""))


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("left", ["upload", "object"])
def test_what_another_process_was_writing_fails_before_it_is_collected(tmp_path: Path, left: str, raised: bool) -> None:
    """Though nobody steps the partition any more."""
    bench = Bench(tmp_path)
    fill(bench.directory, 0, end=5)
    bench.agent.run(STREAM)
    (pending,) = bench.head.pending
    key, store = f"{keys.stream_folder(PARTITION, pending.fence)}{UUID(pending.uid)}", bench.agent.store
    assert isinstance(store, MemoryStore)
    if left == "object":
        store.create(key, b"complete, and not listed")

    def collect() -> Collected:
        return bench.collect(uploads=list(store.unfinished(keys.stream_prefix(PARTITION))))

    if left == "upload":
        store.begin(key)
    bench.agent.clock.advance(LEASE_MS)
    assert (collect().deleted, bench.head.pending) == (0, (pending,)), "its process lives, and may list it"
    if raised:
        bench.agent.archiver.amend(lambda head: replace(head, fence=head.fence + 1))
    bench.agent.archiver = bench.agent.archiver_of(PARTITION)
    for _ in range(2):
        collect()
        assert not any(each.is_assigned for each in bench.head.pending)
        bench.agent.clock.advance(LEASE_MS)
    assert list(store.unfinished("")) == []
    assert bench.names(keys.STREAM) == set()
    version = bench.head.version
    collect()
    assert bench.head.version == version


@pytest.mark.parametrize("at", ["collect.listed", "collect.committed", "collect.remembered", "collect.deleted", "archive.committed"])
def test_a_crash_anywhere_is_made_good_by_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    class Killed(BaseException):
        pass

    bench = Bench(tmp_path)
    bench.archive(0, 10, end=20)
    names = bench.names()
    for number in range(3):
        bench.orphan(fence=1, uid=f"{number:032x}")
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    for number in range(3, 5):
        bench.orphan(fence=2, uid=f"{number:032x}")

    def reached(milestone: str) -> None:
        if milestone == at:
            raise Killed

    with monkeypatch.context() as planted:
        planted.setattr(milestones, "reached", reached)
        with pytest.raises(Killed):
            bench.collect()
    bench.agent = Agent(tmp_path / "log", bench.agent.store, clock=bench.agent.clock, owned=False)
    bench.collector = bench.of("agent-a")
    for _ in range(2):
        bench.collect()
        bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().orphans == 0
    assert bench.names() == names


def test_a_full_data_directory_deletes_nothing_that_it_cannot_remember(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.orphan(fence=0)
    names = bench.names()

    def full(*_: object) -> None:
        raise TransientError("no room")

    with monkeypatch.context() as planted:
        planted.setattr("archival.collection.sightings.replace_file", full)
        with pytest.raises(TransientError, match="no room"):
            bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect().deleted == 0
    assert bench.names() == names


def test_a_store_without_room_for_a_commit_gets_some_from_orphans(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.orphan(fence=0)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    bench.orphan(fence=1, uid="e" * 32)

    def full(*_: object, **__: object) -> str:
        raise DiskFull("no room")

    with monkeypatch.context() as planted:
        planted.setattr(bench.agent.store, "replace", full)
        with pytest.raises(DiskFull):
            bench.collect()
    assert {uid for uid in ("e" * 32, UID) if any(uid in name for name in bench.names(keys.DATA))} == {"e" * 32}
    assert (bench.collect().orphans, bench.head.fence) == (2, 2)


def test_a_round_that_is_stopped_deletes_no_more(bench: Bench) -> None:
    bench.orphan(fence=0)
    bench.collect()
    bench.agent.clock.advance(LEASE_MS)
    stops = iter((False,))
    assert bench.collect(stop=lambda: next(stops, True)).deleted == 1
    assert bench.collect().deleted == 1


def test_an_object_that_is_gone_keeps_its_entry_and_stops_nothing_else(bench: Bench) -> None:
    """Its records have no times, so that its age is its object's."""
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    untimed = [replace(entry, first_timestamp_ms=None, last_timestamp_ms=None) for entry in held.head.entries]
    bench.agent.repository.commit(held, replace(held.head, entries=tuple(untimed)))
    bench.orphan(fence=0)
    bench.agent.clock.advance(LEASE_MS)
    bench.agent.store.delete(untimed[1].key)
    settings = ArchivalConfig(retention_s=100)
    assert bench.collect(settings=settings).start_offset == 10
    bench.agent.clock.advance(LEASE_MS)
    assert bench.collect(settings=settings).deleted == 2 + 2
    assert ranges(bench.head.entries) == [(10, 19), (20, 29)]


@pytest.mark.parametrize("published_ms", [None, 0])
def test_a_run_that_retention_keeps_only_for_what_a_record_says_is_named(bench: Bench, published_ms: int | None) -> None:
    held = bench.agent.repository.load(PARTITION)
    assert held is not None
    ahead = [replace(entry, last_timestamp_ms=2**62, published_ms=published_ms) for entry in held.head.entries]
    bench.agent.repository.commit(held, replace(held.head, entries=tuple(ahead)))
    with structlog.testing.capture_logs() as logs:
        bench.collect()
        bench.collect(settings=ArchivalConfig(retention_s=10**8), dry_run=True)
        assert not [each for each in logs if each["event"] == "run_kept_by_time"]
        bench.collect(settings=ArchivalConfig(retention_s=10**8))
    named = [(each["partition"], each["base_offset"], each["dated"]) for each in logs if each["event"] == "run_kept_by_time"]
    assert named == ([(str(PARTITION), held.head.entries[0].base_offset, str(2**62))] if published_ms is None else [])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_branch_that_lived_between_two_looks_is_dead_for_its_whole_time_again(bench: Bench, elsewhere: bool) -> None:
    """An unclean election cut it, one brought it back, one cut it again: by this agent, or by another one in between."""
    settings = ArchivalConfig(superseded_retention_s=100)

    def follow(epoch: int, *actions: str, writer: str = "agent-a") -> None:
        history = ((0, 0), (epoch, 20)) if epoch % 2 else ((0, 0), (epoch, 30))
        bench.directory.epochs(*history)
        bench.directory.segment(20, a_segment(20, 10, epoch=epoch if epoch % 2 else 0))
        agent = Agent(bench.root / "log", bench.agent.store, writer=writer, clock=bench.agent.clock, owned=False)
        agent.uids = 100 * epoch
        assert [each for each in agent.run()[:-1] if each != "claimed"] == list(actions)

    follow(1, "cut", "archived")
    [dead] = bench.head.superseded
    assert bench.collect(settings=settings).forgotten_entries == 0
    bench.agent.clock.advance(100_000)
    follow(2, "cut", "revived", writer="agent-b" if elsewhere else "agent-a")
    assert dead.uid == bench.head.entries[-1].uid
    follow(3, "cut", "archived")
    assert dead.uid in {each.uid for each in bench.head.superseded}
    assert bench.collect(settings=settings).forgotten_entries == 0
    bench.agent.clock.advance(99_999)
    assert bench.collect(settings=settings).forgotten_entries == 0
    bench.agent.clock.advance(1)
    assert bench.collect(settings=settings).forgotten_entries == 2
