"""Objects as files below one directory: the key is the path.

A file that is there is whole: it is written under a private name, synced, and only then given its own. Creating uses
link(2), which refuses a name that is taken, so it needs no lock and any number of processes may race. Replacing and
deleting hold a lock file.

What a call returned is on disk: its bytes, its name, and the names of the directories above (durable_names). When syncing a file fails,
the file is thrown away, since its pages may count as clean from then on and a second fsync would prove nothing; the caller writes it again,
under another private name.

User metadata is in extended attributes, `user.<name>`, where the file system has them: written before an object gets its name, so
the two cannot part. It is for people who inspect the store: where attributes cannot be written or read, whatever the error, there is none.

Tags are the SHA-256 of the content. Private names contain "+", which no key does, so no
listing shows them and the directory may be copied to a bucket, or back, as it is.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat as modes
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import structlog

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
    UsageError,
)
from headwater_core.files import error_kind
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.directory.durable_names import DurableNames
from headwater_core.objectstore.directory.file_growth import FileGrowth
from headwater_core.objectstore.directory.private_files import abandoned_files, private_file, remove_abandoned, remove_stale
from headwater_core.objectstore.directory.store_lock import StoreLock
from headwater_core.objectstore.object_range import RangeSource
from headwater_core.objectstore.store import (
    DOCUMENT_BYTES_MAX,
    NO_METADATA,
    PLAIN,
    GrowingObject,
    NewObject,
    ObjectForm,
    ObjectInfo,
    ObjectRange,
    Pace,
    UnfinishedUpload,
    at_once,
    check_key,
    check_prefix,
)

_PRIVATE = "+partial"
_LOCK = "+lock"
_WINDOW_BYTES = 1 << 20
_LINK_ATTEMPTS = 100
_ATTRIBUTE = "user."
_SECRET = ("cluster/",)  # below it are credentials (docs/formats/cluster-snapshot.md): only their owner may read them
_OWN_NAME = re.compile(r"[A-Za-z0-9._=-]+")
_warned = threading.Event()  # that attributes fail: once in a process
log = structlog.get_logger()


class DirectoryStore:
    """An archive on a file system: a disk of its own, or a network share with hard links and locks."""

    part_bytes_min = 0
    keeps_metadata = False  # not every file system has attributes, and few copies

    def __init__(self, root: Path | str) -> None:
        self._root = Path(os.path.abspath(root))
        self._lock = StoreLock(self._root / _LOCK, self.url)
        self._names = DurableNames()
        self._private = self._root / _PRIVATE
        self._prepared = False
        self.progressed: Callable[[], object] = lambda: None  # called while bytes move

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        return self.put_all([NewObject(key, data, size_bytes, form)])[0]

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        self._names.check(self.url)
        for each in objects:
            if check_key(each.key) and each.size_bytes > _WINDOW_BYTES and self._path(each.key).is_file():
                raise AlreadyExists(each.key)  # before the work; the link decides
        digests: list[str] = []
        written: list[tuple[int, str]] = []
        with contextlib.ExitStack() as files:
            for each in objects:
                with self._translated(each.key):
                    if not written:
                        self._prepare()
                    written.append(files.enter_context(private_file(self._private, _mode(each.key))))
                    fd, _ = written[-1]
                    digests.append(self._fill(fd, each))
                    _set_metadata(fd, each.form.metadata)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # begins to write it back: all syncs wait for one journal commit
            for each, (fd, _) in zip(objects, written, strict=True):
                with self._translated(each.key):
                    os.fsync(fd)
            milestones.reached("directory.written")
            self._publish([(partial, each.key) for each, (_, partial) in zip(objects, written, strict=True)])
        return digests

    def _fill(self, fd: int, new: NewObject) -> str:
        digest = Digest()
        while digest.size_bytes < new.size_bytes:
            window = new.data.read(min(_WINDOW_BYTES, new.size_bytes - digest.size_bytes))
            if not window:
                raise SourceChanged(f"{new.key}: {new.size_bytes} bytes promised, {digest.size_bytes} there")
            digest.update(window)
            _write(fd, window)
            self.progressed()
        return digest.text()

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        form = ObjectForm(metadata=metadata)

        def publish(fd: int, partial: str) -> None:
            _set_metadata(fd, form.metadata)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # as put_all does
            os.fsync(fd)
            milestones.reached("directory.written")
            self._publish([(partial, key)])

        def check() -> None:
            self._names.check(self.url)

        return FileGrowth(check_key(key), lambda: self._private_file(key), publish, check, self._translated, lambda: self.progressed())

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        source = RangeSource(self, ranges, digest, pace)
        self.put(key, source.as_file(), size_bytes=source.size_bytes, form=form)

    def create(self, key: str, document: bytes) -> str:
        self._names.check(self.url)
        with self._translated(key), self._private_file(key) as (fd, partial):
            _write(fd, document)
            os.fsync(fd)
            milestones.reached("directory.written")
            self._publish([(partial, key)])
        return _tag(document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        path = self._path(key)
        self._names.check(self.url)
        with self._translated(key), self._private_file(key) as (fd, partial):
            _write(fd, document)
            os.fsync(fd)
            with self._lock.held():
                try:
                    unchanged = _tag(path.read_bytes()) == expected_tag
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    raise Conflict(f"{key}: gone since it was read") from None
                if not unchanged:
                    raise Conflict(f"{key}: changed since it was read")
                milestones.reached("directory.written")
                os.rename(partial, path)
                milestones.reached("directory.named")
            self._names.settle(key, path.parent)
        return _tag(document)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self._names.check(self.url)
        with self._translated(key), self._opened(key) as fd:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise CorruptData(key, 0, f"{size} bytes, limit {max_bytes}")
            content = bytearray(size)
            _read_into(fd, memoryview(content), 0, key)
        return bytes(content), _tag(content)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        with self._translated(key), self._opened(key) as fd:
            _read_into(fd, buffer, start, key)
        self.progressed()
        return _Metadata(self._path(key))

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        with self._translated(key), self._opened(key) as fd:
            for buffer in buffers:
                _read_into(fd, buffer, start, key)
                start += len(buffer)
                yield

    def stat(self, key: str) -> ObjectInfo:
        """Reads the object: a directory keeps no digest, so this one says what the file holds now, not what was sent."""
        self._names.check(self.url)
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
        self._names.check(self.url)
        with self._translated(prefix):
            self._check_root()
        return self._walk(folder + "/" if folder else "", prefix, start_after)

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._names.check(self.url)
        with self._translated(key):
            self._check_root()
            with self._lock.held():
                try:
                    path.unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    return
                for parent in path.relative_to(self._root).parents[:-1]:
                    try:
                        (self._root / parent).rmdir()
                    except OSError:
                        break  # something else lives there
            self._names.settle(key, path.parent)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Partial files that killed writers left. Their names do not say of which key."""
        check_prefix(prefix)
        with self._translated(prefix):
            self._check_root()
            found = abandoned_files(self._private)
        return iter([UnfinishedUpload("", name, int(modified_s * 1000)) for name, modified_s in found])

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._translated(upload.upload_id):
            remove_abandoned(self._private / check_key(upload.upload_id))

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

    def _private_file(self, key: str) -> contextlib.AbstractContextManager[tuple[int, str]]:
        self._prepare()
        return private_file(self._private, _mode(key))

    # Not `files.replace_file`: a name that is taken must be refused, writers race, and a failed sync stays on record (decision 0009).

    def _publish(self, files: Sequence[tuple[str, str]]) -> None:
        """Give files that are on disk their keys as names. When one is refused, those before it are there, and durable too: the caller
        will find them."""
        named: dict[str, None] = {}
        key = ""
        try:
            for partial, key in files:
                with self._translated(key):
                    named[self._link(partial, key)] = None
        finally:
            self._names.settle(key, *map(Path, named))

    def _link(self, partial: str, key: str) -> str:
        """Publish `partial` as `key`; its directory comes back. A delete may take the empty directory away again: then it retries."""
        path = f"{self._root}/{check_key(key)}"
        directory = path.rpartition("/")[0]
        for _ in range(_LINK_ATTEMPTS):
            try:
                os.link(partial, path)
            except FileExistsError:
                if os.path.isdir(path):
                    raise UsageError(f"{key}: other keys lie below it; a directory cannot hold both") from None
                raise AlreadyExists(key) from None
            except FileNotFoundError:
                if not os.path.exists(partial):
                    raise TransientError(f"{key}: the partial file was removed") from None
                self._names.make_directories(Path(directory))
            except PermissionError as error:
                if error.errno == errno.EPERM:
                    raise UsageError(f"{self.url}: this file system has no hard links, which creating without a race needs") from error
                raise
            else:
                milestones.reached("directory.named")
                return directory
        raise TransientError(f"{key}: its directory keeps disappearing")

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
        """An archive that is missing, perhaps on a disk that is not mounted, must not look like an empty one."""
        if not self._root.is_dir():
            raise StoreGone(f"no archive at {self.url}: there is no such directory")

    def _prepare(self) -> None:
        if self._prepared:
            self._check_root()  # it was there: a disk that went away must not become an empty archive
            return
        self._names.make_directories(self._private)
        self._names.sync(self._root)
        remove_stale(self._private)
        self._prepared = True

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise error_kind(error)(f"{self.url}: {key}: {error.strerror}") from error


