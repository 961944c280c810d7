"""The agent's rounds: which partitions are looked at, what that costs, and what one of them may do to the others."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from archival.config import ArchivalConfig
from archival.upkeep import ABANDONED_S, PAUSE_S, Upkeep
from headwater_core.errors import TransientError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import UnfinishedUpload
from headwater_core.partition import PartitionId
from headwater_core.segments import checkpoints
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from tests.headwater.broker import CLUSTER, Bench, topic_id
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_segment

LEASE_MS = 24 * 3600 * 1000
NEVER = threading.Event()


class FailingCommits(MemoryStore):
    """Takes every object, and no head while it `refuses`."""

    refuses = False

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        if self.refuses:
            raise TransientError("slow down")
        return super().replace(key, document, expected_tag=expected_tag)


def partition(number: int = 0, topic: str = "soup") -> PartitionId:
    return PartitionId(CLUSTER, topic_id(topic), number, topic)


def archived(bench: Bench, *numbers: int, segments: int = 4) -> Upkeep:
    bench.broker.partition("soup", *numbers, segments=segments)
    bench.scheduler.rescan()
    bench.turns()
    return Upkeep(bench.fleet)


def orphan(bench: Bench, number: int = 0, fence: int = 0, uid: str = "f" * 32) -> str:
    key = keys.data(partition(number), 0, 9, fence, uid)
    bench.store.create(key, b"data")
    return key


def places(upkeep: Upkeep) -> list[int]:
    return [done.partition.partition for done in upkeep.round(NEVER)]


def test_each_partition_is_looked_at_once_and_again_after_a_commit(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore())
    bench = Bench(tmp_path, store)
    upkeep = archived(bench, 0, 1)
    store.reset()
    assert places(upkeep) == [0, 1]
    assert store.calls == {"unfinished": 3, "list": 4, "get": 2}
    store.reset()
    assert places(upkeep) == []
    assert store.calls == {"unfinished": 3}, "what is idle costs nothing"
    bench.broker.roll("soup", 1)
    bench.scheduler.rescan()
    bench.turns()
    assert places(upkeep) == [1]
    assert places(upkeep) == []


def test_a_restart_costs_nothing_where_the_agent_ended_in_good_order(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore())
    bench = Bench(tmp_path, store)
    upkeep = archived(bench, 0, 1, 2)
    key = orphan(bench, 2)
    assert places(upkeep) == [0, 1, 2]
    bench.broker.roll("soup", 1)
    bench.scheduler.rescan()
    bench.turns()
    upkeep.hand_over()
    bench.start()
    upkeep = Upkeep(bench.fleet)
    assert places(upkeep) == [1], "it has a commit that was not looked at"
    store.reset()
    assert places(upkeep) == []
    assert store.calls == {"unfinished": 3}
    bench.clock.advance(LEASE_MS)
    assert places(upkeep) == [2]
    assert key not in {info.key for info in bench.store.list("")}


def test_after_a_kill_each_partition_is_looked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    assert places(upkeep) == [0, 1]
    upkeep.hand_over()
    bench.start()  # and is killed, or was a command that archived once
    bench.start()
    assert places(Upkeep(bench.fleet)) == [0, 1]


def test_a_step_that_failed_is_a_reason_to_look(tmp_path: Path) -> None:
    """Its object may lie there, and no version tells of it: in the next round, and also when the agent ends before."""
    bench = Bench(tmp_path, failing := FailingCommits())
    upkeep = archived(bench, 0, 1)
    assert places(upkeep) == [0, 1]

    def fail() -> None:
        bench.broker.roll("soup", 1)
        failing.refuses = True
        bench.scheduler.rescan()
        bench.turns()
        failing.refuses = False

    fail()
    upkeep.hand_over()
    bench.start()
    upkeep = Upkeep(bench.fleet)
    assert places(upkeep) == [1]
    bench.clock.advance(60_000)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.last_offset("soup", 1) == 39
    assert places(upkeep) == [1]
    fail()
    assert places(upkeep) == [1]


def test_a_collection_that_failed_is_a_reason_to_look(tmp_path: Path) -> None:
    """A command's, too: it may have written pages for a commit that did not come about."""
    bench = Bench(tmp_path, failing := FailingCommits())
    upkeep = archived(bench, 0, 1)
    orphan(bench, 1, fence=1)
    assert places(upkeep) == [0, 1]
    assert places(upkeep) == []
    orphan(bench, 1, fence=3, uid="e" * 32)
    failing.refuses = True
    assert bench.fleet.collect(partition(1)).error is None, "there is nothing of its own fence"
    assert places(upkeep) == []
    orphan(bench, 1, fence=2, uid="d" * 32)
    assert bench.fleet.collect(partition(1)).error is not None
    failing.refuses = False
    assert places(upkeep) == [1]


