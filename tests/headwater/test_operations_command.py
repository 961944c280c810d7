"""`headwater operations`, as an operator uses it beside commands that an agent works for."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.agent_api import AgentApi
from headwater.commands import operations as command
from headwater_core.errors import TransientError
from tests.headwater.admin.apps import serving_locally
from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import DEADLINE_S, Agent, running

MANUAL = ("--set", "archival.archive=manual")


def begun(stage: Stage, log: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A command beside the test, as from another terminal."""
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(log)]
    command = [sys.executable, "-c", "from headwater.cli import main; main()", *arguments, *places]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, cwd=stage.root, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def ended(command: "subprocess.Popen[str]") -> tuple[int, str]:
    _, err = command.communicate(timeout=DEADLINE_S)
    return command.returncode, err


def rows(stage: Stage, *arguments: str) -> list[dict[str, Any]]:
    ran = stage.run("operations", *arguments, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return ran.rows


def test_a_list_is_as_long_as_is_wanted_though_an_answer_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAGE", 3)
    with serving_locally(tmp_path) as (operations, _):
        ids = [operations.begin("archive", {"at": at}).id for at in range(8)]
        for limit in (1, 3, 5, 6, 8, 20):
            found = command._newest(AgentApi(tmp_path), {"verb": ("archive",), "state": ()}, limit)
            assert len({each["id"] for each in found} & set(ids)) == len(found) == min(limit, 8)


def test_operations_are_listed_shown_and_filtered(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *MANUAL) as agent:
        agent.wait_for("gateway_started")
        assert rows(stage, "list") == []
        assert stage.run("flush", "orders.in", log=log).code == 0
        assert stage.run("archive", "absent", log=log).code == 6
        assert stage.run("verify").code == 0
        verified, failed, flushed = rows(stage, "list")
        assert (flushed["verb"], flushed["state"], flushed["arguments"]["selection"]) == ("flush", "done", "orders.in")
        assert (failed["verb"], failed["state"], failed["exit_code"]) == ("archive", "failed", 6)
        assert rows(stage, "list", "--verb", "flush", "--state", "done", "--state", "failed") == [flushed]
        assert rows(stage, "list", "--limit", "1") == [verified]
        assert rows(stage, "list", "--state", "running") == []
        table = stage.run("operations", "list").out
        assert "orders.in" in table
        assert "data=false" in table
        assert "null" not in table  # what was not given
        assert "absent is not in the log directories" in table
        shown = stage.run("operations", "show", failed["id"])
        assert "archive absent" in shown.out
        assert rows(stage, "show", failed["id"]) == [failed]
        already = stage.run("operations", "cancel", failed["id"])
        assert (already.code, "it had ended before: failed" in already.err) == (0, True)
        assert stage.run("operations", "show", "absent-operation").code == 6
        assert stage.run("operations", "show", "../../status").code == 2
        assert stage.run("operations", "list", "--watch", "-o", "json").code == 2
        assert agent.stop() == 0
    assert stage.run("operations", "list").code == 6


@contextmanager
def holding(stage: Stage, log: Path) -> Iterator[tuple[Agent, Path]]:
    """An agent whose passes get no further than to a partition's claim, until there is a file of that name."""
    go = stage.root / "go"
    with running(stage, log, *MANUAL, HOLD_AT=f"archive.claimed:{go}") as agent:
        agent.wait_for("gateway_started")
        yield agent, go


def test_a_command_whose_work_is_cancelled_ends_and_one_that_is_killed_ends_its_work(stage: Stage) -> None:
    """In the middle of a pass; then everything is archived by the next one."""
    log = stage.log("kitchen")
    with holding(stage, log) as (agent, go):
        waiting, killed = begun(stage, log, "flush"), begun(stage, log, "archive")
        agent.wait_for("operation_started", verb="flush")
        agent.wait_for("operation_started", verb="archive")
        killed.send_signal(signal.SIGKILL)
        ended(killed)
        [flush] = rows(stage, "list", "--verb", "flush")
        assert flush["state"] == "running"
        [cancelling] = rows(stage, "cancel", flush["id"])
        assert cancelling["cancelling"] is True
        go.touch()
        code, err = ended(waiting)
        assert (code, "stopped before its end" in err, flush["id"] in err) == (TransientError.exit_code, True, True)
        assert eventually(lambda: {row["state"] for row in rows(stage, "list")} == {"cancelled"})
        assert stage.run("flush", log=log).code == 0
        again = stage.run("flush", "-o", "jsonl", log=log).rows
        assert {(row["objects"], row["reason"], row["error"]) for row in again} == {(0, "caught up", None)}
        assert agent.stop() == 0


def test_an_agent_that_is_stopped_in_mid_pass_says_so_to_the_command(stage: Stage) -> None:
    log = stage.log("kitchen")
    with holding(stage, log) as (agent, go):
        waiting = begun(stage, log, "flush")
        agent.wait_for("operation_started", verb="flush")
        agent.process.send_signal(signal.SIGTERM)
        agent.wait_for("stop_requested")
        go.touch()
        code, err = ended(waiting)
        assert (code, "stopped" in err) == (TransientError.exit_code, True)
        assert agent.process.wait(DEADLINE_S) == 0


def test_an_agent_that_is_killed_in_mid_pass_leaves_a_temporary_error(stage: Stage) -> None:
    log = stage.log("kitchen")
    with holding(stage, log) as (agent, _):
        waiting = begun(stage, log, "flush")
        agent.wait_for("operation_started", verb="flush")
        agent.process.kill()
        code, err = ended(waiting)
        assert (code, "stopped answering" in err) == (TransientError.exit_code, True)


def test_two_passes_at_once_archive_everything_once(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *MANUAL) as agent:
        agent.wait_for("gateway_started")
        both = [begun(stage, log, "flush") for _ in range(2)]
        assert [ended(each)[0] for each in both] == [0, 0]
        done = AgentApi(stage.data_dir).get("/v1/operations", {"verb": "flush"}, timeout_s=30)["operations"]
        objects = sum(row["objects"] for row in stage.run("status", "-p", "-o", "jsonl", log=log).rows)
        assert sum(each["results"]["objects"] for each in done) == objects
        assert {row["state"] for row in stage.run("status", "-p", "-o", "jsonl", log=log).rows} == {"archived"}
        assert agent.stop() == 0


def test_bytes_are_shown_as_sizes() -> None:
    found = {
        "id": "a",
        "verb": "verify",
        "arguments": {},
        "by": "",
        "state": "running",
        "cancelling": False,
        "eta_s": None,
        "error": None,
        "started_ms": 0,
        "ended_ms": None,
        "exit_code": None,
        "done": 1 << 20,
        "total": 3 << 20,
        "unit": "bytes",
        "results": {"examined": 7, "read_bytes": 5 << 10},
    }
    assert command._line(found)["progress"] == "1.0 MiB of 3.0 MiB"
    facts = {fact["what"]: fact["is"] for fact in command._facts(found)}
    assert (facts["done"], facts["examined"], facts["read"]) == ("1.0 MiB of 3.0 MiB", "7", "5.0 KiB")
