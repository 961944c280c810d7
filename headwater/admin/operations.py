"""The operations requested of the agent, while they run and for a while after: progress, outcome and cancellation. In memory alone."""

import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import structlog

from headwater.admin.last_scrub import NO_SCRUB, LastScrub, ScrubRun
from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import AlreadyExists, HeadwaterError, TransientError, UsageError
from headwater_core.redaction import redact_all

OPERATIONS_MAX = 1000  # that have ended and are kept; the oldest one makes room
KEPT_S = 86_400.0  # one that has ended, at most
RUNNING_MAX = 64  # of the agent, waiting ones included; and as many of other processes
PACE_S = 3.0  # of work, before its pace means anything
ARGUMENTS_BYTES_MAX = 8 << 10  # of JSON
ARGUMENTS_VALUES_MAX = 256  # with those inside of others, and names: an empty list takes thirty times its two bytes of JSON
ERROR_CHARS_MAX = 2000
VERBS = (
    "archive",
    "flush",
    "offload",
    "gc",
    "pause",
    "resume",
    "reload",
    "recover",
    "drill",
    "verify",
    "scrub",
    "scan",
    "export",
)  # counted by name
SCRUBS = ("verify", "scrub")
OTHER = "other"  # verbs come from other processes, too
OPERATION_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}"
AGENT = "agent"

log = structlog.get_logger()


class OperationState(Enum):
    """LOST: the process that did it has not been heard of for a while. What is not RUNNING has ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as it is now.

    arguments   the verb's, as they were requested
    by          "agent", or "process PID" for a command that works by itself
    done, total, unit  so many of so many, such as partitions; total null: not known
    eta_s       how long it will take from now on at the pace so far; null: that is not known, or it has ended
    cancelling  it has been cancelled, and ends soon
    error, exit_code  why it has not done all, and what a command ends with by that; null: it has, or still runs
    results     sums of what was done
    """

    id: str
    verb: str
    arguments: dict[str, Any]
    state: OperationState
    by: str
    started_ms: int
    ended_ms: int | None = None
    done: int = 0
    total: int | None = None
    unit: str = ""
    eta_s: float | None = None
    cancelling: bool = False
    error: str | None = None
    exit_code: int | None = None
    results: dict[str, Any] = {}


class OperationPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """operations: the newest first; next_after: the value of `after` for the next page, absent on the last one"""

    at_ms: int
    operations: list[Operation]
    next_after: str | msgspec.UnsetType = msgspec.UNSET


class OperationTally(NamedTuple):
    """Of all operations since the agent has started, by verb, which is one of VERBS or OTHER.

    ended    how many, and in which state; one that was lost and came back has ended twice
    running  how many run now
    last     the last one that has ended with results
    scrub    what the verbs of SCRUBS have found
    """

    ended: dict[tuple[str, OperationState], int]
    running: dict[str, int]
    last: dict[str, Operation]
    scrub: LastScrub


class OperationKey(NamedTuple):
    """The place of an operation among all: what is added or forgotten in between moves no other."""

    started_ms: int
    id: str

    def __str__(self) -> str:
        return f"{self.started_ms}-{self.id}"


class Pace(NamedTuple):
    """Where an operation's pace is measured from: its first word, as it may have waited for its turn, or been resumed."""

    since_s: float
    done: int


class TooManyOperations(TransientError):
    """As many run or wait as may."""


def minted_id(now_ms: int, chance: int) -> str:
    """By name they are in the order of their time, as in `20260131T120000.123Z-9f86d081`. chance: of 32 bits"""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{chance:08x}"


def new_operation_id() -> str:
    return minted_id(SystemClock().now_ms(), secrets.randbits(32))


def eta_s(done: int, total: int, elapsed_s: float) -> float | None:
    """At the pace so far; None while that means nothing."""
    if done < 1 or elapsed_s < PACE_S:
        return None
    return round(elapsed_s * max(0, total - done) / done, 1)


