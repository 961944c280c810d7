import io
import ssl
import threading
from collections import Counter
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.response import StreamingBody
from urllib3.connection import HTTPConnection
from urllib3.response import HTTPResponse

from headwater_core.errors import (
    TransientError,
)
from headwater_core.objectstore.s3 import S3Store
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
