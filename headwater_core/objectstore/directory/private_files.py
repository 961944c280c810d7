"""Files while they are written, under names that are no keys."""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_STALE_S = 3600.0


@contextlib.contextmanager
def private_file(directory: Path) -> Iterator[tuple[int, Path]]:
    """A new file in `directory`: its descriptor and its path, removed at the end. It is locked while its writer lives, by which stale
    ones are known. Raises OSError.
    """
    path = directory / uuid.uuid4().hex
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd, path
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


def remove_stale(directory: Path) -> None:
    """Unlink what killed writers left: old, and no longer locked. Nothing was published from them, or all of it."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < _STALE_S:
                continue
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
