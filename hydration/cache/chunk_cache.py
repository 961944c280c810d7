"""What was hydrated, as files in one directory. Disposable: whoever deletes any of it, at any time, costs readers time only.

    <directory>/<topic id>-<partition>/<uid>.<position>-<size>.run     one chunk, named after object and byte range
    <directory>/<topic id>-<partition>/<uid>.index                     one run's index
    <directory>/…/<name>.<random>.partial                              being written

Names never come from offsets, so an object that was replaced cannot be taken for its successor. A file is written under
a partial name and renamed; what this process did not write itself is checked before it is served (see `adopt`), because
nothing here is ever fsynced. What it did write is proven again, by sums kept in memory, once the file is all that is left of
the bytes and whenever it is opened anew (see `prove`). No payload is for other users: directories are 0700, files 0600.
"""

import contextlib
import errno
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, DiskFull, HeadwaterError, TransientError
from headwater_core.files import PARTIAL, error_kind
from headwater_core.partition import PartitionId
from headwater_core.segments.checksums import sums_of
from hydration.runfile import RunFile

OPEN_FILES_MAX = 256  # kept open between reads; beyond that the least recently used are opened anew
IN_MEMORY_MAX = 64 << 20  # a chunk that finds no place on the disk is served from memory, up to this size
NAMES_MAX = 4096
SWEEP_S = 10.0
PARTIAL_AGE_MS = 3_600_000  # a partial file that old was left by a crash: no download takes an hour
_NAME = re.compile(r"[A-Za-z0-9_-]{22}-\d{1,10}/[0-9a-zA-Z_-]{1,64}\.(\d{1,19}-\d{1,19}\.run|index)")
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o600

log = structlog.get_logger()


@lru_cache(NAMES_MAX)  # each fetch asks for its own chunk and for those ahead of it
def chunk_name(partition: PartitionId, uid: str, position: int, size_bytes: int) -> str:
    return _checked(f"{folder(partition)}/{uid}.{position}-{size_bytes}.run")


def index_name(partition: PartitionId, uid: str) -> str:
    return _checked(f"{folder(partition)}/{uid}.index")


def folder(partition: PartitionId) -> str:
    return f"{partition.topic_id}-{partition.partition}"


