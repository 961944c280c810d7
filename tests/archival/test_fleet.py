"""What one agent knows of its partitions: what is damaged, and what is forgotten when it is gone."""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, cast

import pytest
from structlog.testing import capture_logs

from archival import fleet, members
from archival.archive_pass import archive_all
from archival.config import ArchivalConfig, ArchiveMode, OffloadMode
from archival.fleet import READ_AGAIN_S
from archival.partition.looks import KEEP_MS
from archival.schedule.due_queue import PAUSE_MAX_S
from archival.schedule.scheduler import QUIET_S
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, NotFound, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.checkpoints import encode_epochs
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs, partition_directory
from headwater_core.segments.metadata.cluster_metadata import Retention
from headwater_core.segments.run_scan import RunScan, scan_run
from manifests.repository import ManifestRepository
from tests.archival.builders import SEALED
from tests.headwater.broker import Bench
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore


def test_without_metadata_a_topic_is_written_once_however_many_partitions_it_has(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore())
    bench = Bench(tmp_path, store)
    bench.broker.partition("soup", *range(12), segments=1)
    bench.scheduler.rescan()
    bench.turns()
    heads, documents_of_the_topic, owner = 12, 2, 1
    assert store.calls["create"] == heads + documents_of_the_topic + owner
    assert store.calls["replace"] == 0
    assert ManifestRepository(store).resolve("soup").partitions == 12


def test_an_idle_owned_directory_costs_the_bucket_nothing(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore())
    bench = Bench(tmp_path, store, owned=True)
    bench.broker.partition("soup", 0, 1, segments=4)
    bench.scheduler.rescan()
    bench.turns()
    assert [len(bench.broker.segments("soup", number)) for number in (0, 1)] == [1, 1]  # released on the way
    before = sum(store.calls.values())
    for _ in range(3):
        bench.scheduler.rescan()
        assert bench.turns() == 2
    assert sum(store.calls.values()) == before


def test_an_idle_round_costs_the_store_nothing_however_few_heads_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "RESTING_MAX", 2)
    store = MeteredStore(MemoryStore())
    bench = Bench(tmp_path, store)
    bench.broker.partition("soup", *range(9), segments=3)
    bench.scheduler.rescan()
    bench.turns()
    assert len(bench.fleet.heads()) == 2
    before = store.calls.copy()
    for _ in range(3):
        bench.scheduler.reconsider()
        assert bench.turns() == 9
    assert store.calls == before


def test_a_partition_whose_head_was_dropped_is_archived_for_the_price_of_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "RESTING_BYTES_MAX", 0)
    store = MeteredStore(MemoryStore(), log_calls=100)
    bench = Bench(tmp_path, store)
    bench.broker.partition("soup", *range(9), segments=3)
    bench.scheduler.rescan()
    bench.turns()
    assert not bench.fleet.heads()
    before = bench.last_offset("soup", 4)
    store.log.clear()
    bench.broker.roll("soup", 4)
    bench.scheduler.add([TopicPartition("soup", 4)])
    bench.turns()
    assert [call.operation for call in store.log] == ["get", "put", "put", "replace"]
    assert bench.last_offset("soup", 4) > before


def streaming_bench(root: Path, partitions: int = 9) -> Bench:
    """What is committed of each of its partitions has been taken, and is not listed."""
    bench = Bench(root, MeteredStore(MemoryStore()))
    bench.settings = ArchivalConfig(offload=OffloadMode.STREAMING, max_segment_age_s=600)
    bench.broker.partition("soup", *range(partitions), segments=3)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet._budget.used_bytes > 0
    return bench


def test_an_open_object_is_kept_however_few_archivers_may_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "RESTING_MAX", 2)
    bench = streaming_bench(tmp_path)
    store, used_bytes = cast(MeteredStore, bench.store), bench.fleet._budget.used_bytes
    before = store.calls.copy()
    for _ in range(5):
        bench.clock.advance(60_000)
        bench.turns()
        assert bench.fleet._budget.used_bytes == used_bytes
    assert store.calls == before
    for _ in range(6):
        bench.clock.advance(60_000)
        bench.turns()
    assert {bench.last_offset("soup", each) for each in range(9)} == {19}
    assert bench.fleet._budget.used_bytes == 0


