"""The agent's loop over its partitions: one step at a time each, in turn, until it is stopped.

There is no pass that has to end before a partition is looked at again. A rescan and file system events only add to the queue; a worker
takes one partition, makes one step and puts it back after the others. `rescan`, `add` and `turn` are all of it, and need neither
threads nor a real clock; `run` is the threads around them.

When nothing is due, small neighbours in the archive are merged. A merge ends for its own partition as soon as that has something to
archive, and for any other that would have to wait for it.

A step may hang with its disk. When nothing of it has moved for LATE_S it does not count any more among the uploads in flight, and a log
directory with as many such steps as may be in flight is passed over until one of them ends: however many disks hang, the partitions of
the others are archived.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple, Protocol

import structlog

from archival.config import ArchivalConfig
from archival.explanation import Turn
from archival.fleet import LATE_S, LOG_DIRS, PASSES, MergeTurn, PartitionOutcome, StepFailure
from archival.plan.policy import Policy, PolicyFor
from archival.schedule.due_queue import DueQueue
from archival.schedule.store_breaker import StoreBreaker
from archival.schedule.timetable import Timetable, earliest
from archival.schedule.upload_permit import StepWatch
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, SourceChanged, TransientError, UploadStopped
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import Glimpse, Listing

log = structlog.get_logger()

QUIET_S = 3600.0  # how long a partition to which nothing seems to happen is taken for idle: ten thousand are three looks a second
STOP_S = 1.0  # for workers without a step to end
BLOCKED_S = 1.0  # then it is seen again whether a step has become late, where more is due than may be in hand
REMIND_S = 60.0
_CONSEQUENCE = "one partition at a time tries whether the store answers; all others wait"
FAILED_S = 1.0  # a pause, so that a mistake that repeats itself does not fill the log


class Work(Protocol):
    """What is done for partitions: archival.fleet."""

    def listing(self) -> Listing:
        """Which partitions there are."""
        ...

    def expect(self, places: Collection[TopicPartition]) -> None:
        """Something has happened to these partitions: each will have a step soon."""
        ...

    def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
        """One step. Raises nothing: whatever goes wrong is in the outcome."""
        ...

    def merge(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        """Merge a partition's next small neighbours. Raises nothing."""
        ...

    def note(self, outcome: PartitionOutcome) -> None:
        """An outcome that is not of a step."""
        ...

    def trouble(self, place: TopicPartition, error: Exception) -> HeadwaterError:
        """Any exception as one of ours."""
        ...

    def retain(self, places: Collection[TopicPartition]) -> None:
        """All other partitions are gone."""
        ...

    def save(self) -> None:
        """Write down what must outlive the process."""
        ...


class Events(Protocol):
    """Where to learn that something has happened to partitions: archival.schedule.watch."""

    def wait(self, stop: threading.Event, rescan_s: float) -> Collection[TopicPartition] | None:
        """The partitions it has happened to; None when all of them are due. Returns at once when `stop` is set."""
        ...


class _Quiet(NamedTuple):
    """glimpse: of before the look that found nothing to do. until_s: when to look again nevertheless"""

    glimpse: Glimpse
    until_s: float


class SchedulerLoad(NamedTuple):
    """in_flight: steps and merges in hand; waiting: partitions that are due, or postponed after a failure"""

    in_flight: int
    waiting: int


