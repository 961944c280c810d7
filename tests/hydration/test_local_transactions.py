"""Transactions of the local log: what the broker's own files are good for, and what is read where they are not."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest

from headwater_core.errors import OffsetOutOfRange, SourceChanged, TransientError
from headwater_core.segments.checkpoints import RECOVERY_POINTS
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction
from hydration.answers import Isolation
from hydration.archive.hydrator import SCAN_WORKERS
from hydration.local.local_transactions import LocalTransactions, UnknownBeginning
from hydration.local.scan_budget import ScanBudget, ScanBudgetExceeded
from hydration.runfile import RunFile
from hydration.scope import Span
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.broker_files import encode_snapshot, encode_txnindex
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, a_segment, an_abort
from tests.hydration.test_segment_states import Written, runs, write
from tests.hydration.world import TOPIC, World

AWorld = Callable[..., World]
COMMITTED = Isolation.READ_COMMITTED
T = TypeVar("T")


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is read of segments."""
    sizes: list[int] = []
    read = RunFile.read

    def counting(self: RunFile, position: int, size_bytes: int) -> bytes:
        found = read(self, position, size_bytes)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(RunFile, "read", counting)
    return sizes


def write_snapshot(world: World, log: Written, base: int) -> None:
    held = log.until(base).open()
    states = [ProducerState(by, 0, 0, since, 0, 0, 0, since) for by, (_, since) in sorted(held.items())]
    world.broker.path(base, "snapshot").write_bytes(encode_snapshot(states))


def aborted_between(log: Written, base: int, end: int) -> tuple[AbortedTransaction, ...]:
    """What a broker's index of that segment lists."""
    found = []
    for each in log.batches:
        if each.outcome == "aborted" and base <= each.base < end:
            first = log.until(each.base).open()[each.producer][1]
            stable = min((since for _, since in log.until(each.last + 1).open().values()), default=each.last + 1)
            found.append(AbortedTransaction(each.producer, first, each.last, stable))
    return tuple(found)


def test_many_segments_without_a_snapshot_are_read_one_after_the_other(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 1, producer=1, transactional=True) + a_batch(1, 2))
    for number in range(1, 1500):
        world.broker.write(number * 3, a_segment(number * 3, 3))
    world.broker.set_high_watermark(4500)
    assert world.log.bounds(COMMITTED).last_stable_offset == 0
    world.broker.append(4497, an_abort(4500, 1) + a_batch(4501, 1))
    world.broker.set_high_watermark(4502)
    world.restart()
    with world.log.read(0, 1 << 20, COMMITTED) as answer:
        assert (answer.last_stable_offset, answer.aborted) == (4502, [(1, 0)])


def test_a_high_watermark_that_moves_costs_what_was_appended(a_world: AWorld, read_bytes: list[int]) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_batch(0, [b"x" * 1000]))
    world.broker.set_high_watermark(1)
    log, steps = world.log, 300
    log.bounds(COMMITTED)
    read_bytes.clear()
    for offset in range(1, steps + 1):
        last = offset == steps
        world.broker.append(0, an_abort(offset, 3) if last else a_batch(offset, [b"x" * 1000], producer=3, transactional=offset > 5))
        world.broker.set_high_watermark(offset + 1)
        clock.advance(1_500)
        assert log.bounds(COMMITTED).last_stable_offset == (offset + 1 if offset < 6 or last else 6)
    assert sum(read_bytes) < 2 * steps * 1200
    with log.read(10, 1, COMMITTED) as answer:
        assert answer.aborted == [(3, 6)]


def test_sealed_segments_are_not_read_where_the_broker_says_it(a_world: AWorld, read_bytes: list[int]) -> None:
    world, random = a_world(), Random(1)
    log = write(random, 300)
    segments = runs(random, log, 5)
    ends = [base for base, _ in segments[1:]] + [log.next_offset]
    for (base, run), end in zip(segments, ends, strict=True):
        world.broker.write(base, run)
        write_snapshot(world, log, base)
        if rows := aborted_between(log, base, end):
            world.broker.path(base, "txnindex").write_bytes(encode_txnindex(rows))
    world.broker.set_recovery_point(ends[-2])
    world.broker.set_high_watermark(log.next_offset)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    everything, is_all = known.aborted(look, Span(0, log.next_offset), Span(0, log.next_offset), ScanBudget())
    assert tuple(everything) == aborted_between(log, 0, log.next_offset)
    assert is_all == (not log.open())
    assert sum(read_bytes) <= len(segments[-1][1]) + 100 * len(log.batches)