class RunningOperation:
    """The side of the one who does the work. Safe to use from many threads; what comes after the end changes nothing.

    begun, facts  as it was at its begin, and is
    cancelled  set when the work is to end soon
    on_cancel  called once, when that is set
    """

    def __init__(self, registry: "Operations", facts: Operation, *, now_s: float, silence_max_s: float | None, is_kept: bool) -> None:
        self._registry = registry
        self.begun = self.facts = facts
        self.silence_max_s, self.is_kept = silence_max_s, is_kept
        self.began_s = self.heard_s = now_s
        self.ended_s = 0.0
        self.paced: Pace | None = None
        self.cancelled = threading.Event()
        self.on_cancel: Callable[[], object] = lambda: None

    @property
    def id(self) -> str:
        return self.facts.id

    def advance(self, done: int, total: int | None = None, unit: str = "") -> None:
        """`done` in all, of `total`; what is not given stays as it was."""
        self._registry.advance(self, done, total, unit)

    def end(self, results: Mapping[str, Any] | None = None) -> None:
        """All is done."""
        self._registry.finish(self, OperationState.DONE, None, None, results or {})

    def fail(self, error: BaseException, results: Mapping[str, Any] | None = None) -> None:
        """Not all is done. What ends because it was cancelled is no failure."""
        was_cancelled = self.cancelled.is_set() and isinstance(error, TransientError)
        state = OperationState.CANCELLED if was_cancelled else OperationState.FAILED
        exit_code = error.exit_code if isinstance(error, HeadwaterError) else HeadwaterError.exit_code
        words = redact_all(str(error) or repr(error)).encode("utf-8", "backslashreplace").decode()  # a path in it may be no text
        self._registry.finish(self, state, words, exit_code, results or {})


