"""Places and credentials."""

import socket
import threading
from contextlib import closing

import pytest

from headwater_core.errors import (
    HeadwaterError,
    NotFound,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
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
