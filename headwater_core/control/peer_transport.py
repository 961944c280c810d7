"""What the control log's peers may send, and who may be a peer. Importing this module bounds pysyncobj itself.

Between peers the library speaks pickle. It is replaced by one that admits nothing but plain values, frames are bounded, and beyond
loopback a long shared secret is demanded.
"""

import io
import ipaddress
import pickle
import zlib
from collections.abc import Callable
from typing import Any

import pysyncobj.pickle
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj.encryptor import HAS_CRYPTO
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport, TransportNotReadyError

from headwater_core.control.config import ControlConfig
from headwater_core.errors import UsageError

SECRET_CHARS_MIN = 32
_MESSAGE_BYTES_MAX = 8 << 20  # a batch of entries is 64 KiB, one command at most 1 MiB


def check_config(config: ControlConfig) -> None:
    """Raises UsageError when the peers could not be trusted or reached."""
    if not config.peers:
        return
    addresses = [_address(text) for text in (config.listen, *config.peers)]
    if config.password is not None:
        if len(config.password) < SECRET_CHARS_MIN:
            raise UsageError(f"[control] password: at least {SECRET_CHARS_MIN} characters, better a generated secret")
        if not HAS_CRYPTO:
            raise UsageError("[control] password: needs the package `cryptography`")
    elif not all(_is_loopback(host) for host, _ in addresses):
        raise UsageError("[control] peers beyond this machine need a password")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"[control] not host:port: {text[:100]!r}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _PlainPickle:
    """Stands in for the pickle module: plain values only. Protocol 4 encodes bytes without a function call."""

    class _Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")

    @classmethod
    def load(cls, file: io.BufferedIOBase) -> Any:
        return cls._Unpickler(file).load()

    @classmethod
    def loads(cls, data: bytes) -> Any:
        return cls.load(io.BytesIO(data))

    _load, _loads = load, loads

    @staticmethod
    def dump(value: Any, file: io.BufferedIOBase, _: object = None) -> None:
        file.write(pickle.dumps(value, 4))

    @staticmethod
    def dumps(value: Any, _: object = None) -> bytes:
        return pickle.dumps(value, 4)


class _BoundedZlib:
    compress = staticmethod(zlib.compress)

    @staticmethod
    def decompress(data: bytes) -> bytes:
        inflating = zlib.decompressobj()
        content = inflating.decompress(data, _MESSAGE_BYTES_MAX)
        if not inflating.eof:
            raise zlib.error("message too large or incomplete")
        return content


class _BoundedConnection(TcpConnection):  # type: ignore[misc]
    """Closes the connection to a peer that announces a frame beyond the bound, before it is read."""

    def _TcpConnection__processRead(self) -> bool:  # noqa: N802  the library's private name
        more = bool(super()._TcpConnection__processRead())
        buffered = self._TcpConnection__readBuffer
        if len(buffered) >= 4 and not 0 < int.from_bytes(buffered[:4], "little", signed=True) <= _MESSAGE_BYTES_MAX:
            self.disconnect()
            return False
        return more and len(buffered) <= _MESSAGE_BYTES_MAX


class PeerTransport(TCPTransport):  # type: ignore[misc]
    """Peers only: no administration and no silent listeners over the wire."""

    def tryGetReady(self) -> None:  # noqa: N802
        try:
            super().tryGetReady()
        except TransportNotReadyError:
            self._server.unbind()  # closes the socket that could not be bound
            raise

    def _onMessageReceived(self, node: Any, message: Any) -> None:  # noqa: N802
        journal = self._syncObj._SyncObj__raftLog
        try:
            super()._onMessageReceived(node, message)
        finally:
            journal.settle()
        if message["type"] == "append_entries" and "prevLogIdx" in message and message["term"] == self._syncObj.raftCurrentTerm:
            journal.contradict(message["prevLogIdx"], message["prevLogTerm"])  # decision 0013, "A node that never catches up"

    def setOnUtilityMessageCallback(self, message: str, callback: Callable[..., None] | None) -> None:  # noqa: N802
        pass

    def _onIncomingMessageReceived(self, conn: TcpConnection, message: Any) -> None:  # noqa: N802
        """Accept a peer that connects to us. The library would let a stranger that gives a peer's name cut that peer off for good."""
        if self._syncObj.encryptor and not conn.sendRandKey:
            super()._onIncomingMessageReceived(conn, message)
            return
        node = self._nodeAddrToNode.get(message) if isinstance(message, str) else None
        if node is None or self._shouldConnect(node):  # unknown, or one that we connect to, not it to us
            conn.disconnect()
            return
        replaced = self._connections.get(node)
        super()._onIncomingMessageReceived(conn, message)
        if replaced not in (None, conn):
            replaced.disconnect()  # if that was the true one it notices, and connects again


def _is_news(record: Any) -> bool:
    """Not that a leader sends again what was applied here: whether anything applied was lost, the journal knows (decision 0013)."""
    return not str(record.msg).startswith("truncating already-applied log entries")


pysyncobj.syncobj.logger.addFilter(_is_news)

# What the library gets instead of its own. It has no setting for any of these.
pysyncobj.pickle.pickle = _PlainPickle
pysyncobj.tcp_connection.zlib = _BoundedZlib
pysyncobj.tcp_server.TcpConnection = _BoundedConnection
pysyncobj.transport.TcpConnection = _BoundedConnection
pysyncobj.syncobj.createJournal = lambda journal: journal  # a journal of ours is passed for the name of a file
