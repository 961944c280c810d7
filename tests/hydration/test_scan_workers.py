"""Segments without a usable Kafka index: batches are found by walking over headers, and not for long on the caller's thread."""

import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from headwater_core.errors import CorruptData, OffsetOutOfRange, TransientError
from hydration.answers import Isolation
from hydration.archive.hydrator import SCAN_WORKERS
from hydration.local.scan_budget import INLINE_SCAN_BYTES, WORKER_SCAN_BYTES, ScanBudget, ScanBudgetExceeded
from hydration.local.scan_workers import ScanWorker
from hydration.resumption import Pending, run_blocking, start
from hydration.runfile import RunFile
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import World

AWorld = Callable[..., World]
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
VALUE_BYTES, BATCHES = 500, 4_000  # about 2 MiB a segment
WINDOW_BYTES = 32 << 10


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes read of any file, by thread."""
    counted: Counter[int] = Counter()
    read = RunFile.read

    def counting(self: RunFile, position: int, size_bytes: int) -> bytes:
        found = read(self, position, size_bytes)
        counted[threading.get_ident()] += len(found)
        return found

    monkeypatch.setattr(RunFile, "read", counting)
    return counted


def a_world_without_indexes(a_world: AWorld, *, index: bytes | None = None, active: bool = False) -> World:
    world = a_world()
    for base in (0,) if active else (0, BATCHES):
        world.broker.write(base, a_segment(base, BATCHES, value_bytes=VALUE_BYTES))
        if index is not None:
            world.broker.path(base, "index").write_bytes(index)
    world.broker.set_high_watermark(BATCHES - 5 if active else 2 * BATCHES - 5)
    world.log.bounds()
    return world


@contextmanager
def busy_workers(world: World) -> Iterator[None]:
    """Nothing that is handed to a worker is done before the end: else its thread might be the caller's after all."""
    go = threading.Event()
    try:
        for _ in range(SCAN_WORKERS):
            world.logs.hydrator.submit(lambda: go.wait(20), world.broker.root)
        yield
    finally:
        go.set()


def answer(world: World, offset: int, *, waited: bool, max_bytes: int = 1) -> None:
    with busy_workers(world):
        read = world.log.try_read(offset, max_bytes, UNCOMMITTED)
    assert isinstance(read, Pending) is waited
    result = read.future.result(20) if isinstance(read, Pending) else read
    with result:
        piece = result.slices[0]
        assert os.pread(piece.file.fileno(), 8, piece.position) == offset.to_bytes(8)


@pytest.mark.parametrize("index", [None, b"", b"\xff" * 999, b"\x00\x00\x00\x09\x00\x00\x00\x0d" * 500])
@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("turn_bytes", [300_000, WORKER_SCAN_BYTES])
def test_a_long_walk_leaves_the_callers_thread_and_is_made_once(
    a_world: AWorld, read_bytes: Counter[int], monkeypatch: pytest.MonkeyPatch, index: bytes | None, active: bool, turn_bytes: int
) -> None:
    monkeypatch.setattr("hydration.local.scan_workers.WORKER_SCAN_BYTES", turn_bytes)
    world = a_world_without_indexes(a_world, index=index, active=active)
    mine = threading.get_ident()
    read_bytes.clear()
    answer(world, BATCHES - 10, waited=True)
    assert read_bytes[mine] <= INLINE_SCAN_BYTES + WINDOW_BYTES
    walked = read_bytes.total() - read_bytes[mine]
    size_bytes = world.broker.path(0).stat().st_size
    assert size_bytes // 2 < walked < 2 * size_bytes
    for offset in (BATCHES - 11, 5, BATCHES // 2, BATCHES - 10):
        read_bytes.clear()
        answer(world, offset, waited=False)
        assert read_bytes.total() <= INLINE_SCAN_BYTES


def test_where_a_long_answer_ends_is_looked_for_elsewhere(a_world: AWorld, read_bytes: Counter[int]) -> None:
    """Kafka's index names only batches near both ends of the file."""
    batch = len(a_segment(0, 1, value_bytes=VALUE_BYTES))
    index = b"".join(struct.pack(">Ii", n, n * batch) for n in (1, BATCHES - 9))
    world = a_world_without_indexes(a_world, index=index, active=True)
    read_bytes.clear()
    answer(world, 1, max_bytes=1 << 20, waited=True)
    assert read_bytes[threading.get_ident()] <= INLINE_SCAN_BYTES + WINDOW_BYTES
    read_bytes.clear()
    answer(world, 1, max_bytes=1 << 20, waited=False)


def test_the_end_of_the_log_is_looked_for_elsewhere(a_world: AWorld, read_bytes: Counter[int]) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, BATCHES, value_bytes=VALUE_BYTES))
    world.broker.set_high_watermark(5)
    world.log.bounds()
    read_bytes.clear()
    with busy_workers(world):
        read = world.log.try_read(BATCHES, 1, UNCOMMITTED)
        assert isinstance(read, Pending)
        assert read_bytes[threading.get_ident()] <= INLINE_SCAN_BYTES + WINDOW_BYTES
    with read.future.result(20) as result:
        assert not result.slices
    with pytest.raises(OffsetOutOfRange) as caught:
        world.log.read(BATCHES + 1, 1, UNCOMMITTED)
    assert caught.value.end == BATCHES


