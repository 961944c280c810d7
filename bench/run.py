"""What archiving, cold reads and cached reads reach, beside plain tools on the same files and the same server, in one run.

Plain is: for archiving, boto3's upload_file; for cold reads, ranged GETs of a chunk's size with several in flight; for cached
reads bare sendfile and, where Java and Maven are, a real Kafka broker over the recovered log, both to the same client. What was
read cold lies on the disk alone, not in the page cache: the next read of it is a line of its own. The raw client only asks: the
kernel throws away what it receives. librdkafka's own limit is the Python consumer, 1 to 1.5 CPU s/GB at 1 KB records.
Every number is the median of the rounds, with the least and the most; rounds of the two sides take turns, so that what else
the machine does hits both. Client, gateway and S3 server share the machine's cores: believe ratios and CPU s/GB first.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from uuid import uuid4

import boto3
import psutil  # type: ignore[import-untyped]
import structlog
from botocore.config import Config
from rich.console import Console
from rich.table import Table

from bench.clients import Discarder, Took, read_bare, read_with_librdkafka
from bench.logs import BenchLog, Shape, make_log
from bench.servers import can_run_broker, running_broker, running_server
from headwater_core.objectstore.store_url import open_store
from tests.headwater.gateway.archives import archive
from tests.s3server import S3Server

ROUNDS = int(os.environ.get("ROUNDS", "3"))
WORKERS = 4  # partitions archived at once, as the agent does; as many files at once for the plain upload
GETS = 8  # ranged GETs in flight
RANGE_BYTES = 4 << 20  # Headwater's chunk size
WARM_UP_BYTES = 128 << 20
CACHED_READS = 4  # of the whole partition per round

SHAPES = (
    (
        "16 KB batches",
        Shape(topic="large", partitions=4, batch_records=16, value_bytes=1000, partition_bytes=256 << 20, segment_bytes=64 << 20),
    ),
    (
        "200-byte batches",
        Shape(topic="small", partitions=4, batch_records=1, value_bytes=130, partition_bytes=16 << 20, segment_bytes=16 << 20),
    ),
)


@dataclass
class Measured:
    """Rounds of one thing."""

    took: list[Took] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def add(self, took: Took, cpu_s: float) -> None:
        self.took.append(took)
        self.cpu_s.append(cpu_s)

    @property
    def mb_s(self) -> float:
        return statistics.median(each.mb_s for each in self.took)

    @property
    def cpu_s_gb(self) -> float:
        return statistics.median(cpu / took.size_bytes * 1e9 for cpu, took in zip(self.cpu_s, self.took, strict=True))

    def __str__(self) -> str:
        rates = [each.mb_s for each in self.took]
        return f"{self.mb_s:,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    console = Console(width=None if sys.stdout.isatty() else 150)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as scratch:
        root = Path(scratch)
        with running_server(root / "s3") as (name, server):
            os.environ.update(server.environ())
            table = Table()
            table.add_column("batches", no_wrap=True)
            table.add_column("what", no_wrap=True)
            for column in ("MB/s", "CPU s/GB", "plain MB/s", "ratio", "aim"):
                table.add_column(column, justify="right", no_wrap=True)
            for label, shape in SHAPES:
                log = make_log(root / shape.topic, shape)
                for row in measure(log, server, root / "work"):
                    table.add_row(label, *row)
                table.add_section()
                shutil.rmtree(log.directory)
            table.title = f"against {name}, {os.cpu_count()} cores, load {load:.1f} before, median of {ROUNDS} rounds (least-most)"
            console.print(table)


def measure(log: BenchLog, server: S3Server, work: Path) -> Iterator[tuple[str, str, str, str, str, str]]:
    bucket = server.bucket()
    archived, uploaded, cold, dropped, kept, first, raw, bare, rdk = (Measured() for _ in range(9))
    of_broker, rdk_of_broker = Measured(), Measured()
    with contextlib.ExitStack() as held:
        kafka = held.enter_context(broker(log, server, bucket, work / uuid4().hex)) if can_run_broker() else None
        broker_reader = Discarder(kafka, log.topic, log.batch_bytes, log.batch_records) if kafka is not None else None
        for at in range(ROUNDS):
            prefix = f"round-{at}"
            store = open_store(f"s3://{bucket}/{prefix}", endpoint_url=server.endpoint_url, region=server.region)
            _timed(archived, log.total_bytes, lambda store=store: archive(log.directory, store, workers=WORKERS))  # type: ignore[misc]
            _timed(uploaded, log.total_bytes, lambda: upload(log, server, bucket))
            keys = archived_keys(server, bucket, prefix)
            with serving(f"s3://{bucket}/{prefix}", server, work / uuid4().hex) as gateway, sending(log) as sender:
                warm_up(gateway, log)
                reader = Discarder(gateway.address, log.topic, log.batch_bytes, log.batch_records)
                gateway.timed(cold, lambda reader=reader: reader.read(log.end))  # type: ignore[misc]
                _timed(dropped, log.partition_bytes, lambda keys=keys: ranged_gets(server, bucket, keys))  # type: ignore[misc]
                _timed(kept, log.partition_bytes, lambda keys=keys: ranged_gets(server, bucket, keys, work / "kept"))  # type: ignore[misc]
                gateway.timed(first, lambda reader=reader: reader.read(log.end))  # type: ignore[misc]
                for _ in range(CACHED_READS):
                    bare.add(read_bare(sender, log.partition_bytes), 0.0)
                    if broker_reader is not None:
                        of_broker.add(broker_reader.read(log.end), 0.0)
                    gateway.timed(raw, lambda reader=reader: reader.read(log.end))  # type: ignore[misc]
                reader.close()
                for _ in range(CACHED_READS // 2):
                    address = gateway.address
                    gateway.timed(rdk, lambda address=address: read_with_librdkafka(address, log.topic, log.end, log.record_bytes))  # type: ignore[misc]
                    if kafka is not None:
                        rdk_of_broker.add(read_with_librdkafka(kafka, log.topic, log.end, log.record_bytes), 0.0)
    yield row("archive", archived, uploaded, "≥ 0.8x")
    yield row("cold read, against GETs", cold, dropped, "≥ 0.7x")
    yield row("cold read, against GETs kept in files", cold, kept, "")
    yield row("cached read, raw client, from disk", first, None, "")
    yield row("cached read, raw client, against bare sendfile", raw, bare, "≥ 2,000")
    yield row("cached read, raw client, against a Kafka broker", raw, of_broker, "")
    yield row("cached read, librdkafka, against a Kafka broker", rdk, rdk_of_broker, "≥ 700")


def row(what: str, measured: Measured, plain: Measured | None, aim: str) -> tuple[str, str, str, str, str, str]:
    if plain is None or not plain.took:
        return what, str(measured), f"{measured.cpu_s_gb:.2f}", "", "", aim
    return what, str(measured), f"{measured.cpu_s_gb:.2f}", str(plain), f"{measured.mb_s / plain.mb_s:.2f}x", aim


def _timed(measured: Measured, size_bytes: int, work: Callable[[], object]) -> None:
    """Something done in this process."""
    start_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    measured.add(Took(size_bytes, time.perf_counter() - start_s), time.process_time() - cpu_s)


# -- the plain side -------------------------------------------------------------------------------------------------


def client(server: S3Server):  # type: ignore[no-untyped-def]
    return boto3.client("s3", endpoint_url=server.endpoint_url, region_name=server.region, config=Config(max_pool_connections=64))


def upload(log: BenchLog, server: S3Server, bucket: str) -> None:
    """boto3's upload_file with its defaults, for the files that archiving uploads."""
    s3 = client(server)
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(lambda path: s3.upload_file(str(path), bucket, f"plain/{uuid4().hex}"), log.files))
    s3.close()