def test_a_topic_that_is_switched_off_returns_what_its_open_objects_held(tmp_path: Path) -> None:
    bench = streaming_bench(tmp_path, partitions=2)
    bench.settings = replace(bench.settings, archive=ArchiveMode.OFF)
    bench.clock.advance(10_000)
    bench.turns()
    assert bench.fleet._budget.used_bytes == 0
    bench.clock.advance(60_000)
    assert bench.turns() == 0, "nothing has to be looked at"


def test_the_limits_of_what_gathers_may_change_while_the_agent_runs(tmp_path: Path) -> None:
    bench = streaming_bench(tmp_path, partitions=1)
    bench.settings = replace(bench.settings, offload_buffer_bytes=3 << 20, chunk_pool_bytes=5 << 20)
    bench.clock.advance(60_000)
    bench.turns()
    assert (bench.fleet.offload_buffer.bytes_max, bench.fleet.pool.bytes_max) == (3 << 20, 5 << 20)


def test_of_streaming_partitions_those_with_nothing_open_are_looked_at_seldom(tmp_path: Path) -> None:
    bench = streaming_bench(tmp_path, partitions=3)
    for _ in range(11):
        bench.clock.advance(60_000)
        bench.turns()
    assert bench.fleet._budget.used_bytes == 0
    bench.clock.advance(300_000)
    assert bench.turns() == 0, "a rescan shows what is new, and comes before a tenth of the age"
    bench.broker.roll("soup", 1)
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet._budget.used_bytes > 0
    bench.clock.advance(10_000)
    assert bench.turns() == 1, "the one with an open object"


def test_where_rescans_are_seldom_they_are_looked_at_once_in_a_tenth_of_the_age(tmp_path: Path) -> None:
    bench = streaming_bench(tmp_path, partitions=3)
    bench.settings = replace(bench.settings, rescan_s=3600)
    for _ in range(11):
        bench.clock.advance(60_000)
        bench.turns()
    assert bench.fleet._budget.used_bytes == 0
    bench.clock.advance(60_000)
    assert bench.turns() == 3
    bench.broker.roll("soup", 1)
    bench.clock.advance(60_000)
    bench.turns()
    assert bench.fleet._budget.used_bytes > 0


def test_a_topic_that_is_deleted_returns_what_its_open_objects_held(tmp_path: Path) -> None:
    bench = streaming_bench(tmp_path)
    bench.broker.drop("soup", *range(9))
    for _ in range(2):
        bench.clock.advance(60_000)
        bench.scheduler.rescan()
        bench.turns()
    assert bench.fleet._members.known() == {}
    assert bench.fleet._budget.used_bytes == 0


def test_what_rests_is_stepped_again_when_its_log_has_other_epochs(tmp_path: Path, bench: Bench) -> None:
    """As after an unclean election, which may leave as many records, and others."""
    bench.broker.partition("soup", 0, segments=3)
    bench.scheduler.rescan()
    bench.turns()
    head = bench.head("soup", 0)
    assert head is not None
    (bench.broker.directory("soup", 0) / "leader-epoch-checkpoint").write_bytes(
        encode_epochs(EpochHistory.of([(0, 0), (1, head.next_offset)]))
    )
    bench.scheduler.rescan()
    bench.turns()
    after = bench.head("soup", 0)
    assert after is not None
    assert (head.leader_epoch, after.leader_epoch) == (0, 1)


def test_a_start_archives_what_is_due_and_reads_no_head_of_what_is_not(tmp_path: Path) -> None:
    store = MeteredStore(MemoryStore(), log_calls=1000)
    bench = Bench(tmp_path, store)
    bench.broker.partition("soup", *range(9), segments=3)
    bench.scheduler.rescan()
    bench.turns()
    bench.broker.roll("soup", 4)
    bench.start()
    store.log.clear()
    bench.scheduler.rescan()
    bench.turns()
    assert [call.operation for call in store.log if call.key.endswith("/manifest.json")] == ["get", "replace"]
    bench.clock.advance(int(QUIET_S * 1000))
    store.log.clear()
    bench.scheduler.rescan()
    bench.turns()
    heads = [call.key for call in store.log if call.operation == "get" and call.key.endswith("/manifest.json")]
    assert len(heads) == len(set(heads)) == 8, "the control log is a hint: what it says is compared with the bucket, later"


