"""The API of the agent that holds a data directory, over its own socket: for commands, which pass their work to it."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from headwater import __version__
from headwater.admin.local_socket import SETTINGS_HEADER, socket_address
from headwater.overrides import NO_SETTINGS, stated_settings
from headwater_core import errors

if TYPE_CHECKING:
    from headwater.config import Config

LINE_BYTES_MAX = 4 << 20
LATE_S = 5.0  # for what the bucket has already
SILENCE_S = 30.0  # several times what the agent lets pass between two lines, also while the work itself waits
JSON, JSON_LINES = "application/json", "application/x-ndjson"

# The error that is raised here for an exit code. CorruptData needs more than a message, so it becomes VerificationFailed.
_RAISED: dict[int, type[errors.HeadwaterError]] = {
    2: errors.UsageError,
    3: errors.Partial,
    4: errors.VerificationFailed,
    5: errors.TransientError,
    6: errors.NotFound,
    7: errors.Locked,
    8: errors.Unauthorised,
    10: errors.NothingExamined,
}


class NoAgent(errors.HeadwaterError):
    """No agent listens on the data directory's socket."""


class AgentApi:
    """Each call has a connection of its own.

    Every method raises NoAgent; Unauthorised when this user may not open the socket; what the agent raised; and TransientError when it does
    not answer, or is silent for too long. An agent of another version may not know a path: HeadwaterError says so.
    """

    def __init__(self, data_dir: Path, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        """settings: what the command states (headwater.overrides); the agent refuses, with UsageError, what contradicts its own"""
        self._data_dir = data_dir
        self._headers = {SETTINGS_HEADER: json.dumps(settings)} if settings else {}

    @classmethod
    def of(cls, config: "Config") -> "AgentApi":
        """Return the API of the agent on the data directory of `config`, for a command that was given `config`."""
        return cls(config.node.data_dir, stated_settings(config))

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, timeout_s: float = SILENCE_S) -> Any:
        """What is answered within `timeout_s` in all, decoded. Of `query` a sequence is several parameters of one name; True and False
        become words."""
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in (query or {}).items()}
        return self._call("GET", f"{quote(path)}?{urlencode(words, doseq=True)}".rstrip("?"), None, {}, timeout_s)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, operation_id: str | None = None, timeout_s: float = SILENCE_S
    ) -> Any:
        """What is answered within `timeout_s` in all, decoded. operation_id: of what this begins; None: the agent mints one."""
        return self._call("POST", quote(path), body or {}, {} if operation_id is None else {"Operation-Id": operation_id}, timeout_s)

    def rows(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        operation_id: str | None = None,
        timeout_s: float | None = None,
        silence_s: float = SILENCE_S,
    ) -> Iterator[dict[str, Any]]:
        """Have an operation done, and yield its rows as they arrive. Who stops taking them cancels it. At the end raises its error.

        timeout_s  TransientError, too, when nothing of it is done for so long, though the agent answers; None: it may wait without end
        silence_s  the agent hangs that has written no line for so long
        """
        headers = {"Accept": JSON_LINES} | ({} if operation_id is None else {"Operation-Id": operation_id})
        with closing(self._connection(silence_s)) as connection:
            response = self._sent(connection, "POST", quote(path), body or {}, headers)
            operation: dict[str, Any] = {}
            heard_s = monotonic()
            while (line := self._line(response)) is not None:
                if "row" in line:
                    yield line["row"]
                    heard_s = monotonic()
                    continue
                if line["operation"].get("done") != operation.get("done"):
                    heard_s = monotonic()
                elif timeout_s is not None and monotonic() - heard_s > timeout_s:  # what hangs is its work
                    raise self._gone(f"nothing was done for {timeout_s:g} s")
                operation = line["operation"]
        if operation.get("state") == "done":
            return
        if operation.get("exit_code") is None:
            raise self._gone("its answer ended before the work did")
        raise _raised(operation)

    def _call(self, method: str, target: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout_s: float) -> Any:
        with closing(self._connection(timeout_s, whole=True)) as connection:
            response = self._sent(connection, method, target, body, {"Accept": JSON, **headers})
            try:
                return json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self._gone(error) from error

    def _connection(self, timeout_s: float, *, whole: bool = False) -> "_LocalConnection":
        connection = _LocalConnection(self._data_dir, timeout_s, whole=whole)
        try:
            connection.connect()
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise NoAgent(f"no agent is running on {self._data_dir}") from None
        except PermissionError:
            raise errors.Unauthorised(f"not allowed to connect to the agent on {self._data_dir}") from None
        except OSError as error:
            raise self._gone(error) from error
        return connection

    def _sent(
        self, connection: "_LocalConnection", method: str, target: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """The answer, if it is no error."""
        content = None if body is None else json.dumps(body).encode()
        try:
            with suppress(BrokenPipeError):  # it has answered before it had read everything
                connection.request(
                    method, target, content, {**self._headers, **headers, **({} if content is None else {"Content-Type": JSON})}
                )
            response = connection.getresponse()
            if response.status < 400:
                return response
            problem = json.loads(response.read())
        except http.client.RemoteDisconnected as error:
            raise self._gone(error) from error
        except http.client.BadStatusLine as error:  # as agents answered before they had this API
            raise errors.HeadwaterError(f"the agent on {self._data_dir} is of another version than {__version__}: restart it") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._gone(error) from error
        if problem["code"] in ("not_found", "method_not_allowed"):
            raise errors.HeadwaterError(f"{problem['detail']}; this command is of version {__version__}: restart the agent")
        raise _raised(problem)

    def _line(self, response: http.client.HTTPResponse) -> dict[str, Any] | None:
        """The next line of an answer; None at its end."""
        try:
            line = response.readline(LINE_BYTES_MAX + 1)
            if len(line) > LINE_BYTES_MAX:
                raise self._gone(f"a line of more than {LINE_BYTES_MAX} bytes")
            return dict(json.loads(line)) if line else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._gone(error) from error

    def _gone(self, reason: object) -> errors.TransientError:
        return errors.TransientError(f"the agent on {self._data_dir} stopped answering: {reason}")


class _LocalConnection(http.client.HTTPConnection):
    """timeout_s: for each thing that is waited for; `whole`: for all of them together"""

    def __init__(self, data_dir: Path, timeout_s: float, *, whole: bool) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._data_dir = data_dir
        self._deadline_s = monotonic() + timeout_s if whole else None

    def connect(self) -> None:
        with socket_address(self._data_dir) as address:
            self.sock = _LocalSocket(self._deadline_s)
            self.sock.settimeout(self.timeout)
            try:
                self.sock.connect(address)
            except BaseException:
                self.close()
                raise


class _LocalSocket(socket.socket):
    """deadline_s: nothing is received after it, by the monotonic clock; http.client receives into buffers alone"""

    def __init__(self, deadline_s: float | None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deadline_s = deadline_s

    def recv_into(self, *arguments: Any) -> int:
        if self._deadline_s is not None:
            left_s = self._deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self.settimeout(left_s)
        return super().recv_into(*arguments)


def tell_late_agent(config: "Config", path: str, body: Mapping[str, Any]) -> None:
    """Repeat a change that was written to the bucket because no agent listened: one that has begun to listen since may have read the bucket
    before. One that begins later reads it after that. Raises nothing: the bucket has the change, and every agent reads it within a minute.
    """
    with suppress(errors.HeadwaterError):
        for _ in AgentApi.of(config).rows(path, body, timeout_s=LATE_S, silence_s=LATE_S):
            pass


def _raised(outcome: Mapping[str, Any]) -> errors.HeadwaterError:
    """What an operation or a problem means here."""
    kind = _RAISED.get(outcome.get("exit_code", 1), errors.HeadwaterError)
    return kind(outcome.get("error") or outcome.get("detail") or "the agent does not say why")
