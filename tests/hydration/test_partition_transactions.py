"""Transactions over both tiers: what is readable and what was aborted come from one view, whichever tier lags (I10, I25)."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import HeadwaterError, SourceChanged, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.transactions import OpenTransaction
from hydration.answers import Isolation
from manifests.entry import Entry
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.broker_files import encode_snapshot
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, an_abort
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.test_segment_states import Written, runs, write
from tests.hydration.world import World

AWorld = Callable[..., World]
COMMITTED = Isolation.READ_COMMITTED
ONE = Producer(id=1)
PLAIN = a_batch(0, 2)
OPENED = a_batch(2, 2, producer=ONE, transactional=True) + a_batch(4, 1)
ENDED = an_abort(5, ONE) + a_batch(6, 2)


def test_a_look_older_than_the_manifest_shows_no_aborted_record(a_world: AWorld) -> None:
    world = a_world(clock=ManualClock())
    world.archive.append(PLAIN)
    world.broker.write(0, PLAIN + OPENED + ENDED)
    world.broker.set_high_watermark(5)
    with world.log.read(2, 1 << 20, COMMITTED) as answer:
        assert (answer.last_stable_offset, answer.slices) == (2, [])
    world.broker.set_high_watermark(8)
    world.archive.append(OPENED + ENDED)
    world.logs.update_manifest(world.archive.head)
    with world.log.read(2, 1 << 20, COMMITTED) as answer:
        assert (answer.last_stable_offset, answer.aborted) == (8, [(1, 2)])
    assert world.read_all(COMMITTED, 2) == [4, 6, 7]


@pytest.mark.parametrize("on_disk", [PLAIN + OPENED + ENDED, PLAIN + OPENED])
def test_a_follower_or_an_old_disk_shows_no_aborted_record(a_world: AWorld, on_disk: bytes) -> None:
    world = a_world()
    world.archive.append(PLAIN + OPENED, ENDED)
    world.broker.write(0, on_disk)
    world.broker.set_high_watermark(5)
    assert world.read_all(COMMITTED) == [0, 1, 4, 6, 7]


def test_an_archive_that_begins_after_the_offset_still_tells_of_later_aborts(a_world: AWorld) -> None:
    two = Producer(id=2)
    early = (
        a_batch(0, 1, producer=two, transactional=True) + a_batch(1, 1) + an_abort(2, two) + a_batch(3, 1, producer=ONE, transactional=True)
    )
    late = a_batch(4, 1) + an_abort(5, ONE) + a_batch(6, 1)
    world = a_world()
    world.archive.commit(world.archive.upload(late, [OpenTransaction(1, 3)]))
    world.broker.write(0, early + late)
    world.broker.set_high_watermark(5)
    assert world.read_all(COMMITTED) == [1, 4, 6]
    with world.log.read(0, 1 << 20, COMMITTED) as answer:
        assert answer.aborted == [(2, 0), (1, 3)]


def test_markers_of_a_dead_branch_count_for_nothing(a_world: AWorld) -> None:
    common = a_batch(0, 2, epoch=1) + a_batch(2, 2, producer=ONE, transactional=True, epoch=1)
    world = a_world()
    world.archive.append(common + an_abort(4, ONE, epoch=1) + a_batch(5, 1, epoch=1))
    world.broker.write(4, a_commit(4, ONE, epoch=2) + a_batch(5, 2, epoch=2))
    world.broker.set_high_watermark(7)
    world.broker.set_epochs(EpochHistory.of([(1, 0), (2, 4)]))
    assert world.read_all(COMMITTED) == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("lags", [False, True])
def test_a_commit_on_a_dead_branch_does_not_hide_the_abort_that_counts(a_world: AWorld, lags: bool) -> None:
    common = a_batch(0, 2, epoch=1) + a_batch(2, 2, producer=ONE, transactional=True, epoch=1)
    world = a_world()
    world.archive.append(common + a_commit(4, ONE, epoch=1) + a_batch(5, 1, epoch=1))
    world.broker.write(4, an_abort(4, ONE, epoch=2) + a_batch(5, 2, epoch=2))
    world.broker.set_high_watermark(4 if lags else 7)
    world.broker.set_epochs(EpochHistory.of([(1, 0), (2, 4)]))
    assert world.read_all(COMMITTED) == ([0, 1] if lags else [0, 1, 5, 6])


def test_an_archive_that_is_cut_to_a_gap_says_nothing_of_what_is_open(a_world: AWorld) -> None:
    world = a_world()
    world.archive.commit(Entry(base_offset=0, last_offset=6, gap=True), world.archive.upload(a_batch(7, 3, epoch=1)))
    world.broker.write(0, a_batch(0, 1, producer=ONE, transactional=True, epoch=4) + a_batch(1, 4, epoch=4))
    world.broker.set_epochs(EpochHistory.of([(4, 0)]))
    world.broker.set_high_watermark(5)
    assert world.read_all(COMMITTED) == []


def test_a_log_that_a_cleaner_left_empty_is_read_from_its_archive(a_world: AWorld) -> None:
    """The only record went for a later one, which was cut off: no batch shows how far the log reaches."""
    world = a_world()
    world.archive.append(a_batch(0, 1, epoch=1), a_batch(1, 3, epoch=2))
    world.broker.write(0, b"")
    world.broker.set_cleaned(0)
    world.broker.set_epochs(EpochHistory.of([(1, 0), (3, 1)]))
    world.broker.set_high_watermark(1)
    assert world.read_all(COMMITTED) == [0]


def test_what_lies_between_a_stale_manifest_and_the_local_log_is_looked_at_before_the_answer(a_world: AWorld) -> None:
    world = a_world(clock=ManualClock())
    world.archive.append(PLAIN + OPENED)
    world.broker.write(0, PLAIN + OPENED)
    world.broker.write(5, ENDED)
    world.broker.write(8, a_batch(8, 1))
    world.broker.set_high_watermark(9)
    world.log.bounds()
    world.archive.append(ENDED)
    world.broker.drop(0)
    world.broker.drop(5)
    world.broker.path(8, "snapshot").write_bytes(encode_snapshot([]))
    world.clock.advance(1_500)  # type: ignore[attr-defined]
    with world.log.read(2, 1 << 20, COMMITTED) as answer:
        assert answer.aborted == [(1, 2)]


def test_a_local_log_that_ends_before_the_archive_begins_answers_nothing_it_cannot_know(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, PLAIN + OPENED)
    world.broker.set_high_watermark(5)
    world.archive.commit(world.archive.upload(a_batch(9, 3)))
    world.log.bounds()  # where no manifest has come yet, an answer without records is as true
    with pytest.raises(TransientError):
        world.log.read(2, 1 << 20, COMMITTED)


def test_files_below_a_log_start_tell_what_a_gap_lacks(a_world: AWorld) -> None:
    """The archive holds the transaction, the gap its marker: deleted records, which are on disk for as long as their segment is."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(archive.upload(PLAIN + OPENED), Entry(base_offset=5, last_offset=7, gap=True), archive.upload(a_batch(8, 2)))
    world.broker.write(0, PLAIN + OPENED + ENDED + a_batch(8, 1))
    world.broker.set_log_start(8)
    world.broker.set_high_watermark(9)
    assert world.read_all(COMMITTED) == [0, 1, 4, 8, 9]


