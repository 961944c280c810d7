"""One piece of work at a time under one key, however many ask for it."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from headwater_core.errors import TransientError
from hydration.runfile import RunFile

Start = Callable[["Errand"], object]
"""Has an errand run in some thread; raises RuntimeError when none will any more."""

_Keyed = tuple[Hashable, "_Flight"]


@dataclass(eq=False, slots=True)
class _Flight:
    """`holders` callers each want a hold of their own on the RunFile that comes out.

    errand   the newest that is to bring the outcome: only its failure counts. None when there is one
    instead  how somebody who waits would begin it, should an errand that nobody waited for fail or hang
    """

    errand: "Errand | None" = None
    instead: "tuple[Start, Callable[[], Any]] | None" = None
    holders: int = 0
    future: Future[Any] = field(default_factory=Future)


class Errand:
    """Work for some keys at once. Those that somebody who waits has begun otherwise meanwhile are left out."""

    def __init__(self, owner: "Flights", flights: Sequence[_Keyed], work: Callable[[Sequence[Hashable]], Iterator[Any]], urgent: bool):
        self.touched_s = monotonic()
        self.urgent = urgent
        self.flights = flights
        self.work = work
        self.has_begun = self.is_late = False
        self._owner = owner

    def run(self) -> None:
        self._owner.run(self)

    def be_late(self) -> None:
        self._owner.replace_late(self)


class Flights:
    """Joins callers from threads and coroutines to the work that is under way already. The futures are shared: never cancel one.

    Work is urgent when somebody waits for it. Whoever joins what is not shares its outcome, but neither its place in a queue, nor
    its failure, nor a time that is too long: then the same is begun anew, urgently.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def join(self, key: Hashable, start: Start, work: Callable[[], Any], *, holders: int = 0, urgent: bool = True) -> Future[Any]:
        """The outcome of `work`, begun by `start` unless it is under way under `key`.

        holders   how many holds the caller takes on the resulting RunFile. They are taken before the future completes, so the
                  file cannot be evicted in between; the caller owes as many releases. With 0 it just gets the file ready.
        """
        errand: Errand | None = None
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = _Flight()
                errand = self._begin_alone(key, flight, work, urgent)
            elif urgent and flight.errand is not None and not flight.errand.urgent:
                if flight.errand.is_late or not flight.errand.has_begun:
                    errand = self._begin_alone(key, flight, work, urgent)
                else:
                    flight.instead = (start, work)
            flight.holders += holders
        if errand is not None:
            self._start(errand, start)
        return flight.future

    def begin_each(self, keys: Sequence[Hashable], start: Start, work: Callable[[Sequence[Hashable]], Iterator[Any]]) -> None:
        """Have `work` yield the outcomes for `keys`, or for those of them that it is called with, in their order: a value, or the
        exception that one of them ended with. What the iterator itself raises is the outcome of all that are left. Nobody waits.

        Nothing is begun when one of the keys is under way already.
        """
        with self._lock:
            if any(key in self._flights for key in keys):
                return
            flights = [(key, _Flight()) for key in keys]
            errand = Errand(self, flights, work, urgent=False)
            for _, flight in flights:
                flight.errand = errand
            self._flights.update(flights)
        self._start(errand, start)

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._flights

    def close(self) -> None:
        """Answer those who wait for work that was never begun; for after the end of all threads."""
        with self._lock:
            flights = list(self._flights.values())
            self._flights.clear()
            for flight in flights:
                flight.errand = None
        for flight in flights:
            flight.future.set_exception(TransientError("closing"))

    # For errands

    def run(self, errand: Errand) -> None:
        with self._lock:
            errand.has_begun = True
            wanted = [(key, flight) for key, flight in errand.flights if flight.errand is errand]
        landed = 0
        try:
            if wanted:
                for outcome in errand.work([key for key, _ in wanted]):
                    key, flight = wanted[landed]
                    landed += 1
                    errand.touched_s = monotonic()
                    self._complete(errand, key, flight, outcome)
            if landed < len(wanted):
                raise AssertionError(f"{landed} outcomes for {len(wanted)} keys")
        except BaseException as error:
            self._fail(errand, wanted[landed:], error)

    def replace_late(self, errand: Errand) -> None:
        """Begin anew what somebody waits for."""
        with self._lock:
            errand.is_late = True
            again = self._replace(errand, errand.flights)
        for new, start in again:
            self._start(new, start)

    # Under the lock

    def _begin_alone(self, key: Hashable, flight: _Flight, work: Callable[[], Any], urgent: bool) -> Errand:
        flight.errand = Errand(self, [(key, flight)], lambda _: iter((work(),)), urgent)
        flight.instead = None
        return flight.errand

    def _replace(self, errand: Errand, flights: Iterable[_Keyed]) -> list[tuple[Errand, Start]]:
        again = []
        for key, flight in flights:
            if flight.errand is errand and flight.instead is not None:
                start, work = flight.instead
                again.append((self._begin_alone(key, flight, work, urgent=True), start))
        return again

    # Without it

    def _start(self, errand: Errand, start: Start) -> None:
        try:
            start(errand)
        except RuntimeError:
            self._fail(errand, errand.flights, TransientError("closing"))

    def _complete(self, errand: Errand, key: Hashable, flight: _Flight, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self._fail(errand, [(key, flight)], outcome)
            return
        holders = self._land(key, flight)
        if isinstance(outcome, RunFile):
            for _ in range(holders or 0):
                outcome.hold()
            outcome.release()
        if holders is not None:
            flight.future.set_result(outcome)

    def _fail(self, errand: Errand, flights: Iterable[_Keyed], error: BaseException) -> None:
        with self._lock:
            again = self._replace(errand, flights)
        for new, start in again:
            self._start(new, start)
        for key, flight in flights:
            if self._land(key, flight, errand) is not None:
                flight.future.set_exception(error)

    def _land(self, key: Hashable, flight: _Flight, by: Errand | None = None) -> int | None:
        """How many holds are wanted; None when it has landed already, or another errand than `by` is to bring the outcome.
        Nobody joins from here on.
        """
        with self._lock:
            if flight.errand is None or (by is not None and flight.errand is not by):
                return None
            flight.errand = None
            self._flights.pop(key, None)
            return flight.holders
