"""A follower cuts the end of its log in place, for a newer leader, and fills it again, while readers go by an older look."""

from collections.abc import Callable
from typing import Any

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, SourceChanged
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.producers import ProducerState
from hydration.answers import Isolation, ReadResult
from hydration.local.local_tier import LocalTier
from hydration.local.local_transactions import LocalTransactions
from hydration.local.scan_budget import ScanBudget
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.broker_files import encode_snapshot
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, an_abort
from tests.hydration.world import World

AWorld = Callable[..., World]
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
ONE = Producer(id=1)


@pytest.fixture
def world(a_world: AWorld) -> World:
    """Its clock stands still: no reader looks at the directory again without a reason."""
    world: World = a_world(clock=ManualClock())
    return world


def write(world: World, run: bytes, high_watermark: int, *steps: tuple[int, int]) -> None:
    """The log in one segment, seen by its readers."""
    world.broker.write(0, run)
    set_epochs(world, high_watermark, *(steps or ((1, 0),)))
    world.log.bounds()


def cut(world: World, kept: bytes, run: bytes, high_watermark: int, *steps: tuple[int, int]) -> None:
    """What follows `kept` is replaced by `run`, in the same file."""
    with world.broker.path(0).open("r+b") as file:
        file.truncate(len(kept))
    set_epochs(world, high_watermark, *steps)
    world.broker.append(0, run)


def set_epochs(world: World, high_watermark: int, *steps: tuple[int, int]) -> None:
    world.broker.set_epochs(EpochHistory.of(steps))
    world.broker.set_high_watermark(high_watermark)


def read_at(world: World, offset: int, isolation: Isolation = UNCOMMITTED) -> list[tuple[int, int]]:
    """Base offset and leader epoch of each batch."""
    with world.log.read(offset, 1 << 20, isolation) as answer:
        return keys_of(answer)


def keys_of(answer: ReadResult) -> list[tuple[int, int]]:
    raw = b"".join(piece.read() for piece in answer.slices)
    found = []
    while raw:
        header = read_batch_header(raw)
        assert header.size_bytes <= len(raw), "a torn batch"
        found.append((header.base_offset, header.leader_epoch))
        raw = raw[header.size_bytes :]
    return found


def test_what_a_newer_leader_put_in_place_is_not_read_by_an_older_high_watermark(world: World) -> None:
    kept = a_batch(0, 2, epoch=1)
    write(world, kept + a_batch(2, 2, epoch=1), 4)
    cut(world, kept, a_batch(2, 2, epoch=2), 2, (1, 0), (2, 2))
    assert read_at(world, 2) == []
    assert read_at(world, 0) == [(0, 1)]


@pytest.mark.parametrize("isolation", Isolation)
def test_a_remembered_end_of_a_log_that_was_cut_tears_no_batch(world: World, isolation: Isolation) -> None:
    kept = a_batch(0, 2, epoch=1)
    write(world, kept + a_batch(2, 2, epoch=1), 4)
    assert read_at(world, 0, isolation) == [(0, 1), (2, 1)]
    cut(world, kept, a_batch(2, 40, epoch=2) + a_batch(42, 2, epoch=2), 42, (1, 0), (2, 2))
    assert read_at(world, 0, isolation) == [(0, 1), (2, 2)]


def test_a_remembered_boundary_of_a_log_that_was_cut_tears_no_batch(world: World) -> None:
    kept = a_batch(0, 2, epoch=1)
    large = [b"x" * 40_000]
    write(world, kept + a_batch(2, large, epoch=1) + a_batch(3, large, epoch=1) + a_batch(4, large, epoch=1), 5)
    assert read_at(world, 0) == [(0, 1), (2, 1), (3, 1), (4, 1)]
    cut(world, kept, a_batch(2, [b"x" * 60_000], epoch=2) + a_batch(3, large * 3, epoch=2), 6, (1, 0), (2, 2))
    with world.log.read(0, 90_000, UNCOMMITTED) as answer:
        assert keys_of(answer) == [(0, 1), (2, 2)]


def test_another_batch_with_the_offset_of_the_last_one_tears_none_below_the_history(world: World) -> None:
    """The look has a log start from before its history begins: of what lies between, that denies nothing."""
    kept = a_batch(0, 2, epoch=1)
    write(world, kept + a_batch(2, 2, epoch=3), 4, (3, 4))
    assert read_at(world, 0) == [(0, 1), (2, 3)]
    cut(world, kept, a_batch(2, 40, epoch=2) + a_batch(42, 2, epoch=4), 44, (1, 0), (2, 2), (4, 42))
    assert read_at(world, 0) == [(0, 1), (2, 2), (42, 4)]


def test_a_sealed_segment_that_was_cut_leaves_no_gap(world: World) -> None:
    kept = a_batch(0, 2, epoch=1)
    world.broker.write(4, a_batch(4, 2, epoch=1))
    write(world, kept + a_batch(2, 2, epoch=1), 6)
    assert read_at(world, 4) == [(4, 1)]  # its file is open from now on
    world.broker.drop(4)
    cut(world, kept, b"", 2, (1, 0))
    assert read_at(world, 2) == []
    assert world.log.bounds().high_watermark == 2