def test_files_of_an_empty_log_tell_what_is_open_where_the_archive_ends_with_a_gap(a_world: AWorld) -> None:
    """Else what is shown now may be aborted by the next batch that is written."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(archive.upload(PLAIN + OPENED), Entry(base_offset=5, last_offset=7, gap=True))
    world.broker.write(0, PLAIN + OPENED + a_batch(5, 3))
    world.broker.write(8, b"")
    world.broker.set_log_start(8)
    world.broker.set_high_watermark(8)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert world.read_all(COMMITTED) == [0, 1]
    world.broker.append(8, an_abort(8, ONE))
    world.broker.set_high_watermark(9)
    world.clock.advance(1_500)  # type: ignore[attr-defined]
    assert world.read_all(COMMITTED) == [0, 1, 4]


def test_so_do_the_files_of_a_log_of_which_nothing_is_proven_yet(a_world: AWorld) -> None:
    """The archive has followed a newer leadership, so what the log offers may be dead; what came before it is contradicted by nothing."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(archive.upload(PLAIN + OPENED), Entry(base_offset=5, last_offset=7, gap=True), leader_epoch=5)
    world.broker.write(0, PLAIN + OPENED + a_batch(5, 3) + a_batch(8, 1, epoch=3) + an_abort(9, ONE, epoch=3))
    world.broker.set_epochs(EpochHistory.of([(3, 8)]))
    world.broker.set_log_start(8)
    world.broker.set_high_watermark(10)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert world.read_all(COMMITTED) == [0, 1]


