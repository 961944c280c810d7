"""What goes wrong outside is one clear line, the right exit code, and nothing lost."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from structlog.testing import capture_logs

from headwater import wiring
from headwater.config import load
from headwater.session import open_session
from headwater_core.control.lock import DataDirLock
from headwater_core.errors import AlreadyExists, TransientError, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectStore
from tests.headwater.conftest import Stage
from tests.s3server import S3Server

NOBODY = 65534
VERBS_ON_A_LOG = (["archive"], ["flush"], ["status"], ["agent"])


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user who may not read what this one has made, where this one is root; else as we are."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("verb", VERBS_ON_A_LOG)
def test_a_missing_log_directory(stage: Stage, verb: list[str]) -> None:
    ran = stage.run(*verb, log=stage.root / "absent")
    assert (ran.code, ran.out) == (2, "")
    assert "absent does not exist" in ran.err


@pytest.mark.parametrize("verb", VERBS_ON_A_LOG)
def test_a_directory_that_is_no_log_directory(stage: Stage, verb: list[str]) -> None:
    (stage.root / "empty").mkdir()
    ran = stage.run(*verb, log=stage.root / "empty")
    assert ran.code == 2
    assert "no Kafka log directory" in ran.err


def test_an_unreadable_log_directory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("kitchen")
    monkeypatch.chdir("/")
    log.chmod(0)
    try:
        with without_rights():
            ran = stage.run("status", log=log)
    finally:
        log.chmod(0o755)
    assert ran.code == 8
    assert str(log) in ran.err


def test_an_unreadable_partition_does_not_stop_the_others(stage: Stage) -> None:
    log = stage.log("kitchen")
    (next(log.glob("orders.in-0")) / "partition.metadata").write_bytes(b"version: 0\ntopic_id: nonsense\n")
    ran = stage.run("flush", "-o", "jsonl", log=log)
    assert ran.code == 3
    failed = [row for row in ran.rows if row["error"]]
    assert [(row["topic"], row["partition"]) for row in failed] == [("orders.in", 0)]
    assert sum(row["objects"] for row in ran.rows) > 5


def test_no_log_directory_at_all(stage: Stage) -> None:
    ran = stage.run("archive")
    assert ran.code == 2
    assert "--log-dir" in ran.err


def test_a_corrupt_segment_is_not_uploaded_and_not_released(stage: Stage) -> None:
    log = stage.log("kitchen")
    segment = max(log.glob("orders.in-0/*.log"), key=lambda path: path.stat().st_size)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    segment.write_bytes(damaged)
    ran = stage.run("flush", "orders.in:0", "--set", "log.owned=true", log=log)
    assert ran.code == 4
    assert segment.name in ran.err
    assert segment.read_bytes() == bytes(damaged)


@pytest.mark.parametrize("store", ["ftp://host/x", "s3:///prefix", "file://relative", "file:///", "not a url"])
def test_an_impossible_store(stage: Stage, store: str) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", "--store", store, log=log).code == 2


def test_an_archive_that_is_not_there_is_not_an_empty_one(stage: Stage) -> None:
    for verb in (["verify"], ["topics", "list"], ["recover", "plan", "topic", "--all"], ["read", "orders.in"]):
        ran = stage.run(*verb)
        assert ran.code == 2, verb
        assert "no such directory" in ran.err
    assert not stage.bucket.exists()


def test_a_bucket_of_another_cluster(stage: Stage) -> None:
    assert stage.run("archive", log=stage.log("kitchen")).code == 0
    before = {path: path.read_bytes() for path in stage.bucket.rglob("*") if path.is_file()}
    ran = stage.run("flush", "--data-dir", str(stage.root / "other"), log=stage.log("pantry"))
    assert ran.code == 7
    assert "is the archive of cluster" in ran.err
    assert {path: path.read_bytes() for path in stage.bucket.rglob("*") if path.is_file()} == before


def test_two_on_one_data_directory(stage: Stage) -> None:
    log = stage.log("kitchen")
    with DataDirLock(stage.data_dir):
        for verb in (["archive"], ["flush"], ["agent"]):
            ran = stage.run(*verb, log=log)
            assert ran.code == 7, verb
            assert f"in use by process {os.getpid()}" in ran.err
    assert stage.run("archive", log=log).code == 0


def test_a_data_directory_that_cannot_be_made(stage: Stage) -> None:
    (stage.root / "file").write_text("")
    ran = stage.run("archive", "--data-dir", str(stage.root / "file" / "state"), log=stage.log("kitchen"))
    assert ran.code == 2
    assert "data directory" in ran.err


class Forgetful(DirectoryStore):
    """Overwrites whatever it is told to, as stores without conditional writes do."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root)

    def create(self, key: str, document: bytes) -> str:
        self.delete(key)
        return super().create(key, document)

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        self.delete(key)
        return super().put(key, data, size_bytes=size_bytes, form=form)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self.create(key, document)


