"""Looks that partitions take over: from surveys, and from a thread."""

import threading
from collections.abc import Callable
from pathlib import Path

from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation, ReadResult
from hydration.local.local_tier import LOOK_S
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def test_a_survey_that_began_before_a_look_does_not_take_it_back(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(5)
    dirs = LogDirs([world.broker.root])
    early, began_s = dirs.survey(), clock.monotonic_s()
    clock.advance(10)
    world.broker.set_high_watermark(10)
    assert world.log.bounds().high_watermark == 10
    world.logs._publish(early, began_s)
    assert world.log.bounds().high_watermark == 10


def test_a_log_that_is_read_is_looked_at_without_being_asked_for(a_world: AWorld, tmp_path: Path) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(5)
    log = world.log
    log.read(0, 1, UNCOMMITTED).close()
    assert log.local is not None
    with world.logs.kept_fresh():
        world.broker.set_high_watermark(10)
        pause = threading.Event()
        while log.local.last.log is None or log.local.last.log.high_watermark != 10:
            pause.wait(0.02)
        read = log.try_read(5, 1 << 20, UNCOMMITTED)
        assert isinstance(read, ReadResult)
        read.close()
    assert log.local.max_age_s == LOOK_S
