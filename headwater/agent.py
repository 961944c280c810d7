"""The agent: archives the log directories and serves them, in one process, until it is stopped."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import structlog

from archival.explanation import Turn
from archival.schedule.scheduler import Scheduler
from archival.schedule.watch import Watch
from archival.upkeep import Upkeep
from headwater import __version__, agent_socket
from headwater.admin.checks import BEAT_S, Heartbeat
from headwater.admin.store_probe import StoreProbe
from headwater.admin_port import Vitals, open_admin_port
from headwater.collection import CollectionRequest, collection_rows
from headwater.config import Config
from headwater.gateway.metadata import Address
from headwater.gateway.server import serve
from headwater.inquiry import offset_rows, range_rows
from headwater.live_config import LiveConfig, Reloaded
from headwater.options import parse_selection
from headwater.pause_change import PauseChange, pause_rows
from headwater.service_manager import ServiceManager
from headwater.session import PassRequest, Session, open_session, pass_rows
from headwater.survey import Knowledge, survey_partitions
from headwater.wiring import open_logs
from headwater_core.clock import SystemClock
from headwater_core.control.control_records import Node, PausesChanged
from headwater_core.errors import HeadwaterError, TransientError, UsageError
from headwater_core.partition import TopicPartition
from hydration.logs import Logs
from manifests.head import Head

T = TypeVar("T")
log = structlog.get_logger()


def run(
    config: Config, *, started: Callable[[Address], None] = lambda _: None, reload: Callable[[], Config] | None = None
) -> signal.Signals:
    """Archive and serve until SIGTERM or SIGINT; returns which. SIGHUP reads the configuration again.

    started  called with the gateway's address when it listens
    reload   reads the configuration again: see LiveConfig

    Raises Locked when another agent holds the data directory, and why the gateway cannot listen.
    """
    with (
        open_session(config, patient=True, reload=reload) as session,
        open_logs(config, session.bucket, indexed=True, patient=True) as logs,
        StoreProbe(session.bucket.store, session.bucket.meter).probing(),
        open_admin_port(session, logs, vitals := Vitals.of(session, logs)),
    ):
        try:
            return asyncio.run(_run(session, logs, vitals, started))
        except BaseExceptionGroup as group:
            raise _first(group) from group


async def _run(session: Session, logs: Logs, vitals: Vitals, started: Callable[[Address], None]) -> signal.Signals:
    loop, manager = asyncio.get_running_loop(), ServiceManager.of(os.environ)
    beating = asyncio.create_task(_beat(vitals.heartbeat))
    signalled: asyncio.Future[signal.Signals] = loop.create_future()
    stop = threading.Event()
    # Each kind of work has its own threads: none waits for another.
    archiver, verbs = ThreadPoolExecutor(1, "archiver"), ThreadPoolExecutor(agent_socket.CLIENTS_MAX, "verb")
    collector = ThreadPoolExecutor(1, "collector")
    answers = _Answers(session, verbs)

    def stopping(by: signal.Signals) -> None:
        if signalled.done():
            os._exit(128 + by)  # the second signal: work in progress may be interrupted anywhere
        signalled.set_result(by)
        stop.set()
        answers.stop()
        manager.stopping()
        log.info("stop_requested", signal=by.name)  # last: even if it fails, the agent stops

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping, each)
    reloads = partial(threading.Thread, target=_reload_on_signal, args=(session.live, manager), daemon=True)
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads().start())

    def listening(address: Address) -> None:
        threading.Thread(target=_announce, args=(session, "{}:{}".format(*address)), name="announce", daemon=True).start()
        manager.ready()
        vitals.listens.set()
        started(address)

    upkeep = Upkeep(session.fleet) if session.fleet is not None else None
    try:
        async with agent_socket.serving(session.config.node.data_dir, answers.answer), asyncio.TaskGroup() as tasks:
            gateway = tasks.create_task(serve(logs, session.config.gateway, started=listening, meter=vitals.gateway))
            watched = tasks.create_task(manager.watched())
            if session.fleet is not None and upkeep is not None and vitals.work is not None:

                def committed(head: Head) -> None:
                    logs.update_manifest(head)
                    vitals.committed(head)

                session.fleet.committed = committed
                scheduler = Scheduler(vitals.work, clock=SystemClock(), random=Random(), settings=session.live.archival)
                vitals.scheduler = scheduler
                session.live.changed = session.pauses.changed = vitals.reconsider
                answers.scheduler = scheduler
                tasks.create_task(_run_in(archiver, partial(keep_archiving, scheduler, session.config.log.dirs, stop)))
                tasks.create_task(_run_in(collector, partial(upkeep.run, stop)))
            try:
                received = await signalled
            finally:
                stop.set()
                vitals.listens.clear()
                gateway.cancel()
                watched.cancel()
    finally:
        for threads in (verbs, collector, archiver):
            await asyncio.to_thread(threads.shutdown)  # beside the loop, which still hears the second signal
        beating.cancel()
    if upkeep is not None:
        await asyncio.to_thread(upkeep.hand_over)
    log.info("agent_stopped", signal=received.name)
    return received


async def _beat(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_S)


def keep_archiving(scheduler: Scheduler, dirs: Sequence[Path], stop: threading.Event) -> None:
    """Partition by partition, as something happens to them in `dirs`, and all of them in each rescan."""
    with Watch(dirs) as watch:
        scheduler.run(watch, stop)


def reload_config(live: LiveConfig) -> Reloaded:
    """Take up what has changed. Raises UsageError, and then everything stays as it was. Either is logged."""
    try:
        done = live.reload()
    except UsageError as error:
        log.error("config_refused", reason=str(error), consequence="the settings stay as they were")
        raise
    log.info("config_reloaded", changed=done.changed, needs_restart=done.needs_restart)
    return done


def _reload_on_signal(live: LiveConfig, manager: ServiceManager) -> None:
    with manager.reload(), suppress(UsageError):  # it is logged
        reload_config(live)


async def _run_in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


class _Answers:
    """What the agent does for one-shot commands. Belongs to the event loop; the work is done in threads."""

    def __init__(self, session: Session, threads: Executor) -> None:
        self.session, self._threads = session, threads
        self.scheduler: Scheduler | None = None  # once it works
        self._stops: set[threading.Event] = set()  # one for each answer in progress
        self._stopped = False

    def stop(self) -> None:
        """End all answers soon, and start no others."""
        self._stopped = True
        for each in self._stops:
            each.set()

    async def answer(self, question: agent_socket.Ask) -> AsyncGenerator[dict[str, Any], None]:
        """The rows. When a client disconnects, the pass that it requested ends, without blocking the event loop."""
        if self._stopped:
            raise TransientError("the agent is stopping")
        stop, one_by_one = threading.Event(), threading.Lock()
        rows = self._rows(question, stop)

        def following() -> dict[str, Any] | None:
            with one_by_one:
                return next(rows, None)

        def close() -> None:
            with one_by_one:  # the thread of a cancelled answer may still work on the next row
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
                yield from pass_rows(self.session.archivers, _request(PassRequest, question), stop)
            case "gc":
                yield from collection_rows(self.session, _request(CollectionRequest, question), stop)
            case "status":
                selection = question.arguments.get("selection")
                if selection is not None:
                    parse_selection(str(selection))
                for each in survey_partitions(self.session.live.now, selection, bucket=self.session.bucket, known=self._knowledge()):
                    yield asdict(each)
            case "explain":
                topic, number = parse_selection(str(question.arguments.get("selection")))
                if number is None:
                    raise UsageError("explain needs TOPIC:P")
                place, offset = TopicPartition(topic, number), question.arguments.get("offset")
                if offset is not None:
                    yield from offset_rows(self.session.live.now, place, int(offset), bucket=self.session.bucket, known=self._knowledge())
                else:
                    yield from range_rows(
                        self.session.live.now, place, bucket=self.session.bucket, known=self._knowledge(), turn_of=self._turn_of
                    )
            case "pause" | "resume":
                yield from self._change_pauses(question)
            case "reload":
                yield asdict(reload_config(self.session.live))
            case _:
                raise UsageError(f"this agent does not know {question.verb!r}")

    def _change_pauses(self, question: agent_socket.Ask) -> Iterator[dict[str, Any]]:
        try:
            change = PauseChange(resume=question.verb == "resume", **question.arguments)
        except TypeError as error:
            raise UsageError(f"not a request: {error}") from error
        after = self.session.pauses.change(change.decide)
        try:
            self.session.control.publish(PausesChanged(version=after.version))
        except HeadwaterError as error:
            log.info("pauses_not_announced", reason=str(error), consequence="other agents read it from the bucket within a minute")
        yield from pause_rows(after)

    def _knowledge(self) -> Knowledge:
        fleet, probe_in_s = self.session.fleet, self.scheduler.probe_in_s() if self.scheduler else None
        offsets = {partition: (state.start_offset, state.last_offset) for partition, state in self.session.control.state().partitions()}
        if fleet is None:
            return Knowledge(offsets=offsets)
        return Knowledge(
            heads=fleet.heads(),
            offsets=offsets,
            troubles=fleet.troubles,
            tails=fleet.tails,
            releases=fleet.releases(),
            broker=fleet.broker_logs,
            pauses=self.session.pauses,
            store_try_ms=None if probe_in_s is None else SystemClock().now_ms() + round(probe_in_s * 1000),
        )

    def _turn_of(self, place: TopicPartition) -> Turn:
        fleet = self.session.fleet
        failure = fleet.failures.get(place) if fleet else None
        return self.scheduler.turn_of(place, failure) if self.scheduler else Turn()


def _request(kind: type[T], question: agent_socket.Ask) -> T:
    try:
        return kind(**question.arguments)
    except TypeError as error:
        raise UsageError(f"not a request: {error}") from error


def _announce(session: Session, gateway: str) -> None:
    """Announce this agent to the others. Nothing depends on it: without a leader of the control log, the announcement is left out."""
    try:
        session.control.publish(
            Node(node_id=session.config.node.id, started_ms=SystemClock().now_ms(), version=__version__, gateway=gateway)
        )
    except HeadwaterError as error:
        log.warning("agent_not_announced", reason=str(error))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
