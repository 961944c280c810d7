"""One download however many ask, checked, bounded, and never in the way."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from structlog.testing import capture_logs

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, TransientError
from hydration.answers import Isolation, ReadResult
from hydration.cache.cache_directory import chunk_name, folder, index_name
from hydration.partition_log import Pending
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.test_chunk_cache import used_bytes
from tests.hydration.world import PARTITION, World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED
RUN = a_segment(0, 20, value_bytes=20_000)  # about 400 KiB; points, so chunks, lie 80 KiB apart
CHUNKS = 5


def cold(a_world: AWorld, **options: object) -> tuple[World, FlakyStore]:
    store = FlakyStore()
    world = a_world(local=False, store=store, **options)
    world.archive.append(RUN)
    return world, store


def content(answer: ReadResult) -> bytes:
    with answer:
        return b"".join(each.read() for each in answer.slices)


def test_two_hundred_threads_reading_one_cold_chunk_cause_one_get(a_world: AWorld) -> None:
    world, store = cold(a_world)
    log = world.log
    store.go.clear()
    begin = threading.Barrier(200)

    def read() -> bytes:
        begin.wait(20)
        return content(log.read(0, 10_000, UNCOMMITTED))

    with ThreadPoolExecutor(200) as pool:
        readers = [pool.submit(read) for _ in range(200)]
        assert store.arrived.acquire(timeout=20)
        store.go.set()
        answers = {reader.result(20) for reader in readers}
    assert len(answers) == 1
    assert RUN.startswith(answers.pop())
    assert world.gets() == 1
    assert world.gets(".index") == 1


def test_two_hundred_coroutines_reading_one_cold_chunk_cause_one_get(a_world: AWorld) -> None:
    world, store = cold(a_world)
    log = world.log
    store.go.clear()

    async def read() -> bytes:
        answer = log.try_read(0, 10_000, UNCOMMITTED)
        if isinstance(answer, Pending):
            answer = await asyncio.wrap_future(answer.future)
        return content(answer)

    async def read_all() -> set[bytes]:
        readers = [asyncio.create_task(read()) for _ in range(200)]
        await asyncio.to_thread(store.arrived.acquire, timeout=20)
        store.go.set()
        return set(await asyncio.wait_for(asyncio.gather(*readers), 20))

    answers = asyncio.run(read_all())
    assert len(answers) == 1
    assert RUN.startswith(answers.pop())
    assert world.gets() == 1


def test_a_cached_read_answers_at_once(a_world: AWorld) -> None:
    world, _ = cold(a_world)
    assert world.read_all() == list(range(20))
    answer = world.log.try_read(3, 10_000, UNCOMMITTED)
    assert isinstance(answer, ReadResult)
    answer.close()
    assert world.gets() == CHUNKS


def test_a_cancelled_read_gives_its_files_back(a_world: AWorld) -> None:
    world, store = cold(a_world, cache_bytes=0)
    log = world.log
    store.go.clear()
    answer = log.try_read(0, 10_000, UNCOMMITTED)
    assert isinstance(answer, Pending)
    assert store.arrived.acquire(timeout=20)
    assert answer.future.cancel()
    store.go.set()
    world.close()  # joins the workers
    assert not list((world.root / "cache").rglob("*.run"))  # nothing held it, so nothing was kept


def test_a_read_ends_at_its_deadline(a_world: AWorld) -> None:
    world, store = cold(a_world)
    log = world.log
    store.go.clear()
    try:
        with pytest.raises(TransientError, match="not there after"):
            log.read(0, 1 << 20, UNCOMMITTED, timeout_s=0.05)
    finally:
        store.go.set()
    assert content(log.read(0, 1 << 20, UNCOMMITTED))


@pytest.mark.parametrize("limit", [0, 70_000, 150_000])
def test_a_cache_smaller_than_the_data_keeps_its_bound(a_world: AWorld, limit: int) -> None:
    world, _ = cold(a_world, cache_bytes=limit)
    cache = world.logs.hydrator.cache
    for _ in range(2):
        assert world.read_all() == list(range(20))
        cache.flush()
        on_disk = sum(path.stat().st_size for path in (world.root / "cache").rglob("*.run"))
        assert on_disk <= limit
        assert used_bytes(cache) <= limit
    with world.log.read(0, 1 << 20, UNCOMMITTED) as first, world.log.read(10, 1 << 20, UNCOMMITTED) as second:
        assert used_bytes(cache) <= max(limit, first.size_bytes + second.size_bytes + 140_000)  # whole chunks are held
    assert used_bytes(cache) <= limit


def test_many_readers_of_a_small_cache_all_get_their_bytes(a_world: AWorld) -> None:
    world, _ = cold(a_world, cache_bytes=150_000, readahead_chunks=4)
    log = world.log

    def scan(start: int) -> list[int]:
        return world.read_all(first=start, max_bytes=30_000)

    with ThreadPoolExecutor(16) as pool:
        for start, found in zip(range(16), pool.map(scan, range(16)), strict=True):
            assert found == list(range(start, 20))
    assert log.partition.topic == "soup"
    assert used_bytes(world.logs.hydrator.cache) <= 150_000


def test_what_is_evicted_in_mid_read_can_still_be_read(a_world: AWorld) -> None:
    world, _ = cold(a_world)
    with world.log.read(0, 1 << 20, UNCOMMITTED) as answer:
        assert world.logs.hydrator.cache.evict() > 0
        assert not list((world.root / "cache").rglob("*.*"))
        assert b"".join(each.read() for each in answer.slices) == RUN[: answer.size_bytes]
    assert world.read_all() == list(range(20))


@pytest.mark.parametrize("what", ["files", "everything"])
def test_a_cache_deleted_by_hand_costs_downloads_only(a_world: AWorld, what: str) -> None:
    world, _ = cold(a_world)
    assert world.read_all() == list(range(20))
    for _ in range(2):
        if what == "files":
            for path in (world.root / "cache").rglob("*.*"):
                path.unlink()
        else:
            shutil.rmtree(world.root / "cache")
        assert world.read_all() == list(range(20))
        world.logs.hydrator.cache.sweep()
        assert used_bytes(world.logs.hydrator.cache) == 0
        assert world.read_all() == list(range(20))
    world.restart()
    assert world.read_all() == list(range(20))


def test_a_restart_finds_its_cache_again(a_world: AWorld) -> None:
    world, _ = cold(a_world)
    world.read_all()
    world.restart()
    assert world.read_all() == list(range(20))
    assert world.gets() == CHUNKS
    assert world.gets(".index") == 1


@pytest.mark.parametrize("damage", ["flipped", "cut", "zeros", "empty"])
def test_a_file_damaged_between_two_runs_is_downloaded_again(a_world: AWorld, damage: str) -> None:
    world, _ = cold(a_world)
    world.read_all()
    world.close()
    files = [path for path in (world.root / "cache").rglob("*.*") if path.is_file()]
    assert len(files) == CHUNKS + 1
    for path in files:
        raw = bytearray(path.read_bytes())
        if damage == "flipped":
            raw[len(raw) // 2] ^= 1
        elif damage == "zeros":
            raw[:] = bytes(len(raw))
        path.write_bytes(raw[: {"cut": len(raw) - 1, "empty": 0}.get(damage, len(raw))])
    assert world.read_all() == list(range(20))
    assert world.gets() == 2 * CHUNKS
    assert world.gets(".index") == 2


def test_leftovers_of_a_crash_are_cleared_away(a_world: AWorld) -> None:
    clock = ManualClock()
    world, _ = cold(a_world, clock=clock)
    world.read_all()
    folder = next((world.root / "cache").iterdir())
    partial = folder / "x.run.0123456789abcdef.partial"
    partial.write_bytes(b"torn")
    os.utime(partial, (clock.at_ms / 1000, clock.at_ms / 1000))
    world.restart()
    assert world.read_all() == list(range(20))
    assert partial.exists()  # another process may be writing it
    clock.advance(3_700_000)
    world.logs.hydrator.cache.sweep()
    assert not partial.exists()


def test_chunks_that_are_not_read_are_dropped_after_their_time(a_world: AWorld) -> None:
    clock = ManualClock()
    world, _ = cold(a_world, clock=clock, cache_ttl_s=60.0)
    world.read_all()
    clock.advance(50_000)
    world.log.read(0, 1, UNCOMMITTED).close()
    clock.advance(20_000)
    world.logs.hydrator.cache.sweep()
    assert len(world.logs.hydrator.cache.show()) == 1
    assert len(list((world.root / "cache").rglob("*.*"))) == 1


def test_a_full_disk_costs_the_cache_not_the_read(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = cold(a_world)
    cache = world.logs.hydrator.cache

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache._files, "write", no_space)
    assert world.read_all() == list(range(20))
    assert not [path for path in cache.directory.rglob("*") if path.is_file()]


def test_a_directory_that_cannot_be_written_costs_the_cache_not_the_read(a_world: AWorld) -> None:
    world, _ = cold(a_world)
    world.root.mkdir(exist_ok=True)
    (world.root / "cache").write_bytes(b"a file where the directory should be")
    assert world.read_all() == list(range(20))


@pytest.mark.parametrize("error", [TransientError("throttled"), TransientError("timed out")])
def test_a_store_that_fails_means_try_again_never_out_of_range(a_world: AWorld, error: HeadwaterError) -> None:
    clock = ManualClock()
    world, store = cold(a_world, clock=clock)
    log = world.log
    store.refuse = lambda operation, key: error
    for offset in (0, 10, 19, 20, 5_000):
        with pytest.raises(TransientError):
            log.read(offset, 1 << 20, UNCOMMITTED)
    with pytest.raises(TransientError):
        log.bounds()
    clock.advance(1_000)
    store.refuse = lambda operation, key: error if key.endswith(".log") else None
    with pytest.raises(TransientError):
        log.read(0, 1 << 20, UNCOMMITTED)
    store.refuse = lambda operation, key: None
    assert content(log.read(0, 1 << 20, UNCOMMITTED))


def test_what_is_cached_is_served_while_the_store_is_away(a_world: AWorld) -> None:
    world, store = cold(a_world)
    world.read_all()
    store.refuse = lambda operation, key: TransientError("away")
    assert world.read_all() == list(range(20))


def test_bytes_spoilt_on_the_way_are_fetched_again(a_world: AWorld) -> None:
    world, store = cold(a_world)
    spoilt: list[str] = []

    def once(key: str, buffer: memoryview) -> None:
        if key.endswith(".log") and not spoilt:
            spoilt.append(key)
            buffer[100] ^= 1

    store.spoil = once
    assert world.read_all() == list(range(20))
    assert world.gets() == CHUNKS + 1


def test_a_damaged_object_is_said_to_be_damaged_and_never_served(a_world: AWorld) -> None:
    clock = ManualClock()
    world, store = cold(a_world, clock=clock)

    def flip(key: str, buffer: memoryview) -> None:
        if key.endswith(".log"):
            buffer[100] ^= 1

    store.spoil = flip
    with capture_logs() as events, pytest.raises(CorruptData, match="CRC"):
        world.log.read(0, 1 << 20, UNCOMMITTED)
    assert not list((world.root / "cache").rglob("*.run"))
    reported = [(each["event"], each["log_level"], each["partition"]) for each in events]
    assert reported == [("chunk_damaged", "warning", str(PARTITION)), ("object_damaged", "error", str(PARTITION))]
    assert world.logs.hydrator.damaged() == {folder(PARTITION): {world.archive.head.entries[0].key}}
    store.spoil = lambda key, buffer: None
    clock.advance(1000 * 3600)
    with world.log.read(0, 1 << 20, UNCOMMITTED):
        pass
    assert world.logs.hydrator.damaged() == {}, "it was restored"


def test_a_damaged_index_is_said_to_be_damaged(a_world: AWorld) -> None:
    world, store = cold(a_world)

    def flip(key: str, buffer: memoryview) -> None:
        if key.endswith(".index"):
            buffer[30] ^= 1

    store.spoil = flip
    with pytest.raises(CorruptData, match="digest"):
        world.log.read(0, 1 << 20, UNCOMMITTED)


def test_a_listed_object_that_is_gone_is_damage(a_world: AWorld) -> None:
    world, store = cold(a_world)
    store.delete(world.archive.head.entries[0].key)
    with pytest.raises(CorruptData, match="the manifest lists it"):
        world.log.read(0, 1 << 20, UNCOMMITTED)


def test_an_object_replaced_while_it_is_wanted_is_read_from_its_successor(a_world: AWorld) -> None:
    world, store = cold(a_world)
    log = world.log
    with log.read(0, 1, UNCOMMITTED):
        pass
    old = world.archive.head.entries[0]
    world.archive.commit(world.archive.upload(RUN))
    store.delete(old.key)
    store.delete(old.index_key)
    assert world.read_all() == list(range(20))


def test_closing_answers_those_who_wait(a_world: AWorld) -> None:
    world, store = cold(a_world)
    log = world.log
    store.go.clear()
    waiting = [log.try_read(offset, 1, UNCOMMITTED) for offset in range(20)]
    assert store.arrived.acquire(timeout=20)
    closer = threading.Thread(target=world.close)
    closer.start()
    store.go.set()
    closer.join(20)
    assert not closer.is_alive()
    for each in waiting:
        assert isinstance(each, Pending)
        error = each.future.exception(20)
        if error is None:
            each.future.result().close()
        else:
            assert isinstance(error, TransientError)


def test_sequential_reads_are_downloaded_ahead_and_jumps_are_not(a_world: AWorld) -> None:
    world, _ = cold(a_world, readahead_chunks=8)
    log, counters = world.log, world.logs.hydrator.counters
    for offset in (0, 12, 6, 17):
        log.read(offset, 1, UNCOMMITTED).close()
    assert counters.ahead == 0
    world.logs.hydrator.cache.evict()
    assert world.read_all(max_bytes=30_000) == list(range(20))
    assert counters.ahead >= CHUNKS - 3
    assert world.gets() == CHUNKS + 4  # and none twice


def test_reading_ahead_crosses_into_the_next_entry(a_world: AWorld) -> None:
    store = FlakyStore()
    world = a_world(local=False, store=store, readahead_chunks=8)
    for base in range(0, 40, 4):
        world.archive.append(a_segment(base, 4, value_bytes=10_000))
    assert world.read_all(max_bytes=20_000) == list(range(40))
    assert world.logs.hydrator.counters.ahead > 0
    assert world.gets() == 10


def balance(world: World) -> tuple[int, int, int]:
    """What became of chunks that were requested ahead, after the end of all downloads: used, wasted, and waiting in the cache."""
    hydrator = world.logs.hydrator
    world.close()
    return hydrator.counters.ahead_used, hydrator.counters.ahead_wasted, len(hydrator._unread)


def test_what_was_read_ahead_is_used_when_a_reader_comes_to_it(a_world: AWorld) -> None:
    world, _ = cold(a_world, readahead_chunks=8)
    counters = world.logs.hydrator.counters
    assert world.read_all(max_bytes=30_000) == list(range(20))
    assert counters.ahead > 0
    assert balance(world) == (counters.ahead, 0, 0)


def test_what_was_read_ahead_is_wasted_when_it_is_dropped_before_a_reader_comes(a_world: AWorld) -> None:
    world, store = cold(a_world, readahead_chunks=8)
    hydrator, log, offset = world.logs.hydrator, world.log, 0
    while not hydrator.counters.ahead:
        with log.read(offset, 30_000, UNCOMMITTED) as answer:
            offset = answer.next_offset
    store.go.set()
    for future in [each.future for each in list(hydrator.flights._flights.values())]:
        future.exception(20)
    used, ahead = hydrator.counters.ahead_used, hydrator.counters.ahead
    hydrator.cache.evict()
    assert balance(world) == (used, ahead - used, 0)


def test_what_could_not_be_read_ahead_is_wasted(a_world: AWorld) -> None:
    world, store = cold(a_world, readahead_chunks=8)
    hydrator, log, offset = world.logs.hydrator, world.log, 0
    while not hydrator.counters.ahead:
        with log.read(offset, 30_000, UNCOMMITTED) as answer:
            offset = answer.next_offset
        store.refuse = lambda operation, key: TransientError("down") if operation == "read_into" and key.endswith(".log") else None
    used, wasted, waiting = balance(world)
    assert used + wasted + waiting == hydrator.counters.ahead
    assert wasted > 0


@pytest.mark.parametrize("seed", range(20))
def test_every_chunk_that_was_requested_ahead_is_used_or_wasted_or_waits(a_world: AWorld, seed: int) -> None:
    draw = Random(seed)
    world, store = cold(a_world, cache_bytes=draw.choice([300_000, 1 << 30]), readahead_chunks=4)
    hydrator, log, offset = world.logs.hydrator, world.log, 0
    for _ in range(60):
        match draw.randrange(12):
            case 0:
                hydrator.cache.evict(unused_only=draw.random() < 0.5)
            case 1:
                offset = draw.randrange(20)
            case 2:
                store.refuse = lambda operation, _: TransientError("down") if operation == "read_into" else None
            case 3:
                for path in (world.root / "cache").rglob("*.run"):
                    path.unlink(missing_ok=True)
                hydrator.cache.sweep()
            case _:
                try:
                    with log.read(offset % 20, 30_000, UNCOMMITTED) as answer:
                        offset = answer.next_offset
                except TransientError:
                    store.refuse = lambda *_: None
    ahead = hydrator.counters
    assert sum(balance(world)) == ahead.ahead
    assert ahead.ahead > 0


def test_a_wait_is_counted_once_for_each_chunk_however_many_wait(a_world: AWorld) -> None:
    clock = ManualClock()
    world, store = cold(a_world, clock=clock)
    log, waits = world.log, world.logs.hydrator.counters.waits
    store.go.clear()
    readers = [log.try_read(0, 1, UNCOMMITTED) for _ in range(20)]
    assert store.arrived.acquire(timeout=20)
    assert isinstance(readers[0], Pending)
    assert readers[0].future.cancel()  # as a Fetch whose time is over, and which comes again
    clock.advance(3000)
    store.go.set()
    for each in readers[1:]:
        assert isinstance(each, Pending)
        each.future.result(20).close()
    world.log.read(0, 1, UNCOMMITTED).close()
    world.close()
    assert (sum(waits.counts), waits.sum_s) == (1, 3.0)


@pytest.mark.parametrize("uid", ["../../x", "", "a/b", ".", "x" * 65, "ä", "a\n"])
def test_names_in_a_manifest_cannot_lead_out_of_the_cache(uid: str) -> None:
    with pytest.raises(CorruptData):
        chunk_name(PARTITION, uid, 0, 1)
    with pytest.raises(CorruptData):
        index_name(PARTITION, uid)


def test_nothing_is_fetched_for_a_partition_the_bucket_does_not_know(a_world: AWorld) -> None:
    world = a_world(local=False)
    with pytest.raises(NotFound):
        world.logs.partition("stew", 0)


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_chunk_that_another_process_damaged_is_downloaded_again(a_world: AWorld, damage: str) -> None:
    world, _ = cold(a_world)
    assert world.read_all() == list(range(20))
    for path in (world.root / "cache").rglob("*.run"):
        raw = bytearray(path.read_bytes())
        raw[100] ^= 1
        path.write_bytes(raw if damage == "flipped" else raw[:1000])
    for kept in world.logs.hydrator.cache._table._entries.values():
        if kept.file is not None:
            kept.file.forget_memory()  # as when other chunks take the blocks
    with world.log.read(0, 1 << 20, UNCOMMITTED) as answer:
        assert RUN.startswith(b"".join(each.read() for each in answer.slices))
    assert world.read_all() == list(range(20))
    assert world.gets() == 2 * CHUNKS


def test_a_damaged_object_is_not_fetched_again_for_every_retry(a_world: AWorld) -> None:
    clock = ManualClock()
    world, store = cold(a_world, clock=clock)

    def flip(key: str, buffer: memoryview) -> None:
        if key.endswith(".log"):
            buffer[100] ^= 1

    def fetched() -> int:
        before = world.gets()
        for _ in range(5):
            with pytest.raises(CorruptData, match="CRC"):
                world.log.read(0, 1 << 20, UNCOMMITTED)
        return world.gets() - before

    store.spoil = flip
    assert fetched() == 2
    clock.advance(5_000)
    assert fetched() == 2
    clock.advance(5_000)
    assert fetched() == 0  # the second pause is longer
    clock.advance(5_000)
    assert fetched() == 2
    store.spoil = lambda key, buffer: None
    clock.advance(300_000)
    assert content(world.log.read(0, 1 << 20, UNCOMMITTED))


def test_a_store_that_hangs_keeps_no_local_scan_waiting(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    world.broker.set_high_watermark(5)
    world.log.bounds()
    go = threading.Event()
    try:
        for number in range(20):
            world.logs.hydrator.join(number, lambda: go.wait(20))
        with world.log.read(0, 1 << 20, Isolation.READ_COMMITTED, timeout_s=5) as answer:
            assert answer.next_offset == 5
    finally:
        go.set()