@pytest.mark.parametrize("how", ["unflushed", "no checkpoint", "damaged", "cut", "compacted", "bad snapshots"])
def test_what_cannot_be_trusted_is_looked_for_in_the_segments(a_world: AWorld, how: str) -> None:
    world = a_world()
    one, two = Producer(id=1), Producer(id=2)
    first = a_batch(0, 2, producer=one, transactional=True) + a_batch(2, 2, producer=two, transactional=True) + an_abort(4, one)
    second = a_commit(5, two) + a_batch(6, 1)
    world.broker.write(0, first)
    world.broker.write(5, second)
    world.broker.set_high_watermark(7)
    states = [ProducerState(2, 0, 0, 3, 0, 0, 0, 2)]
    world.broker.path(5, "snapshot").write_bytes(encode_snapshot(states))
    index = world.broker.path(0, "txnindex")
    index.write_bytes(encode_txnindex((AbortedTransaction(1, 0, 4, 2),)))
    world.broker.set_recovery_point(7)
    match how:
        case "unflushed":
            world.broker.set_recovery_point(4)
            index.unlink()
        case "no checkpoint":
            (world.broker.root / RECOVERY_POINTS).unlink()
            index.unlink()
        case "damaged":
            index.write_bytes(bytes(34))
        case "cut":
            index.write_bytes(index.read_bytes()[:-3])
        case "compacted":
            world.broker.set_cleaned(5)
            index.unlink()
        case "bad snapshots":
            index.unlink()
            world.broker.set_recovery_point(0)
            world.broker.path(5, "snapshot").write_bytes(b"x" * 60)
    assert world.read_all(COMMITTED) == [2, 3, 6]


def test_a_broker_that_lists_nothing_is_believed_below_its_recovery_point(a_world: AWorld, read_bytes: list[int]) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 500, value_bytes=10_000))
    world.broker.write(500, a_segment(500, 5))
    world.broker.path(500, "snapshot").write_bytes(encode_snapshot([]))
    world.broker.set_recovery_point(500)
    world.broker.set_high_watermark(505)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    assert known.aborted(look, Span(0, 505), Span(0, 500), ScanBudget()) == ([], True)
    assert known.ending(look, 505, ScanBudget()).still == ()
    assert sum(read_bytes) < 2_000  # of 5 MB


@pytest.mark.parametrize("how", ["retention", "topic deletion"])
def test_an_index_that_went_with_its_segment_lists_something_else_than_nothing(a_world: AWorld, how: str) -> None:
    """Brokers rename a segment and then what lies beside it; readers go on in the file, which is open, for as long as their look counts."""
    world = a_world(clock=ManualClock())
    world.broker.write(0, a_batch(0, 2, producer=1, transactional=True) + an_abort(2, 1))
    world.broker.path(0, "txnindex").write_bytes(encode_txnindex((AbortedTransaction(1, 0, 2, 3),)))
    world.broker.write(3, a_segment(3, 3))
    world.broker.path(3, "snapshot").write_bytes(encode_snapshot([]))
    world.broker.set_recovery_point(3)
    world.broker.set_high_watermark(6)
    log = world.log
    assert log.bounds(COMMITTED).last_stable_offset == 6
    with log.read(0, 1 << 20, Isolation.READ_UNCOMMITTED) as answer:
        assert answer.next_offset == 3
    if how == "retention":
        for suffix in ("log", "txnindex"):
            path = world.broker.path(0, suffix)
            path.rename(path.with_name(path.name + ".deleted"))
    else:
        world.broker.directory.rename(world.broker.root / f"{TOPIC}-0.0123456789abcdef-delete")
    with pytest.raises((OffsetOutOfRange, TransientError)):
        log.read(0, 1 << 20, COMMITTED).close()


