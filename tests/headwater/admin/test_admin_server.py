"""The admin port over real sockets: who may call it, what it refuses, and what a client that misbehaves can do."""

import asyncio
import gc
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from headwater.admin import admin_connection, admin_server
from headwater.admin.access import Tokens
from headwater.admin.admin_connection import AdminConnection
from headwater.admin.admin_server import AdminServer
from headwater.admin.config import AdminConfig
from headwater.admin.credentials import Credentials
from headwater.admin.health import Health
from headwater.admin.local_socket import NAME, listen_locally
from headwater.admin.recent_answers import RecentAnswers
from headwater.admin.verb import Rows, Verb
from headwater_core.errors import UsageError
from tests.headwater.admin.apps import an_app, some_routes
from tests.headwater.admin.client import Address, call, connected, send

TOKEN = "a-token-of-the-tests-0123456789"
READ_TOKEN = "a-token-to-read-of-the-tests-0123"
LOOPBACK = "127.0.0.1:0"
REQUESTS = int(os.environ.get("STRANGERS", "4000"))  # in a row, of whoever reaches the port


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n# the rest is a comment\n")
    return path


@pytest.fixture
def read_token_file(tmp_path: Path) -> Path:
    path = tmp_path / "read-token"
    path.write_text(READ_TOKEN)
    return path


@contextmanager
def serving(config: AdminConfig | None = None, app: ASGIApp | None = None, **failing: str) -> Iterator[Address]:
    """failing: reasons of checks of readiness, by name"""
    health = Health(live={"event_loop": lambda: ""}, ready={"gateway": lambda: ""} | {name: (lambda r=r: r) for name, r in failing.items()})
    with a_server(config or AdminConfig(listen=LOOPBACK), app or an_app(health)) as server:
        yield server.address


@contextmanager
def a_server(config: AdminConfig, app: ASGIApp) -> Iterator[AdminServer]:
    with TemporaryDirectory() as data_dir, AdminServer(config, app, Path(data_dir)) as server:
        yield server


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Path]:
    """A data directory in whose socket the API is, which has no port."""
    with AdminServer(AdminConfig(listen=""), an_app(Health(live={"event_loop": lambda: ""}, ready={})), tmp_path):
        yield tmp_path


def eventually(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 30
    while not (held := holds()) and time.monotonic() < until_s:
        time.sleep(0.01)
    return held


def test_health_is_short_when_it_is_well_and_names_each_check_on_request() -> None:
    with serving() as address:
        assert (call(address, "/livez").status, call(address, "/livez").text) == (200, "ok")
        assert call(address, "/readyz?verbose").text == "[+]gateway ok\nreadyz check passed\n"
        assert call(address, "/livez?verbose=true").text == "[+]event_loop ok\nlivez check passed\n"


def test_health_says_what_fails_and_may_leave_a_check_out() -> None:
    with serving(store="no answer for 31 s") as address:
        failed = call(address, "/readyz")
        assert (failed.status, failed.text) == (503, "[+]gateway ok\n[-]store failed: no answer for 31 s\nreadyz check failed\n")
        assert call(address, "/readyz?exclude=store").status == 200
        assert call(address, "/livez").status == 200


def test_without_a_token_probes_learn_whether_and_not_why(token_file: Path) -> None:
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file), store="s3://secret-bucket") as address:
        assert call(address, "/livez").status == 200
        assert call(address, "/readyz").text == "[+]gateway ok\n[-]store failed: reason withheld\nreadyz check failed\n"
        assert "s3://secret-bucket" in call(address, "/readyz", token=TOKEN).text
        assert call(address, "/readyz", token="wrong" * 8).text.count("withheld") == 1


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN])
@pytest.mark.parametrize("path", ["/metrics", "/v1/status", "/", "/absent"])
def test_without_the_token_nothing_is_said_not_even_which_paths_there_are(token_file: Path, path: str, authorization: str) -> None:
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file)) as address:
        refused = call(address, path, Authorization=authorization)
        assert (refused.status, refused.problem) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert call(address, "/absent", token=TOKEN).problem == "not_found"


