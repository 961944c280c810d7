"""What moves, vanishes or belongs to another while it is read: never a silent gap, never a false OffsetOutOfRange."""

from collections.abc import Callable

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import HeadwaterError, OffsetOutOfRange, Superseded, TransientError
from hydration.answers import Isolation
from hydration.archive.manifest_view import Extent, GapSpan
from hydration.scope import Scope, Span
from hydration.views import Unsettled, View
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_batch, a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import PARTITION, World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_segments_archived_and_dropped_by_another_process_are_read_from_the_archive(a_world: AWorld, known: bool, cleaned: bool) -> None:
    world = a_world(clock=ManualClock())
    if known:
        world.archive.append(a_segment(0, 10))
    for base in (0, 10, 20, 30):
        world.broker.write(base, a_segment(base, 10))
    world.broker.set_high_watermark(40)
    if cleaned:
        world.broker.set_cleaned(10)
    log = world.log
    log.bounds()
    for base in (0, 10, 20) if not known else (10, 20):
        world.archive.append(a_segment(base, 10))
    for base in (0, 10, 20):
        world.broker.drop(base)
    world.clock.advance(900)  # type: ignore[attr-defined]
    assert world.read_all(first=10) == list(range(10, 40))
    assert log.bounds().log_start == 0


def test_no_gap_is_proven_while_the_manifest_cannot_be_loaded(a_world: AWorld) -> None:
    store = FlakyStore()
    world = a_world(store=store, clock=ManualClock())
    world.archive.append(a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.write(20, a_segment(20, 10))
    world.broker.set_high_watermark(30)
    world.log.bounds()
    world.archive.append(a_segment(10, 10))
    world.broker.drop(10)
    store.refuse = lambda operation, key: TransientError("away")
    world.clock.advance(1_000)  # type: ignore[attr-defined]
    with pytest.raises(TransientError):
        world.log.read(10, 1, UNCOMMITTED)


@pytest.mark.parametrize("how", ["unmounted", "partition"])
def test_a_vanished_local_log_is_worth_another_try_until_the_archive_reaches_its_end(a_world: AWorld, how: str) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(a_segment(0, 10))
    world.broker.write(10, a_segment(10, 10))
    world.broker.set_high_watermark(20)
    log = world.log
    log.bounds()
    if how == "unmounted":
        world.broker.root.rename(world.root / "away")
        world.broker.root.mkdir()
    else:
        world.broker.directory.rename(world.root / "away")
    clock.advance(2_000)
    for offset in (10, 15, 25):
        with pytest.raises(TransientError):
            log.read(offset, 1, UNCOMMITTED)
    with pytest.raises(TransientError):
        log.bounds()
    log.read(5, 1, UNCOMMITTED).close()
    world.logs.refresh() if how == "partition" else None
    with pytest.raises(TransientError):
        world.log.read(15, 1, UNCOMMITTED)
    world.archive.append(a_segment(10, 10))
    clock.advance(2_000)
    world.log.read(15, 1, UNCOMMITTED).close()
    if how == "partition":
        with pytest.raises(OffsetOutOfRange):
            world.log.read(25, 1, UNCOMMITTED)


def test_the_last_stable_offset_is_not_below_the_log_start(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_batch(0, 2, producer=7, transactional=True) + a_segment(2, 8))
    world.broker.set_high_watermark(10)
    world.broker.set_log_start(5)
    assert world.log.bounds(Isolation.READ_COMMITTED).last_stable_offset == 5


def test_leader_epochs_are_answered_without_another_request_to_the_store(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(a_segment(0, 10, epoch=3))
    world.broker.write(0, a_segment(0, 10, epoch=3))
    world.broker.set_high_watermark(10)
    world.log.bounds()
    calls = world.store.calls["get"]
    for _ in range(10):
        clock.advance(1_000)
        assert world.log.try_leader_epoch() == 3
    assert world.store.calls["get"] == calls


def a_view(
    *,
    archive: Span | None = None,
    local: Span | None = None,
    extent: Extent | None = None,
    failure: HeadwaterError | None = None,
    settled: bool = True,
) -> View:
    scope = Scope(local=local, archive=archive, log_start=0, high_watermark=30, epochs=EpochHistory(), leader_epoch=0, compacted=False)
    return View(PARTITION, scope, None, extent, failure, settled)


def an_extent(last_offset: int, gap_from: int | None = None) -> Extent:
    return Extent(
        version=1,
        commit_id="1",
        start_offset=0,
        last_offset=last_offset,
        leader_epoch=0,
        epochs=EpochHistory(),
        open_from=None,
        gaps=() if gap_from is None else (GapSpan(gap_from, last_offset + 1),),
    )


@pytest.mark.parametrize(
    ("archive", "local", "extent", "whole", "cut"),
    [
        (Span(0, 20), None, an_extent(19), True, False),
        (Span(0, 20), Span(10, 20), an_extent(19), True, False),
        (Span(0, 20), Span(10, 30), an_extent(19), False, False),
        (Span(0, 20), Span(10, 18), an_extent(19, gap_from=15), False, False),
        (Span(0, 12), None, an_extent(19), False, True),
        (Span(0, 12), Span(10, 30), an_extent(19), False, False),
        (None, Span(0, 30), None, False, False),
    ],
)
def test_a_view_ends_with_the_archive_where_nothing_else_reaches_further(
    archive: Span | None, local: Span | None, extent: Extent | None, whole: bool, cut: bool
) -> None:
    view = a_view(archive=archive, local=local, extent=extent)
    assert (view.ends_with_archive, view.ends_with_cut_archive) == (whole, cut)


def test_a_gap_is_proven_by_a_settled_view_of_two_known_tiers() -> None:
    a_view().prove_gap(5)
    with pytest.raises(Unsettled):
        a_view(settled=False).prove_gap(5)
    with pytest.raises(TransientError, match="not known now: away"):
        a_view(failure=TransientError("away")).prove_gap(5)
    with pytest.raises(Superseded):
        a_view(failure=Superseded("created again")).prove_gap(5)
