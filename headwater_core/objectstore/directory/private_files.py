"""Files while they are written, under names that are no keys."""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_STALE_S = 3600.0
_FRESH_S = 60.0  # a file that is younger may be about to be locked by its writer: who locks it then would get in its way


@contextlib.contextmanager
def private_file(directory: Path, mode: int = 0o666) -> Iterator[tuple[int, str]]:
    """A new file in `directory`: its descriptor and its path, removed at the end. It is locked while its writer lives, by which stale
    ones are known. Raises OSError.

    mode  its permissions, less the umask
    """
    path = f"{directory}/{uuid.uuid4().hex}"  # plain names: each object of a commit has a file of its own
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd, path
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class AbandonedFile(NamedTuple):
    name: str
    modified_s: float


def remove_stale(directory: Path) -> None:
    """Unlink what killed writers left: old, and no longer locked. Nothing was published from them, or all of it."""
    for name, modified_s in abandoned_files(directory):
        if time.time() - modified_s >= _STALE_S:
            with contextlib.suppress(OSError):
                remove_abandoned(directory / name)


def abandoned_files(directory: Path) -> Sequence[AbandonedFile]:
    """Those that no living writer has locked, older than a minute. Raises OSError."""
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return ()
    found = []
    for path in paths:
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            modified_s = path.stat().st_mtime
            if time.time() - modified_s >= _FRESH_S:
                with _locked(path):
                    found.append(AbandonedFile(path.name, modified_s))
    return found


def remove_abandoned(path: Path) -> None:
    """Unlink `path`, unless a living writer has locked it, or it is not there. Raises OSError."""
    with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(path):
        path.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
