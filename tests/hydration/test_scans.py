"""Random logs, cut, archived and dropped at random, against what a consumer must see (I10)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from hydration.answers import Isolation
from hydration.config import ReadPriority
from tests.hydration.world import World
from tests.segments.builders import Producer, a_batch, a_commit, an_abort

AWorld = Callable[..., World]


@dataclass
class Written:
    """A log as its producers know it: whole batches by base offset, and what became of each record."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)  # base offset, last offset, bytes
    data: dict[int, int | None] = field(default_factory=dict)  # offset: transaction
    markers: dict[int, int] = field(default_factory=dict)  # offset: the transaction it ends
    outcomes: dict[int, str] = field(default_factory=dict)  # transaction: "committed", "aborted" or absent
    next_offset: int = 0

    def stable_offset(self, high_watermark: int) -> int:
        """By hand: the first offset of a transaction without a marker below the high watermark."""
        ended = {transaction for offset, transaction in self.markers.items() if offset < high_watermark}
        still = [offset for offset, transaction in self.data.items() if transaction is not None and transaction not in ended]
        return min([high_watermark, *(offset for offset in still if offset < high_watermark)])

    def visible(self, first: int, high_watermark: int, isolation: Isolation) -> list[int]:
        end = self.stable_offset(high_watermark) if isolation is Isolation.READ_COMMITTED else high_watermark
        return [
            offset
            for offset, transaction in sorted(self.data.items())
            if first <= offset < end
            and (isolation is Isolation.READ_UNCOMMITTED or transaction is None or self.outcomes.get(transaction) == "committed")
        ]


def write(random: Random, batches: int) -> Written:
    log = Written()
    current: dict[int, int] = {}  # producer: its transaction
    transactions = 0
    for _ in range(batches):
        base = log.next_offset
        producer = random.randrange(4)
        if producer in current and random.random() < 0.2:
            transaction = current.pop(producer)
            aborts = random.random() < 0.5
            raw = (an_abort if aborts else a_commit)(base, Producer(id=producer))
            log.outcomes[transaction] = "aborted" if aborts else "committed"
            log.markers[base] = transaction
            last = base
        else:
            records = random.randrange(1, 4)
            last = base + records - 1
            values: list[bytes | None] = [random.randbytes(random.choice((10, 300, 9_000))) for _ in range(records)]
            if random.random() < 0.3:
                raw = a_batch(base, values)
                owner = None
            else:
                if producer not in current:
                    current[producer] = transactions = transactions + 1
                owner = current[producer]
                raw = a_batch(base, values, producer=Producer(id=producer), transactional=True)
            log.data.update(dict.fromkeys(range(base, last + 1), owner))
        log.batches.append((base, last, raw))
        log.next_offset = last + 1
    return log


def runs(random: Random, log: Written, pieces: int) -> list[tuple[int, bytes]]:
    """The whole log in runs, cut between batches."""
    cuts = sorted(random.sample(range(1, len(log.batches)), pieces - 1))
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(log.batches)], strict=True):
        found.append((log.batches[start][0], b"".join(raw for _, _, raw in log.batches[start:stop])))
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
    high_watermark = random.choice([base for base, _, _ in log.batches if base >= world.archive.head.next_offset] or [log.next_offset])
    world.broker.set_high_watermark(high_watermark)
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
