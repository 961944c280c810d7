"""Who may call the agent's API, and with what: decided from the head of a request, before anything is routed or read."""

import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address
from typing import NamedTuple

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.admin.local_socket import SETTINGS_HEADER
from headwater.admin.problem import ProblemCode, problem_response

BODY_BYTES_MAX = 64 << 10
OPEN_PATHS = frozenset({"/livez", "/readyz"})  # to probes, which have no token; without one they learn no reasons

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
_BEARER = re.compile(rb"Bearer +([!-~]+) *", re.IGNORECASE)
_HEADERS = (  # no answer is for a browser to keep, to guess at, or to show inside a page
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

_CLOSE = (b"connection", b"close")  # a stranger's connection keeps no one else's place

_SETTINGS = SETTINGS_HEADER.lower().encode("ascii")

Conflict = Callable[[Mapping[str, str]], str]

log = structlog.get_logger()


class Tokens(NamedTuple):
    """What clients of the port may show; None: there is none.

    write  to read, and to have anything done
    read   to read
    """

    write: bytes | None
    read: bytes | None = None


class Access(ABC):
    """ASGI around `app`: for each way to it, who is let in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @abstractmethod
    def _stranger(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        """The answer to a client that is not let in. Sets `headwater.trusted` of `scope`: may this one learn reasons?"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                last = () if scope.get("headwater.trusted") else (_CLOSE,)
                message = {**message, "headers": [*message["headers"], *_HEADERS, *last]}
            await send(message)

        answer = self._refusal(scope) or self._app
        try:
            await answer(scope, receive, send_safely)
        except ClientDisconnect:
            pass  # in the middle of its request
        except Exception:
            log.exception("admin_request_failed", request=f"{scope['method'][:20]} {scope['path'][:200]}")
            if not begun:
                await problem_response(ProblemCode.INTERNAL_ERROR, "see the agent's log")(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = _single(scope["headers"])
        if headers is None:
            return problem_response(ProblemCode.BAD_REQUEST, "a header stands there twice")
        if b"transfer-encoding" in headers:
            return problem_response(ProblemCode.LENGTH_REQUIRED, "a body needs a Content-Length")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > BODY_BYTES_MAX:
            return problem_response(ProblemCode.BODY_TOO_LARGE, f"a body has at most {BODY_BYTES_MAX} bytes")
        if (refused := self._stranger(scope, headers)) is not None:
            return refused
        is_json = headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == b"application/json"
        if scope["method"] == "POST" and not is_json:  # which no form of a web page can send
            return problem_response(ProblemCode.UNSUPPORTED_MEDIA_TYPE, "a POST has Content-Type: application/json")
        return None


class LocalAccess(Access):
    """Over the socket in the data directory: who can open that may do everything.

    conflict  why the agent can't work with these settings, which a command states; "" when it can
    """

    def __init__(self, app: ASGIApp, conflict: Conflict = lambda _: "") -> None:
        super().__init__(app)
        self._conflict = conflict

    def _stranger(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        scope["headwater.trusted"] = scope["headwater.local"] = True
        stated = headers.get(_SETTINGS)
        if stated is None:
            return None
        try:
            reason = self._conflict(msgspec.json.decode(stated, type=dict[str, str]))
        except msgspec.MsgspecError:
            reason = f"{SETTINGS_HEADER} is not JSON with a text for each key"
        return problem_response(ProblemCode.BAD_REQUEST, reason) if reason else None


class PortAccess(Access):
    """Over TCP. Without any token every user of this machine may read; without one for that none may have anything done.

    tokens as they are now
    hosts  names by which the port may be called, beside localhost and addresses: a page of a stranger, whose name leads here, has
           another one (DNS rebinding)
    """

    def __init__(self, app: ASGIApp, *, tokens: Callable[[], Tokens], hosts: Collection[str]) -> None:
        super().__init__(app)
        self._tokens = tokens
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    def _stranger(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        if not self._is_called_rightly(headers.get(b"host", b"")):
            return problem_response(ProblemCode.WRONG_HOST, "the Host header names none of admin.hosts, no address and not localhost")
        tokens, authorization = self._tokens(), headers.get(b"authorization", b"")
        may_write = _shows(authorization, tokens.write)
        may_read = tokens == Tokens(None) or may_write or _shows(authorization, tokens.read)
        scope["headwater.trusted"] = may_read
        if not may_read and scope["path"] not in OPEN_PATHS:
            words = "a bearer token is needed: see admin.token_file and admin.read_token_file"
            return problem_response(ProblemCode.UNAUTHORIZED, words, {"WWW-Authenticate": 'Bearer realm="headwater"'})
        if not may_write and scope["method"] not in ("GET", "HEAD"):
            return problem_response(ProblemCode.TOKEN_NEEDED, "to have anything done by this port, the token of admin.token_file is needed")
        return None

    def _is_called_rightly(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1"))
        return match is not None and (is_address(match["host"]) or match["host"].lower().rstrip(".") in self._hosts)


def _shows(authorization: bytes, token: bytes | None) -> bool:
    shown = _BEARER.fullmatch(authorization)
    return shown is not None and token is not None and hmac.compare_digest(shown[1], token)


def is_address(host: str) -> bool:
    """An address, not a name: nobody else's name can lead to it."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _single(headers: Collection[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """The headers that decide here; None when one of them is there twice: another reader might take the other one."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in (b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding", _SETTINGS):
            if name in found:
                return None
            found[name] = value
    return found
