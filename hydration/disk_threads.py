"""Threads for local disks: work that waits for one that hangs delays no work on another."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TypeVar

from headwater_core.threads import DaemonThreads

T = TypeVar("T")


class DiskThreads:
    """`each` threads for each disk: a log directory, a device, or None for work whose disk is not known yet. close() does not wait for
    those that hang."""

    def __init__(self, each: int, name: str) -> None:
        self._each, self._name = each, name
        self._lock = threading.Lock()
        self._threads: dict[Hashable, DaemonThreads] = {}
        self._closed = False

    def submit(self, disk: Hashable, work: Callable[[], T]) -> Future[T]:
        """Raises RuntimeError when closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            threads = self._threads.get(disk)
            if threads is None:
                threads = self._threads[disk] = DaemonThreads(self._each, self._name)
        return threads.submit(work)

    def close(self, *, wait: bool = True) -> None:
        """Nothing more is submitted. With `wait`, for the end of what runs on disks that answer."""
        with self._lock:
            self._closed = True
            every = list(self._threads.values())
        for threads in every:
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in every if wait else ():
            threads.shutdown()
