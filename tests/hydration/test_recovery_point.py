from collections.abc import Callable

from headwater_core.epochs import EpochHistory
from hydration.local.recovery_point import RecoveryPoint
from hydration.local.scan_budget import ScanBudget
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import World


def test_a_recovery_point_counts_for_the_leader_epoch_in_which_it_was_read(a_world: Callable[[], World]) -> None:
    world, point = a_world(), RecoveryPoint()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    world.broker.set_recovery_point(10)
    assert point.covers(world.broker.look(), 10, ScanBudget())
    world.broker.set_recovery_point(4)
    assert point.covers(world.broker.look(), 10, ScanBudget()), "in one epoch it only grows, so that it is not read again"
    world.broker.set_epochs(EpochHistory.of([(0, 0), (1, 4)]))
    assert not point.covers(world.broker.look(), 10, ScanBudget())


def test_it_is_read_again_by_another_look_that_needs_more(a_world: Callable[[], World]) -> None:
    world, point = a_world(), RecoveryPoint()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    world.broker.set_recovery_point(4)
    look = world.broker.look()
    assert not point.covers(look, 10, ScanBudget())
    world.broker.set_recovery_point(10)
    assert not point.covers(look, 10, ScanBudget())
    assert point.covers(world.broker.look(), 10, ScanBudget())
