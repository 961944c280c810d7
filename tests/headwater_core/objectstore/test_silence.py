"""A store that hangs is reported after ten seconds; one that is slow, or idle, is not."""

import io
import threading
from pathlib import Path

import pytest

from headwater_core.clock import SystemClock
from headwater_core.errors import NotFound, TransientError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.silence import REPEAT_S, SILENCE_S, SilenceWatch
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.contract import ObjectStoreContract
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.s3server import S3Server


class TestGuardedStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return GuardedStore(MemoryStore(SystemClock()), SilenceWatch("memory:", lambda _: None, SystemClock()).calling)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def watch(clock: ManualClock, reported: list[str]) -> SilenceWatch:
    return SilenceWatch("s3://arch", reported.append, clock)


def after(watch: SilenceWatch, clock: ManualClock, seconds: float) -> None:
    clock.advance(int(seconds * 1000))
    watch.look()


def test_a_silence_is_reported_repeated_and_its_end_said(watch: SilenceWatch, clock: ManualClock, reported: list[str]) -> None:
    with watch.calling():
        after(watch, clock, SILENCE_S - 1)
        assert reported == []
        with watch.calling():
            after(watch, clock, 1)
            after(watch, clock, 5)
            assert reported == ["no answer from s3://arch for 10 s, 2 requests waiting"]
            after(watch, clock, REPEAT_S)
    after(watch, clock, 1)
    assert reported[1:] == ["no answer from s3://arch for 45 s, 2 requests waiting", "s3://arch answers again, after 45 s"]
    after(watch, clock, 100)
    assert len(reported) == 3


def test_the_end_of_a_silence_can_be_reported_elsewhere(clock: ManualClock, reported: list[str]) -> None:
    over: list[str] = []
    watch = SilenceWatch("s3://arch", reported.append, clock, over=over.append)
    with watch.calling():
        after(watch, clock, SILENCE_S)
    after(watch, clock, 1)
    assert reported == ["no answer from s3://arch for 10 s, 1 request waiting"]
    assert over == ["s3://arch answers again, after 10 s"]


def test_bytes_that_move_and_answers_to_others_are_no_silence(watch: SilenceWatch, clock: ManualClock, reported: list[str]) -> None:
    with watch.calling():
        for _ in range(10):
            after(watch, clock, 9)
            watch.progressed()
        for _ in range(10):
            after(watch, clock, 9)
            with pytest.raises(NotFound), watch.calling():
                raise NotFound("a")
    assert reported == []


def test_a_call_that_gave_up_is_no_answer(watch: SilenceWatch, clock: ManualClock, reported: list[str]) -> None:
    with watch.calling():
        after(watch, clock, 9)
        with pytest.raises(TransientError), watch.calling():
            raise TransientError("timed out")
        after(watch, clock, 1)
    assert reported == ["no answer from s3://arch for 10 s, 1 request waiting"]


def test_an_idle_store_is_not_silent(watch: SilenceWatch, clock: ManualClock, reported: list[str]) -> None:
    with watch.calling():
        pass
    after(watch, clock, 1000)
    with watch.calling():
        after(watch, clock, 1)
    assert reported == []


def test_a_consumer_that_takes_its_time_is_not_the_stores_silence(watch: SilenceWatch, clock: ManualClock, reported: list[str]) -> None:
    inner = MemoryStore(clock)
    inner.put("a", io.BytesIO(bytes(10)), size_bytes=10)
    store = GuardedStore(inner, watch.calling)
    streaming = store.stream_into("a", [memoryview(bytearray(5)), memoryview(bytearray(5))], start=0)
    next(streaming)
    after(watch, clock, 100)
    next(streaming)
    streaming.close()
    listing = iter(store.list(""))
    next(listing)
    after(watch, clock, 100)
    assert reported == []


def test_stores_tell_of_the_bytes_that_move(tmp_path: Path, s3_environ: S3Server) -> None:
    moved = list[str]()
    stores: list[tuple[str, DirectoryStore | S3Store]] = [
        ("directory", DirectoryStore(tmp_path / "bucket")),
        ("s3", S3Store(s3_environ.bucket(), endpoint_url=s3_environ.endpoint_url)),
    ]
    for kind, store in stores:
        store.progressed = lambda kind=kind: moved.append(kind)  # type: ignore[misc]
        store.put("a", io.BytesIO(bytes(3 << 20)), size_bytes=3 << 20)
        sent = moved.count(kind)
        assert sent >= 3, kind
        store.read_into("a", memoryview(bytearray(3 << 20)), start=0)
        assert moved.count(kind) > sent


def test_how_long_nothing_was_heard_counts_from_the_oldest_call_or_the_last_byte(watch: SilenceWatch, clock: ManualClock) -> None:
    clock.advance(60_000)
    assert watch.silent_s() == 0  # nothing waits
    with watch.calling():
        clock.advance(4_000)
        assert watch.silent_s() == 4
        watch.progressed()
        clock.advance(1_000)
        assert watch.silent_s() == 1
    assert watch.silent_s() == 0


def test_its_thread_reports_and_ends(reported: list[str]) -> None:
    said = threading.Event()

    class Fast(SystemClock):
        def monotonic_s(self) -> float:
            return super().monotonic_s() * 100

    def report(line: str) -> None:
        reported.append(line)
        said.set()

    watch = SilenceWatch("s3://arch", report, Fast())
    watch.start()
    with watch.calling():
        assert said.wait(20)
    watch.close()
    assert reported[0].startswith("no answer from s3://arch for ")
