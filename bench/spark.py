"""Archived topics as DataFrames, beside Spark's own Kafka source on the same log and Parquet of the same rows, in one run.

The log is archived into a directory and into an S3 server, recovered from there, and served by a real Kafka broker from the
recovered directory: all read the same records. The broker reads a disk of this machine, so it is compared with the archive in a
directory; what an S3 server on the same cores takes away stands beside it. Every number is the median of the rounds behind a
first one that is not counted, with the least and the most; the sides take turns. Believe the ratios.

SIZE (bytes of log per kind of record, default 2 GiB) and ROUNDS (default 3) are taken from the environment.
Needs Java 17 and Maven, which fetches Kafka and four jars of Spark's Kafka source once.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from bench.logs import FIRST_TIMESTAMP, BenchLog, Shape, make_log
from bench.run import archived_keys, ranged_gets
from bench.servers import running_broker, running_server
from headwater.pipeline.runner import Threads
from headwater.pipeline.scan.parquet_directory import scan_to_parquet
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater.pipeline.scrub.scrubber import Scrubber, ScrubScope
from headwater.pipeline.spark.data_source import HeadwaterSource
from headwater_core.clock import SystemClock
from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_url import open_store
from tests.headwater.gateway.archives import archive
from tests.s3server import S3Server

SIZE = int(os.environ.get("SIZE", 2 << 30))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PARTITIONS = 4
SPAN_MS = 24 * 3600_000
HOUR_MS = 3600_000
PEERS = Path(os.environ.get("PEERS_CACHE", Path(__file__).parents[1] / ".peers"))
SOURCE_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
ZSTD = 4


def shapes() -> Iterator[tuple[str, Shape]]:
    for name, records, value_bytes, codec in (
        ("1 KB", 64, 1000, 0),
        ("1 KB, zstd", 64, 1000, ZSTD),
        ("100 B", 600, 100, 0),
        ("100 B, zstd", 600, 100, ZSTD),
    ):
        yield name, shape(f"records-{value_bytes}-{codec}", PARTITIONS, records, value_bytes, codec)


def shape(topic: str, partitions: int, records: int, value_bytes: int, codec: int) -> Shape:
    """Compressed, a log has about as many records."""
    size = SIZE // 2 if codec else SIZE
    return Shape(
        topic=topic,
        partitions=partitions,
        batch_records=records,
        value_bytes=value_bytes,
        partition_bytes=size // partitions,
        segment_bytes=256 << 20,
        text=True,
        codec=codec,
        span_ms=SPAN_MS,
    )


@dataclass
class Timed:
    """Seconds of each round of one query; what it answered has to be the same each time, and the same for all sources."""

    rows: int
    ask: Callable[[], object]
    took_s: list[float] = field(default_factory=list)
    answer: object = None

    def go(self, *, counts: bool) -> None:
        start_s = time.perf_counter()
        self.answer = self.ask()
        if counts:
            self.took_s.append(time.perf_counter() - start_s)

    @property
    def seconds(self) -> float:
        return statistics.median(self.took_s)

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({min(self.took_s):.2f}-{max(self.took_s):.2f})"

    @property
    def rate(self) -> str:
        return f"{self.rows / self.seconds / 1e6:.2f}"


class Report:
    """One table, a line per comparison."""

    def __init__(self, title: str) -> None:
        self.table = Table(title=title)
        for column in ("records", "query"):
            self.table.add_column(column, no_wrap=True)
        for column in ("Headwater", "M rows/s", "peer", "M rows/s", "ratio", "aim"):
            self.table.add_column(column, justify="right", no_wrap=True)

    def add(self, records: str, query: str, ours: Timed, peer: Timed, aim: str = "") -> None:
        same = ours.answer == peer.answer
        ratio = f"{peer.seconds / ours.seconds:.2f}x" if same else f"DIFFERENT: {ours.answer} and {peer.answer}"
        self.table.add_row(records, query, str(ours), ours.rate, str(peer), peer.rate, ratio, aim)


def in_turn(*sides: Timed) -> None:
    for at in range(ROUNDS + 1):
        for side in sides:
            side.go(counts=at > 0)


@dataclass(frozen=True)
class Place:
    """Where an archive lies, and what it takes to get there."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None

    def open(self) -> ObjectStore:
        return open_store(self.url, endpoint_url=self.endpoint_url, region=self.region)