@pytest.fixture
def forgetful(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_store(url: str, **_: object) -> ObjectStore:
        return Forgetful(stage.bucket)

    monkeypatch.setattr(wiring, "open_store", open_store)


@pytest.mark.usefixtures("forgetful")
def test_a_store_without_conditional_writes_is_for_a_single_agent(stage: Stage) -> None:
    log = stage.log("kitchen")
    ran = stage.run("archive", log=log)
    assert ran.code == 2
    assert "conditional writes" in ran.err
    assert not list(stage.bucket.rglob("*.log"))
    config = load(None, {}, {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(log)]})
    with pytest.raises(UsageError, match="conditional"), open_session(config, patient=True):
        pass
    alone = stage.run("archive", "--set", "node.only_agent=true", log=log)
    assert alone.code == 0
    assert "warning" in alone.err
    assert stage.run("archive", log=log).code == 2
    with capture_logs() as events, open_session(config, patient=True) as session:  # an agent that was sound goes on
        [event] = [event for event in events if event["event"] == "store_unavailable"]
        assert "conditional writes" in event["reason"]
        with pytest.raises(TransientError, match="conditional writes"):
            session.pauses.refresh()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("setting", ['[archival]\nlayout = "chunks"', '[topics."kitchen*"]\nlayout = "chunks"\nchunk_variant = "fixed"'])
def test_a_store_without_conditional_writes_gets_no_chunks(stage: Stage, setting: str) -> None:
    file = stage.root / "chunks.toml"
    file.write_text(f"[node]\nonly_agent = true\n{setting}\n")
    ran = stage.run("--config", str(file), "archive", log=stage.log("kitchen"))
    assert ran.code == 2, ran.err
    assert 'leave layout = "chunks" out' in ran.err
    assert not (stage.bucket / "chunks").exists()


@pytest.mark.usefixtures("stage")
def test_the_forgetful_store_is_one(tmp_path: Path) -> None:
    Forgetful(tmp_path / "a").create("x", b"1")
    with pytest.raises(AlreadyExists):
        DirectoryStore(tmp_path / "a").create("x", b"2")
    Forgetful(tmp_path / "a").create("x", b"2")


def test_a_bucket_that_is_not_there(stage: Stage, s3_environ: S3Server) -> None:
    log = stage.log("kitchen")
    there = ["--endpoint-url", s3_environ.endpoint_url]
    for verb in (["status"], ["verify"], ["topics", "list"]):  # SeaweedFS makes a bucket for whoever writes
        ran = stage.run(*verb, *there, "--store", "s3://no-such-bucket-anywhere/x", log=log)
        assert ran.code == 2, (verb, ran.err)
        assert "no-such-bucket-anywhere" in ran.err


