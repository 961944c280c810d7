"""Records of the local log by their time: by the broker's index where it can be trusted, by a walk that is made once where not."""

import struct
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.segments.batch_walk import BatchWalk
from hydration.answers import Isolation
from hydration.local.local_times import LocalTimes
from hydration.local.scan_budget import ScanBudget
from hydration.runfile import RunFile
from hydration.scope import Span
from hydration.times import RecordTime
from manifests.entry import Entry
from recovery.indexes import Indexes
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_record, a_segment
from tests.hydration.test_local_transactions import patiently
from tests.hydration.world import World

AWorld = Callable[..., World]


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    read = RunFile.read

    def counting(self: RunFile, position: int, size_bytes: int) -> bytes:
        found = read(self, position, size_bytes)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(RunFile, "read", counting)
    return sizes


def write_indexes(world: World, base: int, run: bytes) -> None:
    """As a broker makes them."""
    indexes = Indexes(base)
    for position, fields in BatchWalk(memoryview(run), 0, len(run), where="run"):
        indexes.add(position, fields[0] + fields[6], fields[8])
    for suffix, content in indexes.files().items():
        world.broker.path(base, suffix[1:]).write_bytes(content)


@pytest.mark.parametrize("seed", range(25))
def test_look_ups_find_the_first_record(a_world: AWorld, seed: int) -> None:
    random = Random(seed)
    times = [random.randrange(100) if random.random() < 0.3 else at for at in range(100)]
    batches, offset = [], 0
    while offset < 100:
        records = [a_record(at, timestamp=BASE_TIME + times[at]) for at in range(offset, min(100, offset + random.randrange(1, 5)))]
        batches.append((offset, a_batch(offset, records)))
        offset += len(records)
    world = a_world()
    cuts = sorted({0, *random.sample([base for base, _ in batches], random.randrange(1, 5))})
    for base, end in zip(cuts, [*cuts[1:], 100], strict=True):
        run = b"".join(raw for at, raw in batches if base <= at < end)
        world.broker.write(base, run)
        if random.random() < 0.7:
            write_indexes(world, base, run)
    world.broker.set_recovery_point(random.choice([0, *cuts, 100]))
    high_watermark = random.choice([*(base for base, _ in batches[1:]), 100])
    world.broker.set_high_watermark(high_watermark)
    if random.random() < 0.2:
        world.broker.set_cleaned(random.choice(cuts))
    known, look = LocalTimes(world.log.local), world.broker.look()  # type: ignore[arg-type]
    for _ in range(30):
        span = Span(random.randrange(high_watermark), high_watermark)
        wanted, latest = random.randrange(110), random.choice([None, random.randrange(110)])
        first = next((at for at in range(span.start, span.end) if wanted <= times[at] <= (110 if latest is None else latest)), None)
        latest_ms = None if latest is None else BASE_TIME + latest
        found = patiently(random, partial(known.first_not_older, look, BASE_TIME + wanted, span, latest_ms=latest_ms))
        assert found == (None if first is None else RecordTime(first, BASE_TIME + times[first]))
        if span.start == 0:
            assert world.log.offset_for_time(BASE_TIME + wanted, now_ms=latest_ms) == found


def test_segments_without_an_index_are_walked_once(a_world: AWorld, read_bytes: list[int]) -> None:
    world = a_world()
    for number in range(60):
        world.broker.write(number * 100, a_segment(number * 100, 100, value_bytes=1000))
    world.broker.set_high_watermark(6_000)
    assert world.log.offset_for_time(BASE_TIME + 5_990) == (5_990, BASE_TIME + 5_990)
    whole = sum(read_bytes)
    assert whole > 6_000_000
    read_bytes.clear()
    for wanted in (5_995, 5_950, 6_001):
        world.log.offset_for_time(BASE_TIME + wanted)
    assert sum(read_bytes) < whole // 10


def test_segments_with_an_index_are_hardly_read(a_world: AWorld, read_bytes: list[int]) -> None:
    world = a_world()
    for number in range(10):
        run = a_segment(number * 500, 500, value_bytes=1000)
        world.broker.write(number * 500, run)
        write_indexes(world, number * 500, run)
    world.broker.set_recovery_point(4_500)
    world.broker.set_high_watermark(5_000)
    assert world.log.offset_for_time(BASE_TIME + 4_321) == (4_321, BASE_TIME + 4_321)
    assert sum(read_bytes) < 1_000_000  # of 5 MB, in ten segments
    read_bytes.clear()
    assert world.log.offset_for_time(BASE_TIME + 1_234) == (1_234, BASE_TIME + 1_234)
    assert sum(read_bytes) < 200_000


@pytest.mark.parametrize("rows", [[(BASE_TIME + 3, 3)], [(BASE_TIME + 900, 9)], [(BASE_TIME + 9, 400)], [(0, 0)]])
def test_an_index_that_the_batches_contradict_is_not_believed(a_world: AWorld, rows: list[tuple[int, int]]) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, [a_record(at, timestamp=BASE_TIME + at) for at in range(10)]))
    world.broker.path(0, "timeindex").write_bytes(b"".join(struct.pack(">qI", *row) for row in rows))
    world.broker.write(10, a_segment(10, 3))
    world.broker.set_recovery_point(13)
    world.broker.set_high_watermark(13)
    assert world.log.offset_for_time(BASE_TIME + 7) == (7, BASE_TIME + 7)


def test_a_search_that_was_cut_short_continues_where_it_was(a_world: AWorld, read_bytes: list[int]) -> None:
    world = a_world()
    for number in range(5):
        world.broker.write(number * 1000, a_segment(number * 1000, 1000, value_bytes=500))
    world.broker.set_high_watermark(5_000)
    known, look = LocalTimes(world.log.local), world.broker.look()  # type: ignore[arg-type]
    ask = partial(known.first_not_older, look, BASE_TIME + 4_999, Span(0, 5_000))
    assert patiently(Random(0), ask) == (4_999, BASE_TIME + 4_999)
    sizes = sum(world.broker.path(number * 1000).stat().st_size for number in range(5))
    assert sum(read_bytes) < sizes * 1.3  # one walk, and the place that was found
    assert ask(ScanBudget()) == (4_999, BASE_TIME + 4_999)


def test_times_wait_for_no_transactions(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(5, a_segment(5, 3))  # what is open at 5 is not known; for times it need not be
    world.broker.set_high_watermark(8)
    world.archive.commit(start_offset=5)
    assert world.log.offset_for_time(BASE_TIME + 6) == (6, BASE_TIME + 6)
    assert world.read_all(Isolation.READ_COMMITTED, 5) == [5, 6, 7]


def test_a_batch_that_reaches_into_a_dead_branch_has_no_time(a_world: AWorld) -> None:
    world = a_world()
    world.archive.commit(Entry(base_offset=0, last_offset=2, gap=True), world.archive.upload(a_batch(3, 3, epoch=2)))
    world.broker.write(0, a_batch(0, 2, epoch=1) + a_batch(2, 2, epoch=1))
    world.broker.set_epochs(EpochHistory.of([(1, 0)]))
    world.broker.set_high_watermark(4)
    assert world.read_all(first=1) == [1, 3, 4, 5]
    assert [world.log.offset_for_time(BASE_TIME + offset) for offset in (1, 2)] == [(1, BASE_TIME + 1), (3, BASE_TIME + 3)]