def _checked(name: str) -> str:
    """Uids come from manifests, so from outside; only a plain name may become part of a path."""
    if not _NAME.fullmatch(name):
        raise CorruptData("manifest entry", 0, f"not a name for a cached file: {name[:200]!r}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """One line of `cache show`."""

    name: str
    size_bytes: int
    idle_s: float
    in_use: bool


@dataclass(slots=True)
class _Kept:
    """`file` is the cache's own hold. `trusted`: this process wrote or checked the bytes. `nameless`: in memory, there was no room.
    `sums` are of the bytes that were checked.
    """

    size_bytes: int
    used_s: float
    file: RunFile | None = None
    trusted: bool = False
    nameless: bool = False
    sums: bytes = b""

    @property
    def is_in_use(self) -> bool:
        return self.file is not None and self.file.is_in_use


class ChunkCache:
    """Bounded by `limit_bytes` plus what is being downloaded or read at the moment. Drops the least recently used first, and
    what nobody has used for `ttl_s`; never what a reader holds, except by `evict`, and even then the reader reads on.

    Safe to use from many threads. Several processes may share a directory: each counts what it knows of.
    """

    def __init__(self, directory: Path, limit_bytes: int, ttl_s: float, clock: Clock) -> None:
        self.directory, self.limit_bytes, self.ttl_s = directory, limit_bytes, ttl_s
        self.clock = clock
        self._lock = threading.RLock()  # never held across a look at the disk
        self._sweeping = threading.Lock()
        self._dropped: set[str] | None = None  # since the scan that is under way began
        self._unlinker = ThreadPoolExecutor(1, "unlink")  # for callers that must not wait for a disk
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # least recently used first
        self._used_bytes = 0
        self._open = 0
        self._swept_s = clock.monotonic_s()
        self._find_files()  # looks only: whoever opens a cache to show it deletes nothing

    @property
    def used_bytes(self) -> int:
        """On disk or on its way there, what readers hold included."""
        return self._used_bytes

    def get(self, name: str) -> RunFile | None:
        """The file under `name` when it is open and its bytes are known to be good; held for the caller. Opens and reads nothing."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or not kept.trusted or kept.file is None or kept.file.unproven:
                return None
            self._kept.move_to_end(name)
            kept.used_s = self.clock.monotonic_s()
            return kept.file.hold()

    def prove(self, name: str) -> RunFile | None:
        """What `get` does not give because it is closed, or was not read from its file yet: held for the caller, once its bytes have
        proved to be those that were checked. None, and forgotten, when they have not. Raises TransientError without descriptors.
        """
        with self._lock:
            kept = self._kept.get(name)
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
                if self._kept.get(name) is kept:
                    self._forget(name)
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()
            return None
        assert opened is not None
        with self._lock:
            if self._kept.get(name) is not kept or (kept.file is not None and kept.file is not opened):
                return opened  # it was evicted or opened by another meanwhile, which takes nothing from it
            if kept.file is None:
                kept.file = opened.hold()
                self._open += 1
            opened.unproven = False
            kept.used_s = self.clock.monotonic_s()
            self._kept.move_to_end(name)
            self._close_some()
        return opened

    def has(self, name: str) -> bool:
        """Whether `get` or `prove` would probably find it."""
        kept = self._kept.get(name)
        return kept is not None and kept.trusted

    def may_adopt(self, name: str) -> bool:
        """Whether an earlier process left something under `name`, as far as is known."""
        kept = self._kept.get(name)
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
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return self._keep(name, length, fd, sums)

    def put(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None], content: memoryview | None = None) -> RunFile:
        """A new file under `name`, held for the caller.

        fill      writes the bytes and checks them; what it raises is passed on and nothing is kept
        content   the bytes, where they are in memory

        With no room on the disk, everything that nobody reads is dropped; when that does not help either, the bytes stay
        in memory for a while. Raises DiskFull when they are too many for that, TransientError when there is no descriptor left.
        """
        self._sweep_now_and_then()
        with self._lock:
            dropped = self._make_room(size_bytes)
            self._used_bytes += size_bytes
        self._unlink(dropped)
        try:
            try:
                fd = self._write(name, fill)
            except OSError as error:
                if error_kind(error) is not DiskFull:
                    raise
                self.evict(unused_only=True)
                fd = self._write(name, fill)
        except OSError as error:
            log.warning("cache_bypassed", name=name, size_bytes=size_bytes, reason=str(error))
            return self._in_memory(name, size_bytes, fill, error)
        finally:
            with self._lock:
                self._used_bytes -= size_bytes
        read = partial(_read_at, fd) if content is None else lambda start, length: content[start : start + length]
        return self._keep(name, size_bytes, fd, sums_of(read, size_bytes))

    def evict(self, prefix: str = "", *, unused_only: bool = False) -> int:
        """Drop files whose name begins with `prefix`, held ones too unless told otherwise; how many bytes that were."""
        self._find_files(clear=True)
        with self._lock:
            wanted = {name: kept for name, kept in self._kept.items() if name.startswith(prefix)}
            dropped = [name for name, kept in wanted.items() if not (unused_only and (kept.is_in_use or kept.nameless))]
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
                for name, kept in self._kept.items()
                if name.startswith(prefix)
            ]

    def sweep(self) -> None:
        """Drop what has outlived its time, and take note of what others deleted."""
        self._swept_s = now_s = self.clock.monotonic_s()
        self._find_files(clear=True)
        dropped: list[str] = []
        with self._lock:
            for name, kept in list(self._kept.items()):
                if not kept.is_in_use and now_s - kept.used_s >= (SWEEP_S if kept.nameless else self.ttl_s):
                    self._forget(name)
                    dropped.append(name)
            dropped += self._make_room(0)
        self._unlink(dropped)

    def close(self) -> None:
        """Close what nobody reads; the files stay for the next process."""
        self._unlinker.shutdown(wait=True)
        with self._lock:
            for name in list(self._kept):
                self._forget(name)

    def _sweep_now_and_then(self) -> None:
        if self.clock.monotonic_s() - self._swept_s >= SWEEP_S:
            self.sweep()

    def flush(self) -> None:
        """Wait until what was dropped is gone from the directory, too."""
        self._unlinker.submit(lambda: None).result()

    def _keep(self, name: str, size_bytes: int, fd: int, sums: bytes, *, nameless: bool = False) -> RunFile:
        file = RunFile(fd, name, rested=self._rested).hold()
        with self._lock:
            self._forget(name)
            self._kept[name] = _Kept(size_bytes, self.clock.monotonic_s(), file, trusted=True, nameless=nameless, sums=sums)
            self._used_bytes += size_bytes
            self._open += 1
            self._close_some()
            dropped = self._make_room(0)
        self._unlink(dropped)
        return file

    def _rested(self) -> None:
        """Called by whoever lets go of a file last, in an event loop maybe."""
        if self._used_bytes > self.limit_bytes:
            with self._lock:
                dropped = self._make_room(0)
            if dropped:
                with contextlib.suppress(RuntimeError):  # closed: the next process drops them
                    self._unlinker.submit(self._unlink, dropped)

    def _make_room(self, wanted: int) -> list[str]:
        """Forget the least recently used until `wanted` more bytes fit, as far as nobody reads them; the caller unlinks them."""
        dropped: list[str] = []
        if self._used_bytes + wanted <= self.limit_bytes:
            return dropped
        for name, kept in list(self._kept.items()):
            if not kept.is_in_use:
                self._forget(name)
                dropped.append(name)
                if self._used_bytes + wanted <= self.limit_bytes:
                    break
        return dropped

    def _unlink(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._kept:  # it may have come back
                with contextlib.suppress(OSError):
                    (self.directory / name).unlink()

    def _close_some(self) -> None:
        if self._open <= OPEN_FILES_MAX:
            return
        for kept in self._kept.values():
            if kept.file is not None and not kept.file.is_in_use:
                kept.file.drop()
                kept.file = None
                self._open -= 1
                if self._open <= OPEN_FILES_MAX * 3 // 4:
                    return

    def _forget(self, name: str) -> int:
        with self._lock:
            kept = self._kept.pop(name, None)
            if kept is None:
                return 0
            self._used_bytes -= kept.size_bytes
            if self._dropped is not None:
                self._dropped.add(name)
            if kept.file is not None:
                self._open -= 1
                kept.file.drop()
            return kept.size_bytes

    def _find_files(self, *, clear: bool = False) -> None:
        """Agree with the directory: take up what others wrote, forget what they deleted; `clear` away what a crash left."""
        with self._sweeping:
            with self._lock:
                before = list(self._kept.items())
                self._dropped = set()
            found = self._scan_files(clear)
            for name, kept in before:
                if name not in found and not kept.nameless and self._kept.get(name) is kept:
                    with self._lock:
                        if self._kept.get(name) is kept:
                            self._forget(name)
            now_ms, now_s = self.clock.now_ms(), self.clock.monotonic_s()
            with self._lock:
                dropped, self._dropped = self._dropped, None
            news = [(name, status) for name, status in found.items() if name not in self._kept and name not in dropped]
            for name, status in sorted(news, key=lambda item: item[1].st_mtime_ns):
                with self._lock:
                    if name not in self._kept:
                        idle_s = max(0.0, (now_ms - status.st_mtime_ns // 1_000_000) / 1000)
                        self._kept[name] = _Kept(status.st_size, now_s - idle_s)
                        self._used_bytes += status.st_size

    def _scan_files(self, clear: bool) -> dict[str, os.stat_result]:
        found: dict[str, os.stat_result] = {}
        for folder_entry in _scan(self.directory):
            if not folder_entry.is_dir(follow_symlinks=False):
                continue
            for entry in _scan(Path(folder_entry.path)):
                name = f"{folder_entry.name}/{entry.name}"
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(name):
                        found[name] = status
                    elif clear and name.endswith(PARTIAL) and self.clock.now_ms() - status.st_mtime_ns // 1_000_000 > PARTIAL_AGE_MS:
                        os.unlink(entry.path)
        return found

    def _write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Write, check and publish one file; a descriptor of it."""
        path = self.directory / name
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")  # not `replace_file`: disposable, so never synced
        try:
            with self._create(partial) as file:
                fill(file)
                os.rename(partial, path)
                return os.dup(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

    def _create(self, path: Path) -> BinaryIO:
        try:
            return _new_file(path)
        except FileNotFoundError:  # somebody removed the whole directory, or this is its first file
            for directory in (self.directory, path.parent):
                directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
            return _new_file(path)

    def _in_memory(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None], why: OSError) -> RunFile:
        """Kept for some seconds, so that whoever asked for it finds it; the older ones go when there are too many."""
        if size_bytes > IN_MEMORY_MAX:
            raise DiskFull(f"no room in {self.directory} for a chunk of {size_bytes} bytes: {why.strerror}") from why
        try:
            with os.fdopen(os.memfd_create("chunk", os.MFD_CLOEXEC), "w+b", buffering=0) as file:
                fill(file)
                fd = os.dup(file.fileno())
        except OSError as error:
            raise TransientError(f"no place for a chunk of {size_bytes} bytes: {why.strerror}; in memory: {error.strerror}") from error
        with self._lock:
            nameless = {each: kept.size_bytes for each, kept in self._kept.items() if kept.nameless}
            spare = IN_MEMORY_MAX - size_bytes - sum(nameless.values())
            for each, freed in nameless.items():
                if spare < 0:
                    self._forget(each)
                    spare += freed
        return self._keep(name, size_bytes, fd, b"", nameless=True)


def _read_at(fd: int, position: int, size_bytes: int) -> bytes:
    return os.pread(fd, size_bytes, position)


def _new_file(path: Path) -> BinaryIO:
    return open(path, "x+b", buffering=0, opener=lambda name, flags: os.open(name, flags, _FILE_MODE))


def _scan(directory: Path) -> Iterator[os.DirEntry[str]]:
    """What is in `directory`; nothing when it is not there or cannot be read."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return
