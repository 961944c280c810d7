"""Work on the files of one partition that takes too long for an event loop: in a worker, a turn at a time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headwater_core.errors import HeadwaterError
from hydration.local.open_segment import TURN_BYTES, WALK_BYTES, Allowance, LongWalk
from hydration.resumption import Steps

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Turn:
    """`future` has a tuple of the answer, or None when the turn was too short for it."""

    ask: object
    future: Future[Any]


class Turns:
    """One worker at most for all who ask: the others wait for the turn under way, which may show them their way as well."""

    def __init__(self, submit: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._turn: _Turn | None = None

    def find(self, ask: Callable[[Allowance], T]) -> Steps[T]:
        """What `ask` finds. It is asked here with an allowance of nothing, for what is known already; in workers with a turn's,
        until that is enough. It has to keep what it meets, or it never gets further.
        """
        while True:
            try:
                return ask(Allowance(0))
            except LongWalk:
                turn = self._begin(ask)
            try:
                found: tuple[T] | None = yield turn.future
            except Exception:
                if turn.ask is ask:
                    raise
                continue  # that was somebody else's question
            if turn.ask is ask and found is not None:
                return found[0]

    def _begin(self, ask: Callable[[Allowance], T]) -> _Turn:
        def take() -> tuple[T] | None:
            try:
                return (ask(Allowance(TURN_BYTES)),)
            except LongWalk:
                return None

        with self._lock:
            if self._turn is None or self._turn.future.done():
                self._turn = _Turn(ask, self._submit(take))
            return self._turn


class Walks:
    """One worker at most, whose findings are kept where the question looks first: it only prepares what the caller then asks again."""

    def __init__(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._walk: Future[None] | None = None  # the one in flight, or the last one

    def find(self, ask: Callable[[Allowance], T], discard: Callable[[T], None] | None = None) -> Steps[T]:
        """What `ask` finds, in the caller's thread where that is near. Where it is far, as in a segment without a usable index, workers
        go there, a turn at a time: what they meet on the way is kept, so that in the end it is near.

        discard   what to do with an answer of a worker
        """
        while True:
            try:
                return ask(Allowance(WALK_BYTES))
            except LongWalk:
                yield self._begin(ask, discard)

    def _begin(self, ask: Callable[[Allowance], T], discard: Callable[[T], None] | None) -> Future[None]:
        """The turn that is in flight for any caller, so that a partition never has two workers; else a new one for `ask`."""

        def take() -> None:
            with suppress(LongWalk, HeadwaterError):  # the caller asks again, and meets the error itself
                found = ask(Allowance(TURN_BYTES))
                if discard is not None:
                    discard(found)

        with self._lock:
            if self._walk is None or self._walk.done():
                self._walk = self._submit(take)
            return self._walk
