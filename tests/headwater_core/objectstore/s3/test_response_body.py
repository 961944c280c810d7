import io
import itertools
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from botocore.response import StreamingBody
from urllib3.connection import HTTPConnection
from urllib3.response import HTTPResponse

from headwater_core.errors import CorruptData, TransientError, TruncatedData, UnknownOutcome, UsageError
from headwater_core.objectstore.s3 import S3Store, response_body
from headwater_core.objectstore.s3.response_body import TimedSession
from tests.headwater_core.objectstore.badnetwork import Answer, BadNetwork
from tests.headwater_core.objectstore.contract import put, read
from tests.s3server import S3Server


def test_a_connection_that_ends_in_mid_object_may_be_tried_again(far: S3Store, network: BadNetwork) -> None:
    put(far, "a", bytes(100_000))
    network.plan.append(Answer(cut=70_000))
    with pytest.raises(TransientError):
        read(far, "a", 0, 100_000)
    network.plan.append(Answer(cut=70_000))
    with pytest.raises(TransientError):
        far.get("a")


class _Broken(io.RawIOBase):
    """A connection whose next TLS record is damaged."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        raise ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed or bad record mac")


@pytest.mark.parametrize("use", ["get", "read_into"])
def test_a_damaged_tls_record_may_be_tried_again(use: str, monkeypatch: pytest.MonkeyPatch, s3_environ: S3Server) -> None:
    store = S3Store("bucket", endpoint_url="http://127.0.0.1:9", region="us-east-1", attempts=1)

    def answer(**_: object) -> dict[str, object]:
        body = HTTPResponse(body=io.BufferedReader(_Broken()), preload_content=False, headers={"content-length": "100"})
        return {"Body": StreamingBody(body, 100), "ContentLength": 100, "ContentRange": "bytes 0-99/100", "ETag": '"x"'}  # type: ignore[arg-type]

    monkeypatch.setattr(store._s3, "get_object", answer)
    with pytest.raises(TransientError, match="record mac"):
        store.get("a") if use == "get" else store.read_into("a", memoryview(bytearray(100)), start=0)


def test_reads_one_after_the_other_share_a_connection(store: S3Store) -> None:
    store.put("a", io.BytesIO(bytes(1 << 20)), size_bytes=1 << 20)
    connections: Counter[int] = Counter()
    connect = HTTPConnection.connect

    def counted(self: HTTPConnection) -> None:
        connections.update([1])
        connect(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HTTPConnection, "connect", counted)
        for _ in range(20):
            read(store, "a", 1000, 500_000)
            for _ in store.stream_into("a", [memoryview(bytearray(1000)) for _ in range(3)], start=5):
                pass
    assert connections.total() <= 1


class Trickle(BaseHTTPRequestHandler):
    """Every object is 100,000 bytes long; a byte of it comes every 20 ms."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(206)
        self.send_header("Content-Length", "100000")
        self.send_header("Content-Range", "bytes 0-99999/100000")
        self.end_headers()
        pause = threading.Event()
        with suppress(OSError):
            while True:
                self.wfile.write(b"x")
                self.wfile.flush()
                pause.wait(0.02)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_body_that_trickles_ends_in_time(s3_environ: S3Server) -> None:
    """Each of its bytes comes well within the time-out of a read."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Trickle) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        store = S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.server_port}", transfer_timeout_s=0.2, attempts=1)
        try:
            with closing(store), pytest.raises(TransientError, match="too slowly"):
                store.read_into("a", memoryview(bytearray(100_000)), start=0)
        finally:
            server.shutdown()
            thread.join()


_DOCUMENT = b"0123456789"
_LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


@contextmanager
def answering(head: bytes, body: bytes) -> Iterator[str]:
    """A server that gives each connection this answer, and closes it; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(b"HTTP/1.1 " + head + b'\r\nETag: "a"\r\nConnection: close\r\n\r\n' + body)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)


def in_chunks(content: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (content[:4], content[4:], b""))