def test_where_both_end_the_log_whose_newer_leadership_cut_the_archive_says_what_is_open(a_world: AWorld) -> None:
    """Its log start is older than its epoch history, so it serves what no history compares."""
    world = a_world()
    world.archive.append(a_batch(0, 6, epoch=5) + a_batch(6, 3, epoch=7))
    world.broker.write(2, a_batch(2, 3, epoch=6) + a_batch(5, 1, producer=ONE, transactional=True, epoch=9))
    world.broker.set_epochs(EpochHistory.of([(9, 6)]))
    world.broker.set_log_start(2)
    world.broker.set_high_watermark(6)
    assert world.log.bounds(COMMITTED).last_stable_offset == 5
    assert world.read_all(COMMITTED, 5) == []


def test_a_gap_that_is_filled_tells_what_is_open_where_the_local_log_begins(a_world: AWorld) -> None:
    world = a_world(clock=ManualClock())
    archive = world.archive
    begun = archive.upload(PLAIN + OPENED)
    archive.commit(begun, Entry(base_offset=5, last_offset=7, gap=True))
    world.broker.write(8, a_batch(8, 2))
    world.broker.set_high_watermark(10)
    assert world.read_all(COMMITTED) == [0, 1, 2, 3, 4, 8, 9]
    archive.commit(begun, archive.upload(a_batch(5, 3), [OpenTransaction(1, 2)]))
    world.logs.update_manifest(archive.head)
    assert world.read_all(COMMITTED) == [0, 1]


def a_log_that_begins_anew(world: World, *, beginning: bytes | None) -> None:
    """A follower had nothing in common with its leader any more and began where the leader's log did. What its broker writes since
    knows of no transaction that began before, unless `beginning` says so: a snapshot where it begins."""
    world.archive.append(PLAIN + OPENED, a_batch(5, 3))
    if beginning is not None:
        world.broker.path(5, "snapshot").write_bytes(beginning)
    world.broker.write(5, a_batch(5, 3))
    world.broker.write(8, a_batch(8, 2))
    world.broker.path(8, "snapshot").write_bytes(encode_snapshot([]))
    world.broker.write(10, a_batch(10, 2))
    world.broker.path(10, "snapshot").write_bytes(encode_snapshot([]))
    world.broker.set_recovery_point(12)
    world.broker.set_high_watermark(12)


@pytest.mark.parametrize("beginning", [None, encode_snapshot([])])
def test_a_broker_that_does_not_know_a_transaction_of_the_archive_leaves_it_open(a_world: AWorld, beginning: bytes | None) -> None:
    world = a_world(clock=ManualClock())
    a_log_that_begins_anew(world, beginning=beginning)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert world.read_all(COMMITTED) == [0, 1]


@pytest.mark.parametrize("beginning", [None, encode_snapshot([])])
def test_so_it_is_where_the_archive_has_a_gap_that_only_files_below_the_log_start_fill(a_world: AWorld, beginning: bytes | None) -> None:
    """The archive's end knows of transactions since its gap alone, and those files since they begin: none of them ends it."""
    world = a_world(clock=ManualClock())
    a_log_that_begins_anew(world, beginning=beginning)
    archive = world.archive
    before = archive.upload(PLAIN + OPENED)
    archive.commit(before, Entry(base_offset=5, last_offset=7, gap=True), archive.upload(a_batch(8, 2)))
    world.broker.set_log_start(8)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert world.read_all(COMMITTED) == [0, 1]
    world.broker.append(10, an_abort(12, ONE))
    world.broker.set_high_watermark(13)
    world.clock.advance(1_500)  # type: ignore[attr-defined]
    assert world.read_all(COMMITTED) == [0, 1, 4, *range(8, 12)]


