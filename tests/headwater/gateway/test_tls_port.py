"""The Kafka port with TLS: clients that speak it are served, and others are told apart in one line each."""

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.gateway.config import GatewayConfig
from headwater.gateway.server import GatewayServer
from headwater_core.errors import UsageError
from tests.headwater.gateway.certificate_files import CertificateFiles, an_authority, issued
from tests.headwater.gateway.fakes import FakeLog, FakeLogs, a_batch, a_topic_partition
from tests.headwater.gateway.raw import RawClient, a_fetch


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return an_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def mine(authority: CertificateFiles, tmp_path: Path) -> CertificateFiles:
    return issued(tmp_path, authority)


@pytest.fixture
def server(mine: CertificateFiles, tmp_path: Path) -> Iterator[GatewayServer]:
    log = FakeLog(a_topic_partition("soup"), tmp_path / "soup.log", [a_batch(at, [b"x" * 5000]) for at in range(400)])
    config = GatewayConfig(listen="127.0.0.1:0", tls_certificate=mine.certificate, tls_key=mine.key, poll_s=0.01)
    with GatewayServer(FakeLogs(log), config) as server:
        yield server


def test_records_come_over_tls(server: GatewayServer, authority: CertificateFiles) -> None:
    context = ssl.create_default_context(cafile=authority.certificate)
    with RawClient(server.address) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        answer = client.fetch(a_fetch(("soup", 0, 0), partition_max_bytes=4 << 20))
        assert answer["error_code"] == 0
        assert len(answer["records"]) > 400 * 5000


@pytest.mark.parametrize(
    ("first", "reason"),
    [(b"\0\0\0\x10\0\x12\0\0", "speaks plain Kafka"), (b"GET / HTTP/1.1\r\n\r\n", "speaks HTTP"), (b"soup!", "another protocol")],
)
def test_what_is_no_tls_is_told_in_one_line(server: GatewayServer, first: bytes, reason: str) -> None:
    with capture_logs() as logs, socket.create_connection(server.address, 10) as client:
        client.sendall(first)
        client.recv(1)
        until_s = time.monotonic() + 10
        while not logs and time.monotonic() < until_s:
            time.sleep(0.01)
    assert [each["event"] for each in logs] == ["malformed_request"]
    assert reason in logs[0]["reason"]


def test_tls_on_a_plain_port_is_told_in_one_line() -> None:
    context = ssl.create_default_context()
    with (
        capture_logs() as logs,
        GatewayServer(FakeLogs(), GatewayConfig(listen="127.0.0.1:0")) as server,
        socket.create_connection(server.address, 10) as client,
        pytest.raises(OSError),
    ):
        context.wrap_socket(client, server_hostname="localhost")
    assert [each["event"] for each in logs] == ["malformed_request"]
    assert "speaks TLS" in logs[0]["reason"]


def test_a_port_without_tls_is_this_machine_s_alone_unless_that_is_wanted(mine: CertificateFiles) -> None:
    with pytest.raises(UsageError, match="allow_plaintext"):
        GatewayConfig(listen="0.0.0.0:9292")
    with pytest.raises(UsageError, match="come together"):
        GatewayConfig(tls_key=mine.key)
    with pytest.raises(UsageError, match="tls_client_ca"):
        GatewayConfig(tls_client_ca=mine.certificate)
    with pytest.raises(UsageError, match="upstream"):
        GatewayConfig(upstream_properties=mine.key)
    assert GatewayConfig(listen="0.0.0.0:9292", tls_certificate=mine.certificate, tls_key=mine.key).tls_key
    assert GatewayConfig(listen="0.0.0.0:9292", allow_plaintext=True)


def test_a_certificate_that_cannot_be_used_ends_the_start(mine: CertificateFiles) -> None:
    with pytest.raises(UsageError, match="not a certificate and its key"):
        GatewayServer(FakeLogs(), GatewayConfig(listen="127.0.0.1:0", tls_certificate=mine.key, tls_key=mine.key))