def archived_keys(server: S3Server, bucket: str, prefix: str, partition: int | None = 0) -> list[tuple[str, int]]:
    """Data objects with their sizes, in offset order; of one partition, or of all."""
    pages = client(server).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/data/")
    objects = [each for page in pages for each in page.get("Contents", [])]
    data = sorted((each["Key"], each["Size"]) for each in objects if each["Key"].endswith(".log"))
    return [(key, size) for key, size in data if partition is None or key.split("/")[-2] == str(partition)]


def ranged_gets(server: S3Server, bucket: str, keys: list[tuple[str, int]], directory: Path | None = None) -> None:
    """The same bytes in ranges of a chunk's size, several in flight, read into a buffer; and kept, a file each, in `directory`."""
    s3, buffers = client(server), local()
    if directory is not None:
        directory.mkdir(parents=True)

    def get(piece: tuple[str, int, int]) -> None:
        key, start, end = piece
        if not hasattr(buffers, "buffer"):
            buffers.buffer = memoryview(bytearray(RANGE_BYTES))
        body = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")["Body"]
        got = 0
        while (some := body.readinto(buffers.buffer[got : got + (1 << 20)])) > 0:
            got += some
        assert got == end - start
        if directory is not None:
            (directory / f"{key.rpartition('/')[2]}-{start}").write_bytes(buffers.buffer[:got])

    pieces = [(key, start, min(size, start + RANGE_BYTES)) for key, size in keys for start in range(0, size, RANGE_BYTES)]
    with ThreadPoolExecutor(GETS) as workers:
        list(workers.map(get, pieces))
    s3.close()
    if directory is not None:
        shutil.rmtree(directory)


@contextmanager
def broker(log: BenchLog, server: S3Server, bucket: str, work: Path) -> Iterator[tuple[str, int]]:
    """A real one, over the same records."""
    store = open_store(f"s3://{bucket}/for-the-broker", endpoint_url=server.endpoint_url, region=server.region)
    archive(log.directory, store, workers=WORKERS)
    with running_broker(work, store, log) as bootstrap:
        host, _, port = bootstrap.rpartition(":")
        yield host, int(port)


# -- the gateway ----------------------------------------------------------------------------------------------------


class Gateway:
    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.address = ("127.0.0.1", port)
        self._process = psutil.Process(process.pid)

    def timed(self, measured: Measured, read: Callable[[], Took]) -> None:
        before = self._process.cpu_times()
        took = read()
        after = self._process.cpu_times()
        measured.add(took, after.user + after.system - before.user - before.system)


def warm_up(gateway: Gateway, log: BenchLog) -> None:
    """Some chunks of the last partition, which nobody measures: a gateway that has run for a while has imported its libraries
    and used its memory before."""
    reader = Discarder(gateway.address, log.topic, log.batch_bytes, log.batch_records, partition=log.partitions - 1)
    while not reader.fetch(0, RANGE_BYTES):
        pass
    reader.read(min(WARM_UP_BYTES, log.partition_bytes) // log.batch_bytes * log.batch_records)
    reader.close()


@contextmanager
def serving(url: str, server: S3Server, cache: Path) -> Iterator[Gateway]:
    """A fresh gateway over the bucket alone, its cache empty."""
    command = [sys.executable, "-m", "bench.serve", url, server.endpoint_url, str(cache)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Gateway(process, int(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(cache, ignore_errors=True)


@contextmanager
def sending(log: BenchLog) -> Iterator[tuple[str, int]]:
    """Bare sendfile of partition 0."""
    files = [str(path) for path in log.files if path.parent.name.endswith("-0")]
    process = subprocess.Popen([sys.executable, "-m", "bench.bare", *files], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield "127.0.0.1", int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
