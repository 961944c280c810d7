"""What a command and a running agent say to each other."""

import inspect
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from headwater import agent_api
from headwater.admin import operation_routes
from headwater.admin.local_socket import listen_locally
from headwater.admin.operations import Operations
from headwater.agent_api import AgentApi, NoAgent
from headwater_core.errors import HeadwaterError, Locked, NotFound, TransientError, Unauthorised, UsageError
from tests.headwater.admin.apps import serving_locally


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[AgentApi, Operations]]:
    with serving_locally(tmp_path) as (operations, _):
        yield AgentApi(tmp_path), operations


@pytest.fixture
def api(served: tuple[AgentApi, Operations]) -> AgentApi:
    return served[0]


def test_what_is_read_and_what_is_posted_come_back_decoded(served: tuple[AgentApi, Operations]) -> None:
    api, operations = served
    running = operations.begin("archive", {"selection": "orders"})
    page = api.get("/v1/operations", {"state": "running", "limit": 1}, timeout_s=30)
    assert [(each["id"], each["verb"]) for each in page["operations"]] == [(running.id, "archive")]
    assert api.post(f"/v1/operations/{running.id}/cancel", timeout_s=30)["cancelling"] is True
    assert running.cancelled.is_set()


def test_the_agents_error_is_raised_here(api: AgentApi) -> None:
    with pytest.raises(NotFound, match="no such operation"):
        api.get("/v1/operations/absent-operation", timeout_s=30)
    with pytest.raises(UsageError, match="unknown parameter"):
        api.get("/v1/operations", {"page": 1}, timeout_s=30)


def test_a_path_that_an_agent_of_another_version_does_not_know_is_told_by_both_versions(api: AgentApi) -> None:
    with pytest.raises(HeadwaterError, match=r"no such endpoint: POST /v1/tomorrow \(version 1\.2\.3\); this command") as raised:
        api.post("/v1/tomorrow", timeout_s=30)
    assert type(raised.value) is HeadwaterError
    with pytest.raises(HeadwaterError, match=r"version 1\.2\.3"):
        next(api.rows("/v1/tomorrow", timeout_s=30))


def test_without_an_agent_there_is_nobody_to_ask(tmp_path: Path) -> None:
    for data_dir in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NoAgent):
            AgentApi(data_dir).get("/v1/operations")
    listen_locally(tmp_path).close()
    with pytest.raises(NoAgent):
        next(AgentApi(tmp_path).rows("/v1/archive"))


def test_another_users_agent_is_not_ours_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(agent_api._LocalConnection, "connect", refuse)
    with pytest.raises(Unauthorised):
        AgentApi(tmp_path).get("/v1/operations")


def test_every_exit_code_has_an_error_to_raise() -> None:
    assert all(kind.exit_code == code for code, kind in agent_api._RAISED.items())


# -- an agent that answers what it likes ---------------------------------------------------------------------------


def read_request(client: socket.socket) -> None:
    """Whole: its body may come by itself."""
    received = client.recv(65536)
    while not received.endswith(b"{}" if received.startswith(b"POST") else b"\r\n\r\n"):
        received += client.recv(65536)


@contextmanager
def answering(data_dir: Path, answer: bytes, *, stays: bool = False) -> Iterator[AgentApi]:
    """To one client; then its connection ends, unless it `stays`."""
    listener, ended = listen_locally(data_dir), threading.Event()
    listener.setblocking(True)

    def work() -> None:
        client, _ = listener.accept()
        with client:
            read_request(client)
            client.sendall(answer)
            if stays:
                ended.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield AgentApi(data_dir)
    finally:
        ended.set()
        thread.join()
        listener.close()


def lines(*values: object, whole: bool = True) -> bytes:
    body = b"".join(json.dumps(each).encode() + b"\n" for each in values)
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + (b"0\r\n\r\n" if whole else b"")


RUNNING = {"operation": {"id": "one", "state": "running", "exit_code": None}}


def test_rows_are_yielded_and_the_outcome_is_raised(tmp_path: Path) -> None:
    done = {"operation": {"state": "done", "exit_code": None}}
    with answering(tmp_path, lines(RUNNING, {"row": {"at": 0}}, RUNNING, {"row": {"at": 1}}, done)) as api:
        assert list(api.rows("/v1/archive", timeout_s=30)) == [{"at": 0}, {"at": 1}]
    failed = {"operation": {"state": "failed", "exit_code": 7, "error": "a newer claim"}}
    with answering(tmp_path, lines(RUNNING, {"row": {"at": 0}}, failed)) as api:
        rows = api.rows("/v1/archive", timeout_s=30)
        assert next(rows) == {"at": 0}
        with pytest.raises(Locked, match="a newer claim"):
            next(rows)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("values", [(), (RUNNING,), (RUNNING, {"row": {"at": 0}})])
