"""Scans of one partition's files that take too long for an event loop: a worker does them in portions of limited size, so that other
scans get their turn. A question keeps what it meets, so each scan continues where the last one ended."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headwater_core.errors import HeadwaterError
from hydration.local.scan_budget import INLINE_SCAN_BYTES, WORKER_SCAN_BYTES, ScanBudget, ScanBudgetExceeded
from hydration.resumption import Resumable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Scan:
    """`future` has a tuple of the answer, or None when the budget did not suffice for it."""

    ask: object
    future: Future[Any]


class ScanWorker:
    """Answers questions by one worker at most: other callers wait for the scan in flight, which may meet what they need as well."""

    def __init__(self, submit: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._scan: _Scan | None = None

    def find(self, ask: Callable[[ScanBudget], T]) -> Resumable[T]:
        """What `ask` finds: in the caller's thread, as far as it is known already, else in workers until a budget suffices. Raises what
        `ask` does. It has to keep what it meets, or it never ends.
        """
        while True:
            try:
                return ask(ScanBudget(0))
            except ScanBudgetExceeded:
                scan = self._begin(ask)
            try:
                found: tuple[T] | None = yield scan.future
            except Exception:
                if scan.ask is ask:
                    raise
                continue  # that was another caller's question
            if scan.ask is ask and found is not None:
                return found[0]

    def _begin(self, ask: Callable[[ScanBudget], T]) -> _Scan:
        def scan() -> tuple[T] | None:
            try:
                return (ask(ScanBudget(WORKER_SCAN_BYTES)),)
            except ScanBudgetExceeded:
                return None

        with self._lock:
            if self._scan is None or self._scan.future.done():
                self._scan = _Scan(ask, self._submit(scan))
            return self._scan


class BoundaryWorker:
    """One worker at most, which only fills the index of boundaries: the caller then asks again, and needs fewer bytes."""

    def __init__(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._scan: Future[None] | None = None  # the one in flight, or the last one

    def find(self, ask: Callable[[ScanBudget], T], discard: Callable[[T], None] | None = None) -> Resumable[T]:
        """What `ask` finds, in the caller's thread. Where that takes more than INLINE_SCAN_BYTES, as in a segment without a usable index,
        workers scan first, until what they met is enough. Raises what `ask` does.

        discard   what to do with an answer that a worker came to
        """
        while True:
            try:
                return ask(ScanBudget(INLINE_SCAN_BYTES))
            except ScanBudgetExceeded:
                yield self._begin(ask, discard)

    def _begin(self, ask: Callable[[ScanBudget], T], discard: Callable[[T], None] | None) -> Future[None]:
        """The scan that is in flight for any caller, so that a partition never has two workers; else a new one for `ask`."""

        def scan() -> None:
            with suppress(ScanBudgetExceeded, HeadwaterError):  # the caller asks again, and meets the error itself
                found = ask(ScanBudget(WORKER_SCAN_BYTES))
                if discard is not None:
                    discard(found)

        with self._lock:
            if self._scan is None or self._scan.done():
                self._scan = self._submit(scan)
            return self._scan