def test_looks_by_other_settings_are_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0)
    assert places(upkeep) == [0]
    upkeep.hand_over()
    bench.settings = replace(ArchivalConfig(), retention_bytes=1)
    bench.start()
    assert [done.trimmed_entries for done in Upkeep(bench.fleet).round(NEVER)] == [2]


def test_a_partition_with_an_orphan_is_due_again_when_its_lease_is_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    key = orphan(bench)
    assert places(upkeep) == [0, 1]
    bench.clock.advance(LEASE_MS - 1)
    assert places(upkeep) == []
    bench.clock.advance(1)
    assert places(upkeep) == [0]
    assert key not in {info.key for info in bench.store.list("")}
    assert places(upkeep) == []


def test_what_was_seen_of_a_partition_leaves_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    for number in (0, 1):
        orphan(bench, number)
    assert places(upkeep) == [0, 1]
    remembered = bench.root / "state" / "sightings"
    assert len(list(remembered.iterdir())) == 2
    bench.broker.drop("soup", 1)
    for _ in range(2):
        bench.scheduler.rescan()
        bench.turns()
    assert [path.name for path in remembered.iterdir()] == [f"{topic_id('soup')}-0.json"]
    bench.fleet.collect(partition(1))  # somebody asks for it all the same
    bench.scheduler.rescan()
    assert len(list(remembered.iterdir())) == 2, "its lease must pass one day"


def test_an_unfinished_upload_makes_its_partition_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    assert places(upkeep) == [0, 1]
    assert isinstance(bench.store, MemoryStore)
    begun_ms = bench.store.begin(keys.data(partition(1), 0, 9, 1, "e" * 32)).begun_ms
    foreign = bench.store.begin("data/somewhere/else")
    bench.clock.advance(begun_ms + LEASE_MS - bench.clock.now_ms())
    assert places(upkeep) == [1]
    assert list(bench.store.unfinished("")) == [foreign]


def test_partial_files_of_a_directory_store_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "bucket"
    store = DirectoryStore(root)
    store.create("headwater", b"")  # a directory that is not there is no store
    bench = Bench(tmp_path, store)
    upkeep = archived(bench, 0)
    begun = [UnfinishedUpload("", "old", 0), UnfinishedUpload("", "young", int(bench.clock.now_ms() - ABANDONED_S * 1000 + 1))]
    for each in begun:
        (root / "+partial" / each.upload_id).write_bytes(b"half")
    monkeypatch.setattr(store, "unfinished", lambda prefix: iter(begun))  # their age is by the real clock
    places(upkeep)
    assert [path.name for path in (root / "+partial").iterdir()] == ["young"]


def test_a_server_that_does_not_list_uploads_is_collected_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0)

    def refuse(prefix: str) -> None:
        raise TransientError("not implemented")

    monkeypatch.setattr(bench.store, "unfinished", refuse)
    assert places(upkeep) == [0]


def test_one_damaged_partition_stops_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    store = bench.store
    key = keys.head(partition(0))
    store.delete(key)
    store.create(key, b"no head")
    done = {each.partition.partition: each for each in upkeep.round(NEVER)}
    assert done[0].error is not None
    assert done[1].error is None
    assert places(upkeep) == [0], "it is tried again in each round"


def test_a_round_ends_when_it_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, 1)
    stop = threading.Event()
    for _ in upkeep.round(stop):
        stop.set()
    assert places(upkeep) == [1]


def test_retention_moves_the_start_and_readers_hear_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, segments=6)
    heard: list[int] = []
    bench.fleet.committed = lambda head: heard.append(head.start_offset)
    bench.settings = ArchivalConfig(retention_bytes=1)
    Upkeep(bench.fleet)
    [done] = upkeep.round(NEVER)
    head = bench.head("soup", 0)
    assert head is not None
    assert (done.trimmed_entries, head.start_offset, heard) == (4, 40, [40])
    known = bench.control.state().partition(partition())
    assert known is not None
    assert known.start_offset == 40
    bench.clock.advance(LEASE_MS)
    assert [each.deleted for each in upkeep.round(NEVER)] == [8]


def test_changed_settings_make_the_idle_partitions_of_their_topic_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.broker.partition("soup", 0, segments=4)
    bench.broker.partition("salt", 0, segments=4)
    bench.scheduler.rescan()
    bench.turns()
    upkeep = Upkeep(bench.fleet)
    assert places(upkeep) == [0, 0]
    assert places(upkeep) == []
    bench.settings_of["soup"] = ArchivalConfig(retention_bytes=1)
    [done] = upkeep.round(NEVER)
    assert (done.partition.topic, done.trimmed_entries) == ("soup", 2)
    bench.settings_of["soup"] = ArchivalConfig(retention_bytes=1, reader_lease_s=0)
    bench.clock.advance(1)
    assert [each.deleted for each in upkeep.round(NEVER)] == [4]
    bench.settings_of["soup"] = ArchivalConfig(retention_bytes=1, reader_lease_s=0, release=True)
    assert places(upkeep) == [0]
    assert places(upkeep) == []