GETS = ("/metrics", "/v1/status", "/v1/topics", "/v1/operations", "/v1/openapi.json")
POSTS = ("/v1/flush", "/v1/flush?wait", "/v1/operations", "/v1/operations/an-operation/cancel", "/v1/operations/an-operation/end", "/livez")


@pytest.mark.parametrize("has_writers", [True, False])
def test_who_may_read_reads_all_and_has_nothing_done(token_file: Path, read_token_file: Path, has_writers: bool) -> None:
    flushed = list[object]()

    def rows(*about: object) -> Rows:
        flushed.append(about)
        yield from ()

    async def with_metrics(scope: Scope, receive: Receive, send: Send) -> None:
        await (Response("some") if scope["path"] == "/metrics" else app)(scope, receive, send)

    flush = Verb(name="flush", summary="", arguments=msgspec.Struct, rows=rows)
    app = an_app(Health(live={"event_loop": lambda: ""}, ready={"store": lambda: "gone"}), some_routes(flush))
    config = AdminConfig(listen=LOOPBACK, token_file=token_file if has_writers else None, read_token_file=read_token_file)
    with serving(config, with_metrics) as address:
        for path in GETS:
            assert call(address, path, token=READ_TOKEN).status == call(address, path, token=READ_TOKEN, method="HEAD").status == 200
            assert call(address, path, token=TOKEN).status == (200 if has_writers else 401)
            assert call(address, path).problem == "unauthorized"
        assert "gone" in call(address, "/readyz", token=READ_TOKEN).text
        assert "gone" not in call(address, "/readyz").text
        for path in POSTS:
            for method in ("POST", "PUT", "DELETE", "PATCH", "post", "GETS"):
                refused = call(address, path, method=method, token=READ_TOKEN, Content_Type="application/json", body=b"{}")
                assert (refused.status, refused.problem) == (403, "token_needed")
        for shown in (f"{READ_TOKEN}, {TOKEN}", f"{READ_TOKEN} {TOKEN}", TOKEN[:-1], f"{TOKEN}{READ_TOKEN}"):
            assert call(address, "/v1/flush", method="POST", token=shown, Content_Type="application/json").problem == "unauthorized"
        assert not flushed
        done = call(address, "/v1/flush?wait", method="POST", token=TOKEN, Content_Type="application/json")
        assert (done.status, len(flushed)) == ((200, 1) if has_writers else (401, 0))


def test_a_token_that_reads_alone_must_be_another_one(token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"admin\.read_token_file has the token of"):
        Credentials(AdminConfig(token_file=token_file, read_token_file=token_file))
    (reading := tmp_path / "reading").write_text(READ_TOKEN)
    found = Credentials(AdminConfig(token_file=token_file, read_token_file=reading))
    reading.write_text(f"{TOKEN}\n")
    found.reload()
    assert found.tokens == Tokens(TOKEN.encode(), READ_TOKEN.encode())
    reading.write_text("another-" + READ_TOKEN)
    found.reload()
    assert found.tokens.read == b"another-" + READ_TOKEN.encode()