class Operations:
    """All operations of an agent. Safe to use from many threads.

    mint      a new id
    scrub     what is known of scrubs from before; scrubbed: called with what is known after one, under a lock
    """

    def __init__(
        self, clock: Clock, mint: Callable[[], str], scrub: LastScrub = NO_SCRUB, scrubbed: Callable[[LastScrub], object] = lambda _: None
    ) -> None:
        self._clock, self._mint, self._scrub, self._scrubbed = clock, mint, scrub, scrubbed
        self._lock = threading.Lock()
        self._running: dict[str, RunningOperation] = {}
        self._ended: dict[str, RunningOperation] = {}  # in the order of their ends
        self._counts: Counter[tuple[str, OperationState]] = Counter()
        self._last: dict[str, Operation] = {}

    def begin(
        self,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        operation_id: str | None = None,
        by: str = AGENT,
        unit: str = "",
        silence_max_s: float | None = None,
        is_kept: bool = True,
    ) -> RunningOperation:
        """
        operation_id   as its requester calls it; None: a new one
        silence_max_s  without a word for so long it counts as lost
        is_kept        False: it is forgotten at its end, and no event tells of it: a look at something

        Raises TooManyOperations, AlreadyExists for an id that is known, UsageError for one that is none and for long arguments.
        """
        if operation_id is not None and not re.fullmatch(OPERATION_ID, operation_id):
            raise UsageError("the id of an operation is 8 to 64 letters, digits, dots, hyphens and underscores, a letter or digit first")
        if len(msgspec.json.encode(arguments)) > ARGUMENTS_BYTES_MAX:
            raise UsageError(f"arguments have at most {ARGUMENTS_BYTES_MAX} bytes")
        if _values(arguments) > ARGUMENTS_VALUES_MAX:
            raise UsageError(f"arguments have at most {ARGUMENTS_VALUES_MAX} names and values")
        with self._lock:
            now_s = self._settle()
            if operation_id is not None and (operation_id in self._running or operation_id in self._ended):
                raise AlreadyExists(f"there is an operation {operation_id}")
            if sum((each.facts.by == AGENT) == (by == AGENT) for each in self._running.values()) >= RUNNING_MAX:
                raise TooManyOperations(f"{RUNNING_MAX} operations run or wait already")
            facts = Operation(
                id=operation_id or self._mint(),
                verb=verb,
                arguments=redact_all(dict(arguments)),
                state=OperationState.RUNNING,
                by=by,
                started_ms=self._clock.now_ms(),
                unit=unit,
            )
            begun = self._running[facts.id] = RunningOperation(self, facts, now_s=now_s, silence_max_s=silence_max_s, is_kept=is_kept)
        if is_kept:
            log.info("operation_started", operation=facts.id, verb=verb, by=by)
        return begun

    def running(self, operation_id: str) -> RunningOperation | None:
        """One that has not ended; a lost one runs again, when its process asks for it."""
        with self._lock:
            now_s = self._settle()
            lost = self._ended.get(operation_id)
            if lost is not None and lost.facts.state is OperationState.LOST:
                del self._ended[operation_id]
                lost.heard_s = now_s
                lost.facts = msgspec.structs.replace(
                    lost.facts, state=OperationState.RUNNING, ended_ms=None, cancelling=lost.cancelled.is_set()
                )
                self._running[operation_id] = lost
            return self._running.get(operation_id)

    def find(self, operation_id: str) -> Operation | None:
        with self._lock:
            now_s = self._settle()
            found = self._running.get(operation_id) or self._ended.get(operation_id)
            return _seen(found, now_s) if found is not None else None

    def cancel(self, operation_id: str) -> Operation | None:
        """As it is then; None: there is none. One that has ended stays as it is."""
        with self._lock:
            self._settle()
            found = self._running.get(operation_id)
            is_new = found is not None and not found.cancelled.is_set()
            if found is not None and is_new:
                found.facts = msgspec.structs.replace(found.facts, cancelling=True)
                found.cancelled.set()
        if found is not None and is_new:
            found.on_cancel()
        return self.find(operation_id)

    def list(
        self, *, states: Collection[OperationState] = (), verbs: Collection[str] = (), after: OperationKey | None = None, limit: int = 100
    ) -> OperationPage:
        """The newest first. states, verbs: only these; empty: all. after: those older than this one."""
        with self._lock:
            now_s = self._settle()
            found = [_seen(each, now_s) for each in (*self._running.values(), *self._ended.values())]
        found = [each for each in found if (not states or each.state in states) and (not verbs or each.verb in verbs)]
        found.sort(key=_key, reverse=True)
        rest = [each for each in found if after is None or _key(each) < after]
        more = str(_key(rest[limit - 1])) if len(rest) > limit else msgspec.UNSET
        return OperationPage(at_ms=self._clock.now_ms(), operations=rest[:limit], next_after=more)

    def tally(self) -> OperationTally:
        with self._lock:
            self._settle()
            running = Counter(_counted(each.facts.verb) for each in self._running.values() if each.is_kept)
            return OperationTally(dict(self._counts), dict(running), dict(self._last), self._scrub)

    def advance(self, running: RunningOperation, done: int, total: int | None, unit: str) -> None:
        with self._lock:
            if running.id in self._running:
                before = running.facts
                running.heard_s = self._clock.monotonic_s()
                if running.paced is None:
                    running.paced = Pace(running.heard_s, done)
                running.facts = msgspec.structs.replace(
                    before, done=done, total=before.total if total is None else total, unit=unit or before.unit
                )

    def finish(
        self, running: RunningOperation, state: OperationState, error: str | None, exit_code: int | None, results: Mapping[str, Any]
    ) -> None:
        with self._lock:
            now_s = self._settle()
            if self._running.get(running.id) is not running:
                return
            facts = msgspec.structs.replace(
                running.facts,
                state=state,
                error=error and error[:ERROR_CHARS_MAX],
                exit_code=exit_code,
                results=dict(results),
            )
            self._end(running, facts, now_s)
            elapsed_s = round(now_s - running.began_s, 3)
        if running.is_kept:
            log.info(
                "operation_ended", operation=facts.id, verb=facts.verb, state=state.value, reason=facts.error or "", elapsed_s=elapsed_s
            )

    def _end(self, running: RunningOperation, facts: Operation, now_s: float) -> None:
        del self._running[facts.id]
        running.facts, running.ended_s = msgspec.structs.replace(facts, ended_ms=self._clock.now_ms(), cancelling=False), now_s
        if running.is_kept:
            self._counts[_counted(facts.verb), facts.state] += 1
            if facts.results:
                self._last[_counted(facts.verb)] = running.facts
            if facts.verb in SCRUBS:
                by_itself = facts.state in (OperationState.DONE, OperationState.FAILED)
                ended_ms = running.facts.ended_ms or 0
                self._scrub = self._scrub.after(ScrubRun.of(facts.arguments, facts.results, ended_ms=ended_ms, by_itself=by_itself))
                self._scrubbed(self._scrub)
            self._ended[facts.id] = running
            if len(self._ended) > OPERATIONS_MAX:
                del self._ended[next(iter(self._ended))]

    def _settle(self) -> float:
        """Of what time alone ends: the silent ones, and those that ended long ago. Returns the time."""
        now_s = self._clock.monotonic_s()
        for each in list(self._running.values()):
            if each.silence_max_s is not None and now_s - each.heard_s > each.silence_max_s:
                self._end(each, msgspec.structs.replace(each.facts, state=OperationState.LOST), now_s)
        while self._ended and now_s - next(iter(self._ended.values())).ended_s > KEPT_S:
            del self._ended[next(iter(self._ended))]
        return now_s


def _values(value: object) -> int:
    """A value counts as one, and so do each name and each value in it, however deep."""
    count, rest = 0, [value]
    while rest:
        each = rest.pop()
        count += 1
        if isinstance(each, Mapping):
            count += len(each)
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
    return count


def _counted(verb: str) -> str:
    return verb if verb in VERBS else OTHER


def _key(operation: Operation) -> OperationKey:
    return OperationKey(operation.started_ms, operation.id)


def _seen(running: RunningOperation, now_s: float) -> Operation:
    facts = running.facts
    if facts.state is not OperationState.RUNNING:
        return facts
    if running.paced is None or facts.total is None:
        return facts
    since_s, before = running.paced
    return msgspec.structs.replace(facts, eta_s=eta_s(facts.done - before, facts.total - before, now_s - since_s))
