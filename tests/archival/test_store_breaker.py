"""When everybody waits for the store, and for how long."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.schedule.store_breaker import OPENS_AT, PROBE_MAX_S, PROBE_S, StoreBreaker, heard, listening
from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    DiskFull,
    HeadwaterError,
    NotFound,
    SourceChanged,
    StoreGone,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UploadStopped,
)
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, Variant
from headwater_core.layouts.chunks.chunk_segment import in_threads
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.offloader import NewRun, Offloader
from headwater_core.layouts.streaming import StreamingLayout
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.objectstore.store import NO_METADATA, GrowingObject, NewObject, ObjectStore
from headwater_core.partition import TopicPartition
from manifests import keys
from tests.headwater_core.objectstore.memory import MemoryStore

PLACES = [TopicPartition("soup", number) for number in range(2 * OPENS_AT)]


def opened(now_s: float = 0.0) -> StoreBreaker:
    breaker = StoreBreaker(Random(7))
    for place in PLACES[:OPENS_AT]:
        assert breaker.may_begin(now_s, 10)
        breaker.failed(place, now_s)
    assert breaker.is_open
    return breaker


def test_one_partition_opens_nothing_however_often_it_fails() -> None:
    breaker = StoreBreaker(Random(7))
    for _ in range(1000):
        breaker.failed(PLACES[0], 0.0)
    assert not breaker.is_open


def test_nor_do_many_while_anybody_gets_an_answer() -> None:
    breaker = StoreBreaker(Random(7))
    for _ in range(100):
        for place in PLACES[: OPENS_AT - 1]:
            breaker.failed(place, 0.0)
        breaker.answered()
    assert not breaker.is_open


def test_while_it_is_open_one_step_at_a_time_is_a_probe_after_pauses_that_grow_up_to_a_bound() -> None:
    breaker, now_s, longest_s = opened(100.0), 100.0, PROBE_S
    for number in range(20):
        assert not breaker.may_begin(now_s + longest_s * 0.49, 0)
        now_s += longest_s
        assert breaker.may_begin(now_s, 0)
        assert not breaker.may_begin(now_s, 1)
        breaker.failed(PLACES[number % len(PLACES)], now_s)
        longest_s = min(PROBE_MAX_S, 2 * longest_s)
    breaker.answered()
    assert breaker.may_begin(now_s, 10)
    for place in PLACES[:OPENS_AT]:
        breaker.failed(place, now_s)
    assert breaker.may_begin(now_s + PROBE_S, 0), "the pauses begin anew"


def test_steps_that_began_before_it_opened_are_no_probes() -> None:
    breaker = opened()
    for place in PLACES[OPENS_AT:]:
        breaker.failed(place, 0.1)
    assert breaker.may_begin(PROBE_S, 0)


@given(st.lists(st.tuples(st.sampled_from([*PLACES, None]), st.floats(0, 100)), max_size=200), st.integers(0, 9))
def test_whatever_happened_a_probe_is_due_within_the_bound_and_one_answer_closes_it(
    happened: list[tuple[TopicPartition | None, float]], seed: int
) -> None:
    breaker, now_s, without = StoreBreaker(Random(seed)), 0.0, set[TopicPartition]()
    for place, pause_s in happened:
        now_s += pause_s
        if place is None:
            breaker.answered()
            without.clear()
        else:
            breaker.failed(place, now_s)
            without.add(place)
        assert breaker.is_open == (len(without) >= OPENS_AT)
        assert breaker.may_begin(now_s + PROBE_MAX_S, 0)


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (None, True),
        (NotFound("x"), True),
        (AlreadyExists("x"), True),
        (Conflict("x"), True),
        (CorruptData("x", 0, "damaged"), True),
        (SourceChanged("x"), True),
        (UploadStopped("x"), True),
        (TransientError("x"), False),
        (UnknownOutcome("x"), False),
        (Unauthorised("x"), False),
        (DiskFull("x"), False),
        (StoreGone("x"), False),
    ],
)
def test_what_is_an_answer(error: HeadwaterError | None, answers: bool) -> None:
    def call() -> None:
        with heard():
            if error:
                raise error

    call_fails = pytest.raises(type(error)) if error else None
    with listening() as contact:
        if call_fails:
            with call_fails:
                call()
        else:
            call()
    assert (contact.answered, contact.failed) == (answers, not answers)
    if not error:
        call()  # nobody listens


class Silent(MemoryStore):
    """Takes no bytes, and has latency: parts and chunks go in threads."""

    part_bytes_min = 1

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        raise TransientError("no answer")

    def create(self, key: str, document: bytes) -> str:
        raise TransientError("no answer")

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        growing = super().grow(key, metadata=metadata)
        growing.send = self.send  # type: ignore[method-assign]
        return growing

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        raise TransientError("no answer")


def offload(layout: Offloader, store: ObjectStore, key: str, run: bytes) -> None:
    scan = scanned(run)
    layout.offload(store, [NewRun(PARTITION, scan.base_offset, scan.last_offset, key, f"{key}-index", io.BytesIO(run), scan)], {})


def commit(store: ObjectStore, run: bytes) -> None:
    segment = ChunkSegment.open(store, SegmentPlace("chunks/q", "commitLog", 5, Variant.FIXED), chunk_bytes=1000)
    segment.commit0(0, run, apply=in_threads(2))


@pytest.mark.parametrize(
    "send",
    [
        pytest.param(partial(offload, StreamingLayout(5_000), key=keys.data(PARTITION, 5, 9, 1, f"{1:032x}", "streaming")), id="parts"),
        pytest.param(partial(offload, ChunksLayout(Variant.FIXED, 5_000), key="a/chunk-0"), id="chunks of a run"),
        pytest.param(commit, id="chunks of a stream"),
    ],
)
def test_a_step_hears_what_its_threads_do(send: Callable[..., None]) -> None:
    store = GuardedStore(Silent(), heard)
    with listening() as contact, pytest.raises(TransientError):
        send(store=store, run=a_run())
    assert contact.failed


def test_each_step_hears_its_own_calls() -> None:
    with listening() as outer:
        with listening() as inner, heard():
            pass
        assert (outer.answered, inner.answered) == (False, True)
