"""A proxy in front of an S3 server that answers wrongly, late or not at all, as a healthy server will not."""

import http.client
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What happens to one request.

    forward    pass it on to the server
    status     answer with this and an S3 error of `code` instead of the server's answer; 0 is the server's own
    hang_up    give no answer, close the connection
    flip       damage the body on the way to the server
    cut        give only this many bytes of the server's answer
    delay_s    it reaches the server so much later
    deserted   while it is delayed its client has lost the connection, and knows nothing of what becomes of it
    sent       the share of its body that reaches the server, from 0 to 1; below 1 both connections break there
    received   the share of the answer's body that reaches the client; below 1 the connection breaks there
    hang_s     the connection is silent for so long before it breaks, or before the answer comes
    """

    forward: bool = True
    status: int = 0
    code: str = ""
    hang_up: bool = False
    flip: bool = False
    cut: int | None = None
    delay_s: float = 0.0
    deserted: bool = False
    sent: float = 1.0
    received: float = 1.0
    hang_s: float = 0.0


PASS = Answer()
LOSE_REQUEST = Answer(forward=False, hang_up=True)
LOSE_REPLY = Answer(hang_up=True)


def error(status: int, code: str) -> Answer:
    return Answer(forward=False, status=status, code=code)


@dataclass(slots=True)
class Passage:
    """One request and what became of it.

    at_s    when it came, on the monotonic clock
    key     the access key that it is signed with
    status  what the server answered, whoever learned of it; 0 when it was not asked, or not whole
    """

    at_s: float
    method: str
    path: str
    fate: Answer
    size_bytes: int
    key: str = ""
    status: int = 0


@dataclass
class BadNetwork:
    """`plan` holds the next requests' fates, first come first; when it is empty `fate` decides. Each is in `passages` then.

    expired  access keys that are refused, whatever the plan
    """

    url: str
    fate: Callable[[], Answer] = lambda: PASS
    plan: deque[Answer] = field(default_factory=deque)
    passages: list[Passage] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.upstream = urlsplit(self.url).netloc
        self._ending, self._settled = threading.Event(), threading.Condition()
        self._in_flight = 0
        network = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                network.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.passages]

    def close(self) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def settle(self, patience_s: float) -> bool:
        """Wait until no request is in flight, those of clients that have left included."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._in_flight, patience_s)

    def wait_for_key(self, key: str, patience_s: float) -> bool:
        """Wait until the server has answered a request that is signed with `key`."""
        with self._settled:
            return self._settled.wait_for(lambda: any(each.key == key and each.status for each in self.passages), patience_s)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        signed = re.search(r"Credential=([^/]+)/", request.headers.get("Authorization", ""))
        key = signed[1] if signed else ""
        with self._settled:
            fate = error(400, "ExpiredToken") if key in self.expired else self.plan.popleft() if self.plan else self.fate()
            size_bytes = int(request.headers.get("Content-Length") or 0)
            passage = Passage(time.monotonic(), request.command, request.path, fate, size_bytes, key)
            self.passages.append(passage)
            self._in_flight += 1
        try:
            self._pass(request, passage)
        except (OSError, http.client.HTTPException):
            request.close_connection = True  # as far as it got, on either side
        finally:
            with self._settled:
                self._in_flight -= 1
                self._settled.notify_all()

    def _pass(self, request: BaseHTTPRequestHandler, passage: Passage) -> None:
        fate = passage.fate
        body = request.rfile.read(int(passage.size_bytes * fate.sent))
        if fate.deserted:
            request.close_connection = True
            with suppress(OSError):
                request.connection.shutdown(socket.SHUT_RDWR)
        self._ending.wait(fate.delay_s)
        status, headers, content = fate.status, [("Content-Type", "application/xml")], b""
        if fate.forward:
            if fate.flip:
                body = bytes([body[0] ^ 1]) + body[1:]
            found = self._ask(request, passage, body)
            if not fate.status and found:
                status, headers, content = found
        if fate.status:
            content = f"<Error><Code>{fate.code}</Code><Message>by the test</Message></Error>".encode() if fate.code else b""
        if fate.hang_up or fate.deserted or not status:
            self._ending.wait(fate.hang_s)
            request.close_connection = True
            return
        self._answer(request, fate, status, headers, content)

    def _ask(self, request: BaseHTTPRequestHandler, passage: Passage, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """The server's answer; None when the request does not reach it whole."""
        headers = {name: value for name, value in request.headers.items() if name.lower() != "expect"}
        with closing(http.client.HTTPConnection(self.upstream, timeout=30)) as upstream:
            upstream.request(request.command, request.path, body, headers)
            if passage.fate.sent < 1:
                self._ending.wait(passage.fate.hang_s)
                return None
            with closing(upstream.getresponse()) as answer:
                content = answer.read()
                passage.status = answer.status
                return answer.status, [(name, value) for name, value in answer.getheaders() if name.lower() != "transfer-encoding"], content

    def _answer(self, request: BaseHTTPRequestHandler, fate: Answer, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        request.send_response_only(status)
        is_head = request.command == "HEAD"
        for name, value in headers:
            if name.lower() != "content-length" or is_head:
                request.send_header(name, value)
        if is_head:
            request.end_headers()
            return
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: fate.cut if fate.received == 1 else int(len(content) * fate.received)])
        if fate.cut is not None or fate.received < 1:
            self._ending.wait(fate.hang_s)
            request.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients leave
            super().handle_error(request, client_address)


@contextmanager
def bad_network(upstream: str, fate: Callable[[], Answer] = lambda: PASS) -> Iterator[BadNetwork]:
    network = BadNetwork(upstream, fate)
    try:
        yield network
    finally:
        network.close()
