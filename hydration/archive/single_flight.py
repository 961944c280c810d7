"""One piece of work at a time under one key, however many callers want its outcome."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from headwater_core.errors import TransientError
from hydration.runfile import RunFile

Start = Callable[["Attempt"], object]
"""Has an attempt run in some thread; raises RuntimeError when the threads are closed."""

_Keyed = tuple[Hashable, "_Flight"]


@dataclass(eq=False, slots=True)
class _Flight:
    """The work under one key. `holders` callers each want a hold of their own on the RunFile that comes out.

    attempt   the newest that is to bring the outcome: only its failure counts. None when there is an outcome
    fallback  how a waiting caller would start it, should an attempt that no caller waited for fail or hang
    """

    attempt: "Attempt | None" = None
    fallback: "tuple[Start, Callable[[], Any]] | None" = None
    holders: int = 0
    future: Future[Any] = field(default_factory=Future)


class Attempt:
    """Work for some keys at once, as a Job of Downloads. Keys for which a waiting caller has started another attempt are left out."""

    def __init__(self, owner: "SingleFlight", flights: Sequence[_Keyed], work: Callable[[Sequence[Hashable]], Iterator[Any]], urgent: bool):
        self.touched_s = monotonic()
        self.urgent = urgent
        self.flights = flights
        self.work = work
        self.has_begun = self.is_late = False
        self._owner = owner

    def run(self) -> None:
        self._owner.run(self)

    def on_late(self) -> None:
        self._owner.retry_late(self)


class SingleFlight:
    """Joins callers from threads and coroutines to the work that is in flight already. The futures are shared: never cancel one.

    Work is urgent when a caller waits for it. An urgent caller that joins work which is not shares its outcome, but neither its place
    in a queue, nor its failure, nor a time that is too long: then the same is started again, urgently.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def join(self, key: Hashable, start: Start, work: Callable[[], Any], *, holders: int = 0, urgent: bool = True) -> Future[Any]:
        """The outcome of `work`, started by `start` unless it is in flight under `key`.

        holders   how many holds the caller takes on the resulting RunFile. They are taken before the future completes, so the
                  file cannot be evicted in between; the caller owes as many releases. With 0 it just gets the file ready.
        """
        attempt: Attempt | None = None
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = _Flight()
                attempt = self._attempt_alone(key, flight, work, urgent)
            elif urgent and flight.attempt is not None and not flight.attempt.urgent:
                if flight.attempt.is_late or not flight.attempt.has_begun:
                    attempt = self._attempt_alone(key, flight, work, urgent)
                else:
                    flight.fallback = (start, work)
            flight.holders += holders
        if attempt is not None:
            self._start(attempt, start)
        return flight.future

    def start_each(self, keys: Sequence[Hashable], start: Start, work: Callable[[Sequence[Hashable]], Iterator[Any]]) -> list[Future[Any]]:
        """Have `work` yield the outcomes for `keys`, or for those of them that it is called with, in their order: a value, or the
        exception that one of them ended with. What the iterator itself raises is the outcome of all that are left. No caller waits.

        The outcomes to come; none, and nothing is started, when one of the keys is in flight already.
        """
        with self._lock:
            if any(key in self._flights for key in keys):
                return []
            flights = [(key, _Flight()) for key in keys]
            attempt = Attempt(self, flights, work, urgent=False)
            for _, flight in flights:
                flight.attempt = attempt
            self._flights.update(flights)
        self._start(attempt, start)
        return [flight.future for _, flight in flights]

    def is_in_flight(self, key: Hashable) -> bool:
        return key in self._flights

    def close(self) -> None:
        """End what was never started with TransientError; for after the end of all threads."""
        with self._lock:
            flights = list(self._flights.values())
            self._flights.clear()
            for flight in flights:
                flight.attempt = None
        for flight in flights:
            flight.future.set_exception(TransientError("closing"))

    # For attempts

    def run(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.has_begun = True
            wanted = [(key, flight) for key, flight in attempt.flights if flight.attempt is attempt]
        completed = 0
        try:
            if wanted:
                for outcome in attempt.work([key for key, _ in wanted]):
                    key, flight = wanted[completed]
                    completed += 1
                    attempt.touched_s = monotonic()
                    self._complete(attempt, key, flight, outcome)
            if completed < len(wanted):
                raise AssertionError(f"{completed} outcomes for {len(wanted)} keys")
        except BaseException as error:
            self._fail(attempt, wanted[completed:], error)

    def retry_late(self, attempt: Attempt) -> None:
        """Start again what a caller waits for."""
        with self._lock:
            attempt.is_late = True
            retries = self._replace(attempt, attempt.flights)
        for new, start in retries:
            self._start(new, start)

    # Under the lock

    def _attempt_alone(self, key: Hashable, flight: _Flight, work: Callable[[], Any], urgent: bool) -> Attempt:
        flight.attempt = Attempt(self, [(key, flight)], lambda _: iter((work(),)), urgent)
        flight.fallback = None
        return flight.attempt

    def _replace(self, attempt: Attempt, flights: Iterable[_Keyed]) -> list[tuple[Attempt, Start]]:
        retries = []
        for key, flight in flights:
            if flight.attempt is attempt and flight.fallback is not None:
                start, work = flight.fallback
                retries.append((self._attempt_alone(key, flight, work, urgent=True), start))
        return retries

    # Without it

    def _start(self, attempt: Attempt, start: Start) -> None:
        try:
            start(attempt)
        except RuntimeError:
            self._fail(attempt, attempt.flights, TransientError("closing"))

    def _complete(self, attempt: Attempt, key: Hashable, flight: _Flight, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self._fail(attempt, [(key, flight)], outcome)
            return
        holders = self._end(key, flight)
        if isinstance(outcome, RunFile):
            for _ in range(holders or 0):
                outcome.hold()
            outcome.release()
        if holders is not None:
            flight.future.set_result(outcome)

    def _fail(self, attempt: Attempt, flights: Iterable[_Keyed], error: BaseException) -> None:
        with self._lock:
            retries = self._replace(attempt, flights)
        for new, start in retries:
            self._start(new, start)
        for key, flight in flights:
            if self._end(key, flight, attempt) is not None:
                flight.future.set_exception(error)

    def _end(self, key: Hashable, flight: _Flight, by: Attempt | None = None) -> int | None:
        """How many holds are wanted; None when it has ended already, or another attempt than `by` is to bring the outcome.
        No caller joins from here on.
        """
        with self._lock:
            if flight.attempt is None or (by is not None and flight.attempt is not by):
                return None
            flight.attempt = None
            self._flights.pop(key, None)
            return flight.holders
