"""A disk below a real directory store that forgets, at a power loss, all that was not synced; and whose syncs can be made to fail.

The most forgetful disk that POSIX allows: a file has the bytes, and a directory the names, that it had when it was last synced itself.
Works by watching os.fsync, so what runs above it is the real store on a real file system.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class VolatileDisk:
    """`root` and all below it; `root` itself is taken to be on disk. Safe to use from many threads.

    fails  asked before each sync of a path below (a directory or a file): True makes it fail with EIO, and nothing is kept
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fails: Callable[[Path], bool] = lambda _: False
        self.failed = 0
        self._lock = threading.Lock()
        self._files: dict[int, bytes] = {}  # by inode
        self._directories: dict[int, dict[str, int]] = {os.stat(root).st_ino: {}}

    @contextmanager
    def watching(self) -> Iterator["VolatileDisk"]:
        """Between entering and leaving, every os.fsync below the root is one of this disk."""
        real = os.fsync

        def fsync(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if not path.is_relative_to(self.root):
                real(fd)
                return
            with self._lock:
                if self.fails(path):
                    self.failed += 1
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                self._keep(fd)

        os.fsync = fsync  # type: ignore[assignment]
        try:
            yield self
        finally:
            os.fsync = real

    def _keep(self, fd: int) -> None:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            with os.scandir(fd) as entries:
                self._directories[about.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self._files[about.st_ino] = os.pread(fd, about.st_size, 0)

    def after_power_loss(self, into: Path) -> Path:
        """What is found when the power is back, written out to `into`, which must not be there."""
        with self._lock:
            self._restore(os.stat(self.root).st_ino, into)
        return into

    def _restore(self, inode: int, path: Path) -> None:
        if inode in self._files:
            path.write_bytes(self._files[inode])
            return
        path.mkdir()
        for name, below in self._directories.get(inode, {}).items():
            self._restore(below, path / name)
