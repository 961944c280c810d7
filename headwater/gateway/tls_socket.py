"""TLS over a connected socket, for a program with one event loop.

OpenSSL works in memory here, and never touches the socket: so reading never waits for writing or the other way round, and the socket
stays what its owner knows it as.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest, foreign_protocol
from headwater.gateway.response import FileSlice, Part
from headwater_core.errors import TransientError
from hydration.disk_threads import DiskThreads

RECORD_BYTES = 16 << 10  # the most that TLS encrypts at once
BLOCK_BYTES = 64 << 10  # that are received, encrypted, or read from a file at once; OpenSSL keeps memory for twice as many
AHEAD_BYTES = 1 << 20  # that a disk is told to read at once
TURN_BYTES = 1 << 20  # that are sent before other connections get the event loop

Buffer = bytes | bytearray | memoryview

_NOTHING = memoryview(b"")
_NOT_CACHED = (errno.EAGAIN, errno.EOPNOTSUPP)  # the second: the file system does not know
_RECORD_TYPES = (0x15, 0x16)  # an alert, a handshake
_UNKNOWN_AUTHORITY = "no authority that is trusted here has issued it"
_UNKNOWN_AUTHORITY_CODES = (18, 19, 20, 21)  # of X509_verify_cert: each another way in which a chain ends nowhere
_REASONS = {  # what OpenSSL calls it: what it means, where {peer} is the client or the broker
    "CERTIFICATE_REQUIRED": "the {peer} requires a certificate, and got none",
    "NO_SHARED_CIPHER": "the {peer} offers no cipher that is known here",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "the {peer} takes no signature that the key of the certificate here can make",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the {peer} has shown no certificate, and one is required",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the {peer} does not accept the certificate it was shown",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the {peer} says that the certificate it was shown has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the {peer} does not accept the certificate it was shown: no authority that it trusts has issued it",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the {peer} has no cipher in common, or requires a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the {peer} requires a certificate, and got none",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the {peer} does not speak TLS 1.2 or newer",
    "TLSV1_ALERT_UNKNOWN_CA": "the {peer} knows no authority that has issued the certificate it was shown",
    "UNSUPPORTED_PROTOCOL": "the {peer} does not speak TLS 1.2 or newer",
    "WRONG_VERSION_NUMBER": "the {peer} does not speak TLS on this port",
}


class TlsFailure(MalformedRequest):
    """The peer and this side do not come to a secure connection, or what arrives on it was changed on the way."""


class BrokerTlsFailure(TransientError):
    """The same with a broker, as seen by a client of it."""


class TlsSocket:
    """One task may read while another one writes. `sock` is non-blocking, and its owner closes it.

    A write that is cancelled, or not taken in time, has sent a part: the connection is of no use for another one.

    server_name  the name that the peer's certificate must have, where `context` is a client's; None: this side is the server

    Where it raises TlsFailure for a client, it raises BrokerTlsFailure for a broker; also for what cannot be a name.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._socket, self._loop = sock, asyncio.get_running_loop()
        self._peer = "client" if server_name is None else "broker"
        self._failure_kind: type[TlsFailure | BrokerTlsFailure] = TlsFailure if server_name is None else BrokerTlsFailure
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(self._received, self._encrypted, server_name is None, server_name)
        except ValueError as error:
            raise self._failure_kind(f"{server_name!r} is no host name") from error
        self._decrypted = bytearray()  # before it was requested
        self._unsent = _NOTHING  # taken out of `_encrypted`
        self._sent_in_turn = 0
        self._is_ended = False  # the peer has said that nothing more comes

    def fileno(self) -> int:
        """Return the socket's, which is readable when `recv` has not returned all there is."""
        return self._socket.fileno()

    async def handshake(self, timeout_s: float) -> None:
        """Raises TlsFailure, which says why; PeerGone where the peer is too slow or leaves; OSError for one that has sent nothing.

        Whether a broker accepts a client's certificate is known no earlier than with the first bytes that are read from it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                is_first = True
                while not self._continue_handshake():
                    await self._flush()
                    await self._receive_hello(is_first)
                    is_first = False
                await self._flush()
        except TimeoutError as error:
            raise PeerGone(f"the TLS handshake did not end within {timeout_s:g} s") from error

    def _continue_handshake(self) -> bool:
        """True when it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._failure(error) from None
        return True

    async def _receive_hello(self, is_first: bool) -> None:
        raw = await self._receive()
        if not raw and self._peer == "broker":
            raise PeerGone("the broker has closed the connection during the TLS handshake: it may not speak TLS on this port")
        if not raw and is_first:
            raise ConnectionResetError("the client has closed the connection before the TLS handshake")  # as a health check does
        if not raw:
            raise PeerGone("the client has left during the TLS handshake: it may not accept the certificate here")
        if is_first and raw[0] not in _RECORD_TYPES:
            protocol = foreign_protocol(raw[:4]) or ("plain Kafka" if raw[0] == 0 else "another protocol")  # its frames are below 16 MiB
            raise self._failure_kind(f"the {self._peer} speaks {protocol} on a TLS port")

    # Reading

    async def recv_into(self, view: memoryview) -> int:
        """As much as has arrived, a byte at least; 0 when the peer has closed its end, with TLS's own message or without.

        Raises TlsFailure, OSError.
        """
        while not (count := self._take(view)) and not self._is_ended:
            if not await self._receive():
                return 0
        return count

    def recv(self, size_bytes: int) -> bytes:
        """What the socket has, of at most `size_bytes`; b"" at the end. Raises BlockingIOError when it has nothing, TlsFailure, OSError.

        Nothing that can be decrypted stays behind, so that the event loop tells of more by the socket.
        """
        self._decrypt_all()
        if not self._decrypted and not self._is_ended:
            raw = self._socket.recv(size_bytes)
            self._received.write(raw)
            self._decrypt_all()
            if raw and not self._decrypted and not self._is_ended:
                raise BlockingIOError
        found, self._decrypted = bytes(self._decrypted), bytearray()
        return found

    def _take(self, view: memoryview) -> int:
        if self._decrypted:
            count = min(len(view), len(self._decrypted))
            view[:count] = self._decrypted[:count]
            del self._decrypted[:count]
            return count
        count = 0
        while count < len(view) and (record_bytes := self._decrypt(view[count:])):
            count += record_bytes
        return count

    def _decrypt_all(self) -> None:
        record = memoryview(bytearray(RECORD_BYTES))
        while size_bytes := self._decrypt(record):
            self._decrypted += record[:size_bytes]

    def _decrypt(self, view: memoryview) -> int:
        """Of one record; 0 when none is whole."""
        try:
            size_bytes: int = self._tls.read(len(view), view)  # type: ignore[assignment]  # typeshed has the other form only
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            size_bytes = 0
        except ssl.SSLError as error:
            raise self._failure(error) from None
        self._is_ended = size_bytes == 0
        return size_bytes

    async def _receive(self) -> bytes:
        """Wait for more; b"" at the end."""
        while True:
            try:
                raw = self._socket.recv(BLOCK_BYTES)
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_reader, self._loop.remove_reader, None)
            else:
                self._received.write(raw)
                return raw

    # Writing

    async def sendall(self, *buffers: Buffer) -> None:
        """Returns when the system has taken all of it. Raises TlsFailure, OSError."""
        await self._encrypt(buffers, None)
        await self._flush()

    async def send_parts(self, parts: Sequence[Part], timeout_s: float, readers: DiskThreads) -> None:
        """As `server.send`. Raises PeerGone where the parts are not taken within `timeout_s`, TlsFailure, OSError.

        readers   for what the page cache does not have
        """
        deadline_s = self._loop.time() + timeout_s
        at_hand: list[Buffer] = []
        for part in parts:
            if isinstance(part, bytes):
                at_hand.append(part)
            elif part.file.memory is not None:
                at_hand.append(part.file.memory[part.position : part.position + part.length])
            else:
                await self._encrypt(at_hand, deadline_s)
                at_hand = []
                await self._encrypt_slice(part, deadline_s, readers)
        await self._encrypt(at_hand, deadline_s)
        await self._flush(deadline_s)

    async def shutdown_write(self, timeout_s: float) -> None:
        """Nothing more is sent. What the peer still sends arrives. Raises PeerGone where it does not take what was sent before."""
        self._decrypt_all()  # for OpenSSL it would be an error to find it from now on
        with suppress(ssl.SSLError):  # it wants to read the peer's answer, which may come much later
            self._tls.unwrap()
        with suppress(OSError):  # the peer was quicker
            await self._flush(self._loop.time() + timeout_s)
            self._socket.shutdown(socket.SHUT_WR)

    async def _encrypt(self, buffers: Sequence[Buffer], deadline_s: float | None) -> None:
        for buffer in _joined(buffers):
            view = memoryview(buffer)
            while view:
                try:
                    view = view[self._tls.write(view[:BLOCK_BYTES]) :]
                except ssl.SSLError as error:
                    raise self._failure(error) from None
                if self._encrypted.pending >= RECORD_BYTES:
                    await self._flush(deadline_s)

    async def _encrypt_slice(self, part: FileSlice, deadline_s: float, readers: DiskThreads) -> None:
        block = memoryview(bytearray(min(BLOCK_BYTES, part.length)))
        position, end = part.position, part.position + part.length
        while position < end:
            size_bytes = await _read(part, position, block[: end - position], deadline_s, readers)
            await self._encrypt((block[:size_bytes],), deadline_s)
            position += size_bytes

    async def _flush(self, deadline_s: float | None = None) -> None:
        """Send what is encrypted."""
        while self._unsent or self._encrypted.pending:
            self._unsent = self._unsent or memoryview(self._encrypted.read())
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_writer, self._loop.remove_writer, deadline_s)
                continue
            self._unsent = self._unsent[sent:] or _NOTHING
            self._sent_in_turn += sent
            if self._sent_in_turn >= TURN_BYTES:
                self._sent_in_turn = 0
                await asyncio.sleep(0)

    async def _wait(self, add: Callable[..., None], remove: Callable[[int], bool], deadline_s: float | None) -> None:
        descriptor, ready = self._socket.fileno(), self._loop.create_future()
        add(descriptor, _wake, ready)
        try:
            async with asyncio.timeout_at(deadline_s):
                await ready
        except TimeoutError as error:
            raise PeerGone("a response was not taken in time") from error
        finally:
            remove(descriptor)

    def _failure(self, error: ssl.SSLError) -> TlsFailure | BrokerTlsFailure:
        """Tell the peer and the caller why."""
        with suppress(OSError):  # it is only told what fits into the socket's buffer
            self._socket.send(self._encrypted.read() if not self._unsent else b"")
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = _UNKNOWN_AUTHORITY if error.verify_code in _UNKNOWN_AUTHORITY_CODES else error.verify_message
            return self._failure_kind(f"the {self._peer}'s certificate is not accepted: {reason}")
        name = error.reason or str(error)
        return self._failure_kind(
            _REASONS.get(name, "TLS with the {peer} failed: " + name.lower().replace("_", " ")).format(peer=self._peer)
        )


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _joined(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Small neighbours as one: a record of four bytes costs as much as one of a kilobyte."""
    small = bytearray()
    for buffer in buffers:
        if len(small) + len(buffer) > RECORD_BYTES:
            yield small
            small = bytearray()
        if len(buffer) > RECORD_BYTES:
            yield buffer
        else:
            small += buffer
    yield small


async def _read(part: FileSlice, position: int, block: memoryview, deadline_s: float, readers: DiskThreads) -> int:
    """Bytes of the file, one at least; in a thread where a disk has them: a slow one holds up this client alone."""
    source = part.file.fileno()
    try:
        try:
            size_bytes = os.preadv(source, (block,), position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _NOT_CACHED:
                raise
            reading = readers.submit(part.file.device, partial(_read_ahead, source, position, block))
            async with asyncio.timeout_at(deadline_s):
                size_bytes = await asyncio.wrap_future(reading)
    except TimeoutError as error:
        raise PeerGone(f"{part.file.where} was not read in time: its disk hangs") from error
    except OSError as error:
        part.file.fail(error.strerror or str(error))
        raise PeerGone(f"{part.file.where}, byte {position}: {error.strerror}; the client retries") from error
    if not size_bytes:  # truncated by another process: the frame cannot be finished as announced
        part.file.doubt()
        raise PeerGone(f"{part.file.where} ended at byte {position}, before its slice; the client retries")
    return size_bytes


def _read_ahead(source: int, position: int, block: memoryview) -> int:
    """Also have the page cache read what follows."""
    with suppress(OSError):  # reading will show what is wrong
        os.posix_fadvise(source, position, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    return os.preadv(source, (block,), position)
