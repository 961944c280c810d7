"""Drills by schedule: when one begins, when none does, and what is known of the last one."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater import drill_schedule
from headwater.agent_api import AgentApi
from headwater.config import load
from headwater.drill.cron_schedule import CronSchedule
from headwater.drill.drill_report import DrillOutcome, DrillReport, decode_report
from headwater.drill.report_store import ReportStore
from headwater.drill_schedule import STATE, DrillSchedule, ScheduleState, SpawnedDrill
from headwater_core.objectstore.directory import DirectoryStore
from manifests.document import seal
from tests.events import written_events
from tests.fixtures import unpack
from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage
from tests.headwater.drill.test_report_store import a_report
from tests.headwater.test_admin_port import opened, places
from tests.headwater.test_agent import running
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.archived import archive

HOUR_MS = 3_600_000
MONDAY = datetime(2026, 2, 2, tzinfo=UTC)


class Drill:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.interrupted = False

    def interrupt(self, patience_s: float) -> None:
        self.interrupted, self.exit_code = True, 130


def an_unfinished(why: str) -> DrillReport:
    return a_report(59, DrillOutcome.UNFINISHED, error=why)


class Stand:
    """A schedule of every day at three, from a Monday's midnight on."""

    def __init__(self, tmp_path: Path, schedule: str | None = "0 3 * * *") -> None:
        self.clock, self.reports, self.begun = ManualClock(), ReportStore(tmp_path, 10), list[Drill]()
        self._schedule, self.error = schedule, None  # type: tuple[str | None, OSError | None]
        self.clock.advance(round(MONDAY.timestamp() * 1000) - self.clock.now_ms())
        self.start()

    def start(self) -> None:
        """As the agent does that starts again."""

        def begin() -> Drill:
            if self.error is not None:
                raise self.error
            self.begun.append(Drill())
            return self.begun[-1]

        schedule = CronSchedule.parse(self._schedule) if self._schedule else None
        self.schedule = DrillSchedule(schedule, self.reports, self.clock, begin, an_unfinished)
        self.schedule.step()

    def after(self, hours: float) -> int:
        """How many drills have begun by then."""
        self.clock.advance(round(hours * HOUR_MS))
        self.schedule.step()
        return len(self.begun)

    def end(self, exit_code: int = 0) -> None:
        self.begun[-1].exit_code = exit_code
        self.schedule.step()


