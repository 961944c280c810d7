"""Answers that are given again, for a moment, to requests with the very bytes of one that was answered: what many scrapers ask for."""

import re
from collections.abc import Callable
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANSWERS_MAX = 32  # scrapers differ in few headers; one more, and all are forgotten
REQUEST_BYTES_MAX = 2048

_WHOLE = re.compile(rb"GET [!-~]+ HTTP/1\.1\r\n(?:[A-Za-z0-9-]+: *[!-~][ -~]*\r\n)+\r\n")  # nothing but one head, written as all write it
_OTHER = frozenset({b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})  # after these it is not the end


class RecentAnswer(NamedTuple):
    head: bytes
    body: bytes
    until_s: float


class RecentAnswers:
    """ASGI around `app`, for one event loop. A connection asks `find` before it parses a request: parsing, access and routing take some
    thirty times as long as answering again, and hold up the Kafka port meanwhile.

    An answer is kept if its request came whole and alone, as scope["state"]["whole_request"], and `app` says until when it holds, by
    `keep_until`. Who may not have it sends other bytes.
    """

    def __init__(self, app: ASGIApp, monotonic_s: Callable[[], float]) -> None:
        self._app, self._monotonic_s = app, monotonic_s
        self._answers: dict[bytes, RecentAnswer] = {}

    def find(self, request: bytes) -> RecentAnswer | None:
        found = self._answers.get(request)
        return found if found is not None and self._monotonic_s() < found.until_s else None

    def forget(self) -> None:
        """What clients must show may have changed."""
        self._answers.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = scope.get("state", {}).get("whole_request")
        if request is None or len(request) > REQUEST_BYTES_MAX or not _OTHER.isdisjoint(name for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        start: Message = {}

        async def send_and_keep(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif _UNTIL in scope and scope.get("headwater.trusted") and start["status"] == 200 and _WHOLE.fullmatch(request):
                self._keep(request, RecentAnswer(_head(start), message["body"], scope[_UNTIL]))
            await send(message)

        await self._app(scope, receive, send_and_keep)

    def _keep(self, request: bytes, answer: RecentAnswer) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[request] = answer


_UNTIL = "headwater.until_s"


def keep_until(scope: Scope, until_s: float) -> None:
    """The answer to this request, one message long, is the same for everyone who may have it, until then on the monotonic clock."""
    scope[_UNTIL] = until_s


def _head(start: Message) -> bytes:
    return b"".join((b"HTTP/1.1 200 OK\r\n", *(b"%b: %b\r\n" % header for header in start["headers"]), b"\r\n"))
