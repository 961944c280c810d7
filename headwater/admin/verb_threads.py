"""The threads that carry out what is requested of the agent: each operation in one of them, from its begin to its end."""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from headwater.admin.operations import Operations, RunningOperation
from headwater.admin.row_pipe import RowPipe
from headwater.admin.verb import Verb
from headwater_core.errors import HeadwaterError, TransientError

THREADS = 16  # operations that run at once; others wait for their turn
SHORT_THREADS = 4  # and short ones

log = structlog.get_logger()


class Stopping(TransientError):
    """The agent ends, and begins nothing new."""


class VerbThreads:
    """Used by the event loop of the API; `stop` and `close` by the agent's."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._threads = ThreadPoolExecutor(THREADS, "verb")
        self._short_threads = ThreadPoolExecutor(SHORT_THREADS, "short-verb")
        self._lock = threading.Lock()
        self._running: set[RunningOperation] = set()
        self._stopped = False

    def begin(self, verb: Verb, arguments: msgspec.Struct, operation_id: str | None, pipe: RowPipe | None) -> RunningOperation:
        """pipe: takes the rows; None: they are only summed up. Raises Stopping, what Operations.begin
        raises, and RuntimeError where no thread can be started."""
        with self._lock:
            if self._stopped:
                raise Stopping("the agent is stopping")
            running = self._operations.begin(
                verb.name, msgspec.to_builtins(arguments), operation_id=operation_id, unit=verb.unit, is_kept=not verb.is_look
            )
            self._running.add(running)
            threads = self._short_threads if verb.is_short else self._threads
            try:
                work = threads.submit(self._work, verb, arguments, running, pipe)
            except RuntimeError as error:  # no thread can be started
                self._running.discard(running)
                running.fail(error)
                raise
            running.on_cancel = partial(self._cancel, work, running, pipe)
        return running

    def stop(self) -> None:
        """Have all end soon, and begin no others."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for each in running:
            self._operations.cancel(each.id)

    def close(self) -> None:
        """Wait for the end of all."""
        self.stop()
        self._threads.shutdown()
        self._short_threads.shutdown()

    def _cancel(self, work: Future[None], running: RunningOperation, pipe: RowPipe | None) -> None:
        if pipe is not None:
            pipe.hurry()
        if work.cancel():  # its turn has not come
            self._end(running, TransientError("it was cancelled before it began"), {}, pipe)

    def _work(self, verb: Verb, arguments: msgspec.Struct, running: RunningOperation, pipe: RowPipe | None) -> None:
        with self._lock:
            if running not in self._running:
                return  # it was queued for a thread that could not be started, and has failed
        sums, count, failed = Counter[str](), 0, 0
        error: BaseException | None = None
        try:
            with bound_contextvars(operation=running.id), closing(verb.rows(arguments, running)) as rows:
                for row in rows:
                    count += 1
                    failed += bool(row.get("error"))
                    sums.update({name: row[name] or 0 for name in verb.sums})
                    total = running.facts.total
                    running.advance(count if total is None else min(count, total))
                    if pipe is not None:
                        pipe.put(encoded({"row": row}))
                    if verb.is_look and running.cancelled.is_set():
                        raise TransientError("it was cancelled")
        except (HeadwaterError, OSError) as raised:
            error = raised
        except Exception as raised:
            log.exception("operation_failed", operation=running.id, verb=verb.name)
            error = HeadwaterError(f"a defect, see the agent's log: {raised!r}")
        self._end(running, error, {**sums, "failed": failed} if verb.sums else {}, pipe)

    def _end(self, running: RunningOperation, error: BaseException | None, results: Mapping[str, Any], pipe: RowPipe | None) -> None:
        if error is None:
            running.end(results)
        else:
            running.fail(error, results)
        with self._lock:
            self._running.discard(running)
        if pipe is not None:
            pipe.end()


def encoded(line: Mapping[str, Any]) -> bytes:
    """A line of an answer. As ASCII: a path in it may be no text."""
    return json.dumps(line).encode() + b"\n"