def test_one_drill_each_time_and_never_two_at_once(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    assert stand.after(2.9) == 0
    assert stand.after(0.2) == 1
    assert stand.after(1) == 1
    assert stand.after(72) == 1  # it runs still
    stand.end()
    assert len(stand.begun) == 2  # one makes up for all that were missed
    stand.end()
    assert stand.after(1) == 2


def test_what_was_missed_while_the_agent_was_down_is_made_up_for_once(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.clock.advance(80 * HOUR_MS)
    stand.start()
    assert len(stand.begun) == 1
    stand.start()  # the drill has taken the agent with it: it is not begun by each start
    assert len(stand.begun) == 1
    assert stand.after(24) == 2


def test_the_first_start_begins_nothing(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    assert stand.begun == []
    stand.start()
    assert stand.after(2.9) == 0


def test_a_clock_that_is_set_back_begins_nothing_twice(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    assert stand.after(3) == 1
    stand.end()
    assert stand.after(-1) == 1
    assert stand.after(1.01) == 1
    assert stand.after(24) == 2


def test_a_clock_that_was_years_ahead_does_not_end_all_drills(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.after(10 * 365 * 24)
    stand.end()
    count = stand.after(-10 * 365 * 24)
    assert stand.after(24) == count + 1


def test_without_a_schedule_what_commands_have_left_is_known_all_the_same(tmp_path: Path) -> None:
    stand = Stand(tmp_path, None)
    stand.reports.add(a_report(1, DrillOutcome.FAILED))
    assert stand.after(1000) == 0
    assert stand.schedule.last is not None
    assert stand.schedule.last.outcome is DrillOutcome.FAILED


@pytest.mark.parametrize(("exit_code", "event"), [(0, "drill_passed"), (4, "drill_failed"), (-9, "drill_failed")])
def test_how_a_drill_ended_is_an_event(exit_code: int, event: str, tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.after(3)
    with written_events(stand.clock) as written:
        stand.end(exit_code)
    assert [each["event"] for each in written] == [event]


def test_where_it_cannot_be_remembered_none_begins(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.after(1)
    (stand.reports.directory / STATE).unlink()
    (stand.reports.directory / STATE).mkdir()
    with written_events(stand.clock) as written:
        assert stand.after(24) == 0
    assert [each["event"] for each in written] == ["drill_not_started"]
    assert stand.schedule.last is not None
    assert stand.schedule.last.outcome is DrillOutcome.UNFINISHED


def test_damage_of_the_memory_is_unknown_knowledge(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    (stand.reports.directory / STATE).write_bytes(b"{")
    with written_events(stand.clock) as written:
        stand.start()
    assert [each["event"] for each in written] == ["drill_schedule_unknown"]
    assert stand.after(3) == 1


def test_a_drill_that_runs_at_the_end_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand, stop = Stand(tmp_path), threading.Event()
    stand.clock.advance(3 * HOUR_MS)
    monkeypatch.setattr(drill_schedule, "LOOK_S", 0.001)

    def begin() -> Drill:
        stand.begun.append(Drill())
        stop.set()
        return stand.begun[-1]

    DrillSchedule(CronSchedule.parse("0 3 * * *"), stand.reports, stand.clock, begin, an_unfinished).run(stop)
    assert [each.interrupted for each in stand.begun] == [True]


@pytest.mark.slow
def test_a_real_process_leaves_a_report_and_its_exit_code(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(log)], "drill.sample": "50%"}
    drill = SpawnedDrill(load(None, {}, flags))
    drill.wait()
    last = ReportStore(stage.data_dir, 10).last()
    assert drill.exit_code == 0
    assert last is not None
    assert last.outcome is DrillOutcome.PASSED
    assert last.records > 0


def test_an_agent_begins_what_was_missed_and_the_next_start_shows_what_came_of_it(stage: Stage) -> None:
    stage.bucket.mkdir()
    archive(unpack("kitchen"), DirectoryStore(stage.bucket), {"specials"})
    reports = ReportStore(stage.data_dir, 10)
    reports.directory.mkdir(parents=True)
    (reports.directory / STATE).write_bytes(seal(ScheduleState(since_ms=0)))
    with running(stage, None, "--set", "drill.schedule=@yearly") as agent:
        agent.wait_for("drill_due")
        agent.wait_for("recovery_finished")  # by the drill's own process
        assert eventually(lambda: reports.last() is not None)
        assert agent.stop() == 0
    [path] = reports.directory.glob("report-*.json")
    report = decode_report(path.read_bytes(), str(path))
    assert (report.outcome, report.request.by, {each.topic for each in report.windows}) == (DrillOutcome.PASSED, "schedule", {"specials"})
    with opened(load(None, {}, places(stage) | {"admin.listen": ""})):
        api = AgentApi(stage.data_dir)
        assert eventually(lambda: "last_drill" in api.get("/v1/status"))
        last = api.get("/v1/status")["last_drill"]
        assert (last["report"], last["outcome"], last["passed_ms"]) == (path.name, "passed", report.ended_ms)


def test_a_process_that_cannot_be_made_is_said_and_the_next_one_runs(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.reports.add(a_report(1))
    stand.error = BlockingIOError(11, "Resource temporarily unavailable")
    with written_events(stand.clock) as written:
        assert stand.after(3) == 0
    assert [each["event"] for each in written] == ["drill_due", "drill_not_started"]
    for last in (stand.schedule.last, stand.reports.last()):  # for status and metrics, and after a restart
        assert last is not None
        assert (last.outcome, last.passed_ms) == (DrillOutcome.UNFINISHED, 2)
        assert "temporarily unavailable" in last.error
    stand.error = None
    assert stand.after(1) == 0
    assert stand.after(24) == 1


def test_a_drill_that_ends_without_a_report_is_not_hidden_by_the_one_before(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.reports.add(a_report(1))
    stand.after(3)
    stand.end(-9)
    last = stand.reports.last()
    assert last is not None
    assert last.outcome is DrillOutcome.UNFINISHED
    assert "-9" in last.error
    stand.after(24)
    stand.reports.add(a_report(2, DrillOutcome.FAILED))
    stand.end(4)
    last = stand.reports.last()
    assert last is not None
    assert last.outcome is DrillOutcome.FAILED  # its own