@pytest.mark.parametrize("beginning", [None, encode_snapshot([])])
def test_its_marker_ends_a_transaction_that_the_broker_does_not_know(a_world: AWorld, beginning: bytes | None) -> None:
    world = a_world(clock=ManualClock())
    a_log_that_begins_anew(world, beginning=beginning)
    assert world.read_all(COMMITTED) == [0, 1]
    world.broker.append(10, an_abort(12, ONE))
    world.broker.write(13, a_batch(13, 1))
    world.broker.path(13, "snapshot").write_bytes(encode_snapshot([]))
    world.broker.set_recovery_point(14)
    world.broker.set_high_watermark(14)
    world.clock.advance(1_500)  # type: ignore[attr-defined]
    assert world.read_all(COMMITTED) == [0, 1, *range(4, 12), 13]
    world.archive.append(a_batch(8, 2) + a_batch(10, 2) + an_abort(12, ONE))
    world.logs.update_manifest(world.archive.head)
    assert world.read_all(COMMITTED) == [0, 1, *range(4, 12), 13]


def test_a_broker_that_knows_what_the_archive_has_open_is_believed(a_world: AWorld) -> None:
    """Nothing is walked then."""
    world = a_world(clock=ManualClock())
    held = encode_snapshot([ProducerState(1, 0, 0, 2, 0, 0, 0, 2)])
    a_log_that_begins_anew(world, beginning=held)
    world.broker.path(10, "snapshot").write_bytes(held)
    world.broker.path(5).write_bytes(bytes(range(1, 200)))
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    world.broker.path(10, "snapshot").write_bytes(encode_snapshot([]))
    world.restart()
    assert world.log.bounds(COMMITTED).last_stable_offset == 12


def test_a_marker_in_a_gap_ends_nothing_for_a_reader_that_skips_the_gap(a_world: AWorld) -> None:
    """A consumer that knows of an aborted transaction drops its producer's batches until it meets the marker."""
    world = a_world(clock=ManualClock())
    lost = a_batch(5, 1, producer=ONE, transactional=True) + an_abort(6, ONE) + a_batch(7, 1)
    after = a_batch(8, 1, producer=ONE, transactional=True) + a_commit(9, ONE)
    archive = world.archive
    archive.commit(archive.upload(a_batch(0, 5)), Entry(base_offset=5, last_offset=7, gap=True), archive.upload(after))
    world.broker.write(0, a_batch(0, 5) + lost + after)
    world.broker.set_log_start(8)
    world.broker.set_high_watermark(10)
    assert world.read_all(COMMITTED, 5) == [8]
    assert world.read_all(COMMITTED) == [0, 1, 2, 3, 4, 8]


def test_files_of_a_dead_branch_below_a_log_start_open_nothing(a_world: AWorld) -> None:
    """The history was cut at the log start, so it does not tell that they are of another leadership than what is archived."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(
        archive.upload(a_batch(0, 5, epoch=1)), Entry(base_offset=5, last_offset=7, gap=True), archive.upload(a_batch(8, 2, epoch=4))
    )
    world.broker.write(0, a_batch(0, 5, producer=ONE, transactional=True, epoch=3) + a_batch(5, 3, epoch=3) + a_batch(8, 1, epoch=4))
    world.broker.set_epochs(EpochHistory.of([(4, 8)]))
    world.broker.set_log_start(8)
    world.broker.set_high_watermark(9)
    assert world.read_all(COMMITTED) == [0, 1, 2, 3, 4, 8, 9]


def test_where_the_local_log_fills_the_gap_its_transaction_is_open_though_the_archive_denies_its_beginning(a_world: AWorld) -> None:
    """The archive has another leadership's records where it began; what it wrote later is served from the local log."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(
        archive.upload(a_batch(0, 5, epoch=1)), Entry(base_offset=5, last_offset=8, gap=True), archive.upload(a_batch(9, 2, epoch=4))
    )
    world.broker.write(6, a_batch(6, 1, epoch=4) + a_batch(7, 2, producer=ONE, transactional=True, epoch=4) + a_batch(9, 2, epoch=4))
    world.broker.path(6, "snapshot").write_bytes(encode_snapshot([ProducerState(1, 0, 0, 0, 0, 0, 0, 0)]))
    world.broker.set_epochs(EpochHistory.of([(4, 6)]))
    world.broker.set_high_watermark(11)
    assert world.log.bounds(COMMITTED).last_stable_offset == 5
    assert world.read_all(COMMITTED) == [0, 1, 2, 3, 4]


