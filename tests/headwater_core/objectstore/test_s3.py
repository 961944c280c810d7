import io
import os
import random
import ssl
import subprocess
import sys
import threading
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.response import StreamingBody
from urllib3.connection import HTTPConnection
from urllib3.response import HTTPResponse

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    HeadwaterError,
    NotFound,
    SourceChanged,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, LOSE_REQUEST, PASS, Answer, BadNetwork, bad_network, error
from tests.headwater_core.objectstore.contract import ObjectStoreContract, put, read
from tests.s3server import S3Server

PART = 5 << 20  # the smallest S3 takes


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """One for all tests, as a new one takes the server a while; prefixes keep them apart."""
    return s3_server.bucket()


@pytest.fixture
def place() -> str:
    return f"archives/{uuid.uuid4().hex}"


class TestS3Store(ObjectStoreContract):
    races = 2  # SeaweedFS lets the losers wait for a second

    @pytest.fixture
    def store(self, bucket: str, place: str, s3_environ: S3Server) -> Iterator[ObjectStore]:
        with closing(S3Store(bucket, place, endpoint_url=s3_environ.endpoint_url)) as store:
            yield store


@pytest.fixture
def store(bucket: str, place: str, s3_environ: S3Server) -> Iterator[S3Store]:
    """One that uses parts as soon as it may."""
    with closing(S3Store(bucket, place, endpoint_url=s3_environ.endpoint_url, single_put_bytes_max=PART, part_bytes=PART)) as store:
        yield store


@pytest.fixture
def network(s3_environ: S3Server) -> Iterator[BadNetwork]:
    with bad_network(s3_environ.endpoint_url) as network:
        yield network


@pytest.fixture
def far(bucket: str, place: str, network: BadNetwork) -> Iterator[S3Store]:
    """A store on the other side of a bad network, that does not try again by itself."""
    with closing(
        S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=1, single_put_bytes_max=PART, part_bytes=PART)
    ) as store:
        yield store


def some_bytes(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def unfinished_uploads(server: S3Server, bucket: str, place: str) -> int:
    with closing(server.client()) as client:
        return len(client.list_multipart_uploads(Bucket=bucket, Prefix=place).get("Uploads", []))


# Prefixes


def test_a_prefix_keeps_archives_apart(store: S3Store, bucket: str, place: str, s3_environ: S3Server) -> None:
    put(store, "a/b", b"1")
    with closing(S3Store(bucket, endpoint_url=s3_environ.endpoint_url)) as whole:
        put(whole, f"{place}-2/a", b"2")
        assert {info.key for info in whole.list(place)} == {f"{place}-2/a", f"{place}/a/b"}
    assert [info.key for info in store.list("")] == ["a/b"]
    assert [info.key for info in store.list("a", start_after="a/a")] == ["a/b"]


def test_somebody_else_s_keys_are_not_listed(store: S3Store, bucket: str, place: str, s3_environ: S3Server) -> None:
    put(store, "a", b"1")
    with closing(s3_environ.client()) as client:
        client.put_object(Bucket=bucket, Key=f"{place}/odd name", Body=b"")
    assert [info.key for info in store.list("")] == ["a"]


def test_a_listing_longer_than_a_page(store: S3Store) -> None:
    keys = [f"k/{number:04}" for number in range(1010)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.create(key, b""), keys))
    assert [info.key for info in store.list("k/")] == keys
    assert [info.key for info in store.list("k/", start_after="k/1004")] == keys[1005:]


# Objects in parts


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_large_object_goes_in_parts(store: S3Store, bucket: str, place: str, s3_environ: S3Server, tmp_path: Path, kind: str) -> None:
    content = some_bytes(3 * PART + 12345)
    (tmp_path / "segment").write_bytes(b"before" + content + b"behind")
    with (tmp_path / "segment").open("rb") if kind == "file" else io.BytesIO(b"before" + content) as source:
        source.seek(6)
        assert store.put("large", source, size_bytes=len(content)) == digest_of(content)
    info = store.stat("large")
    assert (info.size_bytes, info.digest) == (len(content), digest_of(content))
    assert info.tag.endswith("-4")
    assert read(store, "large", 0, len(content)) == content
    assert read(store, "large", PART - 3, 6) == content[PART - 3 : PART + 3]
    assert unfinished_uploads(s3_environ, bucket, place) == 0


