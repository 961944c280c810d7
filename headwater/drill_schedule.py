"""Drills by schedule: each in a process of its own beside the agent, one at a time; and what the last one said, for status and metrics."""

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec
import structlog

from headwater import __version__
from headwater.admin.operations import new_operation_id
from headwater.config import Config
from headwater.drill.cron_schedule import CronSchedule, due_ms
from headwater.drill.drill_report import DrillOutcome, DrillReport, DrillRequest
from headwater.drill.report_store import LastDrill, ReportStore, last_of
from headwater.drill_text import store_report
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.files import disk_errors, replace_file
from headwater_core.redaction import redact
from manifests.document import FORMAT, prepared, seal, unseal

LOOK_S = 15.0  # between two looks at the clock, and at what commands have left: a jump of the clock is seen by then
AHEAD_MAX_MS = 86_400_000  # a time in the future, up to which nothing is due: the clock was set back; beyond that it was wrong before
STOP_S = 10.0  # what the agent's end waits for a drill to remove what it has restored
STATE = "schedule.json"
NICE = 10  # a drill has time; consumers have not

log = structlog.get_logger()


@prepared
class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """since_ms: up to then nothing is due any more. Written before a drill begins, so that one that ends the agent is not begun again."""

    format: tuple[int, int] = FORMAT
    since_ms: int


class DrillProcess(Protocol):
    """One drill that was begun."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def interrupt(self, patience_s: float) -> None:
        """Have it end, and wait for that so long; then kill it."""
        ...


class DrillSchedule:
    """`run` is for a thread of its own; `last` for any."""

    def __init__(
        self,
        schedule: CronSchedule | None,
        reports: ReportStore,
        clock: Clock,
        begin: Callable[[], DrillProcess],
        unfinished: Callable[[str], DrillReport],
    ) -> None:
        self.last: LastDrill | None = None
        self._schedule, self._reports, self._clock, self._begin, self._unfinished = schedule, reports, clock, begin, unfinished
        self._path = reports.directory / STATE
        self._stamp: object = object()  # none that was seen
        self._since_ms: int | None = None
        self._running: DrillProcess | None = None
        self._last_id: str | None = None  # when the one that runs was begun

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; then a drill that runs is interrupted."""
        try:
            while not stop.is_set():
                self.step()
                stop.wait(LOOK_S)
        finally:
            if self._running is not None:
                self._running.interrupt(STOP_S)

    def step(self) -> None:
        """Look at what has ended, and begin what is due."""
        if self._running is not None and self._running.exit_code is not None:
            self._ended(self._running.exit_code)
            self._running = None
        self._read_last()
        if self._schedule is None or self._running is not None:
            return
        now_ms = self._clock.now_ms()
        try:
            since_ms = self._known_since(now_ms)
            due = due_ms(self._schedule, since_ms, now_ms)
            if due is None:
                return
            self._keep(now_ms)
        except HeadwaterError as error:
            log.error("drill_not_started", reason=str(error))
            self._not_done(f"no drill could be started: {error}", is_kept=False)  # it is tried again at the next look
            return
        log.info("drill_due", due_ms=due)
        self._last_id = self.last.id if self.last else None
        try:
            self._running = self._begin()
        except OSError as error:  # no process can be made, or no memory is left; the next one is due as if this one had run
            log.error("drill_not_started", reason=str(error))
            self._not_done(f"no drill could be started: {error}")

    def _not_done(self, why: str, *, is_kept: bool = True) -> None:
        """A drill that leaves no report of its own leaves this one, so that status and metrics do not go on with the one before."""
        report = self._unfinished(why)
        self.last = last_of(report, self.last)
        if not is_kept:
            return
        try:
            store_report(self._reports, report)
        except HeadwaterError as error:
            log.error("drill_not_reported", reason=str(error))

    def _ended(self, exit_code: int) -> None:
        self._read_last()
        if exit_code and (self.last.id if self.last else None) == self._last_id:
            self._not_done(f"the drill's process ended with {exit_code} and left no report; its log says why")
        last = self.last
        said = f"{last.outcome.value}, {last.report}" if last else "no report"
        if exit_code:
            log.error("drill_failed", exit_code=exit_code, reason=said)
        else:
            log.info("drill_passed", reason=said)

    def _read_last(self) -> None:
        if (stamp := self._reports.stamp()) != self._stamp:
            self.last, self._stamp = self._reports.last(), stamp

    def _known_since(self, now_ms: int) -> int:
        """From the first look on, where nothing is known from before."""
        if self._since_ms is None:
            self._since_ms = self._load()
        if self._since_ms is None or self._since_ms > now_ms + AHEAD_MAX_MS:
            self._keep(now_ms)
        assert self._since_ms is not None
        return self._since_ms

    def _load(self) -> int | None:
        try:
            return unseal(self._path.read_bytes(), ScheduleState, str(self._path)).since_ms
        except FileNotFoundError:
            return None
        except (OSError, HeadwaterError) as error:
            log.warning("drill_schedule_unknown", reason=str(error))
            return None

    def _keep(self, since_ms: int) -> None:
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, seal(ScheduleState(since_ms=since_ms)))
        self._since_ms = since_ms


class SpawnedDrill:
    """A drill in a new process: what it holds in memory, and what it computes, is nobody else's. It ends with its parent."""

    def __init__(self, config: Config) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_drill, args=(config,), name="drill", daemon=True)
        self._process.start()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        """Until it has ended."""
        self._process.join()

    def interrupt(self, patience_s: float) -> None:
        if self._process.pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)
        self._process.join(patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def open_schedule(config: Config, clock: Clock) -> DrillSchedule:
    reports = ReportStore(config.node.data_dir, config.drill.kept_reports)
    schedule = CronSchedule.parse(config.drill.schedule) if config.drill.schedule else None
    return DrillSchedule(schedule, reports, clock, partial(SpawnedDrill, config), partial(_unfinished, config, clock))


def _unfinished(config: Config, clock: Clock, why: str) -> DrillReport:
    """Of a drill that has no report of its own."""
    now_ms = clock.now_ms()
    return DrillReport(
        id=new_operation_id(),
        outcome=DrillOutcome.UNFINISHED,
        headwater=__version__,
        host=socket.gethostname(),
        store=redact(config.store.url),
        started_ms=now_ms,
        ended_ms=now_ms,
        request=DrillRequest(topics=config.drill.topics or None, cluster=config.drill.cluster, by="schedule"),
        error=why,
    )


def _drill(config: Config) -> None:
    """In the new process."""
    import sys

    from headwater import event_log
    from headwater.command_operation import INTERRUPTED, begin_operation
    from headwater.drill_session import configured_request, do_drill
    from headwater.event_log import LogLevel
    from headwater.operation_report import reported

    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_with_parent()
    os.nice(NICE)
    event_log.configure(config.node.log_level, config.node.log_format, default=LogLevel.INFO)
    request = configured_request(config.drill, by="schedule")
    drill_id = begin_operation()
    try:
        with reported(config.node.data_dir, "drill", {"topics": list(request.topics or ()), "by": "schedule"}) as operation:
            done = do_drill(config, request, drill_id)
            operation.results = {"partitions": done.report.compared_partitions, "findings": done.report.finding_count}
            if (verdict := done.verdict()) is not None:
                raise verdict
    except HeadwaterError as error:
        log.warning("drill_ended", reason=str(error)[:2000], exit_code=error.exit_code)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end_with_parent() -> None:
    """A parent that is killed cannot interrupt it; what is restored is removed all the same."""
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="parent", daemon=True).start()
