"""A broker that answers what it was told to, over a real socket, by Kafka's own schemas."""

import base64
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from headwater.broker.broker_connection import ADMIN_VERSIONS, VERSIONS, BrokerAddress, BrokerApi
from headwater.gateway.frames import read_header
from headwater.gateway.messages import read_request, write_response
from headwater.gateway.response import Response

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]  # None: the connection is closed instead
ALL = VERSIONS | ADMIN_VERSIONS


class SocketBroker:
    """One thread per connection; `asked` has every request. `answers` has what is said, by request. `hang_up` closes all connections."""

    def __init__(
        self, answers: Mapping[BrokerApi, Answer], *, knows: Mapping[BrokerApi, int] = ALL, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answers: dict[BrokerApi, Answer] = {BrokerApi.API_VERSIONS: lambda _: _versions(knows), **answers}
        self.asked: list[tuple[BrokerApi, Mapping[str, Any]]] = []
        self._tls = tls
        self._clients: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress(*self._listener.getsockname()[:2])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody listens from now on, and all connections are closed."""
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """As a broker does that stops, or with connections that were idle for long."""
        for client in self._clients:
            with suppress(OSError):  # it is closed already
                client.shutdown(socket.SHUT_RDWR)
        self._clients.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with (
                client if self._tls is None else self._tls.wrap_socket(client, server_side=True) as stream,
                stream.makefile("rb") as requests,
            ):
                self._clients.append(stream)
                while size := int.from_bytes(requests.read(4), "big"):
                    frame = requests.read(size)
                    header = read_header(frame)
                    api = BrokerApi(header.api_key)
                    fields = read_request(frame, header.body_position, api, header.api_version)
                    self.asked.append((api, fields))
                    answer = self.answers[api](fields)
                    if answer is None:
                        return
                    response = Response()
                    write_response(response, answer, api, header.api_version, header.correlation_id)
                    stream.sendall(b"".join(bytes(part) for part in response.frame().parts if isinstance(part, bytes)))
        except OSError:
            return


def _versions(knows: Mapping[BrokerApi, int]) -> Mapping[str, Any]:
    return {"error_code": 0, "api_keys": [{"api_key": api, "min_version": 0, "max_version": version} for api, version in knows.items()]}


def scram_server(hash_name: str, username: str, password: str) -> Answer:
    """The other side of a SCRAM exchange, for one client at a time."""
    salt, iterations, first = b"salt", 4096, ""

    def answer(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal first
        said = fields["auth_bytes"].decode()
        if said.startswith("n,,"):
            first = said[3:]
            server_first = f"r={first.partition(',r=')[2]}theirs,s={base64.b64encode(salt).decode()},i={iterations}"
            return {"error_code": 0, "error_message": None, "auth_bytes": server_first.encode()}
        bare, _, proof = said.rpartition(",p=")
        server_first = f"r={bare.partition('r=')[2]},s={base64.b64encode(salt).decode()},i={iterations}"
        signed = f"{first},{server_first},{bare}".encode()
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
        expected = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected or not first.startswith(f"n={username},"):
            return {"error_code": 58, "error_message": "no", "auth_bytes": b""}
        verifier = base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name))
        return {"error_code": 0, "error_message": None, "auth_bytes": b"v=" + verifier}

    return answer
