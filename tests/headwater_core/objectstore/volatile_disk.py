"""A disk below a real directory store that forgets, at a power loss, all that was not synced; and whose syncs can be made to fail.

The most forgetful disk that POSIX allows: a file has the bytes, and a directory the names, that it had when it was last synced itself;
a file that never was is empty. Works by watching os.fsync and os.fdatasync, so what runs above it is the real store on a real file system.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class VolatileDisk:
    """`root` and all below it; what is there at first is taken to be on disk. Safe to use from many threads.

    fails      asked before each sync of a path below (a directory or a file): True makes it fail with EIO, and nothing is kept
    journaled  names reach the disk in the order in which they were made: with any sync, all that were made before it
    """

    def __init__(self, root: Path, *, journaled: bool = False) -> None:
        self.root, self._journaled = root, journaled
        self.fails: Callable[[Path], bool] = lambda _: False
        self.failed = 0
        self._lock = threading.Lock()
        self._files: dict[int, bytes] = {}  # by inode
        self._directories: dict[int, dict[str, int]] = {}
        self._keep_names(str(root))
        for path in root.rglob("*"):
            if path.is_file():
                self._files[path.stat().st_ino] = path.read_bytes()

    @contextmanager
    def watching(self) -> Iterator["VolatileDisk"]:
        """Between entering and leaving, every sync below the root is one of this disk."""
        real, real_data = os.fsync, os.fdatasync

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
                if self._journaled:
                    self._keep_names(str(self.root))

        os.fsync = os.fdatasync = fsync  # type: ignore[assignment]
        try:
            yield self
        finally:
            os.fsync, os.fdatasync = real, real_data

    def _keep(self, fd: int) -> None:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            self._directories[about.st_ino] = _names(fd)
        else:
            self._files[about.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()  # it may be open for writing only

    def _keep_names(self, directory: str) -> None:
        with os.scandir(directory) as scanned:
            entries = list(scanned)
        self._directories[os.stat(directory).st_ino] = {entry.name: entry.inode() for entry in entries}
        for entry in entries:
            if entry.is_dir():
                self._keep_names(entry.path)

    def after_power_loss(self, into: Path, survives: Callable[[], bool] = lambda: False) -> Path:
        """What is found when the power is back, written out to `into`, which must not be there.

        survives  asked for each name that was made, replaced or removed and not synced: did that reach the disk all the same?
        """
        with self._lock:
            self._restore(os.stat(self.root).st_ino, self.root, into, survives)
        return into

    def _restore(self, inode: int, now: Path, into: Path, survives: Callable[[], bool]) -> None:
        if inode in self._files or now.is_file():
            into.write_bytes(self._files.get(inode, b""))
            return
        into.mkdir()
        synced = self._directories.get(inode, {})
        visible = _names(now) if now.is_dir() else {}
        for name in sorted({*synced, *visible}):
            below = synced.get(name)
            if below != visible.get(name) and survives():
                below = visible.get(name)
            if below is not None:
                self._restore(below, now / name, into / name, survives)


def _names(directory: Path | int) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}
