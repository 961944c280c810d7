"""A command that works by itself is an operation of the agent on its data directory, and does without one."""

import contextvars
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.admin.operations import Operation, Operations, OperationState
from headwater.agent_api import AgentApi
from headwater.operation_report import END_S, OperationReport, shortened
from headwater_core.errors import HeadwaterError, NotFound, Partial, UsageError, VerificationFailed
from tests.headwater.admin.apps import serving_locally
from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running


def a_report(data_dir: Path, **more: Any) -> OperationReport:
    """Each has a context of its own, as each command has."""
    made = contextvars.copy_context().run(lambda: OperationReport(data_dir, "verify", {"selection": None}, 100, every_s=0.02, **more))
    assert isinstance(made, OperationReport)
    return made


def listed(operations: Operations, state: OperationState) -> list[Operation]:
    return operations.list(states=[state]).operations


@pytest.fixture
def operations(tmp_path: Path) -> Iterator[Operations]:
    with serving_locally(tmp_path) as (found, _):
        yield found


def test_it_is_listed_while_it_runs_and_after_it_has_ended(tmp_path: Path, operations: Operations) -> None:
    report = a_report(tmp_path)
    advance = report.beside(lambda *_: None)
    advance(30, "a note")
    advance(12)
    assert eventually(lambda: [each.done for each in listed(operations, OperationState.RUNNING)] == [42])
    [running] = listed(operations, OperationState.RUNNING)
    assert (running.verb, running.total, running.unit, running.arguments) == ("verify", 100, "bytes", {"selection": None})
    assert running.by.startswith("process ")
    report.results = {"examined": 9, "damaged": 1}
    report.end(VerificationFailed("1 findings"))
    [ended] = listed(operations, OperationState.FAILED)
    assert (ended.results, ended.error, ended.exit_code) == ({"examined": 9, "damaged": 1}, "1 findings", 4)


@pytest.mark.parametrize(
    "arguments",
    [
        {"topics": [f"topic-{number:05d}" for number in range(5000)], "into": "/new/data"},
        {"topics": ["\x01" * 249] * 300, "into": "\x01" * 4096},
        {"topics": ["\U0001f4bf" * 249] * 300, "into": "/" + "\U0001f4bf" * 4096},
        {"to": "/data/\udcff"},
    ],
)
def test_it_is_listed_however_much_it_was_given(tmp_path: Path, operations: Operations, arguments: dict[str, Any]) -> None:
    contextvars.copy_context().run(lambda: OperationReport(tmp_path, "recover", arguments, 100)).end(None)
    [ended] = listed(operations, OperationState.DONE)
    if "topics" in arguments:
        assert ended.arguments["topics_count"] == len(arguments["topics"])
        assert ended.arguments["topics"] == arguments["topics"][: len(ended.arguments["topics"])]


def test_arguments_that_are_short_are_whole() -> None:
    arguments = {"topics": ["orders", "tables"], "into": "/new/data", "data": True, "selection": None}
    assert shortened(arguments) == arguments


def test_short_work_is_listed_too(tmp_path: Path, operations: Operations) -> None:
    a_report(tmp_path).end(None)
    [ended] = listed(operations, OperationState.DONE)
    assert (ended.error, ended.exit_code) == (None, None)


def test_it_is_interrupted_when_it_is_cancelled(tmp_path: Path, operations: Operations) -> None:
    interrupted = threading.Event()
    report = a_report(tmp_path, interrupt=interrupted.set)
    assert eventually(lambda: bool(listed(operations, OperationState.RUNNING)))
    operations.cancel(listed(operations, OperationState.RUNNING)[0].id)
    assert interrupted.wait(20)
    report.end(KeyboardInterrupt())
    [ended] = listed(operations, OperationState.CANCELLED)
    assert (ended.error, ended.exit_code) == ("interrupted", 130)


def test_an_agent_that_was_started_meanwhile_hears_of_it(tmp_path: Path) -> None:
    report = a_report(tmp_path)
    for _ in range(2):
        with serving_locally(tmp_path) as (operations, _):
            assert eventually(lambda found=operations: bool(listed(found, OperationState.RUNNING)))  # type: ignore[misc]
    report.end(None)


