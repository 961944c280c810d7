"""TLS between two of our own sockets, and with other programs: what was sent arrives, and what goes wrong is named."""

import asyncio
import errno
import os
import random
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headwater.broker.client_properties import load_client_properties
from headwater.gateway.connection import PeerGone
from headwater.gateway.protocol import Api
from headwater.gateway.tls_socket import AHEAD_BYTES, BLOCK_BYTES, RECORD_BYTES, BrokerTlsFailure, TlsFailure, TlsSocket
from headwater_core.certificates import server_context
from hydration.answers import Slice
from hydration.disk_threads import DiskThreads
from hydration.runfile import RunFile
from tests.headwater.gateway.certificate_files import CertificateFiles, an_authority, issued

LONG_BYTES = 10 << 20
WAIT_S = 30.0  # longer than anything takes

Use = Callable[[TlsSocket, TlsSocket, socket.socket, socket.socket], Awaitable[Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(directory: Path) -> CertificateFiles:
    return an_authority(directory)


@pytest.fixture(scope="module")
def certificate(directory: Path, authority: CertificateFiles) -> CertificateFiles:
    return issued(directory, authority)


@pytest.fixture
def server(certificate: CertificateFiles) -> ssl.SSLContext:
    return server_context("gateway", *certificate)


@pytest.fixture
def client(authority: CertificateFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def between(server: ssl.SSLContext, client: ssl.SSLContext, use: Use, *, name: str = "localhost", has_handshake: bool = True) -> Any:
    """`use` gets the server's and the client's side of a connection, and the sockets below them."""

    async def run() -> Any:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            sides = TlsSocket(ours, server), TlsSocket(theirs, client, name)
            if has_handshake:
                await asyncio.gather(*(side.handshake(WAIT_S) for side in sides))
            async with asyncio.timeout(WAIT_S):
                return await use(*sides, ours, theirs)

    return asyncio.run(run())


def failures(server: ssl.SSLContext, client: ssl.SSLContext, *, name: str = "localhost") -> tuple[str, str]:
    """What server and client say of a connection that cannot be."""

    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, theirs: socket.socket) -> tuple[str, str]:
        async def reason(side: TlsSocket, sock: socket.socket) -> str:
            try:
                await side.handshake(WAIT_S)
                await side.recv_into(memoryview(bytearray(1)))  # with TLS 1.3 a client hears of its own certificate after the handshake
            except (TlsFailure, BrokerTlsFailure, PeerGone) as error:
                return str(error)
            finally:
                sock.shutdown(socket.SHUT_WR)
            return ""

        first, second = await asyncio.gather(reason(one, ours), reason(other, theirs))
        return first, second

    found: tuple[str, str] = between(server, client, use, name=name, has_handshake=False)
    return found


async def received(side: TlsSocket, size_bytes: int = 1 << 30) -> bytes:
    """So many bytes, or all up to the end."""
    found, view = bytearray(), memoryview(bytearray(100_000))
    while count := len(found) < size_bytes and await side.recv_into(view[: size_bytes - len(found)]):
        found += view[:count]
    return bytes(found)


# -- what was sent arrives -----------------------------------------------------------------------------------------


def test_long_transfers_both_ways_at_once_arrive_whole(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    there, back = os.urandom(LONG_BYTES), os.urandom(LONG_BYTES)

    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> tuple[bytes, bytes]:
        sending = asyncio.gather(one.sendall(back), other.sendall(there))
        first, second = await asyncio.gather(received(one, LONG_BYTES), received(other, LONG_BYTES))
        await sending
        return first, second

    assert between(server, client, use) == (there, back)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pieces_of_any_size_arrive_in_their_order(
    server: ssl.SSLContext, client: ssl.SSLContext, version: ssl.TLSVersion, seed: int
) -> None:
    client.maximum_version = version
    random_ = random.Random(seed)
    sizes = (1, 2, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, BLOCK_BYTES, 3 * BLOCK_BYTES)
    pieces = [[random_.randbytes(random_.choice(sizes)) for _ in range(random_.randrange(1, 5))] for _ in range(30)]

    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        async def send() -> None:
            for some in pieces:
                await one.sendall(*some)
            await one.shutdown_write(WAIT_S)

        return (await asyncio.gather(received(other), send()))[0]

    assert between(server, client, use) == b"".join(piece for some in pieces for piece in some)


def test_single_bytes_arrive(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        found, view = b"", memoryview(bytearray(1))
        for at in range(256):
            await other.sendall(bytes((at,)))
            assert await one.recv_into(view) == 1
            found += view
        return found

    assert between(server, client, use) == bytes(range(256))


def test_what_the_socket_has_is_received_to_the_last_byte_that_can_be_decrypted(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """The event loop looks at the socket alone."""
    sent = os.urandom(3 * RECORD_BYTES)

    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, _: socket.socket) -> bytes:
        found = b""
        with pytest.raises(BlockingIOError):
            one.recv(BLOCK_BYTES)
        await other.sendall(sent)
        while len(found) < len(sent):
            try:
                found += one.recv(20_000)
            except BlockingIOError:  # the last record is not whole
                assert ours.recv(1, socket.MSG_PEEK)
        await other.shutdown_write(WAIT_S)
        return found + one.recv(BLOCK_BYTES)

    assert between(server, client, use) == sent


def test_what_comes_with_the_end_of_the_handshake_is_not_lost(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        async def ask() -> None:
            await other.handshake(WAIT_S)
            await other.sendall(b"at once")

        asking = asyncio.create_task(ask())
        await one.handshake(WAIT_S)
        await asking
        return one.recv(BLOCK_BYTES)

    assert between(server, client, use, has_handshake=False) == b"at once"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_has_sent_everything_still_receives(server: ssl.SSLContext, client: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    client.maximum_version = version
    answer = os.urandom(LONG_BYTES)

    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        async def serve() -> None:
            await one.sendall(answer[:100_000])
            assert await received(one) == b"the last request"
            await one.sendall(answer[100_000:])
            await one.shutdown_write(WAIT_S)

        serving = asyncio.create_task(serve())
        await other.sendall(b"the last request")
        view = memoryview(bytearray(10))  # more than that has arrived and is not requested yet
        head = bytes(view[: await other.recv_into(view)])
        await other.shutdown_write(WAIT_S)
        found = head + await received(other)
        await serving
        return found

    assert between(server, client, use) == answer


def test_a_cancelled_read_loses_nothing_and_leaves_nothing_registered(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, _: socket.socket) -> bytes:
        reading = asyncio.create_task(received(one))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not asyncio.get_running_loop().remove_reader(ours)
        await other.sendall(b"later")
        return await received(one, 5)

    assert between(server, client, use) == b"later"


def test_what_is_not_taken_in_time_ends_the_wait_and_leaves_nothing_registered(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, _: socket.socket) -> None:
        with pytest.raises(PeerGone, match="not taken in time"):
            await one.send_parts([bytes(LONG_BYTES)], 0.0, DiskThreads(1, "reader"))
        assert one._encrypted.pending + len(one._unsent) < 2 * BLOCK_BYTES, "the rest is not encrypted yet"
        assert not asyncio.get_running_loop().remove_writer(ours)

    between(server, client, use)


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def content() -> bytes:
    return os.urandom(2 * AHEAD_BYTES + 17)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> RunFile:
    path = tmp_path / "run"
    path.write_bytes(content)
    return RunFile.open(path)


def parts_sent(server: ssl.SSLContext, client: ssl.SSLContext, *parts: bytes | Slice) -> bytes:
    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        async def send() -> None:
            try:
                await one.send_parts(parts, WAIT_S, DiskThreads(1, "reader"))
            finally:
                await one.shutdown_write(WAIT_S)

        return (await asyncio.gather(received(other), send()))[0]

    found: bytes = between(server, client, use)
    return found


@pytest.mark.parametrize("is_cached", [True, False])
def test_files_and_bytes_arrive_by_turns(
    server: ssl.SSLContext, client: ssl.SSLContext, file: RunFile, content: bytes, is_cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_cached:
        monkeypatch.setattr(os, "preadv", _only_in_threads)
    parts = (b"before", Slice(file, 5, len(content) - 9), b"between", Slice(file, 0, 1), b"after")
    assert parts_sent(server, client, *parts) == b"before" + content[5:-4] + b"between" + content[:1] + b"after"


_preadv = os.preadv


def _only_in_threads(source: int, buffers: tuple[memoryview], position: int, flags: int = 0) -> int:
    if flags:
        raise OSError(random.choice((errno.EAGAIN, errno.EOPNOTSUPP)), "not cached, or not known")
    return _preadv(source, buffers, position)


def test_a_file_in_memory_is_not_read(server: ssl.SSLContext, client: ssl.SSLContext, file: RunFile, content: bytes) -> None:
    os.truncate(file.where, 0)
    file.memory = memoryview(content)
    slices = [Slice(file, at, 700) for at in range(3000)]
    assert parts_sent(server, client, *slices) == b"".join(content[at : at + 700] for at in range(3000))


def test_a_file_that_ends_before_its_slice_is_doubted(
    server: ssl.SSLContext, client: ssl.SSLContext, file: RunFile, content: bytes
) -> None:
    os.truncate(file.where, 1000)
    with pytest.raises(PeerGone, match="ended at byte 1000"):
        parts_sent(server, client, Slice(file, 0, len(content)))
    assert file.unproven


def test_a_file_that_its_disk_cannot_read_has_failed(
    server: ssl.SSLContext, client: ssl.SSLContext, file: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(PeerGone, match="Input/output error"):
        parts_sent(server, client, Slice(file, 0, 1000))
    assert file.failure == "Input/output error"


# -- what goes wrong is named --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (struct.pack(">ihhih", 30, 18, 3, 1, 4) + b"kcat", "the client speaks plain Kafka on a TLS port"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP on a TLS port"),
        (b"PRI * HTTP/2.0\r\n\r\n", "the client speaks HTTP on a TLS port"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the client speaks another protocol on a TLS port"),
        (b"\x16\x03\x01\x00\x05hello", "TLS with the client failed"),
    ],
)
def test_a_client_of_another_protocol_is_named(server: ssl.SSLContext, client: ssl.SSLContext, first: bytes, reason: str) -> None:
    async def use(one: TlsSocket, _: TlsSocket, __: socket.socket, theirs: socket.socket) -> None:
        theirs.sendall(first)
        with pytest.raises(TlsFailure, match=reason):
            await one.handshake(WAIT_S)

    between(server, client, use, has_handshake=False)


def test_a_client_that_only_calls_is_a_lost_connection(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, _: TlsSocket, __: socket.socket, theirs: socket.socket) -> None:
        theirs.close()
        with pytest.raises(ConnectionResetError):
            await one.handshake(WAIT_S)

    between(server, client, use, has_handshake=False)


def test_a_client_that_leaves_during_the_handshake_is_gone(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, _: TlsSocket, __: socket.socket, theirs: socket.socket) -> None:
        theirs.sendall(b"\x16\x03\x01")
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerGone, match="the client has left during the TLS handshake"):
            await one.handshake(WAIT_S)

    between(server, client, use, has_handshake=False)


def test_a_broker_that_closes_the_connection_instead_of_a_handshake_is_gone(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(_: TlsSocket, other: TlsSocket, ours: socket.socket, __: socket.socket) -> None:
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerGone, match=r"the broker has closed the connection .* may not speak TLS"):
            await other.handshake(WAIT_S)

    between(server, client, use, has_handshake=False)


def test_a_handshake_has_its_time(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, _: TlsSocket, ours: socket.socket, theirs: socket.socket) -> None:
        theirs.sendall(b"\x16\x03\x01")
        with pytest.raises(PeerGone, match="did not end within 0 s"):
            await one.handshake(0)
        assert not asyncio.get_running_loop().remove_reader(ours)

    between(server, client, use, has_handshake=False)


def test_a_peer_that_is_gone_inside_a_record_has_closed_its_end(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, theirs: socket.socket) -> bytes:
        await other.sendall(bytes(100))
        await other.sendall(bytes(1000))
        arrived = ours.recv(BLOCK_BYTES)
        await other.shutdown_write(WAIT_S)
        ours.recv(BLOCK_BYTES)
        one._received.write(arrived[:-10])
        return await received(one)

    assert between(server, client, use) == bytes(100)


def test_a_byte_that_was_changed_on_the_way_is_noticed(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(one: TlsSocket, other: TlsSocket, ours: socket.socket, _: socket.socket) -> None:
        await other.sendall(bytes(1000))
        arrived = bytearray(ours.recv(BLOCK_BYTES))
        arrived[500] ^= 1
        one._received.write(arrived)
        with pytest.raises(TlsFailure, match="bad record mac"):
            await received(one)

    between(server, client, use)


def test_a_client_without_a_certificate_hears_that_one_is_required(
    certificate: CertificateFiles, authority: CertificateFiles, client: ssl.SSLContext
) -> None:
    required = server_context("gateway", *certificate, authority.certificate)
    assert failures(required, client) == (
        "the client has shown no certificate, and one is required",
        "the broker requires a certificate, and got none",
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_whose_certificate_another_authority_has_issued_is_refused(
    certificate: CertificateFiles, authority: CertificateFiles, client: ssl.SSLContext, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    client.maximum_version = version
    client.load_cert_chain(*issued(tmp_path, an_authority(tmp_path, "other"), "client"))
    assert failures(server_context("gateway", *certificate, authority.certificate), client) == (
        "the client's certificate is not accepted: no authority that is trusted here has issued it",
        "the broker knows no authority that has issued the certificate it was shown",
    )


def test_a_client_with_a_certificate_of_the_authority_is_served(
    certificate: CertificateFiles, authority: CertificateFiles, client: ssl.SSLContext, tmp_path: Path
) -> None:
    client.load_cert_chain(*issued(tmp_path, authority, "client"))

    async def use(one: TlsSocket, other: TlsSocket, *_: socket.socket) -> bytes:
        await other.sendall(b"hello")
        return await received(one, 5)

    assert between(server_context("gateway", *certificate, authority.certificate), client, use) == b"hello"


def test_a_client_that_does_not_trust_the_certificate_is_named(server: ssl.SSLContext) -> None:
    ours, theirs = failures(server, ssl.create_default_context())
    assert ours == "the client knows no authority that has issued the certificate it was shown"
    assert theirs == "the broker's certificate is not accepted: no authority that is trusted here has issued it"


def test_a_certificate_of_another_host_is_not_accepted(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    _, theirs = failures(server, client, name="elsewhere.example")
    assert theirs == "the broker's certificate is not accepted: Hostname mismatch, certificate is not valid for 'elsewhere.example'."


def test_a_certificate_that_has_expired_is_not_accepted(authority: CertificateFiles, client: ssl.SSLContext, tmp_path: Path) -> None:
    ours, theirs = failures(server_context("gateway", *issued(tmp_path, authority, days=-1)), client)
    assert ours == "the client says that the certificate it was shown has expired"
    assert theirs == "the broker's certificate is not accepted: certificate has expired"


@pytest.mark.parametrize("algorithm", ["https", ""])
def test_a_broker_is_called_as_the_client_properties_say(
    server: ssl.SSLContext, authority: CertificateFiles, tmp_path: Path, algorithm: str
) -> None:
    file = tmp_path / "client.properties"
    trusted = f"ssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n"
    file.write_text(f"security.protocol=SSL\n{trusted}ssl.endpoint.identification.algorithm={algorithm}\n")
    context = load_client_properties(file).tls
    assert context is not None

    async def use(*_: object) -> bool:
        return True

    assert between(server, context, use)
    if algorithm:
        assert "Hostname mismatch" in failures(server, context, name="elsewhere.example")[1]
    else:
        assert between(server, context, use, name="elsewhere.example")


def test_what_cannot_be_a_host_is_no_name_of_a_broker(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async def use(*_: object) -> None: ...

    with pytest.raises(BrokerTlsFailure, match="is no host name"):
        between(server, client, use, name=".example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_a_client_of_tls_1_1_is_refused(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")
    assert failures(server, client) == (
        "the client does not speak TLS 1.2 or newer",
        "the broker does not speak TLS 1.2 or newer",
    )


# -- other programs ------------------------------------------------------------------------------------------------


def accepted(server: ssl.SSLContext, use: Callable[[TlsSocket], Awaitable[Any]], call: Callable[[int], Any]) -> Any:
    """`use` gets the connection of the program that `call` starts in a thread, with the port to connect to."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            calling = loop.run_in_executor(None, call, listener.getsockname()[1])
            async with asyncio.timeout(WAIT_S):
                sock, _ = await loop.sock_accept(listener)
                with sock:
                    sock.setblocking(False)
                    side = TlsSocket(sock, server)
                    await side.handshake(WAIT_S)
                    found = await use(side)
                await calling
                return found

    return asyncio.run(run())


@pytest.mark.parametrize("command", ["k", "K"])
def test_openssl_changes_its_keys_on_the_way(server: ssl.SSLContext, authority: CertificateFiles, command: str) -> None:
    """K: and has the server change its own."""

    def call(port: int) -> None:
        trusted = ("-CAfile", str(authority.certificate), "-verify_return_error")
        arguments = ("openssl", "s_client", "-connect", f"127.0.0.1:{port}", *trusted, "-tls1_3")
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line, shown in (("before", b"ANSWER"), (command, b"KEYUPDATE"), ("after", b"ANSWER")):
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
                while shown not in (output := process.stdout.readline()):
                    assert output
            process.stdin.close()

    async def use(side: TlsSocket) -> bytes:
        found = b""
        for line in (b"before\n", b"after\n"):
            found += await received(side, len(line))
            await side.sendall(b"ANSWER\n")
        assert await received(side) == b""
        return found

    assert accepted(server, use, call) == b"before\nafter\n"


def test_librdkafka_begins_with_a_request_for_the_versions(server: ssl.SSLContext, authority: CertificateFiles) -> None:
    is_done = threading.Event()

    def call(port: int) -> None:
        trusted = {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate)}
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", **trusted, "log_level": 0})
        is_done.wait(WAIT_S)  # its own threads connect
        producer.purge()

    async def use(side: TlsSocket) -> int:
        try:
            request = await received(side, int.from_bytes(await received(side, 4), "big"))
        finally:
            is_done.set()
        return int.from_bytes(request[:2], "big")

    assert accepted(server, use, call) == Api.API_VERSIONS
