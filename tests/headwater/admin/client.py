"""Callers of the agent's API, by its port or its socket: one that speaks HTTP, and one that sends whatever it is given."""

import http.client
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.admin.local_socket import socket_address

Address = tuple[str, int]
Way = Address | Path  # a path is a data directory, with the agent's socket in it


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The code of an error, which says its own status."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        assert self.json["detail"]
        return str(self.json["code"])


def call(way: Way, path: str, *, method: str = "GET", token: str = "", body: bytes | None = None, **headers: str) -> Answer:
    """One request in its own connection. `headers` with _ for -."""
    host, port = ("localhost", 80) if isinstance(way, Path) else way
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.sock = connected(way)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with suppress(BrokenPipeError):  # it has answered before it had read everything
            connection.request(method, path, body, given | ({"Authorization": f"Bearer {token}"} if token else {}))
        return _read(connection.getresponse())
    finally:
        connection.close()


def connected(way: Way) -> socket.socket:
    if not isinstance(way, Path):
        return socket.create_connection(way, 30)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(30)
    try:
        with socket_address(way) as address:
            client.connect(address)
    except OSError:
        client.close()
        raise
    return client


def send(way: Way, request: bytes) -> Answer | None:
    """What these bytes are answered with; None when the connection ends without an answer."""
    with connected(way) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client, method="HEAD" if request.startswith(b"HEAD ") else "GET")
        try:
            response.begin()
            return _read(response)
        except (http.client.HTTPException, ConnectionError):
            return None


def _read(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
