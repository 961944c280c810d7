"""The small files of a log directory, and what its file system's errors mean."""

import io
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from headwater_core.errors import CorruptData, HeadwaterError, TransientError, Unauthorised, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints

SETTLED_NS = 2_000_000_000  # no file system's clock is coarser

T = TypeVar("T")


class SmallFiles:
    """What small files hold, decoded once for each of their states: every look at one partition needs all of its directory's. They go by
    plain names, since making a path takes as long as looking at the file."""

    def __init__(self) -> None:
        self._known: dict[str, _SmallFile] = {}
        self._decoders: dict[str, checkpoints.OffsetsDecoder] = {}

    def read_offsets(self, path: str) -> Mapping[TopicPartition, int]:
        """An offset checkpoint, of which only what has changed is decoded; empty when it is not there."""
        decoder = self._decoders.get(path)
        if decoder is None:
            decoder = self._decoders.setdefault(path, checkpoints.OffsetsDecoder())
        return self.read(path, decoder.decode) or {}

    def read(self, path: str, decode: "Callable[..., T]") -> "T | None":
        """None when it is not there. `decode` is always the same for one path."""
        known, now = self._known.get(path), _stamp(path)
        if known and known.stamp and known.stamp == now:
            return cast(T, known.value)
        found = _read_stamped(path) if now else None
        if found is None:
            return None
        raw, stamp = found
        value = known.value if known and known.raw == raw else decode(raw, where=path)
        is_settled = time.time_ns() > stamp.modified_ns + SETTLED_NS
        self._known[path] = _SmallFile(stamp if is_settled else None, raw, value, stamp.modified_ns)
        return cast(T, value)

    def modified_ms(self, path: str) -> int | None:
        """When it was written, as it was last read, in milliseconds since the epoch; None when it never was."""
        known = self._known.get(path)
        return None if known is None else known.modified_ns // 1_000_000


class Stamp(NamedTuple):
    """Changes with the content of a file, unless it was written twice within one tick of the file system's clock."""

    inode: int
    modified_ns: int
    size_bytes: int


class _SmallFile(NamedTuple):
    """stamp: None when the file was just written, so that it need not show the next change"""

    stamp: Stamp | None
    raw: bytes
    value: object
    modified_ns: int


def is_directory(path: Path) -> bool:
    """As Path.is_dir, whose OSError of a failing disk becomes ours."""
    try:
        return path.is_dir()
    except OSError as error:
        raise disk_error(error, path) from error


def read_optional(path: str) -> bytes | None:
    """A small file; None when it is not there."""
    found = _read_stamped(path)
    return None if found is None else found[0]


def _read_stamped(path: str) -> tuple[bytes, Stamp] | None:
    try:
        with io.FileIO(path) as file:  # without a buffer: every look at a partition reads two of them
            status = os.fstat(file.fileno())
            raw = file.readall() if status.st_size <= checkpoints.FILE_BYTES_MAX else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, Path(path)) from error
    if raw is None:
        raise CorruptData(path, 0, f"more than {checkpoints.FILE_BYTES_MAX} bytes")
    return raw, Stamp(status.st_ino, status.st_mtime_ns, status.st_size)


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, Path(path)) from error
    return Stamp(status.st_ino, status.st_mtime_ns, status.st_size)


def disk_error(error: OSError, path: Path) -> HeadwaterError:
    """What `error`, met at `path`, means to the caller."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return UsageError(f"log directory {path} does not exist" if not path.exists() else f"{path} is not a directory")
        case PermissionError():
            return Unauthorised(f"{path} may not be read by this user")
    return TransientError(f"{path}: {error.strerror}")
