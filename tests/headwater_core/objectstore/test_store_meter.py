"""The meter changes nothing of a store, counts what its calls cost, and says when it last answered."""

import io

import pytest

from headwater_core.errors import NotFound, SourceChanged, TransientError, Unauthorised
from headwater_core.objectstore.store_meter import MeteredStore, StoreMeter
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.contract import ObjectStoreContract
from tests.headwater_core.objectstore.memory import MemoryStore


class TestMeteredStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> MeteredStore:
        return MeteredStore(MemoryStore(ManualClock()), StoreMeter(ManualClock()))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meter(clock: ManualClock) -> StoreMeter:
    return StoreMeter(clock)


@pytest.fixture
def store(clock: ManualClock, meter: StoreMeter) -> MeteredStore:
    return MeteredStore(MemoryStore(clock), meter)


def test_each_call_counts_once_with_its_bytes(store: MeteredStore, meter: StoreMeter) -> None:
    store.put("a/1", io.BytesIO(b"12345"), size_bytes=5)
    store.create("a/2", b"123")
    store.get("a/2")
    store.read_into("a/1", memoryview(bytearray(4)), start=0)
    streaming = store.stream_into("a/1", [memoryview(bytearray(2)), memoryview(bytearray(2)), memoryview(bytearray(1))], start=0)
    next(streaming)
    next(streaming)
    streaming.close()
    assert len(list(store.list("a/"))) == 2
    counts = {name: each for name, each in meter.counts().items() if sum(each.seconds.counts)}
    assert {name: sum(each.seconds.counts) for name, each in counts.items()} == {"put": 1, "create": 1, "get": 1, "read": 2, "list": 1}
    assert {name: each.sent_bytes for name, each in counts.items() if each.sent_bytes} == {"put": 5, "create": 3}
    assert {name: each.received_bytes for name, each in counts.items() if each.received_bytes} == {"get": 3, "read": 8}
    assert not any(each.errors for each in counts.values())


def test_what_is_absent_is_an_answer_and_what_does_not_answer_is_an_error(meter: StoreMeter, clock: ManualClock) -> None:
    meter.record("get", 0.1, error=NotFound("absent"))
    assert meter.health().answered_s == 0
    clock.advance(30_000)
    for error in (TransientError("silence"), Unauthorised("refused")):
        meter.record("get", 30, error=error)
    clock.advance(5_000)
    health = meter.health()
    assert (health.answered_s, health.failing_s, health.reason) == (35, 35, "refused")
    assert meter.counts()["get"].errors == 2
    meter.record("get", 0.1)
    assert meter.health() == (0, 0, "")


def test_a_long_call_that_fails_does_not_hide_that_others_were_answered_meanwhile(meter: StoreMeter, clock: ManualClock) -> None:
    meter.record("get", 0.1)
    clock.advance(1_000)
    meter.record("put", 300, error=TransientError("timed out"))
    assert meter.health() == (1, 1, "timed out")


@pytest.mark.parametrize("error", [SourceChanged("the log changed"), KeyboardInterrupt()])
def test_what_the_caller_is_the_reason_of_says_nothing_of_the_store(meter: StoreMeter, error: BaseException) -> None:
    meter.record("put", 1, error=error)
    assert meter.health() == (None, 0, "")
    assert meter.counts()["put"].errors == 0


def test_calls_that_hear_nothing_are_a_failure_before_they_end(clock: ManualClock) -> None:
    meter = StoreMeter(clock, lambda: 12.0)
    assert meter.health() == (None, 12, "calls in flight hear nothing")


def test_only_the_time_spent_waiting_for_the_store_counts(store: MeteredStore, meter: StoreMeter, clock: ManualClock) -> None:
    store.create("a/1", b"x")
    for _ in store.list("a/"):
        clock.advance(100_000)  # the caller's own
    assert meter.counts()["list"].seconds.sum_s == 0


def test_a_copy_does_not_change(meter: StoreMeter) -> None:
    before = meter.counts()["get"]
    meter.record("get", 1.0, received_bytes=7, error=None)
    assert (sum(before.seconds.counts), before.received_bytes) == (0, 0)