def test_an_upload_in_parts_does_not_overwrite(store: S3Store, bucket: str, place: str, s3_environ: S3Server) -> None:
    """One after the other: of completions at the very same moment SeaweedFS 4.48 lets several win (Amazon one)."""
    content = some_bytes(PART + 1)
    put(store, "large", content)
    with pytest.raises(AlreadyExists):
        put(store, "large", bytes(PART + 1))
    assert store.stat("large").digest == digest_of(content)
    assert unfinished_uploads(s3_environ, bucket, place) == 0


def test_a_source_that_ends_in_a_later_part_creates_nothing(
    store: S3Store, bucket: str, place: str, s3_environ: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "short").write_bytes(bytes(2 * PART + 10))
    with (tmp_path / "short").open("rb") as source, pytest.raises(SourceChanged):
        store.put("large", source, size_bytes=3 * PART)
    with pytest.raises(NotFound):
        store.stat("large")
    assert unfinished_uploads(s3_environ, bucket, place) == 0


def before_the_second_pass(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Do `change` when a source is read for the second time, which is when it is sent."""
    original = os.preadv
    passes = 0

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        nonlocal passes
        passes += position == 0
        if passes == 2:
            change()
        return original(fd, buffers, position)

    patch.setattr(os, "preadv", preadv)


def test_a_source_that_changes_while_it_is_sent_is_noticed(far: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    before_the_second_pass(monkeypatch, lambda: path.write_bytes(b"x" * (1 << 20)))
    with path.open("rb") as source, pytest.raises(SourceChanged):
        far.put("a", source, size_bytes=1 << 20)
    with pytest.raises(NotFound):
        far.stat("a")


def test_a_source_cut_while_it_is_sent_is_noticed_at_once(far: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    before_the_second_pass(monkeypatch, lambda: os.truncate(path, 1000))
    with path.open("rb") as source, pytest.raises(SourceChanged):
        far.put("a", source, size_bytes=1 << 20)


@pytest.mark.parametrize("which", [1, 2, 4])  # a part, another one, the completion
def test_an_upload_in_parts_that_fails_leaves_no_parts(
    far: S3Store, network: BadNetwork, bucket: str, place: str, s3_environ: S3Server, which: int
) -> None:
    network.plan.extend([PASS] * which + [error(503, "SlowDown")])
    with pytest.raises(TransientError):
        put(far, "large", bytes(3 * PART))
    with pytest.raises(NotFound):
        far.stat("large")
    assert unfinished_uploads(s3_environ, bucket, place) == 0


def test_a_completion_whose_reply_is_lost_is_unknown_and_done(far: S3Store, network: BadNetwork) -> None:
    content = some_bytes(PART + 1)
    network.plan.extend([PASS] * 3 + [LOSE_REPLY])
    with pytest.raises(UnknownOutcome):
        put(far, "large", content)
    assert far.stat("large").digest == digest_of(content)


# Answers that are no answers


def replace_doc(store: ObjectStore) -> object:
    return store.replace("doc", b"2", expected_tag=store.get("doc")[1])


WRITES: list[Callable[[ObjectStore], object]] = [
    lambda store: put(store, "new", b"1"),
    lambda store: store.create("new", b"1"),
    replace_doc,
    lambda store: store.delete("doc"),
]
READS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.get("doc"),
    lambda store: store.stat("doc"),
    lambda store: read(store, "doc", 0, 1),
    lambda store: list(store.list("")),
]


UNANSWERED = [
    LOSE_REQUEST,
    LOSE_REPLY,
    error(500, "InternalError"),
    error(503, "SlowDown"),
    error(503, ""),
    error(429, "X"),
    error(408, ""),
]


@pytest.mark.parametrize("answer", UNANSWERED)
def test_a_write_without_a_definite_answer_has_an_unknown_outcome(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    for write in WRITES:
        far.delete("new")
        far.delete("doc")
        far.create("doc", b"1")
        network.plan.extend([PASS, answer] if write is replace_doc else [answer])
        with pytest.raises(UnknownOutcome):
            write(far)


@pytest.mark.parametrize("answer", UNANSWERED)
def test_a_read_without_an_answer_may_be_tried_again(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    far.create("doc", b"1")
    for use in READS:
        network.plan.append(answer)
        with pytest.raises(TransientError):
            use(far)
        use(far)


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (403, "SignatureDoesNotMatch"), (403, "")])
def test_refused_credentials_are_no_absence(far: S3Store, network: BadNetwork, status: int, code: str) -> None:
    for use in [*READS, *WRITES[:2]]:
        network.plan.append(error(status, code))
        with pytest.raises(Unauthorised):
            use(far)


@pytest.mark.parametrize("code", ["", "PageNotFound"])
def test_a_404_of_something_that_is_no_object_store_is_no_absence(far: S3Store, network: BadNetwork, code: str) -> None:
    for use in READS:
        network.plan.extend([error(404, code)] * 2)
        with pytest.raises(UsageError):
            use(far)
        network.plan.clear()


def test_a_create_that_refuses_its_own_success_already_exists(bucket: str, place: str, network: BadNetwork) -> None:
    with closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store:
        network.plan.append(LOSE_REPLY)
        with pytest.raises(AlreadyExists):
            put(store, "a", b"mine")
        assert store.stat("a").digest == digest_of(b"mine")


def test_a_replacement_that_refuses_its_own_success_conflicts(bucket: str, place: str, network: BadNetwork) -> None:
    with closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store:
        tag = store.create("doc", b"1")
        network.plan.append(LOSE_REPLY)
        with pytest.raises(Conflict):
            store.replace("doc", b"2", expected_tag=tag)
        assert store.get("doc")[0] == b"2"


@pytest.mark.parametrize("answer", [error(409, "ConditionalRequestConflict"), error(409, "OperationAborted")])
def test_two_conditional_writes_at_once_leave_the_outcome_open(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    network.plan.append(answer)
    with pytest.raises(UnknownOutcome):
        far.create("a", b"")
    network.plan.append(answer)
    with pytest.raises(UnknownOutcome):
        far.replace("a", b"", expected_tag="0")


def test_a_replacement_of_what_amazon_says_is_not_there_conflicts(far: S3Store, network: BadNetwork) -> None:
    network.plan.append(error(404, "NoSuchKey"))
    with pytest.raises(Conflict):
        far.replace("a", b"", expected_tag="0")


def test_bytes_damaged_on_their_way_are_refused(far: S3Store, network: BadNetwork) -> None:
    for write in WRITES[:2]:
        network.plan.append(Answer(flip=True))
        with pytest.raises(TransientError):
            write(far)
        with pytest.raises(NotFound):
            far.stat("new")


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


def test_a_lost_request_is_sent_again(bucket: str, place: str, network: BadNetwork, tmp_path: Path) -> None:
    content = some_bytes(700_000)
    (tmp_path / "segment").write_bytes(content)
    with (
        closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store,
        (tmp_path / "segment").open("rb") as source,
    ):
        network.plan.append(LOSE_REQUEST)
        assert store.put("a", source, size_bytes=len(content)) == digest_of(content)
        assert store.get("a")[0] == content


# Places and credentials


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


def test_damage_that_the_store_did_not_notice_is_noticed_on_reading(far: S3Store, network: BadNetwork) -> None:
    far.create("doc", b"1234")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater_core.objectstore.s3.digest_of", lambda _: "crc64nvme:0000000000000000")
        with pytest.raises(CorruptData):
            far.get("doc")


# Memory


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


class Zeros(io.BytesIO):
    """A stream, and so one that cannot be read twice."""

    def read(self, size: int | None = -1) -> bytes:
        return bytes(size or 0)


@pytest.mark.slow
def test_a_long_stream_goes_up_in_bounded_memory(store: S3Store) -> None:
    tracemalloc.start()
    store.put("stream", Zeros(), size_bytes=300 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


_UPLOAD = """
import pathlib, sys
from headwater_core.objectstore.s3 import S3Store
store = S3Store(sys.argv[1], endpoint_url=sys.argv[2])
size = int(sys.argv[4])
with open(sys.argv[3], "rb") as source:
    digest = store.put("segment", source, size_bytes=size)
window = memoryview(bytearray(4 << 20))
for start in range(0, 64 << 20, 4 << 20):
    store.read_into("segment", window, start=start)
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would remember the process that started this one
peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
print(digest, int(peak.split()[1]) // 1024)
"""


@pytest.mark.slow
def test_kafka_s_largest_segment_goes_up_in_bounded_memory(s3_environ: S3Server, bucket: str, tmp_path: Path) -> None:
    size = (1 << 31) - 1
    with (tmp_path / "segment").open("wb") as file:
        file.truncate(size)
    command = [sys.executable, "-c", _UPLOAD, bucket, s3_environ.endpoint_url, str(tmp_path / "segment"), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    digest, peak_mib = done.stdout.split()
    with closing(S3Store(bucket, endpoint_url=s3_environ.endpoint_url)) as store:
        info = store.stat("segment")
    assert (info.size_bytes, info.digest) == (size, digest)
    assert int(peak_mib) < 150


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
