"""An open file that holds whole batches, shared by all its readers."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from headwater_core.errors import TransientError


class RunFile:
    """A file descriptor that is closed when the last holder lets go; what happens to the name meanwhile does not matter.

    Made with one hold, its maker's. Reads are positional, so any number of threads may read at once. A disk that fails is a
    TransientError: there may be another copy.

    rested   called when only the maker still holds it
    memory   the file's bytes from its beginning on, when they are at hand as well: stays for as long as a reader holds the file
    unproven its bytes may not be what was written: they were not read back yet, or there are fewer
    failure  why its disk could not read it; "" while it could
    """

    __slots__ = ("_fd", "_holds", "_kept", "_lock", "_rested", "device", "failure", "inode", "memory", "modified_ns", "unproven", "where")

    def __init__(self, fd: int, where: str, *, rested: Callable[[], None] | None = None) -> None:
        status = os.fstat(fd)
        self._fd, self.where = fd, where
        self.device, self.inode, self.modified_ns = status.st_dev, status.st_ino, status.st_mtime_ns
        self._holds = 1
        self._kept = True
        self.memory: memoryview | None = None
        self.unproven = False
        self.failure = ""
        self._lock = threading.Lock()
        self._rested = rested

    @classmethod
    def open(cls, path: Path, *, rested: Callable[[], None] | None = None) -> "RunFile":
        """Raises OSError."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path), rested=rested)

    def fileno(self) -> int:
        return self._fd

    @property
    def size_bytes(self) -> int:
        """Now; an active segment grows. Raises TransientError."""
        return self._status().st_size

    @property
    def is_named(self) -> bool:
        """False once the file was deleted, by any process. Raises TransientError."""
        return self._status().st_nlink > 0

    @property
    def is_in_use(self) -> bool:
        """Whether a reader holds it, besides its maker."""
        return self._holds > self._kept

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` bytes from byte `position` on, fewer only where the file ends. Raises TransientError."""
        memory = self.memory
        if memory is not None and position + size_bytes <= len(memory):
            return bytes(memory[position : position + size_bytes])
        try:
            return os.pread(self._fd, size_bytes, position)
        except OSError as error:
            raise TransientError(f"{self.where}, byte {position}: {error.strerror}") from error

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise TransientError(f"{self.where}: {error.strerror}") from error

    def hold(self) -> "RunFile":
        """One more hold: the file stays open until its release."""
        with self._lock:
            assert self._holds > 0, f"{self.where} is closed already"
            self._holds += 1
        return self

    def release(self) -> None:
        """The last one closes the file."""
        with self._lock:
            assert self._holds > 0, f"{self.where} was released more often than held"
            self._holds -= 1
            left, fd = self._holds, self._fd
            if not left:
                self._fd = -1
        if not left:
            os.close(fd)
        elif left == self._kept and self._rested is not None:
            self._rested()

    def drop(self) -> None:
        """The maker's release."""
        self._kept = False
        self.release()

    def doubt(self) -> None:
        """Its bytes are not what they should be, or may not be."""
        self.unproven = True

    def fail(self, reason: str) -> None:
        """A part of it could not be read where nobody could take another copy: the next reader has to."""
        self.unproven, self.failure = True, reason

    def forget_memory(self) -> bool:
        """Read from the file alone from now on, unless a reader holds it; whether that was done."""
        with self._lock:
            if self._holds > self._kept:
                return False
            self.memory = None
            self.unproven = True
            return True
