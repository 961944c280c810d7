"""The cache alone: bounded, disposable, and careful with what others left in its directory."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import BinaryIO

import pytest

from headwater_core.errors import CorruptData, DiskFull, TransientError
from hydration.cache import chunk_cache as cache_module
from hydration.cache.cache_directory import chunk_name, folder
from hydration.cache.chunk_cache import ChunkCache
from hydration.runfile import RunFile
from tests.headwater_core.manual_clock import ManualClock
from tests.hydration.world import PARTITION

SIZE = 1_000


def name(number: int) -> str:
    return chunk_name(PARTITION, "u", number * SIZE, SIZE)


def content(number: int) -> bytes:
    return bytes([number % 251]) * SIZE


def filled(number: int) -> Callable[[BinaryIO], None]:
    def fill(file: BinaryIO) -> None:
        file.write(content(number))

    return fill


def put(cache: ChunkCache, number: int) -> None:
    cache.put(name(number), SIZE, filled(number)).release()


def opened(cache: ChunkCache, number: int) -> RunFile | None:
    return cache.get(name(number)) or cache.prove(name(number))


def used_bytes(cache: ChunkCache) -> int:
    """As the cache counts, which is what its limit holds for."""
    return cache._table.used_bytes


def on_disk(cache: ChunkCache) -> set[str]:
    cache.flush()
    return {str(path.relative_to(cache.directory)) for path in cache.directory.rglob("*.run")}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(tmp_path: Path, clock: ManualClock) -> ChunkCache:
    return ChunkCache(tmp_path / "cache", 3 * SIZE, 60.0, clock)


def test_the_least_recently_used_goes_first(cache: ChunkCache) -> None:
    for number in range(3):
        put(cache, number)
    found = cache.get(name(0))
    assert found is not None
    found.release()
    put(cache, 3)
    assert on_disk(cache) == {name(0), name(2), name(3)}


def test_what_is_read_stays_and_goes_when_it_rests(cache: ChunkCache) -> None:
    held = [cache.put(name(number), SIZE, filled(number)) for number in range(5)]
    assert used_bytes(cache) == 5 * SIZE  # all in flight
    for number, file in enumerate(held):
        assert file.read(0, SIZE) == content(number)
    for file in held:
        file.release()
    assert used_bytes(cache) == 3 * SIZE
    assert len(on_disk(cache)) == 3


def test_what_nobody_has_wanted_for_long_goes_and_what_is_read_stays(cache: ChunkCache, clock: ManualClock) -> None:
    held = cache.put(name(0), SIZE, filled(0))
    put(cache, 1)
    clock.advance(59_000)
    put(cache, 2)
    clock.advance(1_000)
    cache.sweep()
    assert on_disk(cache) == {name(0), name(2)}
    assert cache.get(name(0)) is held
    held.release()
    held.release()
    clock.advance(60_000)
    cache.sweep()
    assert (on_disk(cache), used_bytes(cache)) == (set(), 0)


def test_a_cache_of_nothing_still_serves(tmp_path: Path, clock: ManualClock) -> None:
    cache = ChunkCache(tmp_path / "cache", 0, 60.0, clock)
    file = cache.put(name(1), SIZE, filled(1))
    assert file.read(0, SIZE) == content(1)
    file.release()
    assert (used_bytes(cache), on_disk(cache)) == (0, set())


def test_nothing_is_kept_of_what_could_not_be_filled(cache: ChunkCache) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise CorruptData("x", 0, "no")

    with pytest.raises(CorruptData):
        cache.put(name(1), SIZE, fail)
    assert used_bytes(cache) == 0
    assert not list(cache.directory.rglob("*.*"))


def test_a_full_disk_first_drops_what_is_not_in_use(cache: ChunkCache) -> None:
    put(cache, 1)
    held = cache.put(name(2), SIZE, filled(2))
    attempts = []

    def fill(file: BinaryIO) -> None:
        attempts.append(on_disk(cache))
        if len(attempts) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(content(3))

    cache.put(name(3), SIZE, fill).release()
    assert attempts == [{name(1), name(2)}, {name(2)}]
    held.release()
    assert on_disk(cache) == {name(2), name(3)}


def test_what_finds_no_room_is_served_from_memory_unless_it_is_too_large(
    cache: ChunkCache, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache._files, "write", full)
    file = cache.put(name(1), SIZE, filled(1))
    assert file.read(0, SIZE) == content(1)
    assert not file.forget_memory(), "it is held"
    file.release()
    again = cache.get(name(1))
    assert again is not None, "who asks again soon finds it"
    monkeypatch.setattr(cache_module, "IN_MEMORY_MAX", 2 * SIZE)
    for number in (2, 3):
        cache.put(name(number), SIZE, filled(number)).release()
    assert [cache.has(name(number)) for number in (1, 2, 3)] == [False, True, True]
    assert again.read(0, SIZE) == content(1)
    again.release()
    clock.advance(11_000)
    cache.sweep()
    assert used_bytes(cache) == 0
    monkeypatch.setattr(cache_module, "IN_MEMORY_MAX", SIZE - 1)
    with pytest.raises(DiskFull, match="no room"):
        cache.put(name(1), SIZE, filled(1))


def test_more_files_can_be_held_than_are_kept_open(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "OPEN_FILES_MAX", 8)
    cache = ChunkCache(tmp_path / "cache", 100 * SIZE, 60.0, clock)
    for number in range(20):
        put(cache, number)
    held = [opened(cache, number) for number in range(20)]
    for number, file in enumerate(held):
        assert file is not None
        assert file.read(0, SIZE) == content(number)
        file.release()


def test_another_processes_file_is_served_only_after_a_check(tmp_path: Path, clock: ManualClock) -> None:
    first, second = (ChunkCache(tmp_path / "cache", 10 * SIZE, 60.0, clock) for _ in range(2))
    put(first, 1)
    assert second.get(name(1)) is None
    checked: list[bytes] = []
    file = second.adopt(name(1), SIZE, lambda each: checked.append(each.read()))
    assert file is not None
    assert checked == [content(1)]
    file.release()
    again = second.get(name(1))
    assert again is not None
    again.release()
    first.evict()
    second.sweep()
    assert used_bytes(second) == 0


def test_another_processes_file_of_another_length_is_dropped_whatever_it_holds(tmp_path: Path, clock: ManualClock) -> None:
    first, second = (ChunkCache(tmp_path / "cache", 10 * SIZE, 60.0, clock) for _ in range(2))
    put(first, 1)
    assert second.adopt(name(1), SIZE - 1, lambda each: None) is None
    assert on_disk(second) == set()


def test_a_bound_that_was_lowered_holds_from_the_first_file_on(tmp_path: Path, clock: ManualClock) -> None:
    cache = ChunkCache(tmp_path / "cache", 10 * SIZE, 60.0, clock)
    for number in range(10):
        put(cache, number)
    cache.close()
    lower = ChunkCache(tmp_path / "cache", 4 * SIZE, 60.0, clock)
    assert len(lower.show()) == 10
    assert len(ChunkCache(tmp_path / "cache", 4 * SIZE, 60.0, clock).show()) == 10  # looking deletes nothing
    put(lower, 10)
    assert used_bytes(lower) == 4 * SIZE
    assert len(on_disk(lower)) == 4


def test_one_partition_can_be_shown_and_evicted(cache: ChunkCache) -> None:
    put(cache, 1)
    other = f"{'B' * 22}-0/u.0-1000.run"
    cache.put(other, SIZE, filled(2)).release()
    assert [each.name for each in cache.show(folder(PARTITION) + "/")] == [name(1)]
    assert cache.evict(folder(PARTITION) + "/") == SIZE
    assert [each.name for each in cache.show()] == [other]


def test_few_files_stay_open_however_many_are_kept(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "OPEN_FILES_MAX", 8)
    cache = ChunkCache(tmp_path / "cache", 1_000 * SIZE, 60.0, clock)
    for number in range(50):
        put(cache, number)
    for number in range(50):
        file = opened(cache, number)
        assert file is not None
        assert file.read(0, SIZE) == content(number)
        file.release()
    assert sum(kept.file is not None for kept in cache._table._entries.values()) <= 8


def test_foreign_files_in_the_directory_are_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    stray = tmp_path / "cache" / "notes.txt"
    nested = tmp_path / "cache" / folder(PARTITION) / "notes.txt"
    for path in (stray, nested):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    cache = ChunkCache(tmp_path / "cache", 0, 60.0, clock)
    cache.evict()
    clock.advance(10_000_000)
    cache.sweep()
    assert stray.exists()
    assert nested.exists()


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_find_their_bytes_and_the_bound_holds_when_they_rest(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    cache = ChunkCache(tmp_path / "cache", 5 * SIZE, 60.0, clock)
    begin = threading.Barrier(8)

    def work(worker: int) -> None:
        random = Random(seed * 100 + worker)
        begin.wait(20)
        for _ in range(60):
            number = random.randrange(12)
            action = random.random()
            if action < 0.05:
                cache.evict()
            elif action < 0.1:
                cache.sweep()
            file: RunFile | None = cache.get(name(number))
            if file is None:
                file = cache.put(name(number), SIZE, filled(number))
            assert file.read(0, SIZE) == content(number)
            assert used_bytes(cache) <= (5 + 2 * 8) * SIZE
            file.release()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, worker) for worker in range(8)]:
            done.result(30)
    cache.sweep()
    assert used_bytes(cache) <= 5 * SIZE
    assert len(on_disk(cache)) * SIZE == used_bytes(cache)


# -- what other processes do to files ---------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "flipped":
        raw[100] ^= 1
    path.write_bytes(raw[: {"cut": 500, "empty": 0}.get(how, len(raw))])
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "gone"])
def test_a_file_that_changed_while_it_was_closed_is_dropped(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(cache_module, "OPEN_FILES_MAX", 0)
    put(cache, 1)
    put(cache, 2)
    damage(cache.directory / name(1), how)
    assert opened(cache, 1) is None
    assert not cache.has(name(1))
    assert name(1) not in on_disk(cache)
    good = opened(cache, 2)
    assert good is not None
    good.release()
    assert used_bytes(cache) == SIZE


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_a_file_is_proven_once_when_it_is_all_that_is_left_of_its_bytes(cache: ChunkCache, how: str) -> None:
    for number in (1, 2):
        file = cache.put(name(number), SIZE, filled(number), memoryview(content(number)))
        file.memory = memoryview(content(number))
        file.release()
    damage(cache.directory / name(1), how)
    for number in (1, 2):
        file = cache._table._entries[name(number)].file  # type: ignore[assignment]
        assert file.forget_memory()
        assert cache.get(name(number)) is None
    assert opened(cache, 1) is None
    good = opened(cache, 2)
    assert good is not None
    good.release()
    again = cache.get(name(2))
    assert again is not None
    again.release()


def test_what_memory_held_differently_than_the_disk_is_noticed(cache: ChunkCache) -> None:
    """The write itself may go wrong."""
    cache.put(name(1), SIZE, filled(7), memoryview(content(1))).release()
    file = cache._table._entries[name(1)].file
    assert file is not None
    file.doubt()
    assert opened(cache, 1) is None


def test_without_descriptors_nothing_good_is_forgotten(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "OPEN_FILES_MAX", 0)
    put(cache, 1)
    put(cache, 2)

    def exhausted(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "open", exhausted)
        with pytest.raises(TransientError):
            cache.prove(name(1))
    good = opened(cache, 1)
    assert good is not None
    good.release()


# -- no reader waits for its disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["sweep", "show", "evict"])
def test_a_reader_does_not_wait_for_a_scan_of_the_directory(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    put(cache, 1)
    scans, go = threading.Event(), threading.Event()
    real = cache._files.scan

    def slow(*, clear: bool) -> object:
        scans.set()
        assert go.wait(20)
        return real(clear=clear)

    monkeypatch.setattr(cache._files, "scan", slow)
    with ThreadPoolExecutor(2) as pool:
        scanning = pool.submit(getattr(cache, work))
        assert scans.wait(20)
        found = pool.submit(cache.get, name(1)).result(20)
        assert found is not None
        found.release()
        go.set()
        scanning.result(20)


def test_a_scan_takes_nothing_back_that_happened_meanwhile(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, 1)
    put(cache, 2)
    real = cache._files.scan

    def meanwhile(*, clear: bool) -> object:
        found = real(clear=clear)
        cache._unlink([name(1)] if cache._forget(name(1)) else [])
        cache.put(name(3), SIZE, filled(3)).release()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cache._files, "scan", meanwhile)
        cache.sweep()
    assert {each.name for each in cache.show()} == {name(2), name(3)}
    assert used_bytes(cache) == 2 * SIZE


def test_letting_go_of_a_file_does_not_wait_for_the_disk(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [cache.put(name(number), SIZE, filled(number)) for number in range(5)]
    by: list[str] = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        by.append(threading.current_thread().name)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    for file in held:
        file.release()
    cache.flush()
    assert len(by) == 2
    assert threading.current_thread().name not in by


def test_no_other_user_may_read_what_is_cached(tmp_path: Path, clock: ManualClock) -> None:
    before = os.umask(0)
    try:
        cache = ChunkCache(tmp_path / "data" / "cache", 3 * SIZE, 60.0, clock)
        put(cache, 1)
    finally:
        os.umask(before)
    path = cache.directory / name(1)
    modes = {each.stat().st_mode & 0o777 for each in (cache.directory, path.parent)}
    assert modes == {0o700}
    assert path.stat().st_mode & 0o777 == 0o600
