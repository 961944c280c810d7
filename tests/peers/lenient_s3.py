"""An S3 server that takes parts of any size (LenientS3.java), where the tests' other one enforces the 5 MiB of Amazon's."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.peers.java_client import jars_of, with_compiled
from tests.s3server import S3Server

_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g")  # its objects are in there
_REGION = "us-east-1"


@contextmanager
def running_lenient_s3() -> Iterator[S3Server]:
    """One, until the block ends."""
    secret = uuid.uuid4().hex
    command = ["java", *_JVM, "-cp", with_compiled("LenientS3", jars_of("s3proxy.xml")), "LenientS3", "test", secret]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout
        port = process.stdout.readline().strip()
        assert port, "S3Proxy did not start"
        yield S3Server(f"http://127.0.0.1:{port}", "test", secret, _REGION, process.pid)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def lenient_s3() -> Iterator[S3Server]:
    with running_lenient_s3() as server:
        yield server


@pytest.fixture
def lenient_environ(lenient_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its credentials in this process's environment for the time of one test."""
    set_credentials(lenient_s3, monkeypatch)
    return lenient_s3


def set_credentials(server: S3Server, patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        patch.delenv(name, raising=False)
    for name, value in server.environ().items():
        patch.setenv(name, value)
