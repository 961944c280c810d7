"""Which tier serves a read: fallbacks, and gaps that the archive knows or that no tier fills."""

from collections.abc import Callable

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, TransientError
from hydration.answers import Isolation
from hydration.config import ReadPriority
from manifests.entry import Entry
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED
BOTH = (ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST)


def a_world_with_gap(a_world: AWorld, priority: ReadPriority, first: int = 10, end: int = 30, *, archived_to: int = 40) -> World:
    """The archive holds 0 up to `archived_to` but for a gap from `first` to `end`."""
    world = a_world(priority=priority)
    archive = world.archive
    archive.commit(
        archive.upload(a_segment(0, first)),
        Entry(base_offset=first, last_offset=end - 1, gap=True),
        archive.upload(a_segment(end, archived_to - end)),
    )
    return world


@pytest.mark.parametrize("priority", BOTH)
@pytest.mark.parametrize("local_start", [0, 5, 10, 20, 25, 30])
@pytest.mark.parametrize("local_segments", [1, 3])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_the_local_log_holds_of_a_gap_is_read_there(
    a_world: AWorld, priority: ReadPriority, local_start: int, local_segments: int, compacted: bool
) -> None:
    world = a_world_with_gap(a_world, priority)
    step = (50 - local_start) // local_segments + 1
    for base in range(local_start, 50, step):
        world.broker.write(base, a_segment(base, min(step, 50 - base)))
    world.broker.set_high_watermark(50)
    if compacted:
        world.broker.set_cleaned(0)
    expected = [*range(10), *range(min(max(local_start, 10), 30), 50)]
    assert world.read_all() == expected
    for offset in range(50):
        assert world.read_all(first=offset, max_bytes=1)[0] == next(each for each in expected if each >= offset)
        found = world.log.offset_for_time(BASE_TIME + offset)
        assert found is not None
        assert found.offset == next(each for each in expected if each >= offset)


@pytest.mark.parametrize("priority", BOTH)
def test_a_gap_of_both_tiers_is_skipped_up_to_what_either_holds(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world_with_gap(a_world, priority, 10, 18)
    for base, count in ((0, 14), (20, 30)):
        world.broker.write(base, a_segment(base, count))
    world.broker.set_high_watermark(50)
    expected = [*range(14), *range(18, 50)]
    for offset in range(50):
        assert world.read_all(first=offset, max_bytes=1) == [each for each in expected if each >= offset]


@pytest.mark.parametrize("priority", BOTH)
def test_what_is_damaged_in_the_local_log_is_not_moved_over_as_a_gap(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world_with_gap(a_world, priority)
    run = a_segment(0, 50)
    world.broker.write(0, run[: len(run) * 15 // 50].ljust(len(run), b"\xff"))
    world.broker.set_high_watermark(50)
    with pytest.raises(CorruptData):
        world.log.read(20, 1, Isolation.READ_UNCOMMITTED)


@pytest.mark.parametrize("priority", BOTH)
def test_a_dead_batch_that_reaches_out_of_a_gap_keeps_no_reader_there(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world(priority=priority)
    world.archive.commit(Entry(base_offset=0, last_offset=4, gap=True), world.archive.upload(a_batch(5, 2, epoch=2)))
    world.broker.write(0, a_batch(0, 3, epoch=1) + a_batch(3, 3, epoch=1))
    world.broker.set_epochs(EpochHistory.of([(1, 0)]))
    world.broker.set_high_watermark(6)
    assert world.read_all() == [0, 1, 2, 5, 6]
    assert world.read_all(first=3) == [5, 6]


@pytest.mark.parametrize("first", [0, 2])
def test_a_segment_between_its_names_is_not_taken_for_what_compaction_took(a_world: AWorld, first: int) -> None:
    world = a_world()
    for base in (0, 2, 4):
        world.broker.write(base, a_segment(base, 2))
    world.broker.set_high_watermark(6)
    world.broker.set_cleaned(4)
    between = world.broker.path(first, "log.swap")
    world.broker.path(first).rename(between)
    with pytest.raises(TransientError):
        world.log.read(first, 1 << 20, Isolation.READ_UNCOMMITTED)
    between.rename(world.broker.path(first))
    assert world.read_all() == [*range(6)]


def test_offsets_that_no_tier_has_are_passed_over(a_world: AWorld) -> None:
    """The broker dropped them before they were archived."""
    world = a_world()
    world.archive.append(a_segment(0, 10))
    world.broker.write(40, a_segment(40, 5))
    world.broker.set_high_watermark(45)
    assert world.read_all() == [*range(10), *range(40, 45)]


@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST])
def test_any_error_of_the_first_tier_falls_back_to_the_second(a_world: AWorld, priority: ReadPriority) -> None:
    store = FlakyStore()
    world = a_world(priority=priority, store=store)
    run = a_segment(0, 10)
    world.archive.append(run)
    world.broker.set_high_watermark(10)
    if priority is ReadPriority.LOCAL_FIRST:
        world.broker.write(0, b"\xff" * len(run))
    else:
        world.broker.write(0, run)
        store.refuse = lambda operation, key: TransientError("away") if operation == "read_into" else None
    assert world.read_all() == list(range(10))
    assert world.logs.hydrator.counters.fallbacks


def test_a_local_file_that_is_gone_falls_back_to_the_archive(a_world: AWorld) -> None:
    world = a_world(clock=ManualClock())
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    for base in (0, 10, 20):
        world.broker.write(base, a_segment(base, 10))
    world.broker.set_high_watermark(30)
    log = world.log
    log.bounds()
    world.broker.drop(0)  # the last look still lists it
    with log.read(3, 1, UNCOMMITTED) as answer:
        assert answer.next_offset == 4
    assert world.gets() == 1


def test_a_gap_in_the_local_log_is_filled_from_the_archive(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    world.broker.write(0, a_segment(0, 10))
    world.broker.write(20, a_segment(20, 5))
    world.broker.set_high_watermark(25)
    assert world.read_all() == list(range(25))
