"""What was hydrated, up to a limit of bytes. Disposable: deleting any of it, at any time, costs readers time only.

What this process did not write itself is checked before it is served (see `adopt`), because nothing here is ever fsynced. What it did
write is proven again, by sums kept in memory, once the file is all that is left of the bytes and whenever it is opened again (see
`prove`). Where a file does not fit on disk, its bytes stay in memory for a while.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, DiskFull, HeadwaterError, TransientError
from headwater_core.files import error_kind
from headwater_core.segments.checksums import sums_of
from hydration.cache.cache_directory import CacheDirectory
from hydration.cache.lru_table import CacheEntry, LruTable
from hydration.runfile import RunFile

OPEN_FILES_MAX = 256  # kept open between reads; beyond that the least recently used are closed, and opened again
IN_MEMORY_MAX = 64 << 20  # a chunk that does not fit on disk is served from memory, up to this size
SWEEP_S = 10.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """One line of `cache show`."""

    name: str
    size_bytes: int
    idle_s: float
    in_use: bool


class ChunkCache:
    """Bounded by `limit_bytes` plus what is being downloaded or read at the moment. Drops the least recently used first, and
    what has not been used for `ttl_s`; never what a reader holds, except by `evict`, and even then the reader can continue.

    Safe to use from many threads. Several processes may share a directory: each counts what it knows of.
    """

    def __init__(self, directory: Path, limit_bytes: int, ttl_s: float, clock: Clock) -> None:
        self.directory, self.limit_bytes, self.ttl_s = directory, limit_bytes, ttl_s
        self._files = CacheDirectory(directory, clock)
        self.clock = clock
        self._lock = threading.RLock()  # never held across a look at the disk
        self._sweeping = threading.Lock()
        self._unlinker = ThreadPoolExecutor(1, "unlink")  # for callers that must not wait for a disk
        self.bypassed = 0  # files that could not be written to the disk, in this process
        self.on_drop: Callable[[str], object] = lambda _: None  # called with the name of each file that is gone, in any thread
        self._table = LruTable(limit_bytes)
        self._swept_s = clock.monotonic_s()
        self._find_files()  # does not delete: `cache show` opens a cache, too

    def get(self, name: str) -> RunFile | None:
        """The file under `name` when it is open and its bytes are known to be good; held for the caller. Opens and reads nothing."""
        with self._lock:
            kept = self._table.get(name)
            if kept is None or not kept.trusted or kept.file is None or kept.file.unproven:
                return None
            self._table.touch(name, self.clock.monotonic_s())
            return kept.file.hold()

    def prove(self, name: str) -> RunFile | None:
        """What `get` does not give because it is closed, or was not read from its file yet: held for the caller, once its bytes have
        proved to be those that were checked. None, and forgotten, when they have not. Raises TransientError without descriptors.
        """
        with self._lock:
            kept = self._table.get(name)
            if kept is None or not kept.sums:
                return None
            file = kept.file.hold() if kept.file is not None else None
        opened, good = file, False
        try:
            opened = opened or RunFile.open(self.directory / name, rested=self._rested)
            good = opened.size_bytes == kept.size_bytes and sums_of(opened.read, kept.size_bytes) == kept.sums
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise TransientError(f"{name}: {error.strerror}") from error
        except TransientError:
            pass  # a disk that fails: as good as no file
        if not good:
            log.warning("cached_file_dropped", name=name, reason="not the bytes that were written")
            if opened is not None:
                opened.release()
            with self._lock:
                if self._table.get(name) is kept:
                    self._forget(name)
            self._files.remove(name)
            return None
        assert opened is not None
        with self._lock:
            if self._table.get(name) is not kept or (kept.file is not None and kept.file is not opened):
                return opened  # it was evicted, or opened by another thread: the file is good all the same
            if kept.file is None:
                self._table.take_file(kept, opened.hold())
            opened.unproven = False
            self._table.touch(name, self.clock.monotonic_s())
            self._table.close_files(OPEN_FILES_MAX)
        return opened

    def has(self, name: str) -> bool:
        """Whether `get` or `prove` would probably find it."""
        kept = self._table.get(name)
        return kept is not None and kept.trusted

    def may_adopt(self, name: str) -> bool:
        """Whether an earlier process left something under `name`, as far as is known."""
        kept = self._table.get(name)
        return kept is not None and not kept.trusted

    def adopt(self, name: str, size_bytes: int, check: Callable[[BinaryIO], None]) -> RunFile | None:
        """The file under `name`, held for the caller, after `check` found an earlier process's bytes good; None when there is none.

        size_bytes  the only length it may have; 0 for any
        check       raises CorruptData; then the file is dropped
        """
        found = self.get(name)
        if found is not None:
            return found
        path = self.directory / name
        try:
            with open(path, "rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                if size_bytes not in (0, length):
                    raise CorruptData(name, 0, f"{length} bytes instead of {size_bytes}")
                check(file)
                sums = sums_of(partial(_read_at, file.fileno()), length)
                fd = os.dup(file.fileno())
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise TransientError(f"{name}: {error.strerror}") from error
            return None
        except HeadwaterError as error:
            log.warning("cached_file_dropped", name=name, reason=str(error))
            self._forget(name)
            self._files.remove(name)
            return None
        return self._keep(name, length, fd, sums)

    def put(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None], content: memoryview | None = None) -> RunFile:
        """A new file under `name`, held for the caller.

        fill      writes the bytes and checks them; what it raises is passed on and nothing is kept
        content   the bytes, where they are in memory

        With no room on the disk, everything that is not in use is dropped; when that does not help either, the bytes stay
        in memory for a while. Raises DiskFull when they are too many for that, TransientError when there is no descriptor left.
        """
        self._sweep_if_due()
        with self._lock:
            dropped = self._table.make_room(size_bytes)
            self._table.used_bytes += size_bytes  # on its way to the disk
        self._unlink(dropped)
        try:
            try:
                fd = self._files.write(name, fill)
            except OSError as error:
                if error_kind(error) is not DiskFull:
                    raise
                self.evict(unused_only=True)
                fd = self._files.write(name, fill)
        except OSError as error:
            self.bypassed += 1
            log.warning("cache_bypassed", name=name, size_bytes=size_bytes, reason=str(error))
            return self._in_memory(name, size_bytes, fill, error)
        finally:
            with self._lock:
                self._table.used_bytes -= size_bytes
        read = partial(_read_at, fd) if content is None else lambda start, length: content[start : start + length]
        return self._keep(name, size_bytes, fd, sums_of(read, size_bytes))

    @property
    def used_bytes(self) -> int:
        """Of all files, and of what is on its way."""
        return self._table.used_bytes

    @property
    def folder_bytes(self) -> dict[str, int]:
        """What is known to be in each folder (see cache_directory): of one partition each."""
        with self._lock:
            return dict(self._table.folder_bytes)

    @property
    def evicted(self) -> int:
        """How many files had to make room for others, in this process."""
        return self._table.evicted

    def evict(self, prefix: str = "", *, unused_only: bool = False) -> int:
        """Drop files whose name begins with `prefix`, with `unused_only` those that no reader holds; how many bytes that were."""
        self._find_files(clear=True)
        with self._lock:
            wanted = {name: kept for name, kept in self._table.items() if name.startswith(prefix)}
            dropped = [name for name, kept in wanted.items() if not (unused_only and (kept.is_in_use or kept.memory_only))]
            freed = sum(map(self._forget, dropped))
        self._unlink(dropped)
        return freed

    def show(self, prefix: str = "") -> list[CachedFile]:
        """What is there now, least recently used first."""
        self._find_files()
        with self._lock:
            now_s = self.clock.monotonic_s()
            return [
                CachedFile(name=name, size_bytes=kept.size_bytes, idle_s=now_s - kept.used_s, in_use=kept.is_in_use)
                for name, kept in self._table.items()
                if name.startswith(prefix)
            ]

    def sweep(self) -> None:
        """Drop what was not used for `ttl_s`, and forget what other processes deleted."""
        self._swept_s = now_s = self.clock.monotonic_s()
        self._find_files(clear=True)
        dropped: list[str] = []
        with self._lock:
            for name, kept in self._table.items():
                if not kept.is_in_use and now_s - kept.used_s >= (SWEEP_S if kept.memory_only else self.ttl_s):
                    self._forget(name)
                    dropped.append(name)
            dropped += self._table.make_room(0)
        self._unlink(dropped)

    def close(self) -> None:
        """Close all files; they stay for the next process. What readers hold is closed when they let go."""
        self._unlinker.shutdown(wait=True)
        with self._lock:
            for name, _ in self._table.items():
                self._forget(name)

    def _sweep_if_due(self) -> None:
        if self.clock.monotonic_s() - self._swept_s >= SWEEP_S:
            self.sweep()

    def flush(self) -> None:
        """Wait until what was dropped is deleted from the directory, too."""
        self._unlinker.submit(lambda: None).result()

    def _keep(self, name: str, size_bytes: int, fd: int, sums: bytes, *, memory_only: bool = False) -> RunFile:
        file = RunFile(fd, name, rested=self._rested).hold()
        with self._lock:
            kept = CacheEntry(size_bytes, self.clock.monotonic_s(), file, trusted=True, memory_only=memory_only, sums=sums)
            self._table.add(name, kept)
            self._table.close_files(OPEN_FILES_MAX)
            dropped = self._table.make_room(0)
        self._unlink(dropped)
        return file

    def _rested(self) -> None:
        """Called where the last reader of a file lets go, in an event loop maybe."""
        if self._table.used_bytes > self.limit_bytes:
            with self._lock:
                dropped = self._table.make_room(0)
            if dropped:
                with contextlib.suppress(RuntimeError):  # closed: the next process drops them
                    self._unlinker.submit(self._unlink, dropped)

    def _unlink(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._table:  # it may have come back
                self._files.remove(name)
                self.on_drop(name)

    def _forget(self, name: str) -> int:
        with self._lock:
            return self._table.forget(name)

    def _find_files(self, *, clear: bool = False) -> None:
        """Agree with the directory: take over what other processes wrote, forget what they deleted; `clear` removes what a crash left."""
        with self._sweeping:
            with self._lock:
                before = self._table.items()
                self._table.forgotten = set()
            found = self._files.scan(clear=clear)
            for name, kept in before:
                if name not in found and not kept.memory_only and self._table.get(name) is kept:
                    with self._lock:
                        if self._table.get(name) is kept:
                            self._forget(name)
                    self.on_drop(name)
            now_ms, now_s = self.clock.now_ms(), self.clock.monotonic_s()
            with self._lock:
                dropped, self._table.forgotten = self._table.forgotten, None
            assert dropped is not None
            news = [(name, status) for name, status in found.items() if name not in self._table and name not in dropped]
            for name, status in sorted(news, key=lambda item: item[1].st_mtime_ns):
                with self._lock:
                    if name not in self._table:
                        idle_s = max(0.0, (now_ms - status.st_mtime_ns // 1_000_000) / 1000)
                        self._table.add(name, CacheEntry(status.st_size, now_s - idle_s))

    def _in_memory(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None], why: OSError) -> RunFile:
        """Kept for some seconds, so that a retry finds it; the older ones are dropped when there are too many."""
        if size_bytes > IN_MEMORY_MAX:
            raise DiskFull(f"no room in {self.directory} for a chunk of {size_bytes} bytes: {why.strerror}") from why
        try:
            with os.fdopen(os.memfd_create("chunk", os.MFD_CLOEXEC), "w+b", buffering=0) as file:
                fill(file)
                fd = os.dup(file.fileno())
        except OSError as error:
            raise TransientError(f"no room for a chunk of {size_bytes} bytes: {why.strerror}; in memory: {error.strerror}") from error
        with self._lock:
            others = {each: kept.size_bytes for each, kept in self._table.items() if kept.memory_only}
            spare = IN_MEMORY_MAX - size_bytes - sum(others.values())
            for each, freed in others.items():
                if spare < 0:
                    self._forget(each)
                    spare += freed
        return self._keep(name, size_bytes, fd, b"", memory_only=True)


def _read_at(fd: int, position: int, size_bytes: int) -> bytes:
    return os.pread(fd, size_bytes, position)