def test_a_token_to_read_is_enough_where_other_machines_connect(read_token_file: Path) -> None:
    assert AdminConfig(listen="0.0.0.0:0", read_token_file=read_token_file).token_file is None
    with pytest.raises(UsageError, match=r"admin\.read_token_file"):
        AdminConfig(listen="0.0.0.0:0")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:9293", 200),
        ("127.0.0.1:1", 200),
        ("10.1.2.3", 200),
        ("[::1]:9293", 200),
        ("headwater.monitoring.svc:9293", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("headwater.monitoring.svc@evil.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_ours_may_be_a_strangers_that_leads_here(host: str, status: int) -> None:
    with serving(AdminConfig(listen=LOOPBACK, hosts=("headwater.monitoring.svc",))) as address:
        answer = call(address, "/livez", Host=host)
        assert answer.status == status
        assert status == 200 or answer.problem == "wrong_host"


PATHS = ["/", "/livez/", "//livez", "/../livez", "/./livez", "/%2e%2e/livez", "/LIVEZ", "/livez%00", "/livez;x", "/v1/../livez", "/\\livez"]


@pytest.mark.parametrize("path", [*PATHS, "http://127.0.0.1/livez", "livez"])
def test_no_other_way_of_writing_a_path_leads_anywhere(path: str) -> None:
    with serving() as address:
        answer = send(address, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert answer is not None
        assert (answer.status, answer.problem) == (404, "not_found")


def test_a_request_that_is_none_gets_an_error_of_our_form() -> None:
    with serving() as address:
        for request in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            answer = send(address, request + b"\r\n\r\n")
            assert answer is not None
            assert (answer.status, answer.problem) == (400, "bad_request"), request
        long = send(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (admin_connection.HEAD_BYTES_MAX + 100_000))
        assert long is None or long.problem == "bad_request"
        twice = send(address, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n")
        assert twice is not None
        assert twice.problem == "bad_request"


def test_only_what_is_read_can_be_called_and_a_parameter_must_be_known(token_file: Path) -> None:
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file)) as address:
        refused = call(address, "/livez", method="POST", token=TOKEN, Content_Type="application/json")
        assert (refused.status, refused.problem) == (405, "method_not_allowed")
        assert "GET" in refused.headers["allow"]
        assert call(address, "/livez", method="HEAD").body == b""
        assert call(address, "/readyz?verbos").problem == "bad_request"
        assert call(address, "/readyz?verbose=perhaps").problem == "bad_request"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post"])
def test_without_a_token_in_its_configuration_the_port_does_nothing_for_anybody(method: str) -> None:
    """Every user of this machine may connect to it."""
    with serving() as address:
        for path in ("/v1/operations/any-operation/cancel", "/livez", "/absent"):
            refused = call(address, path, method=method, Content_Type="application/json")
            assert (refused.status, refused.problem) == (403, "token_needed")
            assert call(address, path, method=method, token=TOKEN, Content_Type="application/json").problem == "token_needed"


def test_what_deletes_records_is_requested_over_the_socket_alone(token_file: Path, tmp_path: Path) -> None:
    """A token travels; the socket does not."""

    def rows(*_: object) -> Rows:
        yield from ()

    verbs = [Verb(name=name, summary="", arguments=msgspec.Struct, rows=rows, is_local=name == "gc") for name in ("gc", "flush")]
    app = an_app(routes=some_routes(*verbs))
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file), app) as address, AdminServer(AdminConfig(listen=""), app, tmp_path):
        refused = call(address, "/v1/gc", method="POST", token=TOKEN, Content_Type="application/json")
        assert (refused.status, refused.problem) == (403, "local_only")
        assert call(address, "/v1/flush", method="POST", token=TOKEN, Content_Type="application/json").status == 202
        assert call(tmp_path, "/v1/gc", method="POST", Content_Type="application/json").status == 202


@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"]
)
def test_what_a_form_of_a_web_page_can_send_has_nothing_done(token_file: Path, local: Path, media_type: str) -> None:
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file)) as address:
        for way, token in ((address, TOKEN), (local, "")):
            refused = call(way, "/v1/operations/any-operation/cancel", method="POST", token=token, Content_Type=media_type)
            assert (refused.status, refused.problem) == (415, "unsupported_media_type")


