"""One connection to one broker: requests and answers, one at a time."""

import base64
import secrets
import socket
import ssl
import struct
from collections.abc import Mapping
from enum import IntEnum
from time import monotonic
from typing import Any, NamedTuple

from headwater import __version__
from headwater.broker.client_properties import ClientProperties
from headwater.broker.sasl import authenticate
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.messages import request_schema, response_schema
from headwater.gateway.primitives import skip_tags
from headwater.gateway.response import Response
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat, UsageError

ANSWER_BYTES_MAX = 64 << 20  # the metadata of a thousand topics takes a hundredth of it
UNAUTHENTICATED_BYTES_MAX = 1 << 20  # anybody may answer at that time; what Kafka says then takes a few kilobytes
_HEADER = struct.Struct(">hhi")
_SASL_AUTHENTICATION_FAILED = 58


class BrokerApi(IntEnum):
    """Requests to a broker, each in one version: `VERSIONS`, and `ADMIN_VERSIONS` for those that only some connections need."""

    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_QUORUM = 55
    CONSUMER_GROUP_DESCRIBE = 69
    SHARE_GROUP_DESCRIBE = 77
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91


VERSIONS = {  # each the first that has what is needed; Kafka 3.3 has them all
    BrokerApi.FETCH: 12,
    BrokerApi.LIST_OFFSETS: 7,
    BrokerApi.METADATA: 12,
    BrokerApi.OFFSET_FETCH: 8,
    BrokerApi.LIST_GROUPS: 4,
    BrokerApi.SASL_HANDSHAKE: 1,
    BrokerApi.API_VERSIONS: 3,
    BrokerApi.DELETE_RECORDS: 2,
    BrokerApi.OFFSET_FOR_LEADER_EPOCH: 4,
    BrokerApi.DESCRIBE_CONFIGS: 4,
    BrokerApi.SASL_AUTHENTICATE: 2,
    BrokerApi.INCREMENTAL_ALTER_CONFIGS: 1,
    BrokerApi.DESCRIBE_QUORUM: 0,
}
ADMIN_VERSIONS = {  # likewise; a broker may lack one of them: only who sends that one hears of it
    BrokerApi.OFFSET_COMMIT: 8,
    BrokerApi.FIND_COORDINATOR: 4,
    BrokerApi.DESCRIBE_GROUPS: 5,
    BrokerApi.CREATE_TOPICS: 7,
    BrokerApi.INIT_PRODUCER_ID: 4,
    BrokerApi.DESCRIBE_ACLS: 2,
    BrokerApi.CREATE_ACLS: 2,
    BrokerApi.DESCRIBE_CLIENT_QUOTAS: 1,
    BrokerApi.ALTER_CLIENT_QUOTAS: 1,
    BrokerApi.CONSUMER_GROUP_DESCRIBE: 0,
    BrokerApi.SHARE_GROUP_DESCRIBE: 1,
    BrokerApi.STREAMS_GROUP_DESCRIBE: 0,
    BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS: 0,
    BrokerApi.ALTER_SHARE_GROUP_OFFSETS: 0,
}
NEWER_VERSIONS = {BrokerApi.LIST_GROUPS: 5}  # where a broker has it: since Kafka 3.8 it says the type of each group
_ALL_VERSIONS = VERSIONS | ADMIN_VERSIONS


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "BrokerAddress":
        """Raises UsageError for what is no host:port."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535:
            raise UsageError(f"log.bootstrap_servers: {text[:80]!r} is not host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class ConnectionClosed(TransientError):
    """The broker has closed the connection instead of an answer: as it does with idle ones, and when it stops."""


class BrokerConnection:
    """Authenticated when it is made. For one thread at a time; after any error it is of no use any more.

    Raises TransientError when the broker does not answer (ConnectionClosed where that is how), Unauthorised when it or we cannot be
    authenticated, and UnsupportedFormat for one that does not know a request.
    """

    def __init__(self, address: BrokerAddress, properties: ClientProperties) -> None:
        self.address, self._properties = address, properties.current()
        self.failure: HeadwaterError | None = None  # what made it useless
        self._correlation_id = 0
        self._answer_bytes_max = UNAUTHENTICATED_BYTES_MAX
        self._lacking: frozenset[BrokerApi] = frozenset()  # of ADMIN_VERSIONS
        self._versions: dict[BrokerApi, int] = {**_ALL_VERSIONS}
        try:
            self._socket: socket.socket = socket.create_connection(address, self._properties.request_timeout_s)
        except OSError as error:
            raise TransientError(f"broker {address}: {error.strerror or error}") from error
        except ValueError as error:  # of a host name that cannot be one; brokers advertise what they were told to
            raise TransientError(f"broker {address}: this is no address: {error}") from error
        try:
            self._secure()
        except ValueError as error:  # its text may show a part of the password
            self.close()
            raise TransientError(f"broker {address}: the connection cannot be secured: {type(error).__name__}") from None
        except BaseException:
            self.close()
            raise
        self._answer_bytes_max = ANSWER_BYTES_MAX

    def close(self) -> None:
        self._socket.close()

    def knows(self, api: BrokerApi) -> bool:
        return api not in self._lacking

    def ask(self, api: BrokerApi, fields: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """The answer, as plain values (see headwater.gateway.messages). version: another one than usual"""
        if api in self._lacking:  # the connection is as good as before
            raise UnsupportedFormat(f"broker {self.address} does not know {api.name} in version {ADMIN_VERSIONS[api]}")
        self.failure = TransientError(f"broker {self.address}: the wait for an answer was given up")
        try:
            answer = self._ask(api, fields, self._versions[api] if version is None else version)
        except (MalformedRequest, struct.error, UnicodeDecodeError) as error:
            self.failure = TransientError(f"broker {self.address}: {api.name} was answered with what is no answer: {error}")
            raise self.failure from error
        except HeadwaterError as error:
            self.failure = error
            raise
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self.failure = ConnectionClosed(f"broker {self.address} closed the connection: {error.strerror or error}")
            raise self.failure from error
        except OSError as error:
            self.failure = TransientError(f"broker {self.address}: {error.strerror or error}")
            raise self.failure from error
        self.failure = None
        return answer

    def _ask(self, api: BrokerApi, fields: Mapping[str, Any], version: int) -> dict[str, Any]:
        self._correlation_id += 1
        schema, answer = request_schema(api, version), response_schema(api, version)
        request = Response()
        name = self._properties.client_id.encode()
        request.buffer += _HEADER.pack(api, version, self._correlation_id) + struct.pack(">h", len(name)) + name
        if schema.flexible:
            request.buffer += b"\0"
        schema.write(request, fields)
        deadline_s = monotonic() + self._properties.request_timeout_s  # of request and answer together
        self._socket.settimeout(self._properties.request_timeout_s)
        self._socket.sendall(len(request.buffer).to_bytes(4, "big") + request.buffer)
        size = int.from_bytes(self._receive(4, deadline_s), "big", signed=True)
        if not 4 <= size <= self._answer_bytes_max:
            raise TransientError(
                f"broker {self.address}: {api.name} was answered with {size} bytes: is it a Kafka broker, and without TLS?"
            )
        frame = self._receive(size, deadline_s)
        if int.from_bytes(frame[:4], "big", signed=True) != self._correlation_id:
            raise TransientError(f"broker {self.address}: what came is another request's answer")
        values, _ = answer.read(frame, skip_tags(frame, 4) if answer.header_version >= 1 else 4)
        return values  # type: ignore[no-any-return]

    def _receive(self, size: int, deadline_s: float) -> bytes:
        """The socket's own time-out is for each piece: a peer that sends one byte at a time would never meet it."""
        found = bytearray()
        while len(found) < size:
            remaining_s = deadline_s - monotonic()
            if remaining_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(remaining_s)
            piece = self._socket.recv(min(size - len(found), 1 << 20))
            if not piece:
                raise ConnectionClosed(f"broker {self.address} closed the connection")
            found += piece
        return bytes(found)

    def _secure(self) -> None:
        if self._properties.tls is not None:
            try:
                self._socket = self._properties.tls.wrap_socket(self._socket, server_hostname=self.address.host)
            except ssl.SSLCertVerificationError as error:
                raise Unauthorised(f"broker {self.address}: its certificate is not accepted: {error.verify_message}") from error
            except OSError as error:
                raise TransientError(f"broker {self.address}: no TLS connection: {error}") from error
        self._check_versions()
        if self._properties.uses_sasl:
            self._authenticate()

    def _check_versions(self) -> None:
        said = self.ask(BrokerApi.API_VERSIONS, {"client_software_name": "headwater", "client_software_version": __version__})
        known = {each["api_key"]: range(each["min_version"], each["max_version"] + 1) for each in said["api_keys"]}
        self._lacking = frozenset(api for api, version in ADMIN_VERSIONS.items() if version not in known.get(api, ()))
        self._versions |= {api: version for api, version in NEWER_VERSIONS.items() if version in known.get(api, ())}
        lacking = [api.name for api, version in VERSIONS.items() if version not in known.get(api, ())]
        if not self._properties.uses_sasl:
            lacking = [name for name in lacking if not name.startswith("SASL")]
        if lacking:
            raise UnsupportedFormat(f"broker {self.address} does not know {', '.join(lacking)} as Kafka 3.3 and later do")

    def _authenticate(self) -> None:
        mine = self._properties
        shaken = self.ask(BrokerApi.SASL_HANDSHAKE, {"mechanism": mine.mechanism})
        if shaken["error_code"]:
            raise Unauthorised(f"broker {self.address} does not take {mine.mechanism}; it takes {', '.join(shaken['mechanisms'])}")
        nonce = base64.b64encode(secrets.token_bytes(24)).decode()
        exchange = authenticate(mine.mechanism, mine.username, mine.password, nonce)
        said = next(exchange)
        while True:
            answer = self.ask(BrokerApi.SASL_AUTHENTICATE, {"auth_bytes": said})
            if answer["error_code"]:
                why = "wrong user or password" if answer["error_code"] == _SASL_AUTHENTICATION_FAILED else f"code {answer['error_code']}"
                raise Unauthorised(f"broker {self.address} refused the {mine.mechanism} authentication: {why}")
            try:
                said = exchange.send(answer["auth_bytes"])
            except StopIteration:
                return