def test_a_log_that_is_cut_while_transactions_are_looked_up_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = a_batch(0, 2, epoch=1)
    write(world, kept + a_batch(2, 1, producer=ONE, transactional=True, epoch=1) + a_commit(3, ONE, epoch=1), 4)
    aborted = LocalTransactions.aborted

    def overtaken(self: LocalTransactions, *arguments: Any) -> Any:
        found = aborted(self, *arguments)
        monkeypatch.undo()
        cut(world, kept, a_batch(2, 3, producer=ONE, transactional=True, epoch=2) + an_abort(5, ONE, epoch=2), 6, (1, 0), (2, 2))
        return found

    monkeypatch.setattr(LocalTransactions, "aborted", overtaken)
    with world.log.read(0, 1 << 20, COMMITTED) as answer:
        assert keys_of(answer) == [(0, 1), (2, 2), (5, 2)]
        assert answer.aborted == [(1, 2)]


def test_a_walk_over_transactions_does_not_go_on_into_another_branch(world: World) -> None:
    kept = a_batch(0, 2, epoch=1)
    opened = a_batch(2, 1, producer=ONE, transactional=True, epoch=1)
    write(world, kept + opened + a_batch(3, 1, epoch=1), 4)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    world.broker.append(0, a_batch(4, 3, epoch=1))
    world.broker.set_high_watermark(7)
    world.log.local.look_again()  # type: ignore[union-attr]
    world.log.bounds()
    cut(world, kept, a_batch(2, 2, epoch=2) + a_batch(4, 1, epoch=2) + a_batch(5, 2, epoch=2), 5, (1, 0), (2, 2))
    assert world.log.bounds(COMMITTED).last_stable_offset == 5


def test_the_snapshot_of_a_newer_branch_says_nothing_of_the_older_one(world: World) -> None:
    """The segment that it lies beside now has the same name, and is another file."""
    world.broker.write(1, a_batch(1, 1, producer=ONE, transactional=True, epoch=1))
    world.broker.write(2, a_batch(2, 1, epoch=1))
    write(world, a_batch(0, 1, epoch=1), 3)
    world.log.local.open(world.broker.look().segments[2]).release()  # type: ignore[union-attr]
    old = world.log.local.last.log  # type: ignore[union-attr]
    assert old is not None
    world.broker.drop(1)
    world.broker.drop(2)
    world.broker.write(1, a_batch(1, 1, epoch=2))
    world.broker.write(2, a_batch(2, 1, epoch=2))
    world.broker.path(2, "snapshot").write_bytes(encode_snapshot([ProducerState(9, 0, 0, 0, 0, 0, 0, 0)]))
    with pytest.raises(SourceChanged):
        LocalTransactions(world.log.local).ending(old, 3, ScanBudget())  # type: ignore[arg-type]


def test_damage_that_an_older_look_meets_in_a_log_that_was_cut_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = a_batch(0, 2, epoch=1)
    write(world, kept + a_batch(2, 2, epoch=1), 4)
    read = LocalTier.read

    def overtaken(self: LocalTier, *arguments: Any) -> Any:
        monkeypatch.undo()
        cut(world, kept, a_batch(2, 1, epoch=2), 3, (1, 0), (2, 2))
        raise CorruptData("a window", 0, "which was read on both sides of the cut")

    monkeypatch.setattr(LocalTier, "read", overtaken)
    assert read_at(world, 0) == [(0, 1), (2, 2)]
    assert LocalTier.read is read


def test_damage_is_damage_when_the_log_is_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write(world, a_batch(0, 2, epoch=1), 2)

    def damaged(self: LocalTier, *arguments: Any) -> Any:
        raise CorruptData("a segment", 0, "for good")

    monkeypatch.setattr(LocalTier, "read", damaged)
    with pytest.raises(CorruptData):
        read_at(world, 0)


def test_a_high_watermark_beyond_the_logs_end_promises_nothing_of_transactions(world: World) -> None:
    write(world, a_batch(0, 1, epoch=1), 3)
    assert world.log.bounds(COMMITTED).last_stable_offset == 1
    world.broker.append(0, a_batch(1, 1, producer=ONE, transactional=True, epoch=1) + a_batch(2, 1, epoch=1))
    assert world.log.bounds(COMMITTED).last_stable_offset == 1
    assert read_at(world, 1, COMMITTED) == []


def test_the_archive_promises_more_of_transactions_than_a_log_that_ends_below_its_high_watermark(world: World) -> None:
    world.archive.append(a_batch(0, 1, epoch=1), a_batch(1, 1, epoch=1) + a_batch(2, 1, producer=ONE, transactional=True, epoch=1))
    write(world, a_batch(0, 1, epoch=1), 5)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert read_at(world, 1, COMMITTED) == [(1, 1)]
    assert read_at(world, 2, COMMITTED) == []


def test_a_log_that_ended_below_its_high_watermark_is_read_on_when_it_has_grown(world: World) -> None:
    write(world, a_batch(0, 1, epoch=1), 3)
    assert read_at(world, 1) == []
    world.broker.append(0, a_batch(1, 1, epoch=1) + a_batch(2, 1, epoch=1))
    assert read_at(world, 1) == [(1, 1), (2, 1)]


def test_what_a_log_lacks_below_its_high_watermark_is_read_from_the_archive(world: World) -> None:
    world.archive.append(a_batch(0, 1, epoch=1) + a_batch(1, 1, epoch=1))
    write(world, a_batch(0, 1, epoch=1), 2)
    assert read_at(world, 1) == [(1, 1)]


def test_an_epoch_history_that_the_log_contradicts_for_good_does_not_make_it_unreadable(world: World) -> None:
    write(world, a_batch(0, 2, epoch=1) + a_batch(2, 2, epoch=1), 4, (1, 0), (3, 2))
    for isolation in Isolation:
        assert read_at(world, 0, isolation) == [(0, 1), (2, 1)]
