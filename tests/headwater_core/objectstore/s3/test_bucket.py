"""Places and credentials."""

import contextlib
import socket
import ssl
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.errors import (
    HeadwaterError,
    NotFound,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
from headwater_core.files import replace_file
from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.objectstore.badnetwork import Answer, BadNetwork
from tests.headwater_core.objectstore.s3.calls import READS, WRITES
from tests.s3server import S3Server


def test_a_bucket_that_is_not_there_does_not_look_like_an_empty_archive(s3_environ: S3Server) -> None:
    with closing(S3Store("no-such-bucket", endpoint_url=s3_environ.endpoint_url)) as store:
        for use in READS:
            with pytest.raises(UsageError, match="bucket"):
                use(store)


def test_wrong_credentials_are_unauthorised(s3_environ: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-key")
    with closing(S3Store(bucket, endpoint_url=s3_environ.endpoint_url)) as store:
        for use in [*READS, *WRITES[:2]]:
            with pytest.raises(Unauthorised) as refusal:
                use(store)
            assert "wrong-key" not in str(refusal.value)


def test_no_credentials_are_unauthorised(s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with closing(S3Store("bucket", endpoint_url=s3_environ.endpoint_url)) as store, pytest.raises(Unauthorised):
        store.get("a")


@pytest.mark.parametrize("received", [0.0, 0.01, 0.5, 0.99])
def test_an_answer_that_ends_early_says_nothing(far: S3Store, network: BadNetwork, received: float) -> None:
    far.create("doc", b"1")
    for use in (lambda: far.get("absent"), lambda: list(far.list("")), lambda: far.read_into("absent", memoryview(bytearray(1)), start=0)):
        network.plan.append(Answer(received=received))
        with pytest.raises(TransientError):
            use()
    network.plan.append(Answer(received=received))
    with pytest.raises(UnknownOutcome):
        far.create("doc", b"2")


def test_a_listing_of_no_announced_length_and_no_bytes_is_none(s3_environ: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        endpoint_url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with closing(S3Store("bucket", endpoint_url=endpoint_url, attempts=1)) as store, pytest.raises(TransientError):
            list(store.list(""))
        answering.join()


def test_an_answer_that_ends_early_is_asked_for_again(bucket: str, place: str, network: BadNetwork) -> None:
    with closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store:
        store.create("doc", b"1")
        network.plan.append(Answer(received=0.5))
        assert [info.key for info in store.list("")] == ["doc"]
        network.plan.append(Answer(received=0.5))
        with pytest.raises(NotFound):
            store.get("absent")
    assert len(network.requests) == 5


def a_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """One that signs itself, and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={name} -keyout {key} -out {certificate}"
    subprocess.run([*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


def test_an_authority_that_changes_in_the_bundle_is_trusted_by_the_next_connection(
    s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Urllib3 reads the bundle for each connection."""
    old, new = a_certificate(tmp_path, "old"), a_certificate(tmp_path, "new")
    bundle, shown = tmp_path / "bundle.pem", [old]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    bundle.write_bytes(old[0].read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(3):
                raw, _ = server.accept()
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*shown[0])
                with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as connection:
                    connection.recv(1 << 16)
                    connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "a"\r\nConnection: close\r\nContent-Length: 1\r\n\r\n1')

        answering = threading.Thread(target=answer)
        answering.start()
        with closing(S3Store("b", endpoint_url=f"https://127.0.0.1:{server.getsockname()[1]}", attempts=1)) as store:
            assert store.get("a")[0] == b"1"
            shown[0] = new
            with pytest.raises(TransientError, match="certificate verify failed"):
                store.get("a")
            replace_file(bundle, new[0].read_bytes())
            assert store.get("a")[0] == b"1"
        answering.join()


@pytest.mark.parametrize("endpoint_url", ["127.0.0.1:80", "http://user:secret@127.0.0.1:1", "http://[::1", ""])
def test_an_endpoint_that_is_none_is_refused(endpoint_url: str) -> None:
    with pytest.raises(UsageError) as refusal:
        S3Store("bucket", endpoint_url=endpoint_url)
    assert "secret" not in str(refusal.value)


def test_a_server_that_is_not_there_may_come_back() -> None:
    with (
        closing(S3Store("bucket", endpoint_url="http://127.0.0.1:1", region="r", attempts=1)) as store,
        pytest.raises(HeadwaterError) as refusal,
    ):
        store.create("a", b"")
    assert isinstance(refusal.value, (UnknownOutcome, Unauthorised))
