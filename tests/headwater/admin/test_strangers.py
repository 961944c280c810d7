"""Thousands of requests of strangers to a running agent: each is answered in a documented way or not at all, and nothing stays behind.

STRANGERS sets how many.
"""

import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest

from headwater.admin.local_socket import socket_address
from headwater.admin.problem import MEDIA_TYPE, ProblemCode
from tests.headwater.admin.client import Address, call
from tests.headwater.admin.test_admin_server import READ_TOKEN, REQUESTS, TOKEN, a_request, eventually
from tests.headwater.conftest import Stage
from tests.headwater.test_admin_port import PORT, address_of
from tests.headwater.test_agent import Agent, running

WARM = REQUESTS * 3 // 8  # requests after which nothing grows any more, but pools that are not full yet
POOLS = 16  # threads that are started when so many have work at once
SETTLE_S = 1.0  # after which the last connections are closed
RSS_GROWTH_MAX = 6 << 20
STATUSES = {code.value: code.status for code in ProblemCode}
_HEAD = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [A-Za-z -]*\r\n((?:[A-Za-z0-9-]+: [ -~]*\r\n)*)\r\n")

PATHS = (
    "/livez",
    "/livez?verbose",
    "/readyz?verbose=true",
    "/readyz?exclude=store&exclude=gateway",
    "/metrics",
    "/v1/status",
    "/v1/status?partitions=true&limit=2",
    "/v1/status?topic=orders.*&state=archived&state=stopped&lag_above_s=0.5",
    "/v1/status?partitions=true&after=orders.in:0",
    "/v1/operations?state=done&verb=archive&limit=3",
    "/v1/operations/a-mission",
    "/v1/openapi.json",
)
POSTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/archive", {"selection": "orders.in:0"}),
    ("/v1/flush", {"selection": "orders.*", "older_than_s": 60}),
    ("/v1/gc", {"dry_run": True}),
    ("/v1/pause", {"selection": "not-here"}),
    ("/v1/resume?wait", {"selection": "not-here"}),
    ("/v1/explain", {"selection": "orders.in:0", "offset": 3}),
    ("/v1/operations", {"id": "a-mission", "verb": "verify", "pid": 77}),
    ("/v1/operations/a-mission/progress", {"done": 3, "total": 7, "unit": "bytes"}),
    ("/v1/operations/a-mission/cancel", {}),
    ("/v1/operations/a-mission/end", {"state": "done", "results": {"objects": 7}}),
)
VALUES = (
    "",
    "0",
    "-1",
    "1e9",
    "9" * 400,
    "true",
    "%00",
    "%ff",
    "..%2f..%2fetc%2fpasswd",
    "*" * 200,
    "orders.in:0",
    "\u00fc",
    "a&a",
    "null",
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process, between two requests."""

    rss_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Usage":
        return cls(process.memory_info().rss, process.num_threads(), process.num_fds())


def a_sound_request(chance: random.Random) -> bytes:
    headers = {"Host": "localhost", "Connection": "close"}
    if chance.random() < 0.9:
        headers["Authorization"] = f"Bearer {chance.choice([TOKEN, TOKEN, READ_TOKEN])}"
    if chance.random() < 0.3:
        headers["Accept"] = chance.choice(["*/*", "application/openmetrics-text; version=1.0.0", "application/x-ndjson", "text/html"])
    if chance.random() < 0.3:
        path, arguments = chance.choice(POSTS)
        body = json.dumps(arguments).encode()
        return _written("POST", path, headers | {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)
    return _written(chance.choice(["GET", "GET", "GET", "HEAD"]), chance.choice(PATHS), headers)


def _written(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def a_changed_request(chance: random.Random) -> bytes:
    """A sound one, and what a broken client or one of ill will makes of it."""
    request = a_sound_request(chance)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(request))
        end = min(len(request), at + chance.choice([1, 1, 3, 40]))
        match chance.randrange(9):
            case 0:
                request = request[:at] + chance.randbytes(end - at) + request[end:]
            case 1:
                request = request[:at] + request[end:]
            case 2:
                request = request[:end] + request[at:end] * chance.choice([1, 1, 400]) + request[end:]
            case 3:
                request = request[: at + 1]
            case 4:
                request = request.replace(b"\r\n", chance.choice([b"\n", b"\r", b"\r\n ", b"\r\n\r\n"]), chance.choice([1, -1]))
            case 5:
                request = re.sub(rb"=[^&\s]*", b"=" + chance.choice(VALUES).encode(), request, count=chance.choice([0, 1]))
            case 6:
                line = chance.choice(
                    [b"Content-Length: 7", b"Transfer-Encoding: chunked", b"Host: other", b"Expect: 100-continue", b"\x00: \x7f"]
                )
                request = request.replace(b"\r\n", b"\r\n" + line + b"\r\n", 1)
            case 7:
                request += chance.choice([b"0\r\n\r\n", b"{}", request, chance.randbytes(50)])
            case 8:
                request = request.replace(
                    chance.choice([b"GET", b"/v1", b"HTTP/1.1", b"localhost"]), chance.choice([b"", b"POST", b"//", b"HTTP/1.0"])
                )
        request = request or b"\r\n"
    return request


def exchange(connect: Callable[[], socket.socket], request: bytes, pieces: int = 1) -> bytes:
    """All that comes until the server closes the connection."""
    received = b""
    with connect() as client:
        step = -(-len(request) // pieces)
        with suppress(ConnectionError):
            for at in range(0, len(request), step):
                client.sendall(request[at : at + step])
        with suppress(OSError):  # the server has closed it already
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while some := client.recv(1 << 20):
                received += some
    return received


def answers_in(received: bytes) -> Iterator[Answer]:
    """Fails for anything that is not an answer of HTTP/1.1 from its first byte to its last."""
    while received:
        head = _HEAD.match(received)
        assert head, received[:300]
        status, received = int(head[1]), received[head.end() :]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[2].decode().splitlines())}
        if status == 100:
            continue
        if headers.get("transfer-encoding") == "chunked":
            body, received = _unchunked(received)
            yield Answer(status, headers, body)
            continue
        size = int(headers["content-length"])
        if received.startswith(b"HTTP/1.1 ") or not received:  # of a HEAD
            size = 0
        assert len(received) >= size, (head, received[:300])
        yield Answer(status, headers, received[:size])
        received = received[size:]


def _unchunked(received: bytes) -> tuple[bytes, bytes]:
    """The body, and what follows it. A client that has said its last word has left: its rows may end anywhere."""
    body = b""
    while chunk := re.match(rb"([0-9a-f]+)\r\n", received):
        size = int(chunk[1], 16)
        received = received[chunk.end() :]
        body, received = body + received[:size], received[size + 2 :]
        if size == 0:
            break
    return body, received


def check(answer: Answer) -> str:
    """What it is, in a word. Fails unless it is one of the documented ones."""
    assert {"cache-control", "x-content-type-options"} <= answer.headers.keys() or answer.status == 400, answer
    if answer.headers["content-type"] != MEDIA_TYPE:
        assert answer.status in (200, 201, 202, 503), answer
        return str(answer.status)
    if not answer.body:
        return f"{answer.status} to HEAD"
    problem = json.loads(answer.body)
    assert STATUSES[problem["code"]] == problem["status"] == answer.status, answer
    assert problem["title"], answer
    assert problem["detail"], answer
    assert TOKEN not in answer.body.decode(), answer
    return str(problem["code"])


def is_reading(request: bytes, words: list[str]) -> bool:
    """Was nothing begun, and no POST answered but with an error?"""
    return not {"201", "202"} & set(words) and not (request.startswith(b"POST /v1") and "200" in words)


@contextmanager
def an_agent(stage: Stage) -> Iterator[tuple[Agent, Address]]:
    """With a token, and nothing more to archive."""
    (stage.root / "token").write_text(TOKEN)
    (stage.root / "reader").write_text(READ_TOKEN)
    tokens = ("--set", f"admin.token_file={stage.root / 'token'}", "--set", f"admin.read_token_file={stage.root / 'reader'}")
    options = (*tokens, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true")
    with running(stage, stage.log("kitchen"), *PORT, *options) as agent:
        address = address_of(agent)
        assert eventually(lambda: call(address, "/readyz").status == 200)
        yield agent, address


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("count", [300, pytest.param(REQUESTS, marks=pytest.mark.long)])
def test_requests_of_strangers_get_documented_answers_and_leave_nothing_behind(stage: Stage, count: int, is_local: bool) -> None:
    chance, seen, usage = random.Random(count), Counter[str](), []

    def connect() -> socket.socket:
        if not is_local:
            return socket.create_connection(address, 30)
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(30)
        with socket_address(stage.data_dir) as path:
            client.connect(path)
        return client

    with an_agent(stage) as (agent, address):
        process = psutil.Process(agent.process.pid)
        for at in range(count):
            make = chance.choice([a_sound_request, a_changed_request, a_changed_request, a_request])
            request = make(chance)
            received = exchange(connect, request, pieces=chance.choice([1, 1, 1, 2, 7]))
            try:
                words = [check(each) for each in answers_in(received)]
            except (AssertionError, ValueError, KeyError) as error:
                raise AssertionError(f"request {at}: {request!r} was answered {received[:1000]!r}") from error
            is_cut = request.startswith(b"POST")  # who says its last word before the answer has left
            assert words or is_cut or make is not a_sound_request, request
            if not is_local and READ_TOKEN.encode() in request:  # a changed one may show no token that is whole
                assert is_reading(request, words), (request, received)
            seen.update(words or ["closed"])
            if at + 1 in (WARM, count):
                time.sleep(SETTLE_S)
                usage.append(Usage.of(process))
        assert call(address, "/readyz").status == 200
        assert agent.stop() == 0
    defects = [each for each in agent.events if each["event"] in ("admin_request_failed", "admin_failed", "library_reported")]
    assert not defects, json.dumps(defects, indent=1)
    expected = {"200", "bad_request", "not_found", "closed"} | (set() if is_local else {"unauthorized", "wrong_host", "token_needed"})
    assert expected | ({"202", "unsupported_media_type"} if count > WARM else set()) <= seen.keys(), seen
    if len(usage) == 2:
        before, after = usage
        assert after.rss_bytes - before.rss_bytes < RSS_GROWTH_MAX, usage
        assert (after.threads, after.descriptors) <= (before.threads + POOLS, before.descriptors + 2), usage