def test_a_body_has_a_limit_and_is_not_waited_for() -> None:
    with serving() as address:
        for length in ("65537", "1" * 30, "-1", "1, 2"):
            answer = send(address, f"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
            assert answer is not None
            assert answer.problem in ("body_too_large", "bad_request"), length
        chunked = send(address, b"POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
        assert chunked is not None
        assert chunked.problem == "length_required"


def test_a_defect_is_logged_and_says_nothing_to_the_client() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a secret")

    with capture_logs() as logs, serving(app=broken) as address:
        answer = call(address, "/v1/x")
        assert answer.problem == "internal_error"
        assert "secret" not in answer.text
    assert [each["request"] for each in logs if each["event"] == "admin_request_failed"] == ["GET /v1/x"]


def test_answers_are_not_for_a_browser_to_keep_or_to_show_in_a_page() -> None:
    with serving() as address:
        for path in ("/livez", "/absent"):
            headers = call(address, path).headers
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
            assert "server" not in headers


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"])
def test_a_request_that_does_not_end_ends_with_its_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "REQUEST_S", 0.2)
    with serving() as address, socket.create_connection(address, 30) as client:
        client.sendall(sent)
        with suppress(ConnectionError):
            while client.recv(65536):
                pass
        assert call(address, "/livez").status == 200


def test_requests_of_one_connection_are_not_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "REQUEST_S", 0.3)
    with serving() as address, socket.create_connection(address, 30) as client:
        for _ in range(3):
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while not received.endswith(b"ok"):
                received += (some := client.recv(65536))
                assert some
            time.sleep(0.2)  # idle, which has another limit


