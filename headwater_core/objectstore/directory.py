"""Objects as files below one directory: the key is the path.

A file that is there is whole: it is written under a private name, synced, and only then given its own. Creating uses
link(2), which refuses a name that is taken, so it needs no lock and any number of processes may race. Replacing and
deleting hold a lock file.

What a call returned is on disk: its bytes, its name, and the names of the directories above. When syncing a file fails, the file is
thrown away, since its pages may count as clean from then on and a second fsync would prove nothing; the caller writes anew, under
another private name. When syncing a directory fails, the name is visible and may be gone after a power loss. That outcome is unknown,
and reading back must not settle it from the page cache: until those directories could be synced, the store refuses every call that a
caller could conclude something from. (A file system that cannot write its journal turns read-only, so for names a later success does
prove what it says; and an agent that starts anew replaces a file in the root, which is synced, before it relies on what it sees.)

Tags are the SHA-256 of the content. Private names contain "+", which no key does, so no
listing shows them and the directory may be copied to a bucket, or back, as it is.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat as modes
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from headwater_core import milestones
from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    NotFound,
    SourceChanged,
    StoreGone,
    TransientError,
    TruncatedData,
    UnknownOutcome,
    UsageError,
)
from headwater_core.files import error_kind, sync_path
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo, check_key, check_prefix

_PARTIALS = "+partial"
_LOCK = "+lock"
_WINDOW_BYTES = 1 << 20
_LOCK_WAIT_S = 30.0  # the lock is held for milliseconds; whoever keeps it longer was stopped in the middle
_LOCK_POLL_S = 0.002
_STALE_S = 3600.0
_LINK_ATTEMPTS = 100
_OWN_NAME = re.compile(r"[A-Za-z0-9._=-]+")


class DirectoryStore:
    """An archive on a file system: a disk of its own, or a network share with hard links and locks."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(os.path.abspath(root))
        self._gate = threading.Lock()  # in front of the lock file, so that threads of one process wait without polling
        self._prepared = False
        self._naming = threading.Lock()
        self._unsettled: dict[Path, object] = {}  # directories in which we made others: those names may not be on disk yet
        self._failed: dict[Path, object] = {}  # directories that could not be synced
        self.progressed: Callable[[], object] = lambda: None  # told while bytes move

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, key: str, data: BinaryIO, *, size_bytes: int) -> str:
        with self._translated(key):
            self._check_settled()
            if self._path(key).is_file():
                raise AlreadyExists(key)  # before the work; the link decides
        digest = Digest()
        with self._translated(key), self._partial() as (fd, partial):
            while digest.size_bytes < size_bytes:
                window = data.read(min(_WINDOW_BYTES, size_bytes - digest.size_bytes))
                if not window:
                    raise SourceChanged(f"{key}: {size_bytes} bytes promised, {digest.size_bytes} there")
                digest.update(window)
                _write(fd, window)
                self.progressed()
            os.fsync(fd)
            milestones.reached("directory.written")
            self._link(partial, key)
        return digest.text()

    def create(self, key: str, document: bytes) -> str:
        self._check_settled()
        with self._translated(key), self._partial() as (fd, partial):
            _write(fd, document)
            os.fsync(fd)
            milestones.reached("directory.written")
            self._link(partial, key)
        return _tag(document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        path = self._path(key)
        self._check_settled()
        with self._translated(key), self._partial() as (fd, partial):
            _write(fd, document)
            os.fsync(fd)
            with self._locked():
                try:
                    unchanged = _tag(path.read_bytes()) == expected_tag
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    raise Conflict(f"{key}: gone since it was read") from None
                if not unchanged:
                    raise Conflict(f"{key}: changed since it was read")
                milestones.reached("directory.written")
                os.rename(partial, path)
                milestones.reached("directory.named")
            self._settle(key, path.parent)
        return _tag(document)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self._check_settled()
        with self._translated(key), self._opened(key) as fd:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise CorruptData(key, 0, f"{size} bytes, limit {max_bytes}")
            content = bytearray(size)
            _read_into(fd, memoryview(content), 0, key)
        return bytes(content), _tag(content)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> None:
        with self._translated(key), self._opened(key) as fd:
            _read_into(fd, buffer, start, key)
        self.progressed()

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        with self._translated(key), self._opened(key) as fd:
            for buffer in buffers:
                _read_into(fd, buffer, start, key)
                start += len(buffer)
                yield

    def stat(self, key: str) -> ObjectInfo:
        """Reads the object: a directory keeps no digest, so this one says what the file holds now, not what was sent."""
        self._check_settled()
        digest, tag = Digest(), hashlib.sha256()
        window = memoryview(bytearray(_WINDOW_BYTES))
        with self._translated(key), self._opened(key) as fd:
            about = os.fstat(fd)
            while digest.size_bytes < about.st_size:
                count = os.preadv(fd, [window], digest.size_bytes)
                if not count:
                    raise TruncatedData(key, digest.size_bytes, f"file of {about.st_size} bytes was cut")
                self.progressed()
                digest.update(window[:count])
                tag.update(window[:count])
        return ObjectInfo(key, about.st_size, tag.hexdigest(), digest.text(), about.st_mtime_ns // 1_000_000)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Without tags and digests: either would take reading every object."""
        folder = check_prefix(prefix).rpartition("/")[0]
        self._check_settled()
        with self._translated(prefix):
            self._check_root()
        return self._walk(folder + "/" if folder else "", prefix, start_after)

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._check_settled()
        with self._translated(key):
            self._check_root()
            with self._locked():
                try:
                    path.unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    return
                for parent in path.relative_to(self._root).parents[:-1]:
                    try:
                        (self._root / parent).rmdir()
                    except OSError:
                        break  # something else lives there
            self._settle(key, path.parent)

    # Files

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        try:
            fd = os.open(self._path(key), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            raise NotFound(key) from None
        try:
            if not modes.S_ISREG(os.fstat(fd).st_mode):
                raise NotFound(key)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _partial(self) -> Iterator[tuple[int, Path]]:
        """A new private file. It is locked while its writer lives, which is how stale ones are told."""
        self._prepare()
        path = self._root / _PARTIALS / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield fd, path
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    # Not `files.replace_file`: a name that is taken must be refused, writers race, and a failed sync stays on record (decision 0009).

    def _link(self, partial: Path, key: str) -> None:
        """Publish `partial`, which is on disk, as `key`. A delete may take the empty directory away again: then once more."""
        path = self._path(key)
        for _ in range(_LINK_ATTEMPTS):
            self._make_parents(path.parent)
            try:
                os.link(partial, path)
            except FileExistsError:
                if path.is_dir():
                    raise UsageError(f"{key}: other keys lie below it; a directory cannot hold both") from None
                raise AlreadyExists(key) from None
            except FileNotFoundError:
                if not partial.exists():
                    raise TransientError(f"{key}: the partial file was removed") from None
            except PermissionError as error:
                if error.errno == errno.EPERM:
                    raise UsageError(f"{self.url}: this file system has no hard links, which creating without a race needs") from error
                raise
            else:
                milestones.reached("directory.named")
                return self._settle(key, path.parent)
        raise TransientError(f"{key}: its directory keeps disappearing")

    def _make_parents(self, directory: Path) -> None:
        """Make the directories that are missing on the way to `directory`."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            with self._naming, contextlib.suppress(FileExistsError, FileNotFoundError):
                self._unsettled[path.parent] = object()  # whoever finds the directory finds this too, and a sync begun earlier keeps it
                path.mkdir()

    def _settle(self, key: str, directory: Path) -> None:
        """Make what was named in `directory` durable. It is visible already, so a failure here leaves the outcome open."""
        try:
            self._sync(directory, *directory.parents)
        except OSError as error:
            raise UnknownOutcome(f"{key}: {error.strerror} while syncing its directory") from error

    def _sync(self, directory: Path, *above: Path) -> None:
        """Sync `directory`, and those `above` in which names were made that may not be on disk."""
        with self._naming:
            due = {each: self._unsettled.get(each) for each in (directory, *above) if each == directory or each in self._unsettled}
        while due:
            each, made = next(iter(due.items()))
            try:
                _sync_names(each)
            except OSError:
                with self._naming:
                    self._failed |= {path: object() for path in due}  # what is named in those above is not on disk either
                raise
            del due[each]
            with self._naming:
                if made is not None and self._unsettled.get(each) is made:
                    del self._unsettled[each]

    def _check_settled(self) -> None:
        """Nobody may build on what is visible and may not be on disk. Raises TransientError as long as it cannot be synced."""
        with self._naming:
            failed = dict(self._failed)
        for each, failure in failed.items():
            try:
                _sync_names(each)
            except OSError as error:
                raise TransientError(f"{self.url}: {error.strerror} while syncing {each}; what was written there may be lost") from error
            with self._naming:
                if self._failed.get(each) is failure:  # none that came later, of a name that this sync knew nothing of
                    del self._failed[each]

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Depth first. A directory sorts as its name with "/", which is key order."""
        with self._translated(folder or prefix):
            try:
                with os.scandir(self._root / folder) as entries:
                    names = sorted(entry.name + "/" * entry.is_dir() for entry in entries if _OWN_NAME.fullmatch(entry.name))
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in names:
            key = folder + name
            if name.endswith("/"):
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > start_after or start_after.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                with self._translated(key):
                    try:
                        about = os.stat(self._root / key)
                    except FileNotFoundError:
                        continue
                yield ObjectInfo(key, about.st_size, "", None, about.st_mtime_ns // 1_000_000)

    # The directory itself

    def _check_root(self) -> None:
        """An archive that is not there, on a disk that is not mounted perhaps, must not look like an empty one."""
        if not self._root.is_dir():
            raise StoreGone(f"no archive at {self.url}: there is no such directory")

    def _prepare(self) -> None:
        if self._prepared:
            self._check_root()  # it was there: a disk that went away must not become an empty archive
            return
        partials = self._root / _PARTIALS
        self._make_parents(partials)
        self._sync(self._root, *self._root.parents)
        self._remove_stale(partials)
        self._prepared = True

    def _remove_stale(self, partials: Path) -> None:
        """Unlink what killed writers left: old, and no longer locked. Nothing was published from them, or all of it."""
        for path in partials.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime < _STALE_S:
                    continue
                fd = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive between threads and processes. Raises TransientError when it cannot be had in time."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        if not self._gate.acquire(timeout=_LOCK_WAIT_S):
            raise TransientError(f"{self.url}: the store's lock is taken")
        try:
            fd = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                while True:
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > deadline:
                            raise TransientError(f"{self.url}: another process holds the store's lock") from None
                        time.sleep(_LOCK_POLL_S)
                yield
            finally:
                os.close(fd)
        finally:
            self._gate.release()

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise error_kind(error)(f"{self.url}: {key}: {error.strerror}") from error


def _tag(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_into(fd: int, buffer: memoryview, start: int, key: str) -> None:
    filled = 0
    while filled < len(buffer):
        count = os.preadv(fd, [buffer[filled:]], start + filled)
        if not count:
            raise TruncatedData(key, start + filled, f"{len(buffer)} bytes wanted from {start}")
        filled += count


def _sync_names(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # removed again, and with it what there was to sync
        sync_path(directory)