def patiently(random: Random, ask: Callable[[ScanBudget], T]) -> T:
    """The answer, however often the budget is too small."""
    for _ in range(100_000):
        with suppress(ScanBudgetExceeded):
            return ask(ScanBudget(random.choice((1, 500, 20_000))))
    raise AssertionError("it never gets further")


@pytest.mark.parametrize("seed", range(15))
def test_any_mixture_of_broker_files_gives_the_same(a_world: AWorld, seed: int) -> None:
    random = Random(seed)
    log = write(random, 120)
    segments = runs(random, log, random.randrange(2, 8))
    ends = [base for base, _ in segments[1:]] + [log.next_offset]
    world = a_world()
    trusted = random.choice(ends)
    for (base, run), end in zip(segments, ends, strict=True):
        world.broker.write(base, run)
        if random.random() < 0.5:
            write_snapshot(world, log, base)
        rows = aborted_between(log, base, end)
        if rows and (end <= trusted or random.random() < 0.5):
            damaged = random.random() < 0.2
            world.broker.path(base, "txnindex").write_bytes(encode_txnindex(rows)[: -1 if damaged else None])
    world.broker.set_recovery_point(trusted)
    high_watermark = random.choice([each.base for each in log.batches][10:])
    world.broker.set_high_watermark(high_watermark)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]

    for _ in range(10):
        ending = patiently(random, partial(known.ending, look, high_watermark))
        assert sorted(each.first_offset for each in ending.still) == sorted(since for _, since in log.until(high_watermark).open().values())
        assert ending.known_to == high_watermark
        start = random.randrange(high_watermark)
        offsets = Span(start, random.randrange(start, high_watermark) + 1)
        found, is_all = patiently(random, partial(known.aborted, look, Span(start, high_watermark), offsets))
        wanted = [
            each
            for each in aborted_between(log, start, high_watermark)
            if each.first_offset < offsets.end and each.last_offset >= offsets.start
        ]
        still = [since for _, since in log.until(high_watermark).open().values() if since < offsets.end]
        assert found == wanted
        assert is_all == (not still)
    assert world.read_all(COMMITTED) == log.visible(0, high_watermark, COMMITTED)


def test_what_was_open_where_a_log_begins_has_to_be_set(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(5, a_batch(5, 1) + an_abort(6, 1) + a_batch(7, 1))
    world.broker.set_high_watermark(8)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    with pytest.raises(UnknownBeginning):
        known.ending(look, 8, ScanBudget())
    known.begin_with(look, (OpenTransaction(1, 3),))
    assert known.ending(look, 8, ScanBudget()).still == ()
    assert known.aborted(look, Span(5, 8), Span(0, 8), ScanBudget()) == ([AbortedTransaction(1, 3, 6, 7)], True)


def test_what_was_open_before_the_log_is_asked_again_once_somebody_holds_it(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(5, a_batch(5, 1) + an_abort(6, 1) + a_batch(7, 1))
    world.broker.set_high_watermark(8)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    known.begin_with(look, (), is_guess=True)
    assert known.aborted(look, Span(5, 8), Span(0, 8), ScanBudget()) == ([], True)
    known.forget_guess()
    with pytest.raises(UnknownBeginning):
        known.aborted(look, Span(5, 8), Span(0, 8), ScanBudget())
    known.begin_with(look, (OpenTransaction(1, 3),))
    known.forget_guess()  # it is none
    assert known.aborted(look, Span(5, 8), Span(0, 8), ScanBudget()) == ([AbortedTransaction(1, 3, 6, 7)], True)


def test_a_look_that_is_older_than_what_is_known_is_made_again(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 1, producer=1, transactional=True) + a_commit(1, 1))
    world.broker.set_high_watermark(1)
    known, old = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    world.broker.set_high_watermark(2)
    assert known.ending(world.broker.look(), 2, ScanBudget()).still == ()
    with pytest.raises(SourceChanged):
        known.ending(old, 1, ScanBudget())


def test_what_is_open_where_a_dead_branch_begins_is_found_out_beside_what_is_at_the_end(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 1) + a_batch(1, 1, producer=1, transactional=True) + a_batch(2, 1) + a_commit(3, 1) + a_batch(4, 1))
    world.broker.write(5, a_batch(5, 1))
    world.broker.set_high_watermark(6)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    opened = (OpenTransaction(1, 1),)
    found = [known.ending(look, end, ScanBudget()) for end in (6, 3, 1, 4, 2, 5)]
    assert found == [((), 6), (opened, 3), ((), 1), ((), 4), (opened, 2), ((), 5)]