@contextmanager
def a_deaf_agent(data_dir: Path) -> Iterator[None]:
    """It takes connections and says nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data_dir / "agent.sock"))
        listener.listen(100)
        yield


@pytest.mark.parametrize("is_there", [False, True])
def test_without_an_answer_it_ends_soon_and_raises_nothing(is_there: bool, tmp_path: Path) -> None:
    if is_there:
        with a_deaf_agent(tmp_path):
            took_s = ended_after(tmp_path)
    else:
        took_s = ended_after(tmp_path)
    assert took_s < END_S + (1 if is_there else 0)


def ended_after(data_dir: Path) -> float:
    report = a_report(data_dir)
    began_s = time.monotonic()
    report.end(None)
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/operations", {"id": "x", "verb": "verify", "pid": 1}),
        ("/v1/operations", {"id": "a" * 12, "verb": "Verify me", "pid": 1}),
        ("/v1/operations", {"id": "a" * 12, "verb": "verify", "pid": 0}),
        ("/v1/operations", {"id": "a" * 12, "verb": "verify", "pid": 1, "more": 1}),
        ("/v1/operations/known-operation/progress", {"done": -1}),
        ("/v1/operations/known-operation/end", {"state": "running"}),
        ("/v1/operations/known-operation/end", {"state": "done", "results": {"examined": "many"}}),
        ("/v1/operations/known-operation/end", {"state": "done", "results": {str(each): each for each in range(33)}}),
        ("/v1/operations/known-operation/end", {"state": "done", "results": {"x" * 65: 1}}),
        ("/v1/operations", {"id": "a" * 12, "verb": "verify", "pid": 1, "arguments": {"x": [[]] * 2700}}),
        ("/v1/operations", {"id": "a" * 12, "verb": "verify", "pid": 1, "arguments": json.loads('{"x":' * 900 + "1" + "}" * 900)}),
    ],
)
def test_what_is_no_report_is_refused(path: str, body: dict[str, Any], tmp_path: Path, operations: Operations) -> None:
    api = AgentApi(tmp_path)
    api.post("/v1/operations", {"id": "known-operation", "verb": "verify", "pid": 7})
    with pytest.raises(UsageError):
        api.post(path, body)
    assert [each.id for each in listed(operations, OperationState.RUNNING)] == ["known-operation"]


def test_the_agents_own_operations_cannot_be_reported_nor_one_id_twice(tmp_path: Path, operations: Operations) -> None:
    api, own = AgentApi(tmp_path), operations.begin("archive", {})
    begun = {"id": "known-operation", "verb": "verify", "pid": 7}
    assert api.post("/v1/operations", begun)["id"] == api.post("/v1/operations", begun)["id"]
    for path, body in (
        ("", begun | {"pid": 8}),
        ("", begun | {"id": own.id}),
        (f"/{own.id}/end", {"state": "done"}),
        (f"/{own.id}/progress", {}),
    ):
        with pytest.raises(HeadwaterError):
            api.post(f"/v1/operations{path}", body)
    with pytest.raises(NotFound):
        api.post("/v1/operations/nobody-knows-it/progress", {})
    assert own.facts.state is OperationState.RUNNING
    api.post("/v1/operations/known-operation/end", {"state": "failed", "error": "x", "exit_code": Partial.exit_code})
    assert api.post("/v1/operations/known-operation/end", {"state": "done"})["state"] == "failed"  # what has ended stays so


def test_commands_beside_an_agent_are_its_operations(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, "--set", "archival.seal_timeout=0s") as agent:
        agent.wait_for("gateway_started")
        assert stage.run("flush", log=log).code == 0
        assert stage.run("verify").code == 0
        assert stage.run("jobs", "scrub").code == 0
        assert stage.run("recover", "apply", "topic", "--all", "--into", str(stage.root / "again")).code == 0
        found = AgentApi(stage.data_dir).get("/v1/operations", {"state": "done"})["operations"]
        sums = {each["verb"]: each["results"] for each in found}
        assert sums["verify"]["examined"] == sums["scrub"]["examined"] > 0
        assert sums["verify"]["damaged"] == sums["verify"]["missing"] == 0
        assert sums["recover"]["records"] > 0
        assert agent.stop() == 0