def spoil(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def test_what_is_gone_leaves_nothing(bench: Bench) -> None:
    """Topics that come and go, under one name or another; one of them was stopped."""
    for incarnation in range(5):
        bench.broker.partition("daily", 0, segments=3, incarnation=incarnation)
        bench.scheduler.rescan()
        bench.turns()
        shutil.rmtree(bench.broker.directory("daily", 0))
        bench.scheduler.rescan()
        bench.turns()
    bench.broker.partition("bad", 0)
    bench.broker.partition("soup", 0)
    spoil(bench.broker.segments("bad", 0)[0])
    bench.scheduler.rescan()
    bench.turns()
    assert set(bench.fleet.troubles) == {TopicPartition("bad", 0)}
    shutil.rmtree(bench.broker.directory("bad", 0))
    for _ in range(3):
        bench.scheduler.rescan()
        bench.turns()
    assert bench.fleet.troubles == {}
    assert {each.topic for each in bench.fleet._members.known()} == {"soup"}
    tails = json.loads((bench.root / "state" / "tails.json").read_bytes())
    assert len(tails) <= 1
    assert len(bench.fleet._topics._topics) == 1
    known = {partition.topic for partition, _ in bench.control.state().partitions()}
    assert known == {"soup"}
    assert len(bench.scheduler) == 0


def test_a_topic_that_is_created_again_between_two_looks_is_no_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.partition("daily", 0, segments=3)
    bench.scheduler.rescan()
    bench.turns()
    bench.broker.drop("daily", 0)
    bench.scheduler.add([TopicPartition("daily", 0)])
    look = LogDirs.look

    def between(logs: LogDirs, place: TopicPartition) -> LocalLog:
        try:
            return look(logs, place)
        except NotFound:
            bench.broker.partition("daily", 0, segments=3, incarnation=1)
            raise

    monkeypatch.setattr(LogDirs, "look", between)
    with capture_logs() as events:
        bench.turns()
        bench.clock.advance(int(PAUSE_MAX_S * 1000))
        bench.turns()
    assert [each["event"] for each in events if each["log_level"] == "error"] == []
    assert bench.fleet.failures == {}
    again = bench.head("daily", 0, incarnation=1)
    assert again is not None
    assert again.last_offset == 19


def mentions(bench: Bench, topic: str) -> list[str]:
    """The ways to something of `topic` from all that the agent holds, the bucket and the control log apart."""
    found, seen, ways = list[str](), {id(bench.store), id(bench.control)}, deque[tuple[str, Any]]()
    ways += [("fleet", bench.fleet), ("scheduler", bench.scheduler)]
    while ways:
        way, each = ways.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, FunctionType, Thread)):
            continue
        seen.add(id(each))
        if isinstance(each, (PartitionId, TopicPartition)):
            found += [way] if each.topic == topic else []
            continue
        if isinstance(each, str | bytes):
            text = each if isinstance(each, str) else each.decode("latin-1")
            found += [f"{way}: {text[:60]}"] if topic in text else []
            continue
        if isinstance(each, Mapping):
            ways += [(f"{way} key", key) for key in list(each)] + [(f"{way}[{key!r:.40}]", value) for key, value in list(each.items())]
        elif isinstance(each, list | tuple | set | frozenset | deque):
            ways += [(f"{way}[]", value) for value in list(each)]
        slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        fields = {**getattr(each, "__dict__", {}), **{name: getattr(each, name, None) for name in slots}}
        ways += [(f"{way}.{name}", value) for name, value in fields.items()]
        if isinstance(each, MethodType):
            ways.append((f"{way}()", each.__self__))
    return found


def postponed(*_: object, **__: object) -> NoReturn:
    raise TransientError("slow down")


@pytest.mark.parametrize("how", ["archived", "damaged", "postponed"])
def test_nothing_in_memory_mentions_a_topic_that_is_gone(bench: Bench, how: str) -> None:
    bench.broker.partition("daily", 0, 1, segments=3)
    bench.broker.partition("soup", 0, segments=3)
    if how == "damaged":
        spoil(bench.broker.segments("daily", 0)[0])
    bench.scheduler.rescan()
    with pytest.MonkeyPatch.context() as away:
        if how == "postponed":
            away.setattr(MemoryStore, "put_all", postponed)
        bench.turns()
    assert mentions(bench, "daily")
    bench.broker.drop("daily", 0, 1)
    for passed_ms in (0, 60_000, 60_000, KEEP_MS):
        bench.clock.advance(passed_ms)
        bench.broker.roll("soup", 0)
        bench.scheduler.rescan()
        bench.turns()
    assert mentions(bench, "daily") == []