def test_a_walk_whose_reader_left_keeps_no_file_open(a_world: AWorld) -> None:
    world = a_world_without_indexes(a_world)
    log = world.log
    assert log.local is not None
    file = log.local.open(world.broker.look().segments[0])
    file.release()
    with busy_workers(world):
        left = log.try_read(BATCHES - 10, 1, UNCOMMITTED)
        assert isinstance(left, Pending)
        with pytest.raises(TransientError):
            log.read(BATCHES - 10, 1, UNCOMMITTED, timeout_s=0.0)
        assert left.future.cancel()
    world.close()  # joins the workers, and lets go of its own files
    with pytest.raises(AssertionError):
        file.release()


def test_walks_of_one_partition_keep_one_worker_busy(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world_without_indexes(a_world)
    submit, submitted = world.logs.hydrator.submit, 0

    def counting(*work: Any) -> "Future[Any]":
        nonlocal submitted
        submitted += 1
        return submit(*work)

    offsets = (BATCHES - 10, BATCHES - 10, 2 * BATCHES - 10, 5)
    with busy_workers(world), monkeypatch.context() as counted:
        counted.setattr(world.logs.hydrator, "submit", counting)
        reads = [world.log.try_read(offset, 1, UNCOMMITTED) for offset in offsets]
        assert submitted == 1
    for read, offset in zip(reads, offsets, strict=True):
        assert isinstance(read, Pending)
        with read.future.result(20) as result:
            assert result.next_offset == offset + 1


def test_damage_fails_only_the_reads_that_meet_it(a_world: AWorld) -> None:
    world = a_world_without_indexes(a_world)
    path = world.broker.path(0)
    path.write_bytes(path.read_bytes()[: -(1 << 20)].ljust(path.stat().st_size, b"\xff"))
    with busy_workers(world):
        damaged, sound = (world.log.try_read(offset, 1, UNCOMMITTED) for offset in (BATCHES - 10, 2 * BATCHES - 10))
    assert isinstance(damaged, Pending)
    assert isinstance(sound, Pending)
    with pytest.raises(CorruptData):
        damaged.future.result(20)
    sound.future.result(20).close()


def test_a_reader_misses_nothing_on_the_way(a_world: AWorld) -> None:
    world = a_world_without_indexes(a_world)
    assert world.read_all(first=BATCHES - 2_000, max_bytes=300_000) == list(range(BATCHES - 2_000, 2 * BATCHES - 5))


def test_a_long_walk_lets_other_partitions_have_their_turns(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydration.local.scan_workers.WORKER_SCAN_BYTES", 200_000)
    world = a_world()
    world.broker.write(0, a_segment(0, 900, value_bytes=1000))
    world.broker.set_high_watermark(900)
    submit = world.logs.hydrator.submit
    turns: list[Callable[[], object]] = []
    log = world.log

    def counting(work: Callable[[], object], *where: Any) -> Future[object]:
        turns.append(work)
        return submit(work, *where)

    monkeypatch.setattr(world.logs.hydrator, "submit", counting)
    assert log.bounds(COMMITTED).last_stable_offset == 900
    assert len(turns) > 3


def test_an_error_goes_to_the_caller_whose_question_met_it() -> None:
    work: list[Callable[[], None]] = []

    def submit(task: Callable[[], object]) -> Future[object]:
        future: Future[object] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)

        work.append(run)
        return future

    worker = ScanWorker(submit)
    known: list[int] = []

    def bad(budget: ScanBudget) -> int:
        if budget.left_bytes == 0:
            raise ScanBudgetExceeded
        raise CorruptData("x", 0, "no batch")

    def good(budget: ScanBudget) -> int:
        if not known and budget.left_bytes == 0:
            raise ScanBudgetExceeded
        known.append(1)
        return 7

    first, second = start(worker.find(bad)), start(worker.find(good))
    work.pop()()
    with pytest.raises(CorruptData):
        first.future.result(0)  # type: ignore[union-attr]
    work.pop()()
    assert second.future.result(0) == 7  # type: ignore[union-attr]
    assert run_blocking(worker.find(good), 0) == 7
    assert not work
