"""The threads that downloads run in: what a reader waits for never queues after what is fetched ahead, nor after what hangs."""

import threading
from collections import Counter, deque
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

PATIENCE_S = 5.0  # a download without progress for so long is late: another may run beside it
LATE_MAX = 32  # so many at most; more of them count among the others again
GROUP_LATE_MAX = 4  # of one partition and kind; what else it wants waits for one of them


class Job(Protocol):
    has_begun: bool
    """Set as soon as it has left the queue."""
    touched_s: float
    """When it began, or last made progress; time.monotonic()."""

    def run(self) -> None:
        """Raises nothing."""
        ...

    def on_late(self) -> None:
        """Called once, from another thread, when it runs and has made no progress for too long."""
        ...


@dataclass(eq=False, slots=True)
class _Slot:
    job: Job
    group: Hashable
    urgent: bool
    is_late: bool = False


class Downloads:
    """Runs up to `demand` urgent jobs and `ahead` others at once, each kind in its own order. A job that is late lets the
    next of its kind run and continues itself; so a partition whose objects hang keeps no other partition waiting.
    """

    def __init__(self, demand: int, ahead: int, *, patience_s: float = PATIENCE_S) -> None:
        self._most = {True: demand, False: ahead}
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(demand + ahead + LATE_MAX, "download")
        self._changed = threading.Condition()
        self._queued: dict[bool, deque[_Slot]] = {True: deque(), False: deque()}
        self._running: set[_Slot] = set()
        self._counted = {True: 0, False: 0}  # of those that run, all but the late ones
        self._late: Counter[tuple[Hashable, bool]] = Counter()  # by group and kind
        self._watch: threading.Thread | None = None
        self._closed = False

    def submit(self, job: Job, *, group: Hashable, urgent: bool) -> None:
        """Raises RuntimeError when closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("closed")
            self._queued[urgent].append(_Slot(job, group, urgent))
            self._admit()
            if self._watch is None:
                self._watch = threading.Thread(target=self._find_late, name="download-watch", daemon=True)
                self._watch.start()
            elif len(self._running) == 1:
                self._changed.notify()

    def queued(self, *, urgent: bool) -> int:
        return len(self._queued[urgent])

    def close(self) -> None:
        """Wait for those that run; the others never start."""
        with self._changed:
            self._closed = True
            for queue in self._queued.values():
                queue.clear()
            self._changed.notify()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._watch is not None:
            self._watch.join()

    def _admit(self) -> None:
        for urgent, queue in self._queued.items():
            while self._counted[urgent] < self._most[urgent] and (slot := self._next(queue)) is not None:
                self._counted[urgent] += 1
                self._running.add(slot)
                slot.job.has_begun, slot.job.touched_s = True, monotonic()
                try:
                    self._threads.submit(self._run, slot)
                except RuntimeError:  # the interpreter is on its way out
                    self._closed = True
                    return

    def _next(self, queue: deque[_Slot]) -> _Slot | None:
        for at, slot in enumerate(queue):
            if self._late[slot.group, slot.urgent] < GROUP_LATE_MAX:
                del queue[at]
                return slot
        return None

    def _run(self, slot: _Slot) -> None:
        try:
            slot.job.run()
        finally:
            with self._changed:
                self._running.discard(slot)
                if slot.is_late:
                    self._late[slot.group, slot.urgent] -= 1
                    self._late += Counter()  # forgets those that are at nought
                else:
                    self._counted[slot.urgent] -= 1
                if not self._closed:
                    self._admit()

    def _find_late(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(self._patience_s / 4 if self._running else None)
                by_s = monotonic() - self._patience_s
                found = [slot for slot in self._running if not slot.is_late and slot.job.touched_s <= by_s]
                for slot in found[: LATE_MAX - self._late.total()]:
                    slot.is_late = True
                    self._late[slot.group, slot.urgent] += 1
                    self._counted[slot.urgent] -= 1
                if found and not self._closed:
                    self._admit()
                self._changed.release()
                try:
                    for slot in found:
                        if slot.is_late:
                            slot.job.on_late()
                finally:
                    self._changed.acquire()
