"""Reading over two tiers."""

import struct
from collections.abc import Callable

import msgspec
import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, OffsetOutOfRange, TransientError
from headwater_core.partition import PartitionId
from hydration.answers import Isolation
from hydration.config import ReadPriority
from hydration.reader import batches, records
from manifests.entry import Entry
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_commit, a_record, a_segment, an_abort
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import CLUSTER, PARTITION, TOPIC, TOPIC_ID, Archive, World, a_topic

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def test_a_log_is_read_across_the_border_between_archive_and_disk(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.write(20, a_segment(20, 5))
    world.broker.set_high_watermark(25)
    assert world.read_all() == list(range(25))
    assert world.gets() == 1  # what is on disk is not downloaded


def test_only_what_lies_below_the_high_watermark_is_read(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(7)
    assert world.read_all() == list(range(7))
    for offset in (7, 9, 10):  # after it, yet in the log: nothing yet
        with world.log.read(offset, 1 << 20, UNCOMMITTED) as answer:
            assert not answer.slices
    with pytest.raises(OffsetOutOfRange):
        world.log.read(11, 1 << 20, UNCOMMITTED)


def test_without_a_high_watermark_only_the_archive_is_read(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10))
    world.broker.write(0, a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    assert world.read_all() == list(range(10))


@pytest.mark.parametrize("priority", list(ReadPriority))
def test_a_read_priority_names_the_tiers(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world(priority=priority)
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.write(20, a_segment(20, 5))
    world.broker.set_high_watermark(25)
    bounds = world.log.bounds()
    expected = range(10 if priority is ReadPriority.LOCAL_ONLY else 0, 20 if priority is ReadPriority.OFFLOADED_ONLY else 25)
    assert (bounds.log_start, bounds.high_watermark) == (expected.start, expected.stop)
    assert world.read_all(first=bounds.log_start) == list(expected)
    assert world.gets() == {"local-first": 1, "local-only": 0, "offloaded-first": 2, "offloaded-only": 2}[priority.value]


def test_offsets_outside_are_out_of_range_when_the_manifest_says_so(a_world: AWorld) -> None:
    world = a_world(local=False)
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    world.archive.commit(*world.archive.head.entries, start_offset=4)
    assert world.read_all(first=4) == list(range(4, 20))
    for offset in (-1, 0, 3, 21, 2**62):
        with pytest.raises(OffsetOutOfRange) as caught:
            world.log.read(offset, 1 << 20, UNCOMMITTED)
        assert (caught.value.start, caught.value.end) == (4, 20)
    with world.log.read(20, 1 << 20, UNCOMMITTED) as answer:
        assert (answer.slices, answer.next_offset) == ([], 20)


def test_an_emptied_log_begins_and_ends_where_it_was_emptied(a_world: AWorld) -> None:
    world = a_world(local=False)
    world.archive.append(a_segment(0, 10))
    world.archive.commit(start_offset=54)
    bounds = world.log.bounds()
    assert (bounds.log_start, bounds.high_watermark) == (54, 54)
    assert world.read_all(first=54) == []


@pytest.mark.parametrize("emptied", [True, False])
def test_a_reader_at_the_end_of_an_emptied_log_needs_no_store(a_world: AWorld, emptied: bool) -> None:
    """Its local log says that there is nothing; a log that begins at 0 may lie on a new disk."""
    store = FlakyStore()
    world = a_world(store=store)
    end = 90 if emptied else 0
    world.broker.write(end, b"")
    world.broker.set_log_start(end)
    world.broker.set_high_watermark(end)
    store.refuse = lambda operation, key: TransientError("away")
    for isolation in (UNCOMMITTED, Isolation.READ_COMMITTED) if emptied else ():
        with world.log.read(end, 1 << 20, isolation) as answer:
            assert (answer.slices, answer.high_watermark, answer.next_offset) == ([], end, end)
    for offset in (end - 1, end + 1) if emptied else (end,):
        with pytest.raises(TransientError):
            world.log.read(offset, 1 << 20, UNCOMMITTED)


@pytest.mark.parametrize("priority", list(ReadPriority))
def test_a_partition_without_local_log_and_head_is_unknown(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world(priority=priority)
    world.archive.repository.ensure_topic(a_topic(partitions=2))
    log = world.logs.partition(TOPIC, 1)
    for ask in (log.bounds, lambda: log.read(0, 1, UNCOMMITTED), lambda: log.read(40, 1, UNCOMMITTED), lambda: log.offset_for_time(0)):
        with pytest.raises(TransientError, match="nothing of it is archived"):
            ask()
    assert log.known_scope() is None
    assert log.known_bounds() is None
    if priority is not ReadPriority.LOCAL_ONLY:
        Archive(world.store, PartitionId(CLUSTER, TOPIC_ID, 1, TOPIC)).commit(start_offset=54)
        world.logs.partition(TOPIC, 1).manifest.load()  # type: ignore[union-attr]
        bounds = log.bounds(Isolation.READ_COMMITTED)
        assert (bounds.log_start, bounds.high_watermark, bounds.last_stable_offset) == (54, 54, 54)


def test_asking_for_the_leader_epoch_of_what_is_unknown_asks_the_store_once_in_a_while(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(local=False, clock=clock)
    world.archive.repository.ensure_topic(a_topic(partitions=2))
    log = world.logs.partition(TOPIC, 1)
    with pytest.raises(TransientError):
        log.bounds()
    calls = world.store.calls["get"]
    for _ in range(4):
        clock.advance(1_000)
        assert log.try_leader_epoch() == -1
    assert world.store.calls["get"] == calls


def test_an_empty_log_that_the_priority_leaves_out_has_nothing_to_archive(a_world: AWorld) -> None:
    world = a_world(priority=ReadPriority.OFFLOADED_ONLY)
    world.broker.write(0, b"")
    world.broker.set_high_watermark(0)
    assert world.log.bounds().high_watermark == 0
    world.broker.write(0, a_segment(0, 5))
    world.broker.set_high_watermark(5)
    world.restart()
    with pytest.raises(TransientError):
        world.log.bounds()


def test_known_bounds_wait_for_nothing(a_world: AWorld) -> None:
    world = a_world(local=False)
    world.archive.append(a_segment(0, 10))
    log = world.log
    assert log.known_bounds(Isolation.READ_COMMITTED) is None
    asked = log.bounds(Isolation.READ_COMMITTED)
    assert log.known_bounds(Isolation.READ_COMMITTED) == asked


def test_new_entries_are_seen_when_a_reader_passes_the_known_end(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(local=False, clock=clock)
    world.archive.append(a_segment(0, 10))
    assert world.read_all() == list(range(10))
    world.archive.append(a_segment(10, 10))
    clock.advance(1_000)
    assert world.read_all() == list(range(20))
    world.archive.append(a_segment(20, 10))
    world.logs.update_manifest(world.archive.head)  # its own process has committed it
    assert world.read_all() == list(range(30))


@pytest.mark.parametrize("local_end", [None, 5, 20])
def test_a_reader_waiting_at_the_end_of_the_archive_comes_to_see_more(a_world: AWorld, local_end: int | None) -> None:
    """Beside a log that lags, too, and beside one that retention has emptied since."""
    clock = ManualClock()
    world = a_world(local=local_end is not None, clock=clock)
    if local_end is not None:
        world.broker.write(local_end, b"")
        world.broker.set_log_start(local_end)
        world.broker.set_high_watermark(local_end)
    world.archive.append(a_segment(0, 10))
    world.read_all()
    world.archive.append(a_segment(10, 10))
    clock.advance(5_000)
    world.log.read(10, 1, UNCOMMITTED).close()  # asks for the head in passing
    world.logs.hydrator.join(("manifest", PARTITION, "head"), lambda: None).result(20)  # joins the request, or finds it done
    with world.log.read(10, 1, UNCOMMITTED) as answer:
        assert answer.slices


def test_reading_moves_on_over_a_gap(a_world: AWorld) -> None:
    world = a_world(local=False)
    world.archive.commit(
        world.archive.upload(a_segment(0, 10)), Entry(base_offset=10, last_offset=29, gap=True), world.archive.upload(a_segment(30, 5))
    )
    assert world.read_all() == [*range(10), *range(30, 35)]
    with world.log.read(15, 1, UNCOMMITTED) as answer:
        assert answer.next_offset == 31
    assert world.logs.hydrator.counters.gaps_skipped == 2


def test_chunks_and_entries_without_a_later_batch_lead_on(a_world: AWorld) -> None:
    """Compaction took the end of the first entry and all that the second chunk could answer."""
    archive = (world := a_world(local=False)).archive
    first = archive.upload(a_batch(0, 5))
    holed = archive.upload(a_batch(5, [b"x" * 70_000]) + a_batch(20, [b"y" * 70_000], last_offset=25) + a_batch(40, 2), base_offset=5)
    archive.commit(msgspec.structs.replace(first, last_offset=4), holed)
    assert world.read_all() == [*range(6), 20, 40, 41]
    for offset, expected in ((6, 20), (20, 20), (21, 40), (26, 40), (39, 40), (41, 41)):
        assert world.read_all(first=offset, max_bytes=1)[0] == expected


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("gone", [(0,), (0, 10), (0, 10, 20)])
def test_whatever_leaves_the_disk_after_a_look_is_read_from_the_archive(
    a_world: AWorld, gone: tuple[int, ...], cleaned: bool, isolation: Isolation
) -> None:
    world = a_world(clock=ManualClock())
    runs = [a_segment(0, 10), a_batch(10, 9, producer=1, transactional=True) + an_abort(19, 1), a_segment(20, 10)]
    for base, run in zip((0, 10, 20), runs, strict=True):
        world.broker.write(base, run)
        world.archive.append(run)
    world.broker.set_high_watermark(30)
    if cleaned:
        world.broker.set_cleaned(20)
    log = world.log
    log.bounds(Isolation.READ_COMMITTED)
    for base in gone:
        world.broker.drop(base)
    if len(gone) == 3:
        world.broker.directory.rename(world.root / "gone")
    aborted = range(10, 19) if isolation is Isolation.READ_UNCOMMITTED else []
    assert world.read_all(isolation, max_bytes=1) == [*range(10), *aborted, *range(20, 30)]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("is_archived", [False, True])
def test_a_sealed_segment_that_is_cut_short_is_damaged_and_shows_no_gap(a_world: AWorld, is_archived: bool, compacted: bool) -> None:
    world = a_world(clock=ManualClock())
    run = a_segment(0, 10)
    world.broker.write(0, run[:-1])
    world.broker.write(10, a_segment(10, 5))
    world.broker.set_high_watermark(15)
    if compacted:
        world.broker.set_cleaned(10)
    if is_archived:
        world.archive.append(run)
        assert world.read_all() == list(range(15))
    else:
        world.archive.append(a_segment(0, 5))
        with pytest.raises(CorruptData, match="no whole batch"):
            world.read_all()


def test_a_log_shorter_than_its_high_watermark_ends_where_it_ends(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(15)
    assert world.read_all() == list(range(10))
    with world.log.read(10, 1, UNCOMMITTED) as answer:
        assert (answer.slices, answer.next_offset) == ([], 10)


def test_a_local_segment_dropped_in_mid_read_can_still_be_read(a_world: AWorld) -> None:
    world = a_world()
    run = a_segment(0, 10)
    world.broker.write(0, run)
    world.broker.write(10, a_segment(10, 10))
    world.broker.set_high_watermark(20)
    with world.log.read(0, 1 << 20, UNCOMMITTED) as answer:
        world.broker.drop(0)
        assert b"".join(each.read() for each in answer.slices) == run


def test_a_compaction_swap_is_noticed(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.write(20, a_segment(20, 3))
    world.broker.set_high_watermark(23)
    assert world.read_all() == list(range(23))
    swapped = world.broker.path(0, "log.swap")
    swapped.write_bytes(a_batch(4, 1) + a_batch(12, 2))
    world.broker.path(10).rename(world.broker.path(10, "log.deleted"))
    swapped.rename(world.broker.path(0))
    clock.advance(1_000)
    assert world.read_all() == [4, 12, 13, 20, 21, 22]


def test_a_growing_segment_is_read_as_the_high_watermark_moves(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, b"")
    for offset in range(0, 300, 3):
        world.broker.append(0, a_batch(offset, [b"x" * 700] * 3))
        world.broker.set_high_watermark(offset)
        clock.advance(1_000)
        assert world.read_all(first=max(offset - 9, 0)) == list(range(max(offset - 9, 0), offset))
    assert world.read_all() == list(range(297))


def test_a_torn_tail_beyond_the_high_watermark_is_not_looked_at(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10) + a_batch(10, 3)[:-5])
    world.broker.set_high_watermark(10)
    assert world.read_all() == list(range(10))
    assert world.read_all(Isolation.READ_COMMITTED) == list(range(10))
    with world.log.read(10, 1, UNCOMMITTED) as answer:
        assert not answer.slices


def test_a_segment_cut_and_written_again_in_place_is_read_again(a_world: AWorld) -> None:
    """An unclean election: the same file, other batches."""
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.set_epochs(EpochHistory.of([(0, 0)]))
    world.broker.write(0, a_segment(0, 200, value_bytes=1_000))
    world.broker.set_high_watermark(200)
    assert world.read_all(max_bytes=40_000) == list(range(200))
    with world.broker.path(0).open("r+b") as file:
        file.truncate(len(a_segment(0, 50, value_bytes=1_000)))
    for offset in range(50, 170, 3):
        world.broker.append(0, a_batch(offset, [b"x" * 800] * 3, epoch=1))
    world.broker.set_epochs(EpochHistory.of([(0, 0), (1, 50)]))
    world.broker.set_high_watermark(170)
    clock.advance(1_000)
    assert world.read_all(max_bytes=40_000) == list(range(170))


def test_a_batch_larger_than_requested_comes_whole(a_world: AWorld) -> None:
    run = a_batch(0, [b"x" * 500_000]) + a_batch(1, [b"y" * 10])
    world = a_world()
    world.archive.append(run)
    world.broker.write(2, a_batch(2, [b"z" * 500_000]) + a_batch(3, 1))
    world.broker.set_high_watermark(4)
    for offset in (0, 2):
        with world.log.read(offset, 1, UNCOMMITTED) as answer:
            assert answer.size_bytes > 500_000
            assert answer.next_offset == offset + 1


@pytest.mark.parametrize("max_bytes", [1, 2_000, 10_000, 65_536, 1 << 20])
def test_answers_hold_whole_batches_and_hardly_more_than_requested(a_world: AWorld, max_bytes: int) -> None:
    run = a_segment(0, 300, value_bytes=1_000)
    world = a_world()
    world.archive.append(run)
    world.broker.write(300, a_segment(300, 300, value_bytes=1_000))
    world.broker.set_high_watermark(600)
    world.read_all()
    cursor = 0
    while cursor < 600:
        with world.log.read(cursor, max_bytes, UNCOMMITTED) as answer:
            assert 0 < answer.size_bytes <= max(max_bytes, 1_200)
            found = [header.base_offset for header, _ in batches(answer, UNCOMMITTED)]
            assert found == list(range(cursor, answer.next_offset))
            if max_bytes >= 65_536 and answer.next_offset < 300 - 65:
                assert answer.size_bytes > max_bytes // 2
            cursor = answer.next_offset


def test_kafkas_own_index_is_only_a_hint(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    batch = len(a_segment(0, 1, value_bytes=500))
    world.broker.write(0, a_segment(0, 400, value_bytes=500))
    world.broker.set_high_watermark(390)
    right = b"".join(struct.pack(">Ii", n, n * batch) for n in range(8, 400, 8)) + bytes(4_000)
    wrong = b"".join(struct.pack(">Ii", n, n * batch + 13) for n in range(8, 400, 8))
    for hints in (right, wrong, b"", b"\xff" * 999, right[:-4_001]):
        world.broker.path(0, "index").write_bytes(hints)
        world.restart()
        for first in (0, 1, 133, 200, 389):
            for max_bytes in (1, 30_000, 1 << 20):
                assert world.read_all(first=first, max_bytes=max_bytes) == list(range(first, 390))


def test_a_newer_leaderships_log_wins_over_a_dead_branch_in_the_archive(a_world: AWorld) -> None:
    world = a_world(priority=ReadPriority.OFFLOADED_FIRST)
    world.archive.append(a_segment(0, 10), a_segment(10, 20, epoch=2))
    world.broker.set_epochs(EpochHistory.of([(0, 0), (4, 10)]))
    world.broker.write(0, a_segment(0, 10) + a_segment(10, 8, epoch=4))
    world.broker.set_high_watermark(18)
    assert world.log.bounds().high_watermark == 18
    found = list(records(world.log, 0))
    assert [each.record.offset for each in found] == list(range(18))
    assert [each.leader_epoch for each in found] == [0] * 10 + [4] * 8


def test_a_dead_branch_on_disk_is_not_read_where_the_archive_followed_the_newer_leadership(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10), a_segment(10, 8, epoch=4))
    world.broker.set_epochs(EpochHistory.of([(0, 0), (2, 10)]))
    world.broker.write(0, a_segment(0, 10) + a_segment(10, 20, epoch=2))
    world.broker.set_high_watermark(30)
    found = list(records(world.log, 0))
    assert [each.leader_epoch for each in found] == [0] * 10 + [4] * 8


def test_a_dead_branch_cut_inside_an_object_is_not_read(a_world: AWorld) -> None:
    world = a_world(local=False)
    live = a_segment(0, 10, value_bytes=20_000)
    world.archive.append(live + a_segment(10, 10, epoch=2, value_bytes=20_000))
    cut = msgspec.structs.replace(world.archive.head.entries[0], last_offset=9, live_bytes=len(live), epochs=((0, 0),))
    world.archive.commit(cut, world.archive.upload(a_segment(10, 3, epoch=4)))
    assert [each.leader_epoch for each in records(world.log, 0)] == [0] * 10 + [4] * 3


def test_a_compacted_log_is_read_from_the_archive_as_far_as_that_goes(a_world: AWorld) -> None:
    """Else a scan that saw a record in the archive would miss the tombstone that the broker has forgotten."""
    world = a_world()
    world.archive.append(a_segment(0, 10), a_segment(10, 10))
    world.broker.write(10, a_batch(18, 1))
    world.broker.write(20, a_segment(20, 5))
    world.broker.set_high_watermark(25)
    world.broker.set_cleaned(20)
    assert world.read_all() == list(range(25))
    world.archive.commit(world.archive.head.entries[1])
    world.restart()
    assert world.read_all(first=10) == [18, *range(20, 25)]  # nothing was archived before the local log: that is complete


def test_times_are_found_in_both_tiers(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10, records=4, value_bytes=9_000), a_segment(40, 10), a_commit(50, 7))
    world.broker.write(50, a_commit(50, 7))
    world.broker.write(51, a_segment(51, 10, records=2))
    world.broker.set_high_watermark(67)
    log = world.log
    assert log.offset_for_time(0) == (0, BASE_TIME)
    for offset in (0, 1, 7, 39, 40, 49, 51, 52, 66):
        assert log.offset_for_time(BASE_TIME + offset) == (offset, BASE_TIME + offset)
    assert log.offset_for_time(BASE_TIME + 50) == (51, BASE_TIME + 51)  # a marker is no record
    assert log.offset_for_time(BASE_TIME + 67) is None


def test_a_time_is_looked_for_in_offset_order_when_timestamps_jump(a_world: AWorld) -> None:
    world = a_world(local=False)
    early, late = BASE_TIME - 1_000, BASE_TIME + 9_000
    world.archive.append(
        a_batch(0, [a_record(0, timestamp=BASE_TIME), a_record(1, timestamp=late), a_record(2, timestamp=BASE_TIME)]),
        a_batch(3, [a_record(3, timestamp=early)]),
        a_batch(4, [a_record(4, timestamp=BASE_TIME + 5)]),
    )
    assert world.log.offset_for_time(early) == (0, BASE_TIME)
    assert world.log.offset_for_time(BASE_TIME + 1) == (1, late)
    world.archive.commit(*world.archive.head.entries, start_offset=2)
    world.restart()
    assert world.log.offset_for_time(BASE_TIME + 1) == (4, BASE_TIME + 5)


def test_leader_epochs_end_where_the_next_one_begins(a_world: AWorld) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 10, epoch=1), a_segment(10, 10, epoch=3))
    world.broker.set_epochs(EpochHistory.of([(3, 15), (6, 20)]))
    world.broker.write(20, a_segment(20, 5, epoch=6))
    world.broker.set_high_watermark(25)
    ends = {epoch: world.log.epoch_end(epoch) for epoch in range(8)}
    assert ends == {0: (0, 0), 1: (1, 10), 2: (1, 10), 3: (3, 20), 4: (3, 20), 5: (3, 20), 6: (6, 25), 7: (-1, -1)}
    assert world.log.bounds().leader_epoch == 6


def test_what_compaction_took_before_a_dead_batch_is_looked_for_in_the_other_tier(a_world: AWorld) -> None:
    """The dead batch begins after the end of what counts: the read goes on at that end, not where the batch begins."""
    common, dead, live = a_batch(0, 3, epoch=1), a_batch(6, 2, epoch=2), a_batch(3, 4, epoch=3)
    world = a_world()
    world.archive.append(common, live)
    world.broker.write(0, a_batch(0, 2, epoch=1) + dead)
    world.broker.set_cleaned(6)
    world.broker.set_epochs(EpochHistory.of([(1, 0), (2, 3)]))
    world.broker.set_high_watermark(8)
    assert world.read_all() == [0, 1, 3, 4, 5, 6]


def test_what_compaction_took_of_a_dead_archive_is_looked_for_in_the_local_log(a_world: AWorld) -> None:
    common, dead, live = a_batch(0, 3, epoch=1), a_batch(6, 2, epoch=2), a_batch(3, 4, epoch=3)
    world = a_world(priority=ReadPriority.OFFLOADED_FIRST)
    world.archive.append(common + dead)
    world.broker.write(0, common + live)
    world.broker.set_cleaned(6)
    world.broker.set_epochs(EpochHistory.of([(1, 0), (3, 3)]))
    world.broker.set_high_watermark(7)
    assert world.read_all() == [0, 1, 2, 3, 4, 5, 6]
