"""What moves, vanishes or belongs to somebody else while it is read: never a silent hole, never a false word of out of range."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, OffsetOutOfRange, TransientError, UsageError
from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation
from manifests import keys
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_batch, a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import PARTITION, TOPIC, Archive, World, a_topic

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_segments_archived_and_dropped_by_another_process_are_read_from_the_archive(a_world: AWorld, known: bool, cleaned: bool) -> None:
    world = a_world(clock=ManualClock())
    if known:
        world.archive.append(a_segment(0, 10))
    for base in (0, 10, 20, 30):
        world.broker.write(base, a_segment(base, 10))
    world.broker.set_high_watermark(40)
    if cleaned:
        world.broker.set_cleaned(10)
    log = world.log
    log.bounds()
    for base in (0, 10, 20) if not known else (10, 20):
        world.archive.append(a_segment(base, 10))
    for base in (0, 10, 20):
        world.broker.drop(base)
    world.clock.advance(900)  # type: ignore[attr-defined]
    assert world.read_all(first=10) == list(range(10, 40))
    assert log.bounds().log_start == 0


def test_a_hole_is_not_believed_while_the_manifest_cannot_be_loaded(a_world: AWorld) -> None:
    store = FlakyStore()
    world = a_world(store=store, clock=ManualClock())
    world.archive.append(a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.write(20, a_segment(20, 10))
    world.broker.set_high_watermark(30)
    world.log.bounds()
    world.archive.append(a_segment(10, 10))
    world.broker.drop(10)
    store.refuse = lambda operation, key: TransientError("away")
    world.clock.advance(1_000)  # type: ignore[attr-defined]
    with pytest.raises(TransientError):
        world.log.read(10, 1, UNCOMMITTED)


@pytest.mark.parametrize("how", ["unmounted", "partition"])
def test_a_vanished_local_log_is_worth_another_try_until_the_archive_reaches_its_end(a_world: AWorld, how: str) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.set_high_watermark(20)
    log = world.log
    log.bounds()
    if how == "unmounted":
        world.broker.root.rename(world.root / "away")
        world.broker.root.mkdir()
    else:
        world.broker.directory.rename(world.root / "away")
    clock.advance(2_000)
    for offset in (10, 15, 25):
        with pytest.raises(TransientError):
            log.read(offset, 1, UNCOMMITTED)
    with pytest.raises(TransientError):
        log.bounds()
    log.read(5, 1, UNCOMMITTED).close()
    world.logs.refresh() if how == "partition" else None
    with pytest.raises(TransientError):
        world.log.read(15, 1, UNCOMMITTED)
    world.archive.append(a_segment(10, 10))
    clock.advance(2_000)
    world.log.read(15, 1, UNCOMMITTED).close()
    if how == "partition":
        with pytest.raises(OffsetOutOfRange):
            world.log.read(25, 1, UNCOMMITTED)


def test_an_unmounted_disk_proves_no_absence_and_keeps_its_partitions_listed(a_world: AWorld, tmp_path: Path) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    world.broker.set_high_watermark(5)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(world.broker.root / "meta.properties", other)
    world.logs._dirs = dirs = LogDirs([world.broker.root, other])
    world.logs.refresh()
    world.broker.root.rename(tmp_path / "away")
    world.broker.root.mkdir()
    with pytest.raises(UsageError):
        dirs.look(PARTITION.topic_partition)
    world.logs.refresh()
    assert TOPIC in world.logs.topics()


def test_the_last_stable_offset_is_not_below_the_log_start(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 2, producer=7, transactional=True) + a_segment(2, 8))
    world.broker.set_high_watermark(10)
    world.broker.set_log_start(5)
    assert world.log.bounds(Isolation.READ_COMMITTED).last_stable_offset == 5


def test_another_clusters_bucket_is_refused(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    properties = world.broker.root / "meta.properties"
    properties.write_text(properties.read_text().replace("test-cluster", "other-cluster"))
    with pytest.raises(ForeignOwner):
        _ = world.logs


@pytest.mark.parametrize("key", [keys.current("b"), keys.topic_manifest("b", PARTITION.topic_id)])
def test_one_damaged_topic_hides_no_other(a_world: AWorld, key: str) -> None:
    world = a_world(local=False)
    repository = Archive(world.store).repository
    for name in "abc":
        repository.ensure_topic(a_topic(type(PARTITION)(PARTITION.cluster_id, PARTITION.topic_id, 0, name)))
    world.store.replace(key, b"{", expected_tag=world.store.get(key)[1])
    assert sorted(world.logs.topics()) == ["a", "c"]
    assert isinstance(world.logs.lost["b"], CorruptData)
    with pytest.raises(NotFound):
        world.logs.partition("b", 0)


def test_a_damaged_owner_is_told_by_the_topics(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    repository = Archive(world.store).repository
    repository.ensure_topic(a_topic(type(PARTITION)(PARTITION.cluster_id, PARTITION.topic_id, 0, "a")))
    world.store.replace(keys.OWNER, b"{", expected_tag=world.store.get(keys.OWNER)[1])
    assert sorted(world.logs.topics()) == ["a", TOPIC]
    assert world.logs.cluster_id == PARTITION.cluster_id
    repository.ensure_topic(a_topic(type(PARTITION)("other-cluster", PARTITION.topic_id, 0, "b")))
    with pytest.raises(ForeignOwner):
        world.logs.refresh()


def test_a_damaged_owner_does_not_keep_the_archive_from_being_read(a_world: AWorld) -> None:
    world = a_world(local=False)
    Archive(world.store).repository.ensure_topic(a_topic(PARTITION))
    world.store.replace(keys.OWNER, b"{", expected_tag=world.store.get(keys.OWNER)[1])
    assert list(world.logs.topics()) == [TOPIC]
    assert world.logs.cluster_id == PARTITION.cluster_id


def test_a_store_that_hangs_keeps_no_local_scan_waiting(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    world.broker.set_high_watermark(5)
    world.log.bounds()
    go = threading.Event()
    try:
        for number in range(20):
            world.logs.hydrator.join(number, lambda: go.wait(20))
        with world.log.read(0, 1 << 20, Isolation.READ_COMMITTED, timeout_s=5) as answer:
            assert answer.next_offset == 5
    finally:
        go.set()


def test_leader_epochs_are_told_without_asking_the_store_again(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(a_segment(0, 10, epoch=3))
    world.broker.write(0, a_segment(0, 10, epoch=3))
    world.broker.set_high_watermark(10)
    world.log.bounds()
    calls = world.store.calls["get"]
    for _ in range(10):
        clock.advance(1_000)
        assert world.log.try_leader_epoch() == 3
    assert world.store.calls["get"] == calls
