"""The threads that downloads run in: what a reader waits for never stands behind what is fetched ahead, nor behind what hangs."""

import threading
from collections import Counter, deque
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

PATIENCE_S = 5.0  # a download without progress for so long is late: another may run beside it
LATE_MAX = 32  # so many at most; more of them take places from the others again
GROUP_LATE_MAX = 4  # of one partition and kind; what else it wants waits for one of them


class Job(Protocol):
    has_begun: bool
    """Set as soon as it stands in no queue any more."""
    touched_s: float
    """When it began, or last made progress; time.monotonic()."""

    def run(self) -> None:
        """Raises nothing."""
        ...

    def be_late(self) -> None:
        """Called once, from another thread, when it runs and has made no progress for too long."""
        ...


@dataclass(eq=False, slots=True)
class _Place:
    job: Job
    group: Hashable
    urgent: bool
    is_late: bool = False


class Downloads:
    """Runs up to `demand` urgent jobs and `ahead` others at once, each kind in its own order. A job that is late gives its place
    to the next of its kind and goes on; so does a partition whose objects hang keep no other partition waiting.
    """

    def __init__(self, demand: int, ahead: int, *, patience_s: float = PATIENCE_S) -> None:
        self._most = {True: demand, False: ahead}
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(demand + ahead + LATE_MAX, "download")
        self._changed = threading.Condition()
        self._queued: dict[bool, deque[_Place]] = {True: deque(), False: deque()}
        self._running: set[_Place] = set()
        self._counted = {True: 0, False: 0}  # of those that run, all but the late ones
        self._late: Counter[tuple[Hashable, bool]] = Counter()  # by group and kind
        self._watch: threading.Thread | None = None
        self._closed = False

    def submit(self, job: Job, *, group: Hashable, urgent: bool) -> None:
        """Raises RuntimeError when closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("closed")
            self._queued[urgent].append(_Place(job, group, urgent))
            self._admit()
            if self._watch is None:
                self._watch = threading.Thread(target=self._find_late, name="download-watch", daemon=True)
                self._watch.start()
            elif len(self._running) == 1:
                self._changed.notify()

    def queued(self, *, urgent: bool) -> int:
        return len(self._queued[urgent])

    def close(self) -> None:
        """Wait for those that run; the others never begin."""
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
            while self._counted[urgent] < self._most[urgent] and (place := self._next(queue)) is not None:
                self._counted[urgent] += 1
                self._running.add(place)
                place.job.has_begun, place.job.touched_s = True, monotonic()
                try:
                    self._threads.submit(self._run, place)
                except RuntimeError:  # the interpreter is on its way out
                    self._closed = True
                    return

    def _next(self, queue: deque[_Place]) -> _Place | None:
        for at, place in enumerate(queue):
            if self._late[place.group, place.urgent] < GROUP_LATE_MAX:
                del queue[at]
                return place
        return None

    def _run(self, place: _Place) -> None:
        try:
            place.job.run()
        finally:
            with self._changed:
                self._running.discard(place)
                if place.is_late:
                    self._late[place.group, place.urgent] -= 1
                    self._late += Counter()  # forgets those that are at nought
                else:
                    self._counted[place.urgent] -= 1
                if not self._closed:
                    self._admit()

    def _find_late(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(self._patience_s / 4 if self._running else None)
                by_s = monotonic() - self._patience_s
                found = [place for place in self._running if not place.is_late and place.job.touched_s <= by_s]
                for place in found[: LATE_MAX - self._late.total()]:
                    place.is_late = True
                    self._late[place.group, place.urgent] += 1
                    self._counted[place.urgent] -= 1
                if found and not self._closed:
                    self._admit()
                self._changed.release()
                try:
                    for place in found:
                        if place.is_late:
                            place.job.be_late()
                finally:
                    self._changed.acquire()
