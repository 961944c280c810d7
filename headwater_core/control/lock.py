"""One agent per data directory (design §4)."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from headwater_core.errors import Locked, UsageError
from headwater_core.files import disk_errors

_NAME = "headwater.lock"


class DataDirLock:
    """An exclusive lock, held from construction to `close`; the kernel drops it when the process ends, however it ends.

    The file stays: removing it would let two processes lock two files of one name. It names the holder for people.
    Raises Locked when another process holds it, or this one a second time.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        path = data_dir / _NAME
        with disk_errors(f"data directory {data_dir}", UsageError):
            data_dir.mkdir(0o700, parents=True, exist_ok=True)  # what is cached in it is for no other user
        with disk_errors(path, UsageError):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 40, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise Locked(f"data directory {data_dir} is in use by process {holder or 'unknown'}") from None
        os.truncate(self._fd, 0)
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same, only the holder's number is missing
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
