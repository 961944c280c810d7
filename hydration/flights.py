"""One piece of work at a time under one key, however many ask for it."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from hydration.runfile import RunFile
from model.errors import TransientError


@dataclass(slots=True)
class _Flight:
    """`holders` callers each want a hold of their own on the RunFile that comes out."""

    holders: int = 0
    future: Future[Any] = field(default_factory=Future)


class Flights:
    """Joins callers from threads and coroutines to the work that is under way already. The futures are shared: never cancel one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def join(self, key: Hashable, executor: Executor, work: Callable[[], Any], *, holders: int = 0) -> Future[Any]:
        """The outcome of `work`, run by `executor` unless it is under way under `key`.

        holders   how many holds the caller takes on the resulting RunFile. They are taken before the future completes, so the
                  file cannot be evicted in between; the caller owes as many releases. With 0 it just gets the file ready.
        """
        with self._lock:
            flight = self._flights.get(key)
            starts = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight()
            flight.holders += holders
        if starts:
            try:
                executor.submit(self._run, [(key, flight)], lambda: iter((work(),)))
            except RuntimeError:  # the executor is shut down
                self._fail([(key, flight)], TransientError("closing"))
        return flight.future

    def begin_each(self, keys: Sequence[Hashable], executor: Executor, work: Callable[[], Iterator[Any]]) -> None:
        """Have `work` yield the outcomes for `keys`, in their order: a value, or the exception that one of them ended with.
        What the iterator itself raises is the outcome of all that are left.

        Nothing is begun when one of the keys is under way already.
        """
        with self._lock:
            if any(key in self._flights for key in keys):
                return
            flights = [(key, _Flight()) for key in keys]
            self._flights.update(flights)
        try:
            executor.submit(self._run, flights, work)
        except RuntimeError:
            self._fail(flights, TransientError("closing"))

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._flights

    def close(self) -> None:
        """Answer those who wait for work that was never begun; for after the executors' shutdown."""
        with self._lock:
            flights = list(self._flights.items())
        self._fail(flights, TransientError("closing"))

    def _run(self, flights: list[tuple[Hashable, _Flight]], work: Callable[[], Iterator[Any]]) -> None:
        landed = 0
        try:
            for outcome in work():
                key, flight = flights[landed]
                landed += 1
                self._complete(key, flight, outcome)
            if landed < len(flights):
                raise AssertionError(f"{landed} outcomes for {len(flights)} keys")
        except BaseException as error:
            self._fail(flights[landed:], error)

    def _complete(self, key: Hashable, flight: _Flight, outcome: Any) -> None:
        holders = self._land(key, flight)
        if isinstance(outcome, BaseException):
            flight.future.set_exception(outcome)
            return
        if isinstance(outcome, RunFile):
            for _ in range(holders):
                outcome.hold()
            outcome.release()
        flight.future.set_result(outcome)

    def _fail(self, flights: Iterable[tuple[Hashable, _Flight]], error: BaseException) -> None:
        for key, flight in flights:
            self._land(key, flight)
            if not flight.future.done():
                flight.future.set_exception(error)

    def _land(self, key: Hashable, flight: _Flight) -> int:
        """Nobody joins from here on."""
        with self._lock:
            self._flights.pop(key, None)
            return flight.holders