class Sources:
    """The same topic from all of them."""

    def __init__(self, spark: SparkSession, directory: Place, s3: Place, bootstrap: str, parquet: Path) -> None:
        self.spark, self.directory, self.s3, self._bootstrap, self._parquet = spark, directory, s3, bootstrap, parquet

    def headwater(self, topic: str, place: Place | None = None, **options: object) -> DataFrame:
        """From the directory, unless told otherwise."""
        place = place or self.directory
        reader = self.spark.read.format("headwater").option("store", place.url).option("topics", topic)
        if place.endpoint_url and place.region:
            reader = reader.option("endpoint_url", place.endpoint_url).option("region", place.region)
        for key, value in options.items():
            reader = reader.option(key, str(value))
        return reader.load()

    def kafka(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", topic)
        for key, value in (options or {"startingOffsets": "earliest", "endingOffsets": "latest"}).items():
            reader = reader.option(key, str(value))
        return reader.load()

    def parquet(self, topic: str) -> DataFrame:
        path = self._parquet / topic
        if not path.exists():
            # The log is made of a few batches again and again: a dictionary of its values would hold next to nothing.
            self.headwater(topic).write.option("parquet.enable.dictionary", "false").parquet(str(path), compression="snappy")
        return self.spark.read.parquet(str(path))


def volume(frame: DataFrame) -> Callable[[], object]:
    return lambda: tuple(frame.select(f.count("*"), f.sum(f.length("value"))).collect()[0])


def places(frame: DataFrame) -> Callable[[], object]:
    """Offsets and timestamps only."""
    return lambda: tuple(frame.select(f.count("*"), f.sum("offset"), f.max(f.unix_millis("timestamp"))).collect()[0])


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    console = Console(width=None if sys.stdout.isatty() else 170)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as scratch:
        root = Path(scratch)
        with running_server(root / "s3") as (name, server):
            os.environ.update(server.environ())
            load = os.getloadavg()[0]
            report = Report(f"against {name}, {os.cpu_count()} cores, load {load:.1f} before, median of {ROUNDS} rounds (least-most)")
            notes: list[str] = []
            for records, each in shapes():
                console.print(f"{records}: {SIZE / 1e9:.1f} GB of log", style="dim")
                notes += measure(root, server, records, each, report)
            console.print(report.table)
            for note in notes:
                console.print(note)


def measure(root: Path, server: S3Server, records: str, each: Shape, report: Report) -> list[str]:
    work = root / each.topic
    s3 = Place(f"s3://{server.bucket()}/archive", server.endpoint_url, server.region)
    store = s3.open()
    log = make_log(work / "log", each)
    directory = in_directory(work / "archive", log)
    archive(log.directory, store, workers=PARTITIONS)
    notes = []
    with running_broker(work, store, log) as bootstrap, session(work) as spark:
        spark.dataSource.register(HeadwaterSource)
        sources = Sources(spark, directory, s3, bootstrap, work / "parquet")
        compare(sources, log, records, report)
        if not each.codec:
            lone_partition(sources, work, records, each, report)
        if each.codec == 0 and each.value_bytes == 1000:
            notes += [scrubbed(store, server, s3), scanned(sources, log, work)]
    subprocess.run(["rm", "-rf", str(work)], check=True)
    for info in list(store.list("")):
        store.delete(info.key)
    return notes


def in_directory(path: Path, log: BenchLog) -> Place:
    path.mkdir(parents=True)
    place = Place(f"file://{path}")
    archive(log.directory, place.open(), workers=PARTITIONS)
    return place


def compare(sources: Sources, log: BenchLog, records: str, report: Report) -> None:
    topic, rows = log.topic, log.partitions * log.end
    ours = Timed(rows, volume(sources.headwater(topic, columns="value")))
    whole = Timed(rows, volume(sources.headwater(topic)))
    kafka = Timed(rows, volume(sources.kafka(topic)))
    parquet = Timed(rows, volume(sources.parquet(topic)))
    from_s3 = Timed(rows, volume(sources.headwater(topic, sources.s3, columns="value")))
    in_turn(ours, whole, from_s3, kafka, parquet)
    report.add(records, "full scan, columns=value; peer Kafka source", ours, kafka, "≥ 3x" if "1 KB" in records else "≥ 4x")
    report.add(records, "the same with all columns", whole, kafka)
    report.add(records, "columns=value, archive in S3", from_s3, kafka)
    report.add(records, "full scan, columns=value; peer Parquet", ours, parquet, "≥ 0.8x")

    start, end = FIRST_TIMESTAMP + 12 * HOUR_MS, FIRST_TIMESTAMP + 13 * HOUR_MS
    inside = (f.col("timestamp") >= f.timestamp_millis(f.lit(start))) & (f.col("timestamp") < f.timestamp_millis(f.lit(end)))
    window: dict[str, Any] = {"startingTimestamp": start, "endingTimestamp": end}
    ours = Timed(rows // 24, lambda: volume(sources.headwater(topic, columns="value,timestamp", **window).where(inside))())
    pushed = Timed(rows // 24, lambda: volume(sources.headwater(topic, columns="value,timestamp", pushFilters=True).where(inside))())
    from_s3 = Timed(rows // 24, lambda: volume(sources.headwater(topic, sources.s3, columns="value,timestamp", **window).where(inside))())
    filtered = Timed(rows // 24, volume(sources.kafka(topic).where(inside)))
    bounded = Timed(rows // 24, volume(sources.kafka(topic, **window).where(inside)))
    in_turn(ours, pushed, from_s3, filtered, bounded)
    report.add(records, "one hour of 24 by options; peer filters", ours, filtered, "≥ 10x")
    report.add(records, "the same, archive in S3", from_s3, filtered)
    report.add(records, "the same by options on both sides", ours, bounded)
    report.add(records, "one hour of 24, pushed filter; peer filters", pushed, filtered)

    ours = Timed(rows, places(sources.headwater(topic, columns="offset,timestamp")))
    from_s3 = Timed(rows, places(sources.headwater(topic, sources.s3, columns="offset,timestamp")))
    kafka = Timed(rows, places(sources.kafka(topic)))
    in_turn(ours, from_s3, kafka)
    report.add(records, "offsets and timestamps only", ours, kafka, "≥ 10x")
    report.add(records, "the same, archive in S3", from_s3, kafka)


def lone_partition(sources: Sources, work: Path, records: str, each: Shape, report: Report) -> None:
    """As many records in one partition as there are in four."""
    alone = shape(f"{each.topic}-alone", 1, each.batch_records, each.value_bytes, each.codec)
    log = make_log(work / "alone", alone)
    place = in_directory(work / "archive-alone", log)
    one = Timed(log.end, volume(sources.headwater(alone.topic, place, columns="value")))
    four = Timed(log.end, volume(sources.headwater(each.topic, columns="value")))
    in_turn(one, four)
    one.answer = four.answer  # a batch more or less: partitions hold whole segments
    report.add(records, "one partition; peer the same in four", one, four, "≥ 0.9x")


def scrubbed(store: ObjectStore, server: S3Server, s3: Place) -> str:
    bucket, _, prefix = s3.url.removeprefix("s3://").partition("/")
    keys = archived_keys(server, bucket, prefix, partition=None)
    total = sum(size for _, size in keys)
    scrub = Timed(0, lambda: Scrubber(store, ScrubScope(), SystemClock()).run(Threads(store, os.cpu_count() or 1)).damaged)
    gets = Timed(0, lambda: ranged_gets(server, bucket, keys))
    in_turn(scrub, gets)
    moved = total / scrub.seconds / 1e6, total / gets.seconds / 1e6
    return f"scrub {moved[0]:,.0f} MB/s, plain ranged GETs {moved[1]:,.0f} MB/s: {moved[0] / moved[1]:.2f}x (aim ≥ 0.8x)"


def scanned(sources: Sources, log: BenchLog, work: Path) -> str:
    numbers, store = iter(range(1000)), sources.directory.open()
    query = parse_query({"topics": log.topic})
    scan = Timed(0, lambda: scan_to_parquet(store, plan_scan(store, query), query, work / f"scan-{next(numbers)}"))
    job = Timed(0, lambda: sources.headwater(log.topic).write.parquet(str(work / f"spark-{next(numbers)}"), compression="snappy"))
    in_turn(scan, job)
    winner = "headwater scan" if scan.seconds < job.seconds else "Spark"
    return f"to Parquet on one machine: headwater scan {scan}, the Spark job {job}: {winner} wins"


@contextmanager
def session(work: Path) -> Iterator[SparkSession]:
    os.environ.setdefault("NUMBA_CACHE_DIR", str(work.parent / "numba"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", ",".join(map(str, source_jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as docs/spark.md advises
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.local.dir", str(work / "spark"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def source_jars() -> list[Path]:
    """One by one: the registry has these, and not all that they name as theirs."""
    directory = PEERS / "spark-jars-4.2.0"
    jars = [directory / "{1}-{2}.jar".format(*artifact.split(":")) for artifact in SOURCE_JARS]
    for artifact, jar in zip(SOURCE_JARS, jars, strict=True):
        if not jar.exists():
            command = ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return jars


if __name__ == "__main__":
    main()
