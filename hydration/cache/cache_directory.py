"""Cached files in one directory, by name.

    <directory>/<topic id>-<partition>/<uid>.<position>-<size>.run     one chunk, named after object and byte range
    <directory>/<topic id>-<partition>/<uid>.index                     one run's index
    <directory>/…/<name>.<random>.partial                              being written

Names never come from offsets, so an object that was replaced cannot be taken for its successor. A file is written under a partial name
and renamed; nothing here is ever fsynced. No payload is for other users: directories are 0700, files 0600.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData
from headwater_core.files import PARTIAL
from headwater_core.partition import PartitionId

NAMES_MAX = 4096
PARTIAL_AGE_MS = 3_600_000  # a partial file that old was left by a crash: no download takes an hour
_NAME = re.compile(r"[A-Za-z0-9_-]{22}-\d{1,10}/[0-9a-zA-Z_-]{1,64}\.(\d{1,19}-\d{1,19}\.run|index)")
_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o600


@lru_cache(NAMES_MAX)  # each fetch asks for its own chunk and for those ahead of it
def chunk_name(partition: PartitionId, uid: str, position: int, size_bytes: int) -> str:
    """Raises CorruptData for a uid that is no plain name."""
    return _checked(f"{folder(partition)}/{uid}.{position}-{size_bytes}.run")


def index_name(partition: PartitionId, uid: str) -> str:
    """Raises CorruptData for a uid that is no plain name."""
    return _checked(f"{folder(partition)}/{uid}.index")


def folder(partition: PartitionId) -> str:
    return f"{partition.topic_id}-{partition.partition}"


def _checked(name: str) -> str:
    """Uids come from manifests, so from outside; only a plain name may become part of a path."""
    if not _NAME.fullmatch(name):
        raise CorruptData("manifest entry", 0, f"not a name for a cached file: {name[:200]!r}")
    return name


class CacheDirectory:
    """Made with the first file. Others may delete any of it at any time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Have `fill` write and check one file, and publish it; a descriptor of it, the caller's. Raises OSError, and what `fill` raises:
        then nothing is left of it."""
        path = self._path / name
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

    def remove(self, name: str) -> None:
        """Delete that file, if it is there and that is possible."""
        with contextlib.suppress(OSError):
            (self._path / name).unlink()

    def scan(self, *, clear: bool) -> dict[str, os.stat_result]:
        """Cached files by name; none where the directory cannot be read. `clear` removes what a crash left."""
        found: dict[str, os.stat_result] = {}
        for folder_entry in _scan(self._path):
            if not folder_entry.is_dir(follow_symlinks=False):
                continue
            for entry in _scan(Path(folder_entry.path)):
                name = f"{folder_entry.name}/{entry.name}"
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(name):
                        found[name] = status
                    elif clear and name.endswith(PARTIAL) and self._clock.now_ms() - status.st_mtime_ns // 1_000_000 > PARTIAL_AGE_MS:
                        os.unlink(entry.path)
        return found

    def _create(self, path: Path) -> BinaryIO:
        try:
            return _new_file(path)
        except FileNotFoundError:  # the whole directory was removed, or this is its first file
            for directory in (self._path, path.parent):
                directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
            return _new_file(path)


def _new_file(path: Path) -> BinaryIO:
    return open(path, "x+b", buffering=0, opener=lambda name, flags: os.open(name, flags, _FILE_MODE))


def _scan(directory: Path) -> Iterator[os.DirEntry[str]]:
    """What is in `directory`; nothing when it is not there or cannot be read."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return
