"""What is requested over HTTP is done: with rows or without, once, in turn, and no longer than somebody wants it."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import structlog
from starlette.requests import ClientDisconnect
from structlog.testing import capture_logs

from headwater.admin import operation_routes, operations, row_pipe, verb_threads
from headwater.admin.operations import Operations, OperationState, RunningOperation
from headwater.admin.verb import Rows, Verb
from headwater.admin.verb_threads import VerbThreads
from headwater.agent_api import AgentApi
from headwater_core.errors import Locked, NotFound, TransientError, UsageError
from tests.headwater.admin.apps import serving_locally
from tests.headwater.admin.client import Answer, call, connected
from tests.headwater.admin.test_admin_server import eventually


class Count(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """rows: how many; text: of each, so much; fails: after them"""

    rows: Annotated[int, msgspec.Meta(ge=0)] = 1
    text: int = 0
    fails: str = ""

    def __post_init__(self) -> None:
        if self.fails == "usage":
            raise UsageError("nobody fails so")


class Stage:
    """Verbs of a test: `count` makes rows, `wait` waits for `go`, `look` is a look of as many rows as are wanted."""

    def __init__(self, data_dir: Path) -> None:
        self.api, self.data_dir = AgentApi(data_dir), data_dir
        self.go, self.made, self.ended = threading.Event(), 0, threading.Event()
        self.bound: list[Any] = []
        self.operations: Operations
        self.threads: VerbThreads

    def verbs(self) -> list[Verb]:
        return [
            Verb(name="count", summary="", arguments=Count, rows=self._count, sums=("weight",)),
            Verb(name="wait", summary="", arguments=Count, rows=self._wait),
            Verb(name="look", summary="", arguments=Count, rows=self._count, is_look=True),
            Verb(name="short", summary="", arguments=Count, rows=self._count, is_short=True),
        ]

    def _count(self, arguments: Count, running: RunningOperation) -> Rows:
        self.bound.append(structlog.contextvars.get_contextvars().get("operation"))
        running.advance(0, arguments.rows)
        try:
            for at in range(arguments.rows):
                self.made += 1
                yield {"at": at, "weight": 2, "text": "x" * arguments.text, "error": None}
            match arguments.fails:
                case "absent":
                    raise NotFound("no such topic")
                case "locked":
                    raise Locked("held by another")
                case "defect":
                    raise ZeroDivisionError
        finally:
            self.ended.set()

    def _wait(self, arguments: Count, running: RunningOperation) -> Rows:
        while not self.go.is_set():
            if running.cancelled.wait(0.01):
                raise TransientError("stopped before its end; the next one continues")
        yield {"at": 0}

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return call(self.data_dir, path, method="POST", body=json.dumps(body or {}).encode(), Content_Type="application/json", **headers)

    def state(self, operation_id: str) -> str:
        return str(self.api.get(f"/v1/operations/{operation_id}", timeout_s=30)["state"])


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with serving_locally(tmp_path, stage.verbs()) as (stage.operations, stage.threads):
        yield stage


def test_rows_come_in_order_and_the_operation_sums_them_up(stage: Stage) -> None:
    rows = list(stage.api.rows("/v1/count", {"rows": 2000}, operation_id="the-first-operation", timeout_s=30))
    assert [row["at"] for row in rows] == list(range(2000))
    found = stage.api.get("/v1/operations/the-first-operation", timeout_s=30)
    assert (found["state"], found["done"], found["total"], found["results"]) == ("done", 2000, 2000, {"weight": 4000, "failed": 0})
    assert found["arguments"] == {"rows": 2000}
    assert stage.bound == ["the-first-operation"]


@pytest.mark.parametrize(("fails", "kind"), [("absent", NotFound), ("locked", Locked)])
def test_its_error_comes_after_its_rows_and_stays_with_the_operation(stage: Stage, fails: str, kind: type[Exception]) -> None:
    rows = stage.api.rows("/v1/count", {"rows": 3, "fails": fails}, operation_id="the-first-operation", timeout_s=30)
    assert [next(rows)["at"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(kind) as raised:
        next(rows)
    found = stage.api.get("/v1/operations/the-first-operation", timeout_s=30)
    assert (found["state"], found["error"], found["exit_code"]) == ("failed", str(raised.value), kind.exit_code)  # type: ignore[attr-defined]


def test_a_defect_is_logged_and_is_an_error_of_the_operation(stage: Stage) -> None:
    with capture_logs() as logs, pytest.raises(Exception, match="a defect, see the agent's log"):
        list(stage.api.rows("/v1/count", {"fails": "defect"}, timeout_s=30))
    assert "operation_failed" in {each["event"] for each in logs}


def test_without_waiting_it_is_begun_and_its_rows_are_counted(stage: Stage) -> None:
    answer = stage.post("/v1/count", {"rows": 5000, "text": 1000})
    assert answer.status == 202
    assert answer.headers["location"] == f"/v1/operations/{answer.json['id']}"
    assert eventually(lambda: stage.state(answer.json["id"]) == "done")
    assert stage.api.get(answer.headers["location"], timeout_s=30)["results"] == {"weight": 10_000, "failed": 0}


def test_a_look_answers_with_rows_and_is_forgotten(stage: Stage) -> None:
    answer = stage.post("/v1/look", {"rows": 2})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["row"]["at"] for line in lines if "row" in line] == [0, 1]
    assert [line["operation"]["state"] for line in lines if "operation" in line] == ["running", "done"]
    assert stage.api.get("/v1/operations", timeout_s=30)["operations"] == []


def test_a_slow_client_is_waited_for_and_no_rows_gather(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pipe, "LINES_MAX", 4)
    rows = stage.api.rows("/v1/count", {"rows": 10_000, "text": 10_000}, timeout_s=30)
    next(rows)
    made = -1
    while made < stage.made:  # until the buffers in between are full
        made = stage.made
        time.sleep(0.2)
    assert stage.made < 500
    assert len(list(rows)) == 9999


@pytest.mark.parametrize("verb", ["count", "wait", "look"])
def test_a_client_that_leaves_ends_the_work(stage: Stage, verb: str) -> None:
    client = connected(stage.data_dir)
    body = b'{"rows": 1000000, "text": 1000}'
    client.sendall(b"POST /v1/%s?wait HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (verb.encode(), len(body)))
    client.sendall(b"Content-Type: application/json\r\n\r\n")
    client.sendall(body)
    assert client.recv(1000)
    client.close()
    assert eventually(lambda: stage.operations.list(states=[OperationState.RUNNING]).operations == [])
    assert [each.state.value for each in stage.operations.list().operations] == ([] if verb == "look" else ["cancelled"])
    assert list(stage.api.rows("/v1/count", timeout_s=30))


def test_what_a_client_has_left_is_cancelled_before_its_maker_hears_of_it(stage: Stage) -> None:
    running = stage.operations.begin("count", {})

    class Pipe(row_pipe.RowPipe):
        def abandon(self) -> None:
            running.fail(TransientError("the client that waited for it has gone"))  # as the thread that makes rows does at once

    async def leave(_: object) -> None:
        raise OSError("it has gone")

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def answer() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        with suppress(ClientDisconnect):
            await operation_routes._Rows(stage.operations, running, Pipe(asyncio.get_running_loop()))(scope, receive, leave)

    asyncio.run(answer())
    assert stage.state(running.id) == "cancelled"


def test_cancelling_ends_it_and_who_waits_for_it_learns_so(stage: Stage) -> None:
    rows = stage.api.rows("/v1/wait", operation_id="the-first-operation", timeout_s=30)
    raised: list[Exception] = []

    def wait() -> None:
        try:
            list(rows)
        except TransientError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert eventually(lambda: stage.operations.find("the-first-operation") is not None)
    assert stage.api.post("/v1/operations/the-first-operation/cancel", timeout_s=30)["verb"] == "wait"
    waiting.join(30)
    assert [str(each) for each in raised] == ["stopped before its end; the next one continues"]
    assert stage.state("the-first-operation") == "cancelled"
    assert stage.api.post("/v1/operations/the-first-operation/cancel", timeout_s=30)["state"] == "cancelled"


def test_while_nothing_is_done_a_line_says_so_and_a_client_with_a_limit_gives_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_routes, "PROGRESS_S", 0.02)
    with pytest.raises(TransientError, match=r"nothing was done for 0\.2 s"):
        list(stage.api.rows("/v1/wait", timeout_s=0.2))
    assert eventually(lambda: stage.operations.list(states=[OperationState.RUNNING]).operations == [])
    threading.Timer(0.2, stage.go.set).start()
    assert list(stage.api.rows("/v1/wait", timeout_s=30)) == [{"at": 0}]


def test_one_id_is_one_operation(stage: Stage) -> None:
    first = stage.post("/v1/wait", {"rows": 7}, Operation_Id="the-first-operation")
    again = stage.post("/v1/wait", {"rows": 7}, Operation_Id="the-first-operation")
    assert (first.status, again.status) == (202, 200)
    assert again.json["id"] == first.json["id"] == "the-first-operation"
    assert len(stage.operations.list().operations) == 1
    for path, body in (("/v1/wait", {"rows": 8}), ("/v1/count", {"rows": 7})):
        refused = stage.post(path, body, Operation_Id="the-first-operation")
        assert (refused.status, refused.problem) == (409, "operation_id_taken")
    with pytest.raises(TransientError, match="ended before the work did"):
        list(stage.api.rows("/v1/wait", {"rows": 7}, operation_id="the-first-operation", timeout_s=30))
    stage.go.set()
    assert eventually(lambda: stage.state("the-first-operation") == "done")
    assert list(stage.api.rows("/v1/wait", {"rows": 7}, operation_id="the-first-operation", timeout_s=30)) == []
    assert stage.post("/v1/wait", {}, Operation_Id="../../etc/passwd").problem == "bad_request"


def test_others_wait_for_their_turn_and_one_whose_turn_has_not_come_is_cancelled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb_threads, "THREADS", 2)
    monkeypatch.setattr(operations, "RUNNING_MAX", 4)
    stage = Stage(tmp_path)
    with serving_locally(tmp_path, stage.verbs()) as (stage.operations, stage.threads):
        begun = [stage.post("/v1/wait").json["id"] for _ in range(4)]
        refused = stage.post("/v1/count")
        assert (refused.status, refused.problem) == (503, "too_many_operations")
        with pytest.raises(TransientError, match="4 operations run or wait already"):
            list(stage.api.rows("/v1/count", timeout_s=30))
        stage.api.post(f"/v1/operations/{begun[3]}/cancel", timeout_s=30)
        assert stage.state(begun[3]) == "cancelled"
        counted = stage.post("/v1/count").json["id"]
        assert stage.state(counted) == "running"
        stage.go.set()
        assert eventually(lambda: stage.state(counted) == "done")
        assert eventually(lambda: [stage.state(each) for each in begun[:3]] == ["done"] * 3)


def test_short_work_does_not_wait_for_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb_threads, "THREADS", 2)
    stage = Stage(tmp_path)
    with serving_locally(tmp_path, stage.verbs()) as (stage.operations, stage.threads):
        begun = [stage.post("/v1/wait").json["id"] for _ in range(3)]
        assert len(list(stage.api.rows("/v1/short", {"rows": 3}, timeout_s=30))) == 3
        assert [stage.state(each) for each in begun] == ["running"] * 3
        stage.go.set()


def test_what_gets_no_thread_has_failed_and_is_not_done_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    count, wait, *_ = stage.verbs()
    stage.threads.begin(wait, Count(), "the-first-operation", None)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            stage.threads.begin(count, Count(), "the-second-operation", None)
    found = stage.operations.find("the-second-operation")
    assert found is not None
    assert (found.state, found.error) == (OperationState.FAILED, "can't start new thread")
    stage.go.set()
    stage.threads.begin(count, Count(rows=3), "the-third-operation", None)
    assert eventually(lambda: stage.state("the-third-operation") == "done")
    stage.threads.close()
    assert stage.made == 3


def test_an_agent_that_stops_ends_what_runs_and_what_waits_and_begins_nothing(stage: Stage) -> None:
    rows = stage.api.rows("/v1/wait", timeout_s=30)
    begun = [stage.post("/v1/wait").json["id"] for _ in range(20)]
    slow = stage.api.rows("/v1/count", {"rows": 1_000_000, "text": 1000}, timeout_s=30)
    raised: list[type[Exception]] = []

    def wait(rows: Iterator[object]) -> None:
        try:
            list(rows)
        except TransientError as error:
            raised.append(type(error))

    waiting = threading.Thread(target=wait, args=(rows,))
    waiting.start()
    assert eventually(lambda: len(stage.operations.list().operations) == 21)
    stage.threads.stop()
    assert stage.post("/v1/count").problem == "stopping"
    stage.threads.close()
    waiting.join(30)
    assert raised == [TransientError]
    assert {stage.state(each) for each in begun} == {"cancelled"}
    with pytest.raises(TransientError, match="stopping"):
        next(slow)


BODIES = [
    b"[]", b"{", b"null", b"1", b'"x"', b'{"rows": "1"}', b'{"rows": -1}', b'{"rows": 1.5}', b'{"rows": null}', b'{"rowz": 1}',
    b"\xff\xfe", b'{"fails": "\xb5"}', b"[" * 60_000,
    b'{"x":' * 10_000, b'{"rows": 1e400}', b'{"fails": "usage"}', b'{"rows": 1} {"rows": 1}', b'{"rows": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:20].decode("latin-1"))
def test_arguments_that_are_none_are_refused_in_words(stage: Stage, body: bytes) -> None:
    refused = call(stage.data_dir, "/v1/count", method="POST", body=body, Content_Type="application/json")
    assert (refused.status, refused.problem, refused.json["exit_code"]) == (400, "bad_request", 2)
    assert stage.operations.list().operations == []


def test_a_defect_is_answered_in_the_documented_form(stage: Stage) -> None:
    with capture_logs() as logs:
        answer = call(stage.data_dir, "/metrics")  # there are none here
        assert eventually(lambda: "admin_request_failed" in {each["event"] for each in list(logs)})  # after the answer
    assert (answer.status, answer.problem) == (500, "internal_error")


PATHS = [
    "/v1/count/",
    "//v1/count",
    "/v1/../v1/count",
    "/v1/%2e%2e/v1/count",
    "/V1/count",
    "/v1/count%00",
    "/v1/count;x",
    "/v1/counts",
    "/count",
]
IDS = ["%2e%2e", "..%2f..%2fstatus", "%00", "a%0ab", "x" * 5000, "%ff%fe", "absent-operation", "*", "absent-operation;x"]


def test_no_other_way_of_writing_a_path_leads_anywhere(stage: Stage) -> None:
    for path in PATHS:
        assert stage.post(path).problem == "not_found", path
    for each in IDS:
        for answer in (call(stage.data_dir, f"/v1/operations/{each}"), stage.post(f"/v1/operations/{each}/cancel")):
            assert answer.problem in ("unknown_operation", "not_found"), each
    assert stage.operations.list().operations == []


def test_a_body_without_an_end_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = call(stage.data_dir, "/v1/count", method="POST", body=b" " * (4 << 20), Content_Type="application/json")
    assert (too_long.status, too_long.problem) == (413, "body_too_large")
    assert stage.post("/v1/count?waits").problem == "bad_request"
    assert call(stage.data_dir, "/v1/count").problem == "method_not_allowed"
    assert call(stage.data_dir, "/v1/count", method="POST").problem == "unsupported_media_type"


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_defect(stage: Stage) -> None:
    with capture_logs() as logs:
        with connected(stage.data_dir) as client:
            client.sendall(b"POST /v1/count HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
            assert eventually(lambda: stage.api.get("/v1/operations", timeout_s=30)["operations"] == [])
        assert list(stage.api.rows("/v1/count", timeout_s=30))
    assert "admin_request_failed" not in {each["event"] for each in logs}


def test_a_client_that_takes_nothing_is_waited_for_until_it_leaves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.admin import admin_connection

    monkeypatch.setattr(admin_connection, "TAKING_S", 0.1)
    rows = stage.api.rows("/v1/count", {"rows": 1_000_000, "text": 1000}, timeout_s=30)
    next(rows)
    assert not stage.ended.wait(1)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert eventually(lambda: stage.ended.is_set())
    assert eventually(lambda: [each.state.value for each in stage.operations.list().operations] == ["cancelled"])


def test_many_clients_at_once_get_their_own_rows(stage: Stage) -> None:
    def ask(at: int, got: list[int]) -> None:
        got.append(len(list(stage.api.rows("/v1/count", {"rows": at}, timeout_s=60))))

    asked: list[list[int]] = [[] for _ in range(32)]
    threads = [threading.Thread(target=ask, args=(at * 10, got)) for at, got in enumerate(asked)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert asked == [[at * 10] for at in range(32)]


def test_a_path_in_a_row_that_is_no_text_arrives(tmp_path: Path) -> None:
    named: Callable[[Any, RunningOperation], Rows] = lambda _, __: (row for row in ({"path": "a\udcffb"},))  # noqa: E731
    with serving_locally(tmp_path, [Verb(name="name", summary="", arguments=Count, rows=named)]):
        assert list(AgentApi(tmp_path).rows("/v1/name", timeout_s=30)) == [{"path": "a\udcffb"}]


def test_the_answer_is_chunks_that_any_client_can_read(stage: Stage) -> None:
    client = connected(stage.data_dir)
    client.sendall(b"POST /v1/count HTTP/1.0\r\nHost: x\r\nAccept: application/x-ndjson\r\n")
    client.sendall(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    response = http.client.HTTPResponse(client)
    response.begin()
    assert response.read().count(b"\n") == 3
    client.close()
