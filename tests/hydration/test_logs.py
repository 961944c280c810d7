"""Looks that partitions take over: from surveys, and from a thread."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import TransientError
from headwater_core.partition import PartitionId
from headwater_core.segments.log_dirs import Roster, partition_directory, small_files
from hydration.answers import Isolation, ReadResult
from hydration.local.local_tier import LOOK_S
from hydration.partition_log import Pending
from hydration.reader import records
from manifests import keys
from tests.headwater.gateway.fakes import a_batch
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import PARTITION, TOPIC, World
from tests.manifests.builders import a_head, an_entry

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def test_a_listing_that_began_before_a_look_does_not_take_it_back(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    early, began_s = Roster(cluster_id=PARTITION.cluster_id, partitions={}), clock.monotonic_s()
    clock.advance(10)
    assert world.log.bounds().high_watermark == 10
    world.logs._publish(early, began_s)
    assert world.log.bounds().high_watermark == 10


def test_metadata_of_partitions_that_nobody_reads_opens_none_and_reads_no_head(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10, epoch=3))
    world.broker.write(0, a_segment(0, 10, epoch=3))
    world.broker.set_epochs(EpochHistory.of([(3, 0)]))
    world.logs.refresh()
    heads = world.store.calls["get"]
    assert world.logs.try_leader_epoch(TOPIC, 0) == 3
    assert not world.logs._partitions
    assert world.store.calls["get"] == heads


def test_metadata_does_not_make_a_partition_one_that_is_read(a_world: AWorld) -> None:
    """It would be looked at twice a second for a minute, and so would ten thousand."""
    world = a_world(clock=ManualClock())
    world.archive.append(a_segment(0, 10, epoch=3))
    world.broker.write(0, a_segment(0, 10, epoch=3))
    while not isinstance(epoch := world.log.try_leader_epoch(), int):
        epoch.future.result(20)
    assert world.log.local is not None
    assert world.log.local.used_s == float("-inf")


def test_metadata_opens_nothing_while_the_log_directories_are_not_known(a_world: AWorld) -> None:
    """What the archive lists alone may lie here too: each would load its head."""
    world = a_world()
    world.archive.append(a_segment(0, 10, epoch=3))
    away = world.broker.root.rename(world.broker.root.with_name("away"))
    logs = world.logs
    assert logs.try_leader_epoch(TOPIC, 0) == -1
    assert not logs._partitions
    away.rename(world.broker.root)
    logs.refresh()
    epoch = logs.try_leader_epoch(TOPIC, 0)
    assert isinstance(epoch, Pending) or epoch == 3


def test_what_is_gone_before_anyone_looked_at_it_is_unknown_until_the_next_listing(a_world: AWorld) -> None:
    """It may have held more than the archive does."""
    world = a_world()
    world.archive.append(a_segment(0, 10))
    world.broker.write(0, a_segment(0, 20))
    world.broker.set_high_watermark(20)
    log = world.log
    world.broker.directory.rename(world.broker.root.with_name("away"))
    with pytest.raises(TransientError):
        log.bounds()
    world.logs.refresh()
    assert world.log.bounds().high_watermark == 10


def test_a_listing_reads_no_segments_and_only_what_has_changed(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_epochs(EpochHistory.of([(0, 0)]))
    for path in (*world.broker.directory.iterdir(), world.broker.directory):
        os.utime(path, (time.time() - 60, time.time() - 60))
    logs, reads = world.logs, list[str]()
    read = small_files.read_optional

    def noted(path: str) -> bytes | None:
        reads.append(Path(path).name)
        return read(path)

    monkeypatch.setattr(partition_directory, "_segments", lambda *_: pytest.fail("segments were listed"))
    monkeypatch.setattr(partition_directory, "read_optional", noted)
    logs.refresh()
    logs.refresh()
    assert not reads
    world.broker.write(10, a_segment(10, 10))
    logs.refresh()
    assert reads == ["partition.metadata", "leader-epoch-checkpoint"]


def test_a_log_that_is_read_is_looked_at_without_being_asked_for(a_world: AWorld, tmp_path: Path) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(5)
    log = world.log
    log.read(0, 1, UNCOMMITTED).close()
    assert log.local is not None
    with world.logs.kept_fresh():
        world.broker.set_high_watermark(10)
        pause = threading.Event()
        while log.local.last.log is None or log.local.last.log.high_watermark != 10:
            pause.wait(0.02)
        read = log.try_read(5, 1 << 20, UNCOMMITTED)
        assert isinstance(read, ReadResult)
        read.close()
    assert log.local.max_age_s == LOOK_S


def test_records_of_a_line_that_was_lost_are_not_served_after_a_head_was_restored(a_world: AWorld) -> None:
    world = a_world(local=False, lmdb=True)
    world.archive.append(a_batch(0, [b"first"] * 10))
    key = keys.head(PARTITION)
    restored, _ = world.store.get(key)
    world.archive.append(a_batch(10, [b"lost"] * 10))

    def values() -> set[bytes]:
        found = records(world.logs.partition(TOPIC, 0), 10)
        return {bytes(each.record.value or b"") for each in found}

    assert values() == {b"lost"}
    world.store.replace(key, restored, expected_tag=world.store.get(key)[1])
    world.archive.held = world.archive.repository.load(PARTITION)
    world.archive.append(a_batch(10, [b"true"] * 10))
    world.logs.refresh()
    assert world.log.manifest is not None
    world.log.manifest.load()
    assert values() == {b"true"}
    world.restart()
    assert values() == {b"true"}


def test_what_is_gone_leaves_the_index(a_world: AWorld) -> None:
    world = a_world(lmdb=True)
    world.archive.append(a_segment(0, 10))
    assert world.read_all() == list(range(10))
    former = PartitionId(PARTITION.cluster_id, "A" * 22, PARTITION.partition, PARTITION.topic)
    assert world.index is not None
    world.index.replace(a_head(an_entry(0, 9, partition=former), partition=former))
    world.restart()
    world.logs.refresh()
    assert world.index.version(former) is None
    assert world.index.version(PARTITION) is not None
