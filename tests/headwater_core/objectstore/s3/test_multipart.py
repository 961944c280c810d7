import io
import subprocess
import sys
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.errors import (
    AlreadyExists,
    NotFound,
    SourceChanged,
    TransientError,
    UnknownOutcome,
)
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, PASS, BadNetwork, error
from tests.headwater_core.objectstore.contract import check_that_a_pace_ends_a_put, put, read
from tests.headwater_core.objectstore.s3.calls import PART, some_bytes
from tests.s3server import S3Server


def unfinished_uploads(server: S3Server, bucket: str, place: str) -> int:
    with closing(server.client()) as client:
        return len(client.list_multipart_uploads(Bucket=bucket, Prefix=place).get("Uploads", []))


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


def test_an_upload_whose_process_was_killed_is_found_below_its_prefix_and_aborted(
    store: S3Store, bucket: str, place: str, s3_environ: S3Server
) -> None:
    with closing(s3_environ.client()) as client:
        for key in (f"{place}/data/a.log", f"{place}/other/b", f"{place}x/data/c.log", f"{place}/data/no key"):
            upload = client.create_multipart_upload(Bucket=bucket, Key=key)
            client.upload_part(Bucket=bucket, Key=key, UploadId=upload["UploadId"], PartNumber=1, Body=some_bytes(PART))
    [found] = store.unfinished("data/")
    assert found.key == "data/a.log"
    assert abs(time.time() * 1000 - found.begun_ms) < 60_000
    assert sorted(each.key for each in store.unfinished("")) == ["data/a.log", "other/b"]
    for _ in range(2):
        store.abort(found)
    assert list(store.unfinished("data/")) == []
    assert unfinished_uploads(s3_environ, bucket, place) == 3


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


@pytest.mark.long
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


def test_a_pace_ends_an_upload_in_parts_and_none_of_them_stays(
    store: S3Store, bucket: str, place: str, s3_environ: S3Server, tmp_path: Path
) -> None:
    check_that_a_pace_ends_a_put(store, tmp_path / "large", 3 * PART)
    assert unfinished_uploads(s3_environ, bucket, place) == 0
