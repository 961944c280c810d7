"""Kill -9 in the middle of a multipart upload to a real S3 server: what is left of it is aborted, and nothing else is touched. An
agent that is stopped leaves none."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater_core.objectstore.s3 import S3Store
from manifests import keys
from tests.archival.builders import PARTITION, Directory
from tests.fixtures import KAFKA
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running
from tests.headwater_core.segments.builders import a_batch
from tests.s3server import S3Server

MIB = 1 << 20
DEADLINE_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A sealed segment that goes in parts."""
    directory = Directory(tmp_path / "log")
    values = [bytes([number]) * MIB for number in range(70)]
    directory.segment(0, *(a_batch(number, [value]) for number, value in enumerate(values)))
    directory.segment(70, a_batch(70, [b"last"]))
    directory.high_watermark(71)
    return directory.root


def test_what_an_agent_has_open_when_it_is_stopped_is_aborted_and_written_again(stage: Stage, tmp_path: Path, s3_environ: S3Server) -> None:
    bucket, directory = s3_environ.bucket(), Directory(tmp_path / "log")
    directory.segment(0, *(a_batch(number, [bytes([number]) * MIB]) for number in range(8)))  # a part, and some more
    directory.high_watermark(8)
    log = directory.root
    options = ["--store", f"s3://{bucket}/archive", "--set", f"store.endpoint_url={s3_environ.endpoint_url}"]
    options += ["--set", "archival.offload=streaming", "--set", "log.owned=true"]
    with closing(s3_environ.client()) as client:

        def unfinished() -> list[Any]:
            return client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])

        def sent_parts() -> list[Any]:
            named = [{"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]} for each in unfinished()]
            return [part for each in named for part in client.list_parts(**each).get("Parts", [])]

        with running(stage, log, *options) as agent:
            until_s = time.monotonic() + DEADLINE_S
            while not sent_parts():
                assert agent.process.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.05)
            assert agent.stop() == 0
            assert "uploads_left_unfinished" not in {each["event"] for each in agent.events}
        assert unfinished() == []
        assert stage.run("archive", *options, log=log).code == 0
        assert unfinished() == []
    [row] = stage.run("topics", "entries", PARTITION.topic, "-o", "jsonl", *options).rows
    assert (row["base_offset"], row["last_offset"], row["layout"]) == (0, 7, "streaming")
    assert stage.run("verify", "--data", *options).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "objects"), [("segment", 2), ("blocks", 1)])
def test_a_multipart_upload_of_a_killed_agent_is_aborted(stage: Stage, log: Path, s3_environ: S3Server, layout: str, objects: int) -> None:
    """In blocks: between the parts of its index and of its two blocks."""
    bucket = s3_environ.bucket()
    with closing(s3_environ.client()) as client:

        def unfinished() -> list[Any]:
            return [each["Key"] for each in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

        foreign = client.create_multipart_upload(Bucket=bucket, Key="another/data/x.log")
        options = ["--store", f"s3://{bucket}/archive", "--endpoint-url", s3_environ.endpoint_url, "--set", f"archival.layout={layout}"]
        command = [sys.executable, "-m", "tests.kill_at", "archive", *options, "--data-dir", str(stage.data_dir), "--log-dir", str(log)]
        command += ["--set", "archival.upload_bytes_per_s=8MiB"]
        process = subprocess.Popen(command, cwd=stage.root, env={**os.environ, "PYTHONPATH": str(KAFKA.parents[2])})
        until_s = time.monotonic() + DEADLINE_S
        while len(unfinished()) < 2:
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(unfinished()) == 2
        assert stage.run("archive", *options, log=log).code == 0
        collect = ("gc", "--yes", "-o", "jsonl", *options)
        early = stage.run(*collect, log=log)
        assert [(row["aborted"], row["error"]) for row in early.rows] == [(0, None)], early.err
        late = stage.run(*collect, "--set", "archival.reader_lease=0s", log=log)
        assert [(row["aborted"], row["error"]) for row in late.rows] == [(1, None)], late.err
        assert unfinished() == ["another/data/x.log"]
        client.abort_multipart_upload(Bucket=bucket, Key="another/data/x.log", UploadId=foreign["UploadId"])
    with closing(S3Store(bucket, "archive", endpoint_url=s3_environ.endpoint_url)) as store:
        assert len(list(store.list(keys.data_prefix(PARTITION)))) == objects
    assert stage.run("verify", "--data", *options).code == 0