def test_a_client_that_does_not_take_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "TAKING_S", 0.2)
    whole = 64 << 20

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * whole)(scope, receive, send)

    with a_server(AdminConfig(listen=LOOPBACK), long) as server, socket.create_connection(server.address, 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert eventually(lambda: server.connections == 1)
        assert eventually(lambda: server.connections == 0)
        taken = 0
        with suppress(ConnectionError):
            while some := client.recv(1 << 20):
                taken += len(some)
        assert taken < whole


def test_a_command_whose_reader_pauses_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "TAKING_S", 0.05)
    whole = 8 << 20

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * whole)(scope, receive, send)

    with AdminServer(AdminConfig(listen=""), long, tmp_path), connected(tmp_path) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.5)  # for some looks at what is left
        taken = 0
        while some := client.recv(1 << 20):
            taken += len(some)
        assert taken > whole


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "TAKING_S", 1.0)
    whole = 48 << 20

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * whole)(scope, receive, send)

    with a_server(AdminConfig(listen=LOOPBACK), long) as server, socket.create_connection(server.address, 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        taken = 0
        while some := client.recv(1 << 20):
            taken += len(some)
            time.sleep(0.06)
        assert taken > whole


class Untaken(asyncio.Transport):
    """To a client that reads nothing: `left_bytes` stay in the buffer, less than would stop writing."""

    def __init__(self) -> None:
        super().__init__()
        self.left_bytes, self.closes = 0, False
        self.written, self.aborted = asyncio.Event(), asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.left_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.left_bytes += len(data)
        self.written.set()

    def is_closing(self) -> bool:
        return self.closes

    def close(self) -> None:
        self.closes = True

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize(("left_bytes", "closes"), [(672, True), (672, False), (0, True)])
def test_a_connection_is_not_held_by_what_its_client_leaves_in_the_buffers(
    left_bytes: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by the end of a connection that the client does not take."""
    monkeypatch.setattr(admin_connection, "TAKING_S", 0.02)

    async def held() -> None:
        config = uvicorn.Config(an_app(), lifespan="off", log_config=None)
        config.load()
        transport = Untaken()
        connection = AdminConnection(config, ServerState(), RecentAnswers(config.loaded_app, time.monotonic), lambda: None, hurries=True)
        connection.connection_made(transport)
        connection.data_received(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(transport.written.wait(), 30)
        transport.left_bytes, transport.closes = left_bytes, closes
        await asyncio.wait_for(transport.aborted.wait(), 8)  # an unanswered request would end it after ten
        connection.connection_lost(None)

    asyncio.run(held())


def test_a_connection_from_which_all_was_taken_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "TAKING_S", 0.05)
    with serving() as address, socket.create_connection(address, 30) as client:
        for _ in range(2):
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while not received.endswith(b"ok"):
                received += (some := client.recv(65536))
                assert some
            time.sleep(0.3)  # for some looks at what is left


LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _await_ok(client: socket.socket) -> None:
    received = b""
    while not received.endswith(b"ok"):
        received += (some := client.recv(65536))
        assert some


@pytest.mark.parametrize("bound", ["CONNECTIONS_MAX", "ADDRESS_CONNECTIONS_MAX"])
def test_for_one_connection_too_many_the_one_goes_that_is_idle_for_longest(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(admin_server, bound, 2)
    with capture_logs() as logs, serving() as address:
        idle = [socket.create_connection(address, 30) for _ in range(2)]
        for client in idle:
            client.sendall(LIVEZ)
            _await_ok(client)
        assert call(address, "/livez").status == 200
        with suppress(ConnectionError):
            assert idle[0].recv(1) == b""
        idle[1].sendall(LIVEZ)
        _await_ok(idle[1])
        for client in idle:
            client.close()
    assert "admin_connection_refused" not in {event["event"] for event in logs}


def test_one_connection_too_many_is_closed_at_once_while_all_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 1)
    begun, may_end = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait, 30)
        await Response("ok")(scope, receive, send)

    with capture_logs() as logs, serving(app=slow) as address, socket.create_connection(address, 30) as first:
        first.sendall(LIVEZ)
        assert begun.wait(30)
        with socket.create_connection(address, 30) as second, suppress(ConnectionError):
            assert second.recv(1) == b""
        may_end.set()
        _await_ok(first)
        assert eventually(lambda: _answers(address))
    assert "admin_connection_refused" in {event["event"] for event in logs}


def test_who_has_no_token_keeps_no_connection(token_file: Path) -> None:
    with serving(AdminConfig(listen=LOOPBACK, token_file=token_file)) as address:
        for path in ("/livez", "/readyz", "/metrics"):
            assert call(address, path).headers["connection"] == "close"
            assert "connection" not in call(address, path, token=TOKEN).headers
        with socket.create_connection(address, 30) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while some := client.recv(65536):
                received += some
            assert received.endswith(b"ok")


def _answers(address: Address) -> bool:
    with suppress(OSError):
        return call(address, "/livez").status == 200
    return False


# -- the socket in the data directory ------------------------------------------------------------------------------


def test_the_socket_is_for_its_user_alone_and_needs_no_token_and_no_host(local: Path) -> None:
    assert (local / NAME).stat().st_mode & 0o777 == 0o600
    assert call(local, "/livez?verbose", Host="evil.example").text == "[+]event_loop ok\nlivez check passed\n"
    assert call(local, "/v1/operations").json["operations"] == []
    assert (
        call(local, "/v1/operations/absent-operation/cancel", method="POST", Content_Type="application/json").problem == "unknown_operation"
    )


def test_the_socket_is_there_beside_a_port_and_goes_with_the_server(tmp_path: Path) -> None:
    with AdminServer(AdminConfig(listen=LOOPBACK), an_app(), tmp_path) as server:
        for way in (server.address, tmp_path):
            assert call(way, "/livez").status == 200
    assert not (tmp_path / NAME).exists()


def test_what_a_killed_agent_left_is_no_agent_and_is_replaced(tmp_path: Path) -> None:
    listen_locally(tmp_path).close()
    with pytest.raises(ConnectionRefusedError):
        call(tmp_path, "/livez")
    with AdminServer(AdminConfig(listen=""), an_app(), tmp_path):
        assert call(tmp_path, "/livez").status == 200


def test_a_server_that_ends_late_leaves_the_socket_of_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may outlive the lock. As long as it listens, no other socket has the number of its own."""
    monkeypatch.setattr(admin_server, "STOP_S", 0.0)
    ends = threading.Event()
    former = AdminServer(AdminConfig(listen=""), an_app(), tmp_path)
    with former:
        former._loop.call_soon_threadsafe(ends.wait, 30)
    with AdminServer(AdminConfig(listen=""), an_app(), tmp_path):
        ends.set()
        former._thread.join(30)
        assert call(tmp_path, "/livez").status == 200


def test_a_defect_in_one_connection_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = AdminConnection
    defects = [RuntimeError("a defect"), ValueError("another one")]

    def broken(*arguments: Any, hurries: bool) -> AdminConnection:
        if defects:
            raise defects.pop()
        return made(*arguments, hurries=hurries)

    monkeypatch.setattr(admin_server, "AdminConnection", broken)
    with capture_logs() as logs, AdminServer(AdminConfig(listen=LOOPBACK), an_app(), tmp_path) as server:
        for way in (server.address, tmp_path):
            with connected(way) as client, suppress(ConnectionError):
                assert client.recv(1) == b""
        for way in (server.address, tmp_path):
            assert call(way, "/livez").status == 200
        assert eventually(lambda: server.connections == 0)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["admin_connection_failed"] * 2


def test_a_defect_in_looking_at_the_files_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "RELOAD_S", 0.02)

    def broken(_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Credentials, "reload", broken)
    with capture_logs() as logs, AdminServer(AdminConfig(listen=""), an_app(), tmp_path):
        assert eventually(lambda: [each["event"] for each in logs].count("admin_files_not_looked_at") > 1)
        assert call(tmp_path, "/livez").status == 200


def test_a_data_directory_with_a_long_name_works(tmp_path: Path) -> None:
    data_dir = tmp_path / ("d" * 120) / ("e" * 120)
    data_dir.mkdir(parents=True)
    with AdminServer(AdminConfig(listen=""), an_app(), data_dir):
        assert call(data_dir, "/livez").status == 200


def test_who_floods_the_port_keeps_nobody_out_of_the_socket_and_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(admin_server, "LOCAL_CONNECTIONS_MAX", 3)
    with AdminServer(AdminConfig(listen=LOOPBACK), an_app(), tmp_path) as server:
        for flooded, other in ((server.address, tmp_path), (tmp_path, server.address)):
            flood = [connected(flooded) for _ in range(4)]
            with suppress(ConnectionError):
                assert flood[0].recv(1) == b""
            assert call(other, "/livez").status == 200
            for each in flood:
                each.close()
            assert eventually(lambda: server.connections == 0)


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", b"\0\0\0\3abc"])
def test_who_asks_nothing_whole_is_let_go_and_holds_nobody_up(sent: bytes, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "REQUEST_S", 0.2)
    silent = [connected(local) for _ in range(40)]
    for each in silent:
        each.sendall(sent)
    assert call(local, "/livez").status == 200
    for each in silent:
        with suppress(ConnectionError):
            while each.recv(65536):
                pass
        each.close()


# -- TLS and files that change -------------------------------------------------------------------------------------


def a_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
    asked = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key} -out {certificate} -subj /CN={name}"
    subprocess.run(["openssl", *asked.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


def shown_certificate(address: Address) -> str:
    return ssl.get_server_certificate(address, timeout=30)


def test_a_certificate_and_a_token_that_change_are_taken_up_without_a_restart(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "RELOAD_S", 0.02)
    first, second = a_certificate(tmp_path, "first"), a_certificate(tmp_path, "second")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    for target, source in zip((certificate, key), first, strict=True):
        target.write_bytes(source.read_bytes())
    config = AdminConfig(listen=LOOPBACK, token_file=token_file, tls_certificate=certificate, tls_key=key)
    with capture_logs() as logs, serving(config) as address:
        assert shown_certificate(address) == first[0].read_text()
        assert send(address, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") is None  # plain HTTP gets nothing
        certificate.write_bytes(second[0].read_bytes())  # the key is still the other one's
        assert eventually(lambda: "admin_credentials_refused" in {each["event"] for each in logs})
        assert shown_certificate(address) == first[0].read_text()
        key.write_bytes(second[1].read_bytes())
        assert eventually(lambda: shown_certificate(address) == second[0].read_text())
        token_file.unlink()
        assert eventually(lambda: len([each for each in logs if each["event"] == "admin_credentials_refused"]) == 2)


def test_a_handshake_that_does_not_end_holds_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 1)
    certificate, key = a_certificate(tmp_path, "one")
    with serving(AdminConfig(listen=LOOPBACK, tls_certificate=certificate, tls_key=key)) as address:
        with socket.create_connection(address, 30) as client, suppress(ConnectionError):
            client.recv(1)
        assert eventually(lambda: _shows(address))


def test_a_handshake_goes_for_one_connection_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that began first: who only begins handshakes keeps nobody out."""
    monkeypatch.setattr(admin_server, "HANDSHAKE_S", 60.0)
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 2)
    certificate, key = a_certificate(tmp_path, "one")
    with (
        capture_logs() as logs,
        serving(AdminConfig(listen=LOOPBACK, tls_certificate=certificate, tls_key=key)) as address,
        socket.create_connection(address, 30) as first,
        socket.create_connection(address, 30) as second,
    ):
        assert shown_certificate(address)
        with suppress(ConnectionError):
            assert first.recv(1) == b""
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.recv(1)
    assert not {"admin_connection_refused", "admin_connection_failed"} & {event["event"] for event in logs}


def _shows(address: Address) -> bool:
    with suppress(OSError):
        return bool(shown_certificate(address))
    return False


@pytest.mark.parametrize("content", ["", "\n", "short\n", "two words here are no token\n", "ümlaut-" * 4])
def test_a_token_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(UsageError, match="token_file"), serving(AdminConfig(listen=LOOPBACK, token_file=tmp_path / "token")):
        pass


def test_an_address_that_is_taken_is_an_error_in_words(tmp_path: Path) -> None:
    with serving() as address, pytest.raises(UsageError, match="admin cannot listen on"):
        AdminServer(AdminConfig(listen="{}:{}".format(*address)), an_app(), tmp_path)


# -- strangers -----------------------------------------------------------------------------------------------------


def a_request(chance: random.Random) -> bytes:
    """Something between noise and a request."""
    method = chance.choice(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "\x00", "M" * 500])
    path = chance.choice(
        [
            *PATHS,
            "/livez",
            "/readyz?verbose",
            "/metrics",
            "/v1/status",
            "*",
            "/" + "a" * chance.randrange(20_000),
            "/%ff%fe",
            "/?" + "x=1&" * 500,
        ]
    )
    host = chance.choice(["localhost", "127.0.0.1", "evil.example", "", "[::", "a" * 300])
    other = chance.choice(
        [
            "",
            "Content-Length: 5\r\n",
            "Content-Length: 99999999999\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Upgrade: websocket\r\nConnection: upgrade\r\n",
            "Authorization: Bearer x\r\n",
            "X: y\r\n" * 200,
            "Expect: 100-continue\r\n",
            ": \r\n",
            "Host: twice\r\n",
        ]
    )
    request = f"{method} {path} HTTP/1.{chance.randrange(2)}\r\nHost: {host}\r\n{other}\r\n".encode("latin-1")
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randrange(1, 2000))
        case 1:
            return request[: chance.randrange(1, len(request))]
        case 2:
            at = chance.randrange(len(request))
            return request[:at] + chance.randbytes(3) + request[at + 3 :]
    return request + chance.choice([b"", b"hello", request])


@pytest.mark.slow
def test_thousands_of_requests_of_strangers_get_typed_answers_and_leave_nothing_behind(token_file: Path) -> None:
    chance = random.Random(12)
    with capture_logs() as logs, serving(AdminConfig(listen=LOOPBACK, token_file=token_file)) as address:
        objects = []
        for count in range(REQUESTS + 1):
            answer = send(address, a_request(chance))
            if answer is not None and answer.body and answer.status != 200:
                assert answer.problem
            if count in (1000, REQUESTS):
                gc.collect()
                objects.append(sys.getallocatedblocks())
        assert call(address, "/livez").status == 200
    assert objects[1] - objects[0] < 1000, objects
    assert {each["event"] for each in logs} <= {"admin_started"}


def test_the_socket_is_closed_to_others_before_its_mode_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    monkeypatch.setattr("headwater.admin.local_socket.os.chmod", lambda path, _: modes.append(os.stat(path).st_mode & 0o077))
    listen_locally(tmp_path).close()
    assert modes == [0]


def test_a_socket_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(UsageError, match=r"agent\.sock: Is a directory"):
        listen_locally(tmp_path)