def test_wrong_credentials(stage: Stage, s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3_environ.bucket()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-key")
    there = ["--endpoint-url", s3_environ.endpoint_url, "--store", f"s3://{bucket}/x"]
    for verb in (["archive"], ["verify"], ["recover", "plan", "topic", "--all"]):
        ran = stage.run(*verb, *there, log=stage.root / "kitchen" if (stage.root / "kitchen").exists() else stage.log("kitchen"))
        assert ran.code == 8, (verb, ran.err)
        assert "not-the-key" not in ran.err


def test_nobody_answers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ran = stage.run("verify", "--endpoint-url", "http://127.0.0.1:9", "--store", "s3://bucket/x")
    assert ran.code == 5, ran.err


def test_everything_in_a_bucket_of_s3(stage: Stage, s3_environ: S3Server) -> None:
    log = stage.log("kitchen")
    there = ["--endpoint-url", s3_environ.endpoint_url, "--store", f"s3://{s3_environ.bucket()}/a/prefix"]
    assert stage.run("flush", *there, log=log).code == 0
    assert stage.run("verify", "--data", *there).code == 0
    shutil.rmtree(log)
    shutil.rmtree(stage.data_dir)
    into = stage.root / "recovered"
    assert stage.run("recover", "apply", "topic", "--all", "--into", str(into), *there).code == 0
    assert stage.run("read", "orders.in", "-o", "jsonl", *there).rows


def on_a_full_disk(stage: Stage, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`headwater ARGUMENTS` with a data directory on a file system that has no byte left."""
    stage.data_dir.mkdir(exist_ok=True)
    script = 'mount -t tmpfs -o size=64k none "$0" && { dd if=/dev/zero of="$0/filler" 2>/dev/null; exec "$@"; }'
    program = [sys.executable, "-c", "from headwater.cli import main; main()", *arguments]
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}"]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(stage.data_dir), *program, *places],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def can_mount() -> bool:
    """Where REQUIRE_MOUNT is set, as in .ci/run, the tests that mount must run: a kernel that refuses fails them."""
    if os.environ.get("REQUIRE_MOUNT"):
        return True
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own")
def test_a_full_disk_under_the_data_directory(stage: Stage) -> None:
    log = stage.log("kitchen")
    full = on_a_full_disk(stage, "archive", "--log-dir", str(log))
    assert full.returncode == 5
    assert "Traceback" not in full.stderr
    assert "space" in full.stderr.lower()
    assert stage.run("flush", log=log).code == 0  # nothing was lost, and room is all that was missing
    shutil.rmtree(log)
    read = on_a_full_disk(stage, "read", "orders.in")  # the cache is for speed alone
    assert read.returncode == 0, read.stderr
    assert read.stdout == stage.run("read", "orders.in").out != ""


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("control.peers=foo", "host:port"),
        ("control.peers=10.0.0.2:9291", "password"),
        ("log.dirs=/nonexistent", "does not exist"),
    ],
)
def test_config_check_refuses_what_the_agent_would(stage: Stage, setting: str, words: str) -> None:
    ran = stage.run("config", "check", "--set", setting)
    assert ran.code == 2
    assert words in ran.err
    assert stage.run("config", "check", log=stage.log("kitchen")).code == 0


@pytest.mark.parametrize("url", ["", "gopher://archive", "file://relative/path", "s3://"])
def test_config_check_refuses_a_store_that_nobody_can_open(stage: Stage, url: str) -> None:
    assert stage.run("config", "check", "--store", url).code == 2
    assert stage.run("config", "check").code == 0


@pytest.mark.parametrize("selection", ["recipes.none:²", "recipes.none:٣", "recipes.none:" + "9" * 5000])
def test_a_partition_that_is_no_number(stage: Stage, selection: str) -> None:
    assert stage.run("read", selection).code == 2


@pytest.mark.parametrize("where", ["²", "9" * 19, "9" * 5000])
def test_an_offset_that_is_no_number(stage: Stage, where: str) -> None:
    assert stage.run("flush", "orders.in:0", log=stage.log("kitchen")).code == 0
    assert stage.run("read", "orders.in:0", "--from", where).code == 2


def test_status_shows_the_local_logs_while_the_bucket_cannot_be_reached(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    known = stage.run("status", "-o", "jsonl", log=log).rows

    def unreachable(*_: object, **__: object) -> None:
        raise TransientError("no route to host")

    monkeypatch.setattr(DirectoryStore, "list", unreachable)
    ran = stage.run("status", "-o", "jsonl", log=log)
    assert ran.code == 5
    local = ("topic", "partition", "local_start", "high_watermark")
    assert [[row[name] for name in local] for row in ran.rows] == [[row[name] for name in local] for row in known]
    assert {row["state"] for row in ran.rows} == {"unknown"}
    assert all("no route to host" in row["reason"] for row in ran.rows)
    assert stage.run("status").code == 5


def test_a_reader_that_has_seen_enough_is_no_failure(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("pantry")).code == 0
    command = [sys.executable, "-c", "from headwater.cli import main; main()", "read", "thermo-samples"]
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}"]
    with subprocess.Popen(
        [*command, *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_store_that_takes_connections_and_says_nothing_is_reported_while_a_verb_waits(stage: Stage) -> None:
    """In its own process, whose verb is stopped as soon as it has said so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = "http://{}:{}".format(*silent.getsockname())
        environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "r", "AWS_EC2_METADATA_DISABLED": "true"}
        command = [sys.executable, "-c", "from headwater.cli import main; main()", "topics", "list", "--store", "s3://arch/prod"]
        with subprocess.Popen(
            [*command, "--set", f"store.endpoint_url={endpoint}"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=stage.root,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environ},
        ) as verb:
            assert verb.stderr is not None
            said = verb.stderr.readline()
            verb.kill()
    assert "no answer from s3://arch/prod for 1" in said
