"""Who may call the admin port, and with what: decided from the head of a request, before anything is routed or read."""

import hmac
import re
from collections.abc import Callable, Collection
from ipaddress import ip_address

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

log = structlog.get_logger()


class Access:
    """ASGI around `app`.

    token  what a client must show, as it is now; None: none is needed
    hosts  names by which the port may be called, beside localhost and addresses: a page of a stranger, whose name leads here, has
           another one (DNS rebinding)
    """

    def __init__(self, app: ASGIApp, *, token: Callable[[], bytes | None], hosts: Collection[str]) -> None:
        self._app, self._token = app, token
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        answer = self._refusal(scope) or self._app
        try:
            await answer(scope, receive, send_safely)
        except Exception:
            log.exception("admin_request_failed", request=f"{scope['method'][:20]} {scope['path'][:200]}")
            if not begun:
                await problem_response(ProblemCode.INTERNAL_ERROR, "see the agent's log")(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = _single(scope["headers"])
        if headers is None:
            return problem_response(ProblemCode.BAD_REQUEST, "a header stands there twice")
        if not self._is_called_rightly(headers.get(b"host", b"")):
            return problem_response(ProblemCode.WRONG_HOST, "the Host header names none of admin.hosts, no address and not localhost")
        if b"transfer-encoding" in headers:
            return problem_response(ProblemCode.LENGTH_REQUIRED, "a body needs a Content-Length")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > BODY_BYTES_MAX:
            return problem_response(ProblemCode.BODY_TOO_LARGE, f"a body has at most {BODY_BYTES_MAX} bytes")
        scope["headwater.trusted"] = trusted = self._is_trusted(headers.get(b"authorization", b""))
        if trusted or scope["path"] in OPEN_PATHS:
            return None
        return problem_response(
            ProblemCode.UNAUTHORIZED, "a bearer token is needed: see admin.token_file", {"WWW-Authenticate": 'Bearer realm="headwater"'}
        )

    def _is_called_rightly(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1"))
        return match is not None and (is_address(match["host"]) or match["host"].lower().rstrip(".") in self._hosts)

    def _is_trusted(self, authorization: bytes) -> bool:
        token = self._token()
        if token is None:
            return True
        shown = _BEARER.fullmatch(authorization)
        return shown is not None and hmac.compare_digest(shown[1], token)


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
        if name in (b"host", b"authorization", b"content-length", b"transfer-encoding"):
            if name in found:
                return None
            found[name] = value
    return found
