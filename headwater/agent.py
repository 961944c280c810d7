"""The agent: archives what the log directories hold and serves it, in one process, until it is told to stop."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any, TypeVar

import structlog

from archival.watch import Watch
from headwater import __version__, agent_socket
from headwater.archiving import Archiving
from headwater.archivist import Held, Order, holding, pass_rows
from headwater.config import Config
from headwater.gateway.metadata import Address
from headwater.gateway.server import serve
from headwater.opening import open_logs
from headwater.options import parse_selection
from headwater.scheduler import Scheduler
from headwater.survey import Knowledge, survey
from headwater_core.clock import SystemClock
from headwater_core.control.records import Node
from headwater_core.errors import HeadwaterError, TransientError, UsageError
from hydration.logs import Logs

T = TypeVar("T")
log = structlog.get_logger()


def run(config: Config, *, started: Callable[[Address], None] = lambda _: None) -> signal.Signals:
    """Archive and serve until SIGTERM or SIGINT; returns which. `started` is told where the gateway listens.

    Raises Locked when another agent holds the data directory, and what stops the gateway from listening.
    """
    with holding(config, patient=True) as held, open_logs(config, held.bucket, indexed=True) as logs:
        try:
            return asyncio.run(_run(held, logs, started))
        except BaseExceptionGroup as group:
            raise _first(group) from group


async def _run(held: Held, logs: Logs, started: Callable[[Address], None]) -> signal.Signals:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()
    stop = threading.Event()
    # Each kind of work has threads of its own: none waits for another's.
    archivist, verbs = ThreadPoolExecutor(1, "archivist"), ThreadPoolExecutor(agent_socket.CLIENTS_MAX, "verb")
    answers = _Answers(held, verbs)

    def stopping(by: signal.Signals) -> None:
        if told.done():
            os._exit(128 + by)  # asked twice: whatever is under way may be cut off anywhere
        told.set_result(by)
        stop.set()
        answers.stop()
        log.info("stop_requested", signal=by.name)  # last: whatever becomes of it, the agent stops

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping, each)

    def listening(address: Address) -> None:
        threading.Thread(target=_announce, args=(held, "{}:{}".format(*address)), name="announce", daemon=True).start()
        started(address)

    try:
        async with agent_socket.serving(held.config.node.data_dir, answers.answer), asyncio.TaskGroup() as tasks:
            gateway = tasks.create_task(serve(logs, held.config.gateway, started=listening))
            if held.archiving is not None:
                held.archiving.committed = logs.note
                tasks.create_task(_run_in(archivist, partial(keep_archiving, held.archiving, held.config, stop)))
            try:
                received = await told
            finally:
                stop.set()
                gateway.cancel()
    finally:
        for threads in (verbs, archivist):
            await asyncio.to_thread(threads.shutdown)  # beside the loop, which still hears the second signal
    log.info("agent_stopped", signal=received.name)
    return received


def keep_archiving(archiving: Archiving, config: Config, stop: threading.Event) -> None:
    """Partition by partition, as something happens to them, and all of them every `rescan_s`."""
    scheduler = Scheduler(archiving, clock=SystemClock(), random=Random())
    with Watch(config.log.dirs) as watch:
        scheduler.run(watch, stop, config.archival.rescan_s)


async def _run_in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


class _Answers:
    """What the agent does for one-shot verbs. Lives on the event loop; the work is done beside it."""

    def __init__(self, held: Held, threads: Executor) -> None:
        self.held, self._threads = held, threads
        self._stops: set[threading.Event] = set()  # one for each answer that is under way
        self._stopped = False

    def stop(self) -> None:
        """End every answer soon, and let none begin."""
        self._stopped = True
        for each in self._stops:
            each.set()

    async def answer(self, question: agent_socket.Ask) -> AsyncGenerator[dict[str, Any], None]:
        """The rows. A client that goes away ends the pass that it asked for, and nobody waits for that end on the event loop."""
        if self._stopped:
            raise TransientError("the agent is stopping")
        stop, one_by_one = threading.Event(), threading.Lock()
        rows = self._rows(question, stop)

        def following() -> dict[str, Any] | None:
            with one_by_one:
                return next(rows, None)

        def close() -> None:
            with one_by_one:  # a cancelled answer leaves its thread at work on the next row
                rows.close()

        self._stops.add(stop)
        try:
            while (row := await _run_in(self._threads, following)) is not None:
                yield row
        finally:
            stop.set()
            self._stops.discard(stop)
            await _run_in(self._threads, close)

    def _rows(self, question: agent_socket.Ask, stop: threading.Event) -> Generator[dict[str, Any]]:
        match question.verb:
            case "archive":
                if self.held.archiving is None:
                    raise UsageError("this agent has no log directories")
                try:
                    order = Order(**question.arguments)
                except TypeError as error:
                    raise UsageError(f"not an order: {error}") from error
                yield from pass_rows(self.held.archiving, order, stop)
            case "status":
                selection = question.arguments.get("selection")
                if selection is not None:
                    parse_selection(str(selection))
                for each in survey(self.held.config, selection, bucket=self.held.bucket, known=self._knowledge()):
                    yield asdict(each)
            case _:
                raise UsageError(f"this agent does not know {question.verb!r}")

    def _knowledge(self) -> Knowledge:
        archiving = self.held.archiving
        offsets = {partition: (state.start_offset, state.last_offset) for partition, state in self.held.control.state().partitions()}
        if archiving is None:
            return Knowledge(offsets=offsets)
        return Knowledge(heads=archiving.heads(), offsets=offsets, troubles=archiving.troubles.copy())


def _announce(held: Held, gateway: str) -> None:
    """Tell the other agents that we are here. A courtesy that nobody waits for: without a leader to tell, nothing is lost."""
    try:
        held.control.publish(Node(node_id=held.config.node.id, started_ms=SystemClock().now_ms(), version=__version__, gateway=gateway))
    except HeadwaterError as error:
        log.warning("agent_not_announced", reason=str(error))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
