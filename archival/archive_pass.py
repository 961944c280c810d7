"""One pass over the partitions that are there now: for a verb of the command line, which ends when all of them are done."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from random import Random

from archival.fleet import LATE_S, LOG_DIRS, ArchiverFleet, PartitionOutcome
from archival.plan.policy import PolicyFor
from archival.schedule.due_queue import DueQueue
from archival.schedule.upload_permit import StepWatch
from headwater_core.errors import HeadwaterError, SourceChanged, UploadStopped
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import Glimpse
from headwater_core.segments.log_dirs import parse_directory_name
from headwater_core.threads import DaemonThreads

STOP_S = 1.0  # between two looks whether a pass is to be stopped


def archive_all(
    fleet: ArchiverFleet,
    policy_for: PolicyFor,
    *,
    wanted: Callable[[TopicPartition], bool] = lambda _: True,
    stop: threading.Event | None = None,
    planned: Callable[[int], object] = lambda _: None,
) -> Iterator[PartitionOutcome]:
    """Archive the wanted partitions, several at a time, and report each when it is done.

    Partitions take turns, step by step. What becomes committed after the pass has begun is not archived by it, so it ends however
    fast a log grows. It ends soon after `stop` is set.

    planned  called once, with the number of outcomes that there will be

    Raises what makes the log directories unusable as a whole, and DiskFull and TransientError when the agent's state cannot be saved.
    """
    listing = fleet.listing()
    named = [(parse_directory_name(path.name), error) for path, error in listing.problems]
    problems = [PartitionOutcome(place=place or LOG_DIRS, error=error) for place, error in named if place is None or wanted(place)]
    ends = _committed_ends(fleet, {each: seen for each, seen in listing.partitions.items() if wanted(each)})
    planned(len(problems) + len(ends))
    yield from problems
    yield from ArchivePass(fleet, policy_for, ends, stop or threading.Event()).run()
    with suppress(HeadwaterError):
        again = fleet.listing()
        if not listing.problems and not again.problems:
            fleet.retain({*listing.partitions, *again.partitions})
    fleet.save()


def _committed_ends(fleet: ArchiverFleet, partitions: Mapping[TopicPartition, Glimpse]) -> dict[TopicPartition, int | None]:
    """Up to where each is committed now: its broker is asked for all of them, since its checkpoint is up to 5 s old. What an open object
    has taken was committed then, also where the broker does not answer now. None where nothing says it."""
    ends = {place: seen.high_watermark for place, seen in partitions.items()}
    if fleet.broker_logs is not None:
        for place, said in fleet.broker_logs.learn(ends).items():
            ends[place] = max(said.offset, ends[place] or 0)
    for place, end in ends.items():
        if held_to := fleet.held_to(place):
            ends[place] = max(held_to, end or 0)
    return ends


class ArchivePass:
    """Steps of partitions up to the high watermarks `ends`. `turn` is one step and needs no thread; `run` is the threads around it."""

    def __init__(
        self, fleet: ArchiverFleet, policy_for: PolicyFor, ends: Mapping[TopicPartition, int | None], stop: threading.Event
    ) -> None:
        self._fleet, self._policy_for, self._ends, self._stop = fleet, policy_for, ends, stop
        self._ended = threading.Event()  # this pass; others may wait for `stop` too
        self._lock = threading.Lock()  # of the queue and the sums
        self._queue = DueQueue(Random())
        self._queue.add(ends)
        self._sums: dict[TopicPartition, PartitionOutcome] = {}
        self._outcomes: SimpleQueue[PartitionOutcome | None] = SimpleQueue()  # None: a worker has ended

    def turn(self) -> bool:
        """One step of the partition that is next; False when none is due."""
        with self._lock:
            place = self._queue.take(0.0)
        if place is None:
            return False
        watch = StepWatch(self._fleet.clock, lambda: "the pass was stopped" if self._stop.is_set() or self._ended.is_set() else "")
        outcome = self._fleet.step(place, self._policy_for, watch, end=self._ends[place], again=True)
        with self._lock:
            step, outcome = outcome, outcome.after(self._sums.get(place))
            self._sums[place] = outcome
            if step.progressed:
                self._queue.again(place, step.archived_bytes, step.deadline_ms)
            elif not isinstance(outcome.error, (SourceChanged, UploadStopped)):
                self._queue.done(place, step.archived_bytes)
                self._outcomes.put(outcome)
            elif not self._queue.changed(place, 0.0):
                self._outcomes.put(outcome)
        return True

    def run(self) -> Iterator[PartitionOutcome]:
        """The outcome of each partition, all its steps together, when it is done."""
        most = self._fleet.settings().uploads_in_flight
        workers = DaemonThreads(most, "archive")
        working = [workers.submit(self._turns) for _ in range(min(most, len(self._ends)))]
        try:
            for _ in working:
                while (outcome := self._next()) is not None:
                    yield outcome
        finally:
            self._ended.set()
            ends = wait(working, LATE_S)
            workers.shutdown(wait=not ends.not_done)
        for each in ends.done:
            each.result()

    def _turns(self) -> None:
        try:
            while not (self._ended.is_set() or self._stop.is_set()) and self.turn():
                pass
        finally:
            self._outcomes.put(None)

    def _next(self) -> PartitionOutcome | None:
        """The next outcome; None when a worker has ended, or does not within LATE_S after `stop` was set."""
        while True:
            has_to_end = self._stop.is_set()
            try:
                return self._outcomes.get(timeout=LATE_S if has_to_end else STOP_S)
            except Empty:
                if has_to_end:
                    return None