def _mode(key: str) -> int:
    """Of the file, less the umask."""
    return 0o600 if key.startswith(_SECRET) else 0o666


def _tag(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _set_metadata(fd: int, metadata: Mapping[str, str]) -> None:
    try:
        for name, value in metadata.items():
            os.setxattr(fd, _ATTRIBUTE + name, value.encode())
    except OSError as error:
        _warn_of_attributes(error)


class _Metadata(Mapping[str, str]):
    """A file's user metadata, read when somebody looks at it: most reads do not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _values(self) -> dict[str, str]:
        try:
            names = [name for name in os.listxattr(self._path) if name.startswith(_ATTRIBUTE)]
            return {name.removeprefix(_ATTRIBUTE): os.getxattr(self._path, name).decode(errors="replace") for name in names}
        except FileNotFoundError:
            return {}
        except OSError as error:
            _warn_of_attributes(error)
            return {}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _warn_of_attributes(error: OSError) -> None:
    if not _warned.is_set():
        _warned.set()
        log.warning("user_metadata_failed", reason=str(error))


def _read_into(fd: int, buffer: memoryview, start: int, key: str) -> None:
    filled = 0
    while filled < len(buffer):
        count = os.preadv(fd, [buffer[filled:]], start + filled)
        if not count:
            raise TruncatedData(key, start + filled, f"{len(buffer)} bytes wanted from {start}")
        filled += count
