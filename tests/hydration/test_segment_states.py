"""Random logs, cut, archived and dropped at random, against what a consumer must see (I10)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from hydration.answers import Isolation
from hydration.config import ReadPriority
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, an_abort
from tests.hydration.world import World

AWorld = Callable[..., World]


@dataclass(frozen=True)
class Batch:
    """One batch as its producer knows it. `outcome` is what a marker says; `transaction` is None for plain data."""

    base: int
    last: int
    raw: bytes
    producer: int
    transaction: int | None
    outcome: str | None = None


@dataclass
class Written:
    """A log as its producers know it, batch by batch."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    def until(self, offset: int) -> "Written":
        """The whole batches below `offset`."""
        return Written([each for each in self.batches if each.last < offset])

    def open(self) -> dict[int, tuple[int, int]]:
        """By producer: the transaction it is in, and that one's first offset."""
        found: dict[int, tuple[int, int]] = {}
        for each in self.batches:
            if each.outcome is not None:
                del found[each.producer]
            elif each.transaction is not None:
                found.setdefault(each.producer, (each.transaction, each.base))
        return found

    def stable_offset(self, high_watermark: int) -> int:
        return min((first for _, first in self.until(high_watermark).open().values()), default=high_watermark)

    def visible(self, first: int, high_watermark: int, isolation: Isolation) -> list[int]:
        committed = {each.transaction for each in self.batches if each.outcome == "committed"} | {None}
        uncommitted = isolation is Isolation.READ_UNCOMMITTED
        end = high_watermark if uncommitted else self.stable_offset(high_watermark)
        return [
            offset
            for each in self.batches
            if each.outcome is None and (uncommitted or each.transaction in committed)
            for offset in range(each.base, each.last + 1)
            if first <= offset < end
        ]


def write(random: Random, batches: int, *, before: Written | None = None, epoch: int = 0) -> Written:
    """`before` and so many batches more."""
    log = Written(list(before.batches) if before is not None else [])
    for _ in range(batches):
        base, producer, current = log.next_offset, random.randrange(4), {by: each for by, (each, _) in log.open().items()}
        if producer in current and random.random() < 0.2:
            outcome = random.choice(("aborted", "committed"))
            raw = (an_abort if outcome == "aborted" else a_commit)(base, Producer(id=producer), epoch=epoch)
            log.batches.append(Batch(base, base, raw, producer, current[producer], outcome))
            continue
        values: list[bytes | None] = [random.randbytes(random.choice((10, 300, 9_000))) for _ in range(random.randrange(1, 4))]
        last = base + len(values) - 1
        if random.random() < 0.3:
            log.batches.append(Batch(base, last, a_batch(base, values, epoch=epoch), producer, None))
            continue
        raw = a_batch(base, values, producer=Producer(id=producer), transactional=True, epoch=epoch)
        log.batches.append(Batch(base, last, raw, producer, current.get(producer, base)))
    return log


def runs(random: Random, log: Written, pieces: int) -> list[tuple[int, bytes]]:
    """The whole log in runs, cut between batches."""
    cuts = sorted(random.sample(range(1, len(log.batches)), pieces - 1))
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(log.batches)], strict=True):
        found.append((log.batches[start].base, b"".join(each.raw for each in log.batches[start:stop])))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_scan_shows_every_readable_record_once(a_world: AWorld, seed: int) -> None:
    random = Random(seed)
    log = write(random, 120)
    segments = runs(random, log, random.randrange(2, 7))
    objects = segments if random.random() < 0.5 else runs(random, log, random.randrange(2, 7))
    world = a_world(
        priority=random.choice([ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST]),
        cache_bytes=random.choice((0, 200_000, 1 << 30)),
        readahead_chunks=random.choice((0, 3)),
        lmdb=random.random() < 0.5,
    )
    archived = random.randrange(1, len(objects))
    world.archive.append(*(run for _, run in objects[:archived]))
    dropped = max((n for n, (base, _) in enumerate(segments) if base <= world.archive.head.next_offset), default=0)
    dropped = random.randrange(dropped + 1)
    for base, run in segments[dropped:]:
        world.broker.write(base, run)
    checkpoint = random.choice([each.base for each in log.batches if each.base >= segments[dropped][0]])
    world.broker.set_high_watermark(checkpoint)
    high_watermark = max(checkpoint, world.archive.head.next_offset)
    for isolation in Isolation:
        stable = world.log.bounds(isolation).last_stable_offset
        assert stable == (log.stable_offset(high_watermark) if isolation is Isolation.READ_COMMITTED else None)
        for max_bytes in (1, 20_000, 1 << 20):
            found = world.read_all(isolation, max_bytes=max_bytes)
            assert found == log.visible(0, high_watermark, isolation), (isolation, max_bytes)
    for _ in range(20):
        first = random.randrange(high_watermark)
        isolation = random.choice(list(Isolation))
        assert world.read_all(isolation, first) == log.visible(first, high_watermark, isolation)
        if random.random() < 0.3:
            world.logs.hydrator.cache.evict()


@pytest.mark.parametrize("isolation", list(Isolation))
def test_aborts_over_three_entries_and_across_the_local_border(a_world: AWorld, isolation: Isolation) -> None:
    world = a_world()
    one, two, three = Producer(id=1), Producer(id=2), Producer(id=3)
    first = a_batch(0, 2, producer=one, transactional=True) + a_batch(2, 2, producer=two, transactional=True)
    second = a_batch(4, 2, producer=three, transactional=True) + a_batch(6, 2)
    third = an_abort(8, one) + a_batch(9, 1, producer=one, transactional=True)
    local = a_commit(10, two) + an_abort(11, three) + an_abort(12, one) + a_batch(13, 2)
    world.archive.append(first, second, third)
    world.broker.write(10, local)
    world.broker.set_high_watermark(15)
    committed = [2, 3, 6, 7, 13, 14]
    for start in range(15):
        wanted = committed if isolation is Isolation.READ_COMMITTED else [0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 14]
        assert world.read_all(isolation, start, max_bytes=1) == [offset for offset in wanted if offset >= start]
    if isolation is Isolation.READ_COMMITTED:
        with world.log.read(0, 1, isolation) as answer:
            assert answer.aborted == [(1, 0)]
        with world.log.read(4, 1, isolation) as answer:
            assert answer.aborted == [(1, 0), (3, 4)]


def test_a_transaction_left_open_holds_back_committed_readers_only(a_world: AWorld) -> None:
    world = a_world(local=False)
    world.archive.append(a_batch(0, 3), a_batch(3, 2, producer=1, transactional=True) + a_batch(5, 2))
    assert world.read_all() == list(range(7))
    assert world.read_all(Isolation.READ_COMMITTED) == [0, 1, 2]
    bounds = world.log.bounds(Isolation.READ_COMMITTED)
    assert (bounds.last_stable_offset, bounds.high_watermark) == (3, 7)