def test_time_alone_makes_a_partition_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, segments=3)
    head = bench.head("soup", 0)
    assert head is not None
    oldest_ms = head.entries[0].last_timestamp_ms
    assert oldest_ms is not None
    bench.settings = ArchivalConfig(retention_s=100)
    bench.clock.advance(oldest_ms + 100_000 - bench.clock.now_ms())
    assert [each.trimmed_entries for each in upkeep.round(NEVER)] == [0]
    assert places(upkeep) == [0], "its time has come to the millisecond, and not passed"
    bench.clock.advance(1)
    assert [each.trimmed_entries for each in upkeep.round(NEVER)] == [1]


def test_of_a_compacted_topic_nothing_expires(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, segments=5)
    bench.settings = ArchivalConfig(retention_bytes=1)
    repository = ManifestRepository(bench.store)
    for policy, trimmed in (("compact", 0), ("compact,delete", 3)):
        seen = TopicManifest(cluster_id=CLUSTER, topic="soup", topic_id=topic_id("soup"), partitions=1, configs={"cleanup.policy": policy})
        repository.ensure_topic(seen)
        [done] = Upkeep(bench.fleet).round(NEVER)
        assert done.trimmed_entries == trimmed
    assert places(upkeep) == [0]


def test_of_a_topic_whose_policy_is_not_known_nothing_expires(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    archived(bench, 0, segments=5)
    bench.settings = ArchivalConfig(retention_bytes=1)

    def trimmed() -> list[int]:
        return [each.trimmed_entries for each in Upkeep(bench.fleet).round(NEVER)]

    cleaned = bench.broker.root / checkpoints.CLEANED  # by a policy in server.properties, which the metadata does not have
    cleaned.write_bytes(checkpoints.encode_offsets({partition().topic_partition: 10}))
    assert trimmed() == [0]
    cleaned.unlink()
    manifest = keys.topic_manifest("soup", topic_id("soup"))
    document, _ = bench.store.get(manifest)
    bench.store.delete(manifest)
    assert trimmed() == [0]
    bench.store.create(manifest, document)
    assert trimmed() == [3]


def test_where_local_segments_are_ours_the_archive_begins_no_later_than_the_log(tmp_path: Path) -> None:
    """Else they would never be released: nothing would hold them."""
    bench = Bench(tmp_path, owned=True)
    bench.settings = ArchivalConfig(seal_timeout_s=0, retention_bytes=1)
    bench.broker.partition("soup", 0, segments=3)
    for end in (23, 26, 29):
        bench.broker.commit("soup", 0, end)
        bench.scheduler.rescan()
        bench.turns()
    [done] = Upkeep(bench.fleet).round(NEVER)
    assert done.error is None
    head = bench.head("soup", 0)
    assert head is not None
    assert head.start_offset == 20
    assert head.last_offset == 28
    (bench.broker.directory("soup", 0) / f"{30:020}.log").write_bytes(a_segment(30, 10))
    bench.broker.commit("soup", 0, 30)
    bench.scheduler.rescan()
    bench.turns()
    assert [path.name for path in bench.broker.segments("soup", 0)] == [f"{30:020}.log"]


def test_what_no_step_holds_is_not_held_for_a_round_either(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0)
    bench.start()
    upkeep = Upkeep(bench.fleet)
    assert places(upkeep) == [0]
    assert bench.fleet.heads() == {}


def test_the_interval_counts_and_zero_is_never(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0)
    key = orphan(bench)
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            bench.clock.advance(int(timeout * 1000))
            if len(waits) == 4_000:
                self.set()
            return self.is_set()

    bench.settings = replace(ArchivalConfig(), gc_interval_s=0)
    upkeep.run(Stop())
    assert key in {info.key for info in bench.store.list("")}
    bench.settings = ArchivalConfig()
    waits.clear()
    upkeep.run(Stop())
    assert PAUSE_S in waits, "between two looks"
    assert key not in {info.key for info in bench.store.list("")}


def test_nor_does_it_where_another_agent_has_its_broker_delete(tmp_path: Path) -> None:
    """This one cannot ask its broker. The next leader's agent can, and would find nothing archived that covers the beginning of the log."""
    bench = Bench(tmp_path)
    upkeep = archived(bench, 0, segments=6)
    bench.settings = ArchivalConfig(retention_bytes=1, release=True)
    assert [each.trimmed_entries for each in upkeep.round(NEVER)] == [0]
    bench.settings = ArchivalConfig(retention_bytes=1)
    assert [each.trimmed_entries for each in upkeep.round(NEVER)] == [4]