def test_one_listing_that_misses_a_partition_forgets_nothing(bench: Bench) -> None:
    """As when a broker moves it from one log directory to another while they are listed."""
    bench.broker.partition("soup", 0, 1)
    bench.scheduler.rescan()
    bench.turns()
    directory = bench.broker.directory("soup", 0)
    known = bench.fleet._members.known()
    directory.rename(directory.with_name("aside"))
    bench.scheduler.rescan()
    directory.with_name("aside").rename(directory)
    bench.turns()
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet._members.known() == known
    assert len(list(bench.control.state().partitions())) == 2


def test_a_damaged_segment_is_read_again_when_it_has_changed_or_after_a_long_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.partition("bad", 0, segments=4)
    path = bench.broker.segments("bad", 0)[1]
    sound = path.read_bytes()
    spoil(path)
    reads = 0

    def counted(*arguments: Any, **named: Any) -> RunScan | None:
        nonlocal reads
        reads += 1
        return scan_run(*arguments, **named)

    def later(seconds: float) -> None:
        bench.clock.advance(int(seconds * 1000))
        bench.scheduler.rescan()
        bench.turns()

    monkeypatch.setattr("archival.partition.run_finder.scan_run", counted)
    later(0)
    assert (reads, bench.last_offset("bad", 0)) == (2, 9)
    for _ in range(int(READ_AGAIN_S / PAUSE_MAX_S) - 1):
        later(PAUSE_MAX_S)
        bench.broker.roll("bad", 0)  # what is added mends nothing
        assert set(bench.fleet.troubles) == {TopicPartition("bad", 0)}
    assert reads == 2
    later(READ_AGAIN_S)
    assert reads == 3
    [row] = archive_all(bench.fleet, lambda _: SEALED)
    assert (reads, isinstance(row.error, CorruptData)) == (4, True)  # somebody asks: it is read again
    path.write_bytes(sound)
    later(PAUSE_MAX_S)
    assert (bench.fleet.troubles, bench.last_offset("bad", 0)) == ({}, 10 * (len(bench.broker.segments("bad", 0)) - 1) - 1)


def test_an_event_for_one_partition_looks_at_that_partition_alone(bench: Bench, looks: list[TopicPartition]) -> None:
    bench.broker.partition("soup", *range(9), segments=3)
    bench.scheduler.rescan()
    bench.turns()
    looks.clear()
    bench.broker.roll("soup", 4)
    bench.scheduler.add([TopicPartition("soup", 4)])
    bench.turns()
    assert set(looks) == {TopicPartition("soup", 4)}


