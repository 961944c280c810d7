"""The lock that replacing and deleting hold between reading and changing."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headwater_core.errors import TransientError

_WAIT_S = 30.0  # the lock is held for milliseconds; a process that keeps it longer was stopped in the middle
_POLL_S = 0.002


class StoreLock:
    """A lock file, which the kernel lets go when its holder dies."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, url
        self._gate = threading.Lock()  # so that threads of one process wait without polling

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Exclusive between threads and processes. Raises TransientError when it cannot be had in 30 s."""
        deadline_s = time.monotonic() + _WAIT_S
        if not self._gate.acquire(timeout=_WAIT_S):
            raise TransientError(f"{self._url}: the store's lock is taken")
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                while True:
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > deadline_s:
                            raise TransientError(f"{self._url}: another process holds the store's lock") from None
                        time.sleep(_POLL_S)
                yield
            finally:
                os.close(fd)
        finally:
            self._gate.release()
