"""The disk below one log directory, which may hang: a dying one, or a network file system whose server is away."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import TypeVar

from headwater_core.errors import TransientError
from headwater_core.threads import DaemonThreads

PATIENCE_S = 3.0  # without progress; disks that are only busy, or spin up, answer within that nearly always
LATE_MAX = 4  # questions without an answer: with so many the whole disk hangs; fewer may be one directory or file
THREADS = 2 * LATE_MAX

T = TypeVar("T")
Progressed = Callable[[], None]


class DiskHangs(TransientError):
    """It has not answered for too long. What is on it is not known before it does."""


class Disk:
    """Work on one directory is done in threads of its own, so that a disk that hangs costs those who wait for it `patience_s`, and
    those who come later nothing, until it answers again. Callers of other disks do not notice. Safe to use from many threads."""

    def __init__(self, directory: Path, patience_s: float = PATIENCE_S) -> None:
        self.directory = directory
        self._patience_s = patience_s
        self._threads = DaemonThreads(THREADS, "disk")
        self._lock = threading.Lock()
        self._errands: set[_Errand] = set()

    def ask(self, about: Hashable, work: Callable[[Progressed], T]) -> T:
        """What `work` returns or raises; DiskHangs when the disk does not answer. It may continue in its thread then.

        about  a question without an answer is not repeated
        work   takes a function to call as it proceeds, where it takes long
        """
        errand = _Errand(about)
        with self._lock:
            late = [each.about for each in self._errands if self._is_late(each)]
            if about in late or len(late) >= LATE_MAX:
                raise self._hangs()
            self._errands.add(errand)

        def run() -> T:
            try:
                errand.progressed()
                return work(errand.progressed)
            finally:
                self._forget(errand)

        future: Future[T] = self._threads.submit(run)
        while True:
            try:
                return future.result(max(0.0, errand.touched_s + self._patience_s - monotonic()))
            except TimeoutError:
                if future.done():  # the work's own, as a network file system may raise
                    return future.result()
            if self._is_late(errand):
                if future.cancel():  # it was queued after others that hang
                    self._forget(errand)
                raise self._hangs()

    def _is_late(self, errand: "_Errand") -> bool:
        return monotonic() - errand.touched_s >= self._patience_s

    def _forget(self, errand: "_Errand") -> None:
        with self._lock:
            self._errands.discard(errand)

    def _hangs(self) -> DiskHangs:
        return DiskHangs(f"{self.directory}: its disk has not answered for {self._patience_s:g} s")


class _Errand:
    def __init__(self, about: Hashable) -> None:
        self.about = about
        self.touched_s = monotonic()

    def progressed(self) -> None:
        self.touched_s = monotonic()