def test_an_agent_that_goes_away_in_mid_answer_is_a_transient_error(tmp_path: Path, values: tuple[object, ...], whole: bool) -> None:
    with answering(tmp_path, lines(*values, whole=whole)) as api, pytest.raises(TransientError, match="stopped answering"):
        list(api.rows("/v1/archive", timeout_s=30))


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/1.1 500 no\r\n\r\nno"]
)
def test_an_answer_that_is_none_is_a_transient_error(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path, answer) as api, pytest.raises(TransientError, match="stopped answering"):
        api.get("/v1/operations", timeout_s=30)


def test_an_agent_that_is_silent_for_too_long_is_a_transient_error(tmp_path: Path) -> None:
    ways: list[Callable[[AgentApi], object]] = [
        lambda api: api.get("/v1/x", timeout_s=0.1),
        lambda api: list(api.rows("/v1/x", silence_s=0.1)),
        lambda api: list(api.rows("/v1/x", timeout_s=30, silence_s=0.1)),
    ]
    for ask in ways:
        for answer in (b"", lines(RUNNING, whole=False)[:-4]):
            with answering(tmp_path, answer, stays=True) as api, pytest.raises(TransientError, match="stopped answering"):
                ask(api)


def test_an_answer_that_comes_in_drops_has_one_limit_of_time_as_a_whole(tmp_path: Path) -> None:
    listener, ended = listen_locally(tmp_path), threading.Event()
    listener.setblocking(True)

    def work() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            read_request(client)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                client.sendall(b" ")
                if ended.wait(0.02):
                    return

    thread = threading.Thread(target=work)
    thread.start()
    begun_s = monotonic()
    with pytest.raises(TransientError, match="stopped answering: timed out"):
        AgentApi(tmp_path).get("/v1/status", timeout_s=0.3)
    assert monotonic() - begun_s < 10
    ended.set()
    thread.join()
    listener.close()


def test_a_command_waits_no_longer_for_an_agent_that_hangs_than_for_several_of_its_lines(tmp_path: Path) -> None:
    """Also one that waits for ever for what the agent does."""
    assert inspect.signature(AgentApi.rows).parameters["silence_s"].default == agent_api.SILENCE_S >= 4 * operation_routes.PROGRESS_S
    with answering(tmp_path, lines(RUNNING, {"row": {"at": 0}}, whole=False), stays=True) as api:
        rows = api.rows("/v1/archive", silence_s=0.1)
        assert next(rows) == {"at": 0}
        with pytest.raises(TransientError, match=r"the agent on .* stopped answering"):
            next(rows)


def test_an_agent_that_does_nothing_and_says_so_is_waited_for_unless_there_is_a_limit(tmp_path: Path) -> None:
    done = {"operation": {"state": "done", "exit_code": None}}
    with answering(tmp_path, lines(RUNNING, RUNNING, RUNNING, done)) as api:
        assert list(api.rows("/v1/archive", silence_s=30)) == []
    with (
        answering(tmp_path, lines(RUNNING, RUNNING, RUNNING, done)) as api,
        pytest.raises(TransientError, match="nothing was done for 0 s"),
    ):
        list(api.rows("/v1/archive", timeout_s=0))


def test_an_agent_from_before_this_api_is_of_another_version(tmp_path: Path) -> None:
    with answering(tmp_path, b"\0\0\0\x10\x83\xa4type\xa4done"), pytest.raises(HeadwaterError, match="another version") as raised:
        AgentApi(tmp_path).get("/v1/operations", timeout_s=30)
    assert type(raised.value) is HeadwaterError


def test_who_stops_taking_rows_closes_the_connection(tmp_path: Path) -> None:
    listener = listen_locally(tmp_path)
    listener.settimeout(30)
    seen: list[bytes] = []

    def work() -> None:
        client, _ = listener.accept()
        with client:
            client.settimeout(30)
            read_request(client)
            client.sendall(lines(RUNNING, {"row": {}}, whole=False))
            seen.append(client.recv(1))

    thread = threading.Thread(target=work)
    thread.start()
    rows = AgentApi(tmp_path).rows("/v1/archive", timeout_s=30)
    assert next(rows) == {}
    rows.close()  # type: ignore[attr-defined]
    thread.join(30)
    listener.close()
    assert seen == [b""]
    assert isinstance(listener, socket.socket)