@pytest.mark.parametrize("use", ["get", "list", "error", "delete"])
def test_an_answer_that_comes_too_slowly_ends(use: str, no_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a quarter of an hour after the one before."""
    times_s = itertools.count(0, 900)
    monkeypatch.setattr(response_body, "monotonic", lambda: float(next(times_s)))
    body = b"<Error><Code>SlowDown</Code></Error>" if use in ("error", "delete") else _LISTING
    status = b"503 Slow Down" if use in ("error", "delete") else b"200 OK"
    with (
        answering(b"%s\r\nContent-Length: %d" % (status, len(body)), body) as endpoint_url,
        closing(S3Store("b", endpoint_url=endpoint_url, region="r", attempts=1)) as store,
        pytest.raises(TransientError, match="too slowly") as failure,
    ):
        list(store.list("")) if use == "list" else store.delete("a") if use == "delete" else store.get("a")
    assert isinstance(failure.value, UnknownOutcome) is (use == "delete")


def test_a_completion_may_take_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon answers at once, and sends blanks until the object is there."""
    times_s = itertools.count(0, 250)
    monkeypatch.setattr(response_body, "monotonic", lambda: float(next(times_s)))
    coming = iter([b" ", b"<CompleteMultipartUploadResult/>", b""])
    raw = SimpleNamespace(read1=lambda _: next(coming), release_conn=lambda: None, close=lambda: None)
    inner = SimpleNamespace(send=lambda _: SimpleNamespace(raw=raw, status_code=200))
    answer = TimedSession(inner, 60.0).send(SimpleNamespace(stream_output=False, method="POST"))
    assert answer._content == b" <CompleteMultipartUploadResult/>"


def test_an_answer_in_chunks_needs_no_announced_length(no_server: None) -> None:
    with (
        answering(b"200 OK\r\nTransfer-Encoding: chunked", in_chunks(_DOCUMENT)) as endpoint_url,
        closing(S3Store("b", endpoint_url=endpoint_url, region="r", attempts=1)) as store,
    ):
        assert store.get("a") == (_DOCUMENT, "a")
        with pytest.raises(CorruptData, match="more than 5"):
            store.get("a", max_bytes=5)
        with pytest.raises(UsageError, match="ranged"):
            read(store, "a", 2, 3)
    head = b"206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 5-14/20"
    with (
        answering(head, in_chunks(_DOCUMENT)) as endpoint_url,
        closing(S3Store("b", endpoint_url=endpoint_url, region="r", attempts=1)) as store,
    ):
        assert read(store, "a", 5, 10) == _DOCUMENT
        with pytest.raises(TruncatedData):
            read(store, "a", 5, 11)


def test_chunks_that_end_early_are_no_document(no_server: None) -> None:
    with (
        answering(b"200 OK\r\nTransfer-Encoding: chunked", in_chunks(_DOCUMENT)[:-5]) as endpoint_url,
        closing(S3Store("b", endpoint_url=endpoint_url, region="r", attempts=1)) as store,
        pytest.raises(TransientError),
    ):
        store.get("a")


def test_an_answer_that_says_no_length_at_all_is_no_document(no_server: None) -> None:
    with (
        answering(b"200 OK", _DOCUMENT) as endpoint_url,
        closing(S3Store("b", endpoint_url=endpoint_url, region="r", attempts=1)) as store,
    ):
        with pytest.raises(TransientError, match="where it ends"):
            store.get("a")
        with pytest.raises(UsageError, match="how long"):
            store.stat("a")


def test_documents_and_listings_one_after_the_other_share_a_connection(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("a", b"1")
    connections: Counter[int] = Counter()
    connect = HTTPConnection.connect

    def counted(self: HTTPConnection) -> None:
        connections[0] += 1
        connect(self)

    monkeypatch.setattr(HTTPConnection, "connect", counted)
    for _ in range(3):
        store.get("a")
        assert [info.key for info in store.list("")] == ["a"]
        store.stat("a")
    assert connections[0] <= 1
