"""What everything is measured against: an S3 server, versitygw where Go can build it (cheapest per byte), else SeaweedFS; and a
real Kafka broker, where there are Java and Maven."""

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import recovery
from bench.logs import BenchLog
from headwater_core.objectstore.store import ObjectStore
from manifests.repository import ManifestRepository
from tests.peers.kafka import KafkaBroker
from tests.s3server import S3Server, free_ports, running_s3_server

_BIN = Path(__file__).parent / ".bin"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@latest"
_READY_WITHIN_S = 20.0


@contextlib.contextmanager
def running_server(directory: Path) -> Iterator[tuple[str, S3Server]]:
    """Its name, and where it listens."""
    binary = _versitygw()
    if binary is None:
        with running_s3_server(directory) as server:
            yield "SeaweedFS", server
        return
    (port,) = free_ports(1)
    secret = uuid.uuid4().hex
    data = directory / "versitygw"
    data.mkdir(parents=True)
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "--health", "/health", "posix", str(data)]
    environ = {**os.environ, "ROOT_ACCESS_KEY": "bench", "ROOT_SECRET_KEY": secret}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = S3Server(f"http://127.0.0.1:{port}", "bench", secret, "us-east-1", process.pid)
        _wait_until_ready(server, process)
        yield "versitygw", server
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def running_broker(work: Path, store: ObjectStore, log: BenchLog) -> Iterator[str]:
    """A Kafka broker over `log` as it is recovered from the archive; its bootstrap address."""
    counts = {log.topic: log.partitions}  # there is no metadata log beside the log that could have said so
    recovery.apply(recovery.plan(ManifestRepository(store), None, recovery.Options(partition_counts=counts)), work / "kafka", store)
    with KafkaBroker(work / "kafka", work / "broker", compaction=False, fast=True) as broker:
        yield broker.bootstrap


def can_run_broker() -> bool:
    return bool(shutil.which("java") and shutil.which("mvn"))


def _versitygw() -> Path | None:
    binary = _BIN / "versitygw"
    go = shutil.which("go")
    if not binary.exists() and go is not None:
        print("building versitygw with Go (once, a minute or two)", flush=True)
        _BIN.mkdir(exist_ok=True)
        built = subprocess.run([go, "install", _VERSITYGW], env={**os.environ, "GOBIN": str(_BIN)}, capture_output=True)
        if built.returncode:
            print("versitygw cannot be built here; SeaweedFS it is")
    return binary if binary.exists() else None


def _wait_until_ready(server: S3Server, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    with contextlib.closing(server.client()) as client:
        while process.poll() is None and time.monotonic() < deadline_s:
            try:
                client.list_buckets()
                return
            except Exception:
                time.sleep(0.1)
    raise RuntimeError("versitygw did not start")
