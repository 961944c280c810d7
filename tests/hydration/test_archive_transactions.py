"""Transactions that began where the archive has a gap: what becomes of them is found in the batches after it."""

from collections.abc import Callable
from typing import Any

import pytest

from hydration.answers import Isolation
from hydration.config import ReadPriority
from manifests.entry import Entry
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, an_abort
from tests.hydration.test_partition_transactions import ENDED, OPENED, PLAIN
from tests.hydration.world import World

AWorld = Callable[..., World]
COMMITTED = Isolation.READ_COMMITTED
ONE = Producer(id=1)
DONE, UNDECIDED = a_commit(5, ONE) + a_batch(6, 2), a_batch(5, 3)


def a_world_with_a_gap(a_world: AWorld, *after: bytes, start: int = 0, **options: Any) -> World:
    """The archive lacks what comes before offset 5, as what began there does not show in what follows."""
    world = a_world(clock=ManualClock(), **options)
    gap = [Entry(base_offset=start, last_offset=4, gap=True)] if start < 5 else []
    world.archive.commit(*gap, world.archive.upload(after[0]))
    world.archive.append(*after[1:])
    return world


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST])
@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ([ENDED], [0, 1, 4, 6, 7]),
        ([DONE], [0, 1, 2, 3, 4, 6, 7]),
        ([UNDECIDED], [0, 1]),
        ([UNDECIDED, a_batch(8, 1) + an_abort(9, ONE)], [0, 1, 4, 5, 6, 7, 8]),
        ([a_batch(5, 1, producer=ONE, transactional=True), a_batch(6, 1), an_abort(7, ONE)], [0, 1, 4, 6]),
    ],
)
def test_what_began_in_a_gap_that_a_follower_fills_ends_where_the_archive_says(
    a_world: AWorld, priority: ReadPriority, after: list[bytes], shown: list[int], start: int
) -> None:
    world = a_world_with_a_gap(a_world, *after, start=start, priority=priority)
    world.broker.write(0, PLAIN + OPENED)
    world.broker.set_high_watermark(5)
    assert world.read_all(COMMITTED) == shown
    assert world.log.bounds(COMMITTED).last_stable_offset == (2 if after == [UNDECIDED] else world.archive.head.next_offset)


def test_what_began_in_a_gap_and_is_open_where_both_tiers_end_is_not_shown(a_world: AWorld) -> None:
    world = a_world_with_a_gap(a_world, UNDECIDED)
    world.broker.write(0, PLAIN + OPENED + UNDECIDED)
    world.broker.set_high_watermark(8)
    assert world.read_all(COMMITTED) == [0, 1]


def test_the_end_of_what_began_in_a_gap_is_looked_for_once(a_world: AWorld) -> None:
    world = a_world_with_a_gap(a_world, UNDECIDED, cache_bytes=0)
    world.broker.write(0, PLAIN + OPENED)
    world.broker.set_high_watermark(5)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    gets = world.gets()
    assert world.log.bounds(COMMITTED).last_stable_offset == 2
    assert world.gets() == gets
    world.archive.append(a_batch(8, 1), an_abort(9, ONE))
    world.logs.update_manifest(world.archive.head)
    assert world.log.bounds(COMMITTED).last_stable_offset == 10
    assert world.gets() == gets + 2
    world.archive.commit(*tuple(world.archive.head.entries)[:2])
    world.logs.update_manifest(world.archive.head)
    assert world.log.bounds(COMMITTED).last_stable_offset == 2  # a dead branch was cut off, and with it the marker
