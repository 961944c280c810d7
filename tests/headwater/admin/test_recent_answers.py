"""An answer that is given again is the one that parsing would have led to, and it is given to nobody else."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from headwater.admin import recent_answers
from headwater.admin.access import PortAccess, Tokens
from headwater.admin.admin_connection import AdminConnection
from headwater.admin.admin_server import AdminServer
from headwater.admin.config import AdminConfig
from headwater.admin.recent_answers import RecentAnswers, keep_until
from tests.headwater.admin.client import call
from tests.headwater.admin.test_admin_server import LOOPBACK, TOKEN

PLAIN = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\nAccept: */*\r\n\r\n"
OTHERS = (
    PLAIN.replace(b"metrics", b"changing"),
    PLAIN.replace(b"GET", b"HEAD"),
    PLAIN.replace(TOKEN.encode(), b"wrong"),
    PLAIN.replace(b"localhost", b"evil.example"),
    PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    PLAIN.replace(b"*/*", b"*/*\r\nContent-Length: 3") + b"abc",
    PLAIN.replace(b"*/*", b"*/*\r\nExpect: 100-continue\r\nContent-Length: 3") + b"abc",
    PLAIN.replace(b"\r\n", b"\n") + PLAIN,
    PLAIN.replace(b"*/*", b"*/*\r\n folded"),
    b"\r\n" + PLAIN,
    PLAIN + PLAIN,
)
LAST = PLAIN.replace(b"*/*", b"*/*\r\nConnection: close")


class App:
    """/metrics is answered in the same way until `until_s`; all else with how many requests came here before."""

    def __init__(self, until_s: float = float("inf")) -> None:
        self.until_s, self.calls = until_s, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = "the same" if scope["path"] == "/metrics" else f"{scope['path']} of {len(scope['headers'])}"
        self.calls += 1
        if scope["path"] == "/metrics":
            keep_until(scope, self.until_s)
        await PlainTextResponse(body)(scope, receive, send)


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def answered(app: ASGIApp, connections: Sequence[Sequence[bytes]], *, is_kept: bool = True) -> list[bytes]:
    """What is sent on each of these connections, one after the other, when these pieces arrive on it."""

    async def run() -> list[bytes]:
        recent = RecentAnswers(PortAccess(app, tokens=lambda: Tokens(TOKEN.encode()), hosts=()), time.monotonic)
        if not is_kept:
            recent.find = lambda request: None  # type: ignore[method-assign]
        config = uvicorn.Config(recent, interface="asgi3", lifespan="off", log_config=None, server_header=False, date_header=False)
        config.load()
        found = []
        for pieces in connections:
            wire, connection = Wire(), AdminConnection(config, ServerState(), recent, lambda: None, hurries=True)
            connection.connection_made(wire)
            for piece in pieces:
                if not wire.closed:
                    connection.data_received(piece)
                    for _ in range(12):
                        await asyncio.sleep(0)
            connection.connection_lost(None)
            found.append(wire.written)
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_parsing_would_have_led_to_however_the_requests_arrive(seed: int) -> None:
    chance = random.Random(seed)

    def pieces() -> list[bytes]:
        requests = [*(chance.choice([PLAIN, PLAIN, PLAIN, chance.choice(OTHERS)]) for _ in range(chance.randrange(1, 8))), LAST]
        if chance.random() < 0.5:
            return requests
        whole, cuts = b"".join(requests), [0]
        while cuts[-1] < len(whole):
            cuts.append(cuts[-1] + chance.choice([1, 3, len(PLAIN), chance.randrange(1, 400)]))
        return [whole[begin:end] for begin, end in itertools.pairwise(cuts)]

    connections = [pieces() for _ in range(6)]
    parsed = answered(App(), connections, is_kept=False)
    assert answered(App(), connections) == parsed
    assert any(b"the same" in each for each in parsed)


@pytest.mark.parametrize(
    "before", [b"GET /changing HTTP/1.1\r\nX: ", b"GET /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(PLAIN)]
)
def test_the_same_bytes_within_another_request_are_no_request(before: bytes) -> None:
    connections = [[PLAIN], [before, PLAIN, b"\r\n\r\n"], [PLAIN]]
    assert answered(App(), connections) == answered(App(), connections, is_kept=False)


def test_an_error_is_not_kept() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        keep_until(scope, float("inf"))
        calls.append(1)
        await PlainTextResponse("", 500)(scope, receive, send)

    calls: list[int] = []
    answered(failing, [[PLAIN, PLAIN]])
    assert len(calls) == 2


def test_it_needs_no_further_work_until_it_is_old() -> None:
    app = App()
    first, *more = answered(app, [[PLAIN], [PLAIN, PLAIN], [PLAIN]])
    assert (first + first, first) == tuple(more)
    assert app.calls == 1
    app = App(until_s=time.monotonic() - 1)
    answered(app, [[PLAIN], [PLAIN, PLAIN]])
    assert app.calls == 3


def test_what_parsing_refuses_or_what_ends_a_connection_is_not_kept() -> None:
    app = App()
    answered(app, [[each] for each in (*OTHERS, LAST) * 2])
    calls = app.calls
    assert answered(app, [[each] for each in (*OTHERS, LAST)]) == answered(App(), [[each] for each in (*OTHERS, LAST)], is_kept=False)
    assert app.calls == calls * 3 // 2


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_answers, "ANSWERS_MAX", 2)
    app = App()
    answered(app, [[PLAIN.replace(b"*/*", b"a/%d" % each) for each in (1, 2, 2, 1, 3, 3, 1)]])
    assert app.calls == 4


def test_a_token_that_is_taken_back_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr("headwater.admin.admin_server.RELOAD_S", 0.02)
    app = App()
    with AdminServer(AdminConfig(listen=LOOPBACK, token_file=tmp_path / "token"), app, tmp_path) as server:
        assert {call(server.address, "/metrics", token=TOKEN, Connection="keep-alive").status for _ in range(3)} == {200}
        (tmp_path / "token").write_text("another-" + TOKEN)
        until_s = time.monotonic() + 30
        while call(server.address, "/metrics", token=TOKEN).status == 200:
            assert time.monotonic() < until_s
