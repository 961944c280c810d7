"""A proxy in front of an S3 server that answers wrongly, late or not at all, as a healthy server will not."""

import http.client
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What happens to one request.

    forward  pass it on to the server
    status   answer with this and an S3 error of `code` instead of the server's answer; 0 is the server's own
    hang_up  give no answer, close the connection
    flip     damage the body on the way to the server
    cut      give only this many bytes of the server's answer
    """

    forward: bool = True
    status: int = 0
    code: str = ""
    hang_up: bool = False
    flip: bool = False
    cut: int | None = None


PASS = Answer()
LOSE_REQUEST = Answer(forward=False, hang_up=True)
LOSE_REPLY = Answer(hang_up=True)


def error(status: int, code: str) -> Answer:
    return Answer(forward=False, status=status, code=code)


class BadNetwork:
    """`plan` holds the next requests' fates, first come first; when it is empty every request passes."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.plan: deque[Answer] = deque()
        self.requests: list[str] = []
        network = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                network.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(f"{request.command} {request.path}")
        fate = self.plan.popleft() if self.plan else PASS
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        status, headers, content = fate.status, [("Content-Type", "application/xml")], b""
        if fate.forward:
            if fate.flip:
                body = bytes([body[0] ^ 1]) + body[1:]
            with closing(http.client.HTTPConnection(self.upstream, timeout=30)) as upstream:
                upstream.request(request.command, request.path, body, {k: v for k, v in request.headers.items() if k.lower() != "expect"})
                with closing(upstream.getresponse()) as answer:
                    content = answer.read()
                if not fate.status:
                    status, headers = answer.status, [(k, v) for k, v in answer.getheaders() if k.lower() != "transfer-encoding"]
        if fate.status:
            content = f"<Error><Code>{fate.code}</Code><Message>by the test</Message></Error>".encode() if fate.code else b""
        if fate.hang_up:
            request.close_connection = True
            return
        request.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or request.command == "HEAD":
                request.send_header(name, value)
        if request.command != "HEAD":
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content[: fate.cut])
            request.close_connection = fate.cut is not None
        else:
            request.end_headers()


@contextmanager
def bad_network(upstream: str) -> Iterator[BadNetwork]:
    network = BadNetwork(upstream)
    try:
        yield network
    finally:
        network.close()