def test_an_idle_round_looks_at_no_partition(bench: Bench, looks: list[TopicPartition], monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.partition("soup", *range(9), segments=3)
    bench.broker.wait()
    for path in bench.broker.root.iterdir():
        os.utime(path, (time.time() - 60, time.time() - 60))
    for _ in range(2):
        bench.scheduler.rescan()
        bench.turns()
    looks.clear()
    monkeypatch.setattr(partition_directory, "_segments", lambda *_: pytest.fail("segments were listed"))
    for _ in range(3):
        bench.scheduler.rescan()
        assert bench.turns() == 0
    assert not looks


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    """The partitions that are looked at."""
    made: list[TopicPartition] = []
    look = LogDirs.look

    def noted(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        made.append(place)
        return look(dirs, place)

    monkeypatch.setattr(LogDirs, "look", noted)
    return made


def test_it_is_said_now_and_then_that_retention_is_about_to_outrun_archiving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = LogDirs.look
    monkeypatch.setattr(LogDirs, "look", lambda self, place: replace(look(self, place), retention=Retention(60_000, None)))
    store = MemoryStore()
    bench = Bench(tmp_path, store)
    bench.broker.partition("soup", 0, segments=3)
    bench.clock.at_ms = int(time.time() * 1000) + 30_000
    bench.settings = ArchivalConfig(archive=ArchiveMode.MANUAL)
    with capture_logs() as logs:
        bench.scheduler.rescan()
        for _ in range(3):
            bench.scheduler.reconsider()
            bench.turns()
        bench.settings = ArchivalConfig(archive=ArchiveMode.AUTO)
        bench.clock.advance(int(1000 * fleet.WARN_S))
        bench.scheduler.reconsider()
        bench.turns()
        bench.clock.advance(int(1000 * fleet.WARN_S))
        bench.scheduler.reconsider()
        bench.turns()  # all is archived
    warned = [(each["partition"], each["next_offset"]) for each in logs if each["event"] == "retention_near"]
    assert warned == [("soup:0", 0), ("soup:0", 0)]


def test_a_trigger_holds_segments_back_until_it_comes_and_gives_way_where_retention_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic's owner shortens its retention while the agent runs, and lengthens it again."""
    look, age_ms = LogDirs.look, [7_200_000]

    def told(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        return replace(look(dirs, place), retention=Retention(age_ms[0], None, "the topic's retention.ms"))

    monkeypatch.setattr(LogDirs, "look", told)
    bench = Bench(tmp_path, MemoryStore())
    bench.broker.partition("soup", 0, segments=3)
    bench.clock.at_ms = int(time.time() * 1000)
    bench.settings = ArchivalConfig(archive=ArchiveMode.MANUAL, offload_after_s=3600)

    def archived() -> int:
        bench.scheduler.rescan()
        bench.turns()
        found = bench.fleet.logs.look(TopicPartition("soup", 0)).partition
        member = bench.fleet.head(found)
        return member.head.next_offset if member is not None else 0

    with capture_logs() as logs:
        assert archived() == 0
        bench.clock.advance(3_601_000)
        assert archived() == 20
        bench.broker.roll("soup", 0)
        os.utime(bench.broker.segments("soup", 0)[2], (bench.clock.at_ms / 1000,) * 2)
        assert archived() == 20
        age_ms[0] = 3_600_000
        assert archived() == 30
        age_ms[0] = 7_200_000
        bench.broker.roll("soup", 0)
        os.utime(bench.broker.segments("soup", 0)[3], (bench.clock.at_ms / 1000,) * 2)
        assert archived() == 30
    said = [(each["event"], each["topic"]) for each in logs if each["event"].startswith("trigger_")]
    assert said == [("trigger_not_applied", "soup"), ("trigger_applied", "soup")]


def test_what_is_streamed_waits_for_its_trigger_and_is_followed_where_retention_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, age_ms = LogDirs.look, [7_200_000]

    def reported(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        return replace(look(dirs, place), retention=Retention(age_ms[0], None, "the topic's retention.ms"))

    monkeypatch.setattr(LogDirs, "look", reported)
    bench = Bench(tmp_path, MemoryStore())
    bench.broker.partition("soup", 0, segments=3)
    bench.clock.at_ms = int(time.time() * 1000)
    bench.settings = ArchivalConfig(
        archive=ArchiveMode.MANUAL, offload=OffloadMode.STREAMING, offload_after_s=3600, max_segment_age_s=5, seal_timeout_s=10**6
    )

    def turns() -> int:
        bench.clock.advance(1_000)
        bench.scheduler.rescan()
        bench.turns()
        return bench.last_offset("soup", 0)

    with capture_logs() as logs:
        assert turns() == -1
        bench.clock.advance(10_000)
        assert bench.turns() == 0, "it is not looked at every half second"
        bench.clock.advance(3_601_000)
        assert turns() == 19
        bench.broker.roll("soup", 0)
        os.utime(bench.broker.segments("soup", 0)[2], (bench.clock.at_ms / 1000,) * 2)
        assert turns() == 19
        age_ms[0] = 3_600_000
        assert turns() == 19
        assert bench.fleet._budget.used_bytes > 0, "what is committed is taken"
        bench.clock.advance(5_000)
        bench.turns()
        assert bench.last_offset("soup", 0) == 29
        age_ms[0] = 7_200_000
        bench.broker.roll("soup", 0)
        os.utime(bench.broker.segments("soup", 0)[3], (bench.clock.at_ms / 1000,) * 2)
        assert turns() == 29
    head = bench.head("soup", 0)
    assert head is not None
    assert [(each.last_offset, each.layout) for each in head.entries] == [(19, "streaming"), (29, "streaming")]
    said = [(each["event"], each.get("consequence")) for each in logs if each["event"].startswith("trigger_")]
    assert said == [("trigger_not_applied", "what is committed is archived while it is written"), ("trigger_applied", None)]


def test_a_broker_whose_retention_nobody_says_is_warned_of_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MemoryStore())
    bench.broker.partition("soup", 0, 1, segments=3)
    bench.settings = ArchivalConfig(offload_after_s=3600)
    with capture_logs() as logs:
        for _ in range(2):
            bench.scheduler.rescan()
            bench.turns()
    (said,) = [each for each in logs if each["event"] == "local_retention_unknown"]
    assert "log.server_properties" in said["reason"]