def test_a_segment_that_was_cut_is_looked_at_again(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 1, producer=1, transactional=True) + a_segment(1, 9))
    world.broker.set_high_watermark(5)
    known, look = LocalTransactions(world.log.local), world.broker.look()  # type: ignore[arg-type]
    assert known.ending(look, 5, ScanBudget()).still == (OpenTransaction(1, 0),)
    with world.broker.path(0).open("r+b") as file:
        file.truncate(10)
    world.broker.set_high_watermark(8)
    with pytest.raises(SourceChanged):
        known.ending(world.broker.look(), 8, ScanBudget())


def test_a_follower_that_was_cut_below_what_is_known_is_read_again(a_world: AWorld) -> None:
    """Its epoch history tells of the new leader only with the first batch of it, which may not come for long."""
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_batch(0, 1) + a_batch(1, 1, producer=1, transactional=True) + a_batch(2, 1))
    world.broker.set_high_watermark(3)
    log = world.log
    assert log.bounds(COMMITTED).last_stable_offset == 1
    with world.broker.path(0).open("r+b") as file:
        file.truncate(len(a_batch(0, 1)))
    world.broker.set_high_watermark(1)
    clock.advance(10_000)
    assert log.bounds(COMMITTED).last_stable_offset == 1
    with log.read(0, 1 << 20, COMMITTED) as answer:
        assert (answer.next_offset, answer.aborted) == (1, [])
    world.broker.append(0, a_batch(1, 1) + a_batch(2, 1))
    world.broker.set_high_watermark(3)
    clock.advance(10_000)
    assert log.bounds(COMMITTED).last_stable_offset == 3


def test_what_is_known_is_answered_without_a_worker(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    world.log.bounds(COMMITTED)
    go = threading.Event()
    try:
        for _ in range(SCAN_WORKERS):
            world.logs.hydrator.submit(lambda: go.wait(20), world.broker.root)
        with world.log.read(0, 1 << 20, COMMITTED, timeout_s=5) as answer:
            assert answer.next_offset == 10
    finally:
        go.set()


@pytest.mark.parametrize("listed_max", [1 << 16, 40])
def test_lists_of_many_segments_cost_no_look_at_all_of_them_each(a_world: AWorld, monkeypatch: pytest.MonkeyPatch, listed_max: int) -> None:
    segments = 300
    monkeypatch.setattr("hydration.local.local_transactions.LISTED_MAX", listed_max)
    world = a_world()
    for base in range(0, 2 * segments, 2):
        world.broker.write(base, a_batch(base, 2))
        world.broker.path(base, "txnindex").write_bytes(encode_txnindex((AbortedTransaction(1, base, base + 1, base),)))
    end = 2 * segments - 2
    world.broker.set_high_watermark(end)
    world.broker.set_recovery_point(end)
    tier = world.log.local
    assert tier is not None
    log, known = tier.log(), LocalTransactions(tier)
    assert log is not None
    states = known._segments
    of, looks = states.of, 0

    def counting(*which: Any) -> Any:
        nonlocal looks
        looks += 1
        return of(*which)

    monkeypatch.setattr(states, "of", counting)
    found, _ = known.aborted(log, Span(0, end), Span(0, end), ScanBudget())
    assert len(found) == segments - 1
    assert looks < 20 * segments
    kept = [state for state in states._states.values() if state.aborted]
    assert len(kept) <= listed_max
