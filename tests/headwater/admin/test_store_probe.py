"""A store that has failed is asked again, and only then."""

import pytest

from headwater.admin.store_probe import PROBE_S, StoreProbe
from headwater_core.errors import TransientError
from headwater_core.objectstore.store_meter import MeteredStore, StoreMeter
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore


class Silent(MemoryStore):
    """A store that answers nothing."""

    def get(self, key: str, *, max_bytes: int = 0) -> tuple[bytes, str]:
        raise TransientError(f"no answer for {key}")


def gets(meter: StoreMeter) -> int:
    return sum(meter.counts()["get"].seconds.counts)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meter(clock: ManualClock) -> StoreMeter:
    return StoreMeter(clock)


def test_a_store_that_has_failed_and_that_nobody_calls_is_found_to_answer_again(clock: ManualClock, meter: StoreMeter) -> None:
    probe = StoreProbe(MeteredStore(MemoryStore(clock), meter), meter)
    meter.record("put", 300.0, error=TransientError("timed out"))
    assert meter.health().failing_s == 300
    probe.look()  # an empty bucket: an answer all the same
    assert meter.health() == (0, 0, "")


def test_a_store_that_answers_or_that_nobody_calls_is_left_alone(clock: ManualClock, meter: StoreMeter) -> None:
    probe = StoreProbe(MeteredStore(MemoryStore(clock), meter), meter)
    meter.record("stat", 0.1)
    clock.advance(3_600_000)
    probe.look()
    meter.record("stat", PROBE_S - 1, error=TransientError("once"))
    probe.look()
    assert gets(meter) == 0


def test_a_store_that_still_fails_goes_on_failing(clock: ManualClock, meter: StoreMeter) -> None:
    probe = StoreProbe(MeteredStore(Silent(clock), meter), meter)
    meter.record("put", 20.0, error=TransientError("timed out"))
    clock.advance(40_000)
    probe.look()
    health = meter.health()
    assert (health.failing_s, health.reason, gets(meter)) == (60, "no answer for headwater.json", 1)