def test_a_transaction_of_a_dead_branch_keeps_nobody_waiting_before_the_local_log(a_world: AWorld) -> None:
    """Its broker still has it open; what the archive has where it began is of another leadership."""
    world = a_world(clock=ManualClock())
    archive = world.archive
    archive.commit(archive.upload(a_batch(0, 3, epoch=3)), Entry(base_offset=3, last_offset=7, gap=True))
    world.broker.write(8, a_batch(8, 1, epoch=4) + a_batch(9, 1, producer=ONE, transactional=True, epoch=4))
    world.broker.path(8, "snapshot").write_bytes(encode_snapshot([ProducerState(1, 0, 0, 1, 0, 0, 0, 1)]))
    world.broker.set_epochs(EpochHistory.of([(4, 8)]))
    world.broker.set_high_watermark(10)
    assert world.log.bounds(COMMITTED).last_stable_offset == 3
    assert world.read_all(COMMITTED) == [0, 1, 2]


def test_a_log_that_cannot_be_looked_at_may_hold_what_ends_a_transaction(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive alone has it open: an answer without records would say that there are none to wait for."""
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(PLAIN + OPENED)
    world.broker.write(0, PLAIN + OPENED + ENDED)
    world.broker.set_high_watermark(8)

    def overtaken(_: LogDirs, partition: TopicPartition) -> LocalLog:
        raise SourceChanged(f"{partition}: the directory changed during each look")

    with monkeypatch.context() as patched:
        patched.setattr(LogDirs, "look", overtaken)
        with world.log.read(0, 1 << 20, COMMITTED) as answer:
            assert answer.next_offset == 2
        with pytest.raises(TransientError, match="the directory changed"):
            world.log.read(2, 1 << 20, COMMITTED)
        with world.log.read(2, 1 << 20, Isolation.READ_UNCOMMITTED) as answer:
            assert answer.next_offset == 5
    clock.advance(60_000)
    assert world.read_all(COMMITTED, 2) == [4, 6, 7]


def test_a_manifest_that_loses_its_branch_during_a_read_restarts_it(a_world: AWorld) -> None:
    store = FlakyStore()
    world = a_world(store=store, local=False)
    common = a_batch(0, 2, epoch=1) + a_batch(2, 2, producer=ONE, transactional=True, epoch=1)
    dead, live = a_commit(4, ONE, epoch=1) + a_batch(5, 1, epoch=1), an_abort(4, ONE, epoch=2) + a_batch(5, 2, epoch=2)
    world.archive.append(common + dead)
    log = world.log
    log.bounds()

    def cut(operation: str, key: str) -> HeadwaterError | None:
        if operation == "read_into" and key.endswith(".log"):
            store.refuse = lambda operation, key: None
            entry, open_before = world.archive.upload(common), OpenTransaction(1, 2)
            world.archive.commit(entry, world.archive.upload(live, [open_before]))
            world.logs.update_manifest(world.archive.head)
        return None

    store.refuse = cut
    with log.read(2, 1 << 20, COMMITTED) as answer:
        assert (answer.next_offset, answer.aborted) == (4, [(1, 2)])


def write_segments(world: World, log: Written, segments: Sequence[tuple[int, bytes]], random: Random) -> None:
    """Segments of a broker, some with the snapshot that it keeps at their base."""
    for base, run in segments:
        world.broker.write(base, run)
        if random.random() < 0.5:
            held = log.until(base).open()
            states = [ProducerState(by, 0, 0, since, 0, 0, 0, since) for by, (_, since) in sorted(held.items())]
            world.broker.path(base, "snapshot").write_bytes(encode_snapshot(states))


def boundaries(log: Written, low: int, high: int) -> list[int]:
    """Where batches begin or the log ends, from `low` to `high`."""
    return [offset for offset in [*(each.base for each in log.batches), log.next_offset] if low <= offset <= high]


def check(world: World, log: Written, least: int) -> None:
    """A scan shows what a reference reader does, up to a horizon that is `least` or later; in both isolations, from anywhere."""
    random = Random(least)
    for isolation in Isolation:
        everything = log.visible(0, log.next_offset + 1, isolation)
        for first in (0, random.randrange(least), random.randrange(least)):
            found = world.read_all(isolation, first, max_bytes=random.choice((1, 20_000, 1 << 20)))
            wanted = [each for each in everything if each >= first]
            assert found == wanted[: len(found)], (isolation, first)
            assert len(found) >= len(log.visible(first, least, isolation)), (isolation, first)


@pytest.mark.parametrize("seed", range(40))
def test_stale_looks_lagging_followers_and_old_disks(a_world: AWorld, seed: int) -> None:
    random = Random(seed)
    log = write(random, 80)
    world = a_world(clock=ManualClock(), cache_bytes=random.choice((0, 1 << 30)))
    objects = runs(random, log, random.randrange(2, 6))
    segments = runs(random, log, random.randrange(2, 6))
    archived = random.randrange(1, len(objects))
    world.archive.append(*(run for _, run in objects[:archived]))
    dropped = max((at for at, (base, _) in enumerate(segments) if base <= world.archive.head.next_offset), default=0)
    dropped = random.randrange(dropped + 1)
    on_disk = random.choice(boundaries(log, segments[dropped][0] + 1, log.next_offset))  # an old disk lacks what came later
    limits = [base for base, _ in segments[1:]] + [log.next_offset]
    kept = [
        (base, b"".join(each.raw for each in log.batches if base <= each.base and each.last < min(end, on_disk)))
        for (base, _), end in zip(segments, limits, strict=True)
        if base < on_disk
    ]
    write_segments(world, log, kept[dropped:], random)
    marks = boundaries(log, segments[dropped][0] + 1, on_disk)
    world.broker.set_high_watermark(seen := random.choice(marks))
    least = max(seen, world.archive.head.next_offset)
    assert world.log.bounds(COMMITTED).last_stable_offset == log.stable_offset(least)
    check(world, log, least)
    world.broker.set_high_watermark(random.choice([mark for mark in marks if mark >= seen]))  # unseen: the clock stands still
    world.archive.append(*(run for _, run in objects[archived:][: random.randrange(3)]))
    world.logs.update_manifest(world.archive.head)
    least = max(seen, world.archive.head.next_offset)
    check(world, log, least)
    assert world.log.bounds(COMMITTED).last_stable_offset >= log.stable_offset(least)  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(40))
def test_branches(a_world: AWorld, seed: int) -> None:
    """Archive and disk hold different branches of one log: whatever the newer leadership says counts, on either side."""
    random = Random(seed)
    common = write(random, 40, epoch=1)
    old, new = write(random, 30, before=common, epoch=1), write(random, 30, before=common, epoch=2)
    fork = common.next_offset
    archive_is_old = random.random() < 0.5
    archived, local = (old, new) if archive_is_old else (new, old)
    world = a_world(clock=ManualClock())
    objects, segments = runs(random, archived, random.randrange(2, 6)), runs(random, local, random.randrange(2, 6))
    world.archive.append(*(run for _, run in objects))
    dropped = random.randrange(len([base for base, _ in segments if base <= fork]))
    write_segments(world, local, segments[dropped:], random)
    epochs = [(1, 0)] if local is old else [(1, 0), (2, fork)]
    world.broker.set_epochs(EpochHistory.of(epochs))
    mark = random.choice(boundaries(local, segments[dropped][0] + 1, local.next_offset))
    world.broker.set_high_watermark(mark)
    least = max(mark, fork) if archive_is_old else archived.next_offset
    assert world.log.bounds(COMMITTED).last_stable_offset == new.stable_offset(least)
    check(world, new, least)