class Scheduler:
    """Safe to use from many threads.

    settings  those of the agent as they are now: they are read whenever they are needed
    """

    def __init__(
        self,
        work: Work,
        *,
        clock: Clock,
        random: Random,
        policy_for: PolicyFor = Policy.of,
        settings: Callable[[], ArchivalConfig] = ArchivalConfig,
    ) -> None:
        self._work, self._clock, self._policy_for, self._settings = work, clock, policy_for, settings
        self._random, self._queue, self._changed = random, DueQueue(random), threading.Condition()
        self._glimpses: dict[TopicPartition, Glimpse] = {}  # when each was last added by a rescan
        self._in_hand: dict[TopicPartition, StepWatch] = {}
        self._merges, self._merging = Timetable(), set[TopicPartition]()  # those of the ones in hand that are merged
        self._breaker = StoreBreaker(random)
        self._remind_s = 0.0  # when to report an open breaker again
        self._ending = ""  # why all steps have to end
        self._workers: list[threading.Thread] = []
        self._quiet: dict[TopicPartition, _Quiet] = {}
        self._stopped: set[TopicPartition] = set()  # by what a person must see to, as logged
        self._listed: Collection[TopicPartition] = ()  # one listing alone misses a partition that moves between two directories

    def __len__(self) -> int:
        """How many partitions are due, in hand or postponed."""
        with self._changed:
            return len(self._queue)

    def rescan(self) -> None:
        """Every partition is due, what is gone is forgotten, and what must outlive the process is written."""
        outcome = PartitionOutcome(place=LOG_DIRS)
        try:
            listing = self._work.listing()
            self.add(self._changed_since(listing.partitions))
            if listing.problems:
                outcome = PartitionOutcome(place=LOG_DIRS, error=_together([error for _, error in listing.problems]))
            else:
                self._retain({*listing.partitions, *self._listed})
                self._listed = listing.partitions.keys()
            self._work.save()
        except Exception as error:
            outcome = PartitionOutcome(place=LOG_DIRS, error=self._work.trouble(LOG_DIRS, error))
        self._work.note(outcome)
        self._report(outcome)

    def add(self, places: Iterable[TopicPartition]) -> None:
        """Something may have happened to them."""
        with self._changed:
            self._queue.add(places)
            self._changed.notify()

    def reconsider(self) -> None:
        """Settings have changed: what had nothing to do may have something now, and more may be in hand. It may be called from a step."""
        with self._changed:
            self._quiet.clear()
            self._queue.add(self._glimpses)
            self._changed.notify()

    def _changed_since(self, partitions: Mapping[TopicPartition, Glimpse]) -> Collection[TopicPartition]:
        """Without those that had nothing to do when they were looked at, and to which nothing has happened since before that look."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            due = [
                place
                for place, glimpse in partitions.items()
                if (quiet := self._quiet.get(place)) is None or now_s >= quiet.until_s or not glimpse.is_as(quiet.glimpse)
            ]
            self._glimpses.update((place, partitions[place]) for place in due)
        return due

    def turn(self) -> bool:
        """One step of the partition that is next; False when none is due, or as many as may be are in hand."""
        with self._changed:
            place = self._take()
        if place is None:
            return False
        self._step(place)
        return True

    def _take(self) -> TopicPartition | None:
        now_s = self._clock.monotonic_s()
        late = [place for place, watch in self._in_hand.items() if watch.silent_s >= LATE_S]
        most = self._settings().uploads_in_flight
        moving = len(self._in_hand) - len(late)
        if moving >= most or not self._breaker.may_begin(now_s, moving):
            return None
        hanging = Counter(self._directory(place) for place in late)

        def waits(each: TopicPartition) -> bool:
            return each in self._in_hand or hanging[self._directory(each)] >= most

        place = self._queue.take(now_s, waits)
        if place is not None:
            self._in_hand[place] = StepWatch(self._clock, lambda: self._ending)
        elif (place := self._merges.take(now_s, waits)) is not None:
            self._merging.add(place)
            self._in_hand[place] = StepWatch(self._clock, lambda: self._ending, partial(self._comes_first, place))
        return place

    def _comes_first(self, place: TopicPartition) -> str:
        """What the merge of `place` is in the way of; "" while that is nothing."""
        with self._changed:
            is_full = len(self._in_hand) >= self._settings().uploads_in_flight
            if self._queue.is_due(place) or (is_full and self._queue.wait_s(self._clock.monotonic_s()) == 0):
                return "something is to be archived"
        return ""

    def _directory(self, place: TopicPartition) -> Path | None:
        """Its log directory; None for one that no listing has had yet."""
        glimpse = self._glimpses.get(place)
        return glimpse.directory if glimpse is not None else None

    def _step(self, place: TopicPartition) -> None:
        if place in self._merging:
            self._merge(place)
            return
        try:
            try:
                outcome = self._work.step(place, self._policy_for, self._in_hand[place])
            except Exception as error:
                outcome = PartitionOutcome(place=place, error=self._work.trouble(place, error))
        except BaseException:
            with self._changed:
                del self._in_hand[place]
            raise
        with self._changed:
            was_open = self._breaker.is_open
            is_news = self._put_back(place, outcome)
            self._tell_breaker(outcome)
            is_open = self._breaker.is_open
        if was_open and not is_open:
            log.info("archiving_resumed")
        if is_open and outcome.error and outcome.store_answers is False:
            self._report_suspended(outcome.error, again=was_open)
        elif is_news:
            self._report(outcome)

    def _merge(self, place: TopicPartition) -> None:
        turn = MergeTurn(None)
        try:
            turn = self._work.merge(place, self._policy_for, self._in_hand[place])
        finally:
            now_s = self._clock.monotonic_s()
            with self._changed:
                self._step_ended()
                del self._in_hand[place]
                self._merging.discard(place)
                if turn.again_in_s is not None:
                    self._merges.add(place, now_s + turn.again_in_s)
                if turn.is_archiving_due:
                    self._queue.add([place])
                self._tell_breaker(PartitionOutcome(place=place, store_answers=turn.store_answers))

    def _report_suspended(self, error: HeadwaterError, *, again: bool) -> None:
        """The trouble is nobody's in particular: one line, and one a minute while it lasts, though the reason names another object."""
        now_s = self._clock.monotonic_s()
        if again and now_s < self._remind_s:
            return
        self._remind_s = now_s + REMIND_S
        if isinstance(error, TransientError):
            log.warning("archiving_suspended", reason=str(error), consequence=_CONSEQUENCE)
        else:
            log.error("archiving_suspended", reason=str(error), consequence=_CONSEQUENCE)

    def _tell_breaker(self, outcome: PartitionOutcome) -> None:
        if outcome.store_answers:
            self._breaker.answered()
        elif outcome.store_answers is False:
            self._breaker.failed(outcome.place, self._clock.monotonic_s())

    def probe_in_s(self) -> float | None:
        """When the store is tried again, which is left alone until then; None while it answers."""
        with self._changed:
            return self._breaker.probe_in_s(self._clock.monotonic_s())

    def load(self) -> SchedulerLoad:
        """How much there is to do."""
        with self._changed:
            return SchedulerLoad(in_flight=len(self._in_hand), waiting=len(self._queue) - len(self._in_hand) + len(self._merging))

    def turn_of(self, place: TopicPartition, failure: StepFailure | None) -> Turn:
        """How it stands with a partition; `failure`: of its last step."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            queued = self._queue.place_of(place, now_s)
            return Turn(
                in_hand=queued.in_hand,
                due_before=queued.due_before,
                error=failure.error if failure else None,
                failing_since_ms=failure.since_ms if failure else None,
                again_in_s=queued.again_in_s,
                probe_in_s=self._breaker.probe_in_s(now_s),
            )

    def idle_s(self) -> float | None:
        """How long nothing is due, in seconds, unless something is added; None: without an end."""
        with self._changed:
            return self._wait_s()

    def _wait_s(self) -> float | None:
        now_s = self._clock.monotonic_s()
        return earliest(self._queue.wait_s(now_s), self._merges.wait_s(now_s))

    def run(self, events: Events, stop: threading.Event) -> None:
        """Workers, until `stop` is set and each has ended its step, or is late with it."""
        with self._changed:
            self._start_worker(stop)
        try:
            due: Collection[TopicPartition] | None = None
            while not stop.is_set():
                try:
                    if due is None:
                        self.rescan()
                    else:
                        self._work.expect(due)
                        self.add(due)
                    due = events.wait(stop, self._settings().rescan_s)
                except Exception:
                    self._failed()
                    due = None
                    stop.wait(FAILED_S)
        finally:
            stop.set()
            self._ending = "the agent stops"
            self._end_workers()
        try:
            self._work.save()
        except HeadwaterError as error:
            log.warning("state_not_saved", reason=str(error))

    def _start_worker(self, stop: threading.Event) -> None:
        """One more. They are daemons: what a disk keeps must not keep the process."""
        thread = threading.Thread(target=self._turns, args=(stop,), name=f"archive_{len(self._workers)}", daemon=True)
        self._workers.append(thread)
        thread.start()

    def _end_workers(self) -> None:
        self._await_steps()
        until_s = monotonic() + STOP_S
        for each in self._workers:
            each.join(max(0.0, until_s - monotonic()))

    def _await_steps(self) -> None:
        with self._changed:
            self._changed.notify_all()
            while self._in_hand:
                left_s = LATE_S - min(watch.silent_s for watch in self._in_hand.values())
                if left_s <= 0:
                    log.warning("steps_abandoned", partitions=[str(each) for each in self._in_hand], reason="their disks hang")
                    return
                self._changed.wait(left_s)

    def _report(self, outcome: PartitionOutcome) -> None:
        """Log what keeps a partition from being archived. What was archived the archiver itself has logged."""
        place, error = outcome.place, outcome.error
        with self._changed:
            was_stopped = place in self._stopped
            if error is None:
                self._stopped.discard(place)
            elif not isinstance(error, PASSES):
                self._stopped.add(place)
        if isinstance(error, PASSES):
            log.warning("archive_postponed", partition=str(place), reason=str(error))
        elif error is not None:
            log.error("archive_stopped", partition=str(place), reason=str(error))
        elif was_stopped and not outcome.gone:
            log.info("archive_resumed", partition=str(place), reason=outcome.reason)

    def _failed(self) -> None:
        """A mistake of ours that concerns no single partition: those, and the gateway, continue."""
        with suppress(Exception):
            log.exception("scheduler_failed")

    def _turns(self, stop: threading.Event) -> None:
        """One worker. There is always one without work, to notice when more may be in hand."""
        while not stop.is_set():
            try:
                place = self._await_turn(stop)
                if place is not None:
                    self._step(place)
            except Exception:
                self._failed()
                stop.wait(FAILED_S)

    def _await_turn(self, stop: threading.Event) -> TopicPartition | None:
        with self._changed:
            while not stop.is_set():
                place = self._take()
                if place is not None:
                    if len(self._in_hand) >= len(self._workers):
                        self._start_worker(stop)
                    self._changed.notify()  # more may be due, or be so later: one without work waits for as long as is right now
                    return place
                wait_s = self._wait_s()
                self._changed.wait(BLOCKED_S if wait_s == 0 else wait_s)
        return None

    def _step_ended(self) -> None:
        """Its worker looks for the next one by itself; only who waits for the last steps to end must hear of each."""
        if self._ending:
            self._changed.notify_all()

    def _put_back(self, place: TopicPartition, outcome: PartitionOutcome) -> bool:
        """Into the queue, where it belongs now; False when the outcome need not be reported."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            self._step_ended()
            del self._in_hand[place]
            self._quiet.pop(place, None)
            if outcome.merge_in_s is not None:
                self._merges.add(place, now_s + outcome.merge_in_s)
            if (outcome.quiet or outcome.for_release) and not outcome.error and place in self._glimpses:
                self._quiet[place] = _Quiet(self._glimpses[place], now_s + QUIET_S * self._random.uniform(0.5, 1.0))
            if outcome.progressed:
                self._queue.again(place, outcome.archived_bytes, outcome.deadline_ms)
            elif isinstance(outcome.error, (SourceChanged, UploadStopped)):
                return not self._queue.changed(place, now_s)
            elif outcome.error:
                self._queue.failed(place, now_s)
            elif outcome.again_s is not None:
                self._queue.later(place, now_s + outcome.again_s, or_added=outcome.for_release)
            else:
                self._queue.done(place, outcome.archived_bytes)
        return True

    def _retain(self, places: Collection[TopicPartition]) -> None:
        with self._changed:
            self._queue.retain(places)
            self._merges.retain(places)
            tables: tuple[dict[TopicPartition, Any], ...] = (self._glimpses, self._quiet)
            for table in tables:
                for each in table.keys() - set(places):
                    del table[each]
            self._stopped &= {*places, LOG_DIRS}
        self._work.retain(places)


def _together(errors: list[HeadwaterError]) -> HeadwaterError:
    return errors[0] if len(errors) == 1 else HeadwaterError("; ".join(map(str, errors)))
