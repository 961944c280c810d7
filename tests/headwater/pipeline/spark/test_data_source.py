"""Archived topics as DataFrames, on a real Spark."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql

from headwater.pipeline.spark.data_source import HeadwaterSource
from headwater_core.errors import UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.segments.records import Record
from tests.fixtures import Isolation, expected, expected_offsets
from tests.headwater.pipeline.rows import as_expected
from tests.headwater.pipeline.spark_fixtures import archived
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_record
from tests.hydration.world import Archive

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def reading(spark: SparkSession, store: str, **options: object) -> DataFrameReader:
    reader = spark.read.format("headwater").option("store", store)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader


def load(spark: SparkSession, store: str, **options: object) -> DataFrame:
    return reading(spark, store, **options).load()


def soup(root: Path, *, entries: int = 4, batches: int = 25, records: int = 20, value_bytes: int = 1000) -> Archive:
    """One partition, a record a second, in `entries` objects of about half a megabyte."""
    root.mkdir(exist_ok=True)
    archive = Archive(DirectoryStore(root))
    offset = 0
    for _ in range(entries):
        run = b""
        for _ in range(batches):
            run += a_batch(offset, [a_soup(offset + n, value_bytes) for n in range(records)])
            offset += records
        archive.append(run)
    return archive


def a_soup(offset: int, value_bytes: int) -> Record:
    return a_record(offset, f"soup {offset}".encode().ljust(value_bytes, b"."), timestamp=BASE_TIME + 1000 * offset)


def reported(spark: SparkSession, event: str) -> list[dict[str, str]]:
    """What the workers said of `event`, by the query that logged it; needs spark.sql.pyspark.worker.logging.enabled."""
    logs = spark.tvf.python_worker_logs()
    return [row.context for row in logs.where((logs.logger == "headwater") & (logs.msg == event)).select("context").collect()]


def test_the_columns_are_those_of_sparks_own_kafka_source(spark: SparkSession) -> None:
    plain = load(spark, archived("pantry"), topics="photos").schema
    assert plain.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    whole = load(spark, archived("pantry"), topics="photos", includeHeaders="true").schema
    assert whole.fieldNames() == [*plain.fieldNames(), "headers"]
    assert whole["headers"].simpleString() == "headers:array<struct<key:string,value:binary>>"
    assert all(field.nullable for field in whole)
    some = load(spark, archived("pantry"), topics="photos", columns="offset,timestamp")
    assert some.schema.simpleString() == "struct<offset:bigint,timestamp:timestamp>"
    assert {tuple(row.asDict()) for row in some.collect()} == {("offset", "timestamp")}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("pantry", "segment"),
        ("kitchen", "chunks"),
        *(pytest.param("kitchen", layout, marks=pytest.mark.long) for layout in ("segment", "blocks", "streaming")),
    ],
)
def test_a_dataframe_is_what_the_java_consumer_got_in_every_field(
    spark: SparkSession, name: str, layout: str, isolation: Isolation
) -> None:
    frame = load(spark, archived(name, layout), topics="*", includeHeaders="true", isolation=isolation)
    rows = frame.withColumn("timestamp_ms", sql.unix_millis("timestamp")).orderBy("topic", "partition", "offset").collect()
    wanted = [{key: value for key, value in line.items() if key != "leader_epoch"} for line in expected(name, isolation)]
    assert wanted
    assert [as_expected(row) for row in rows] == wanted


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_counts_and_bounds_are_kafkas(spark: SparkSession, isolation: Isolation) -> None:
    frame = load(spark, archived("pantry"), topics="*", isolation=isolation, columns="topic,partition,offset,timestamp")
    found = {
        (row.topic, row.partition): tuple(row)[2:]
        for row in frame.groupBy("topic", "partition")
        .agg(
            sql.count("*"),
            sql.min("offset"),
            sql.max("offset"),
            sql.unix_millis(sql.min("timestamp")),
            sql.unix_millis(sql.max("timestamp")),
        )
        .collect()
    }
    wanted: dict[tuple[str, int], tuple[int, ...]] = {}
    for line in expected_offsets("pantry", isolation):
        place = (line["topic"], line["partition"])
        lines = [each for each in expected("pantry", isolation) if (each["topic"], each["partition"]) == place]
        assert len(lines) == line["records"]
        if lines:
            offsets, times = [each["offset"] for each in lines], [each["timestamp"] for each in lines]
            wanted[place] = (len(lines), min(offsets), max(offsets), min(times), max(times))
    assert found == wanted


def test_one_partition_is_read_by_many_tasks(spark: SparkSession, tmp_path: Path) -> None:
    soup(tmp_path, entries=2)
    frame = load(spark, tmp_path.as_uri(), topics="soup", splitBytes="256KiB", columns="offset")
    assert frame.rdd.getNumPartitions() >= 4
    assert sorted(row.offset for row in frame.collect()) == list(range(1000))


FILTERS = [
    "offset >= 700 and offset < 710",
    "offset = 1999",
    "offset <=> 3",
    "offset in (5, 1500, null)",
    "offset > 5000",
    "offset is null",
    "topic = 'soup' and partition = 0 and offset <= 20",
    "topic in ('salad', 'bread')",
    "partition in (1, 2)",
    "partition > 0 or offset < 10",
    "timestamp >= timestamp'2023-11-14 22:40:00' and timestamp < timestamp'2023-11-14 22:41:00.0005'",
    "timestamp = timestamp_millis(1700000300000)",
    "timestamp <= timestamp_millis(1700000003999)",
    "not offset < 1990",
    "value like 'soup 1_' and offset < 100",
    "offset > 100 and offset < 100",
]


def test_filters_mean_the_same_whoever_applies_them(spark: SparkSession, tmp_path: Path) -> None:
    soup(tmp_path)
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def offsets(condition: str, push: bool) -> list[int]:
        frame = load(spark, tmp_path.as_uri(), topics="*", columns="topic,partition,offset,timestamp,value", pushFilters=push)
        return sorted(row.offset for row in frame.where(condition).select("offset").collect())

    spark.conf.set(PUSHDOWN, "false")
    by_spark = [offsets(each, push=False) for each in FILTERS]
    spark.conf.set(PUSHDOWN, "true")
    for each, wanted in zip(FILTERS, by_spark, strict=True):
        assert offsets(each, push=True) == wanted, each
    assert sum(map(bool, by_spark)) > len(FILTERS) / 2


def test_one_dataframe_serves_many_queries_though_spark_would_mix_up_what_was_pushed(spark: SparkSession, tmp_path: Path) -> None:
    soup(tmp_path, entries=1)
    spark.conf.set(PUSHDOWN, "true")
    frame = load(spark, tmp_path.as_uri(), topics="soup", columns="offset")
    few, last = frame.where("offset < 5"), frame.where("offset >= 495")
    assert few.count() == 5
    assert frame.count() == 500
    assert sorted(row.offset for row in few.union(last).collect()) == [*range(5), *range(495, 500)]
    assert few.crossJoin(last).count() == 25


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param("offset between 1700 and 1709", marks=pytest.mark.long),
        "timestamp between timestamp_millis({}) and timestamp_millis({})",
    ],
)
def test_what_filters_leave_out_is_not_fetched_and_said_so(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    soup(tmp_path)
    size_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    spark.conf.set(PUSHDOWN, "true")
    frame = load(spark, tmp_path.as_uri(), topics="soup", columns="offset,timestamp", pushFilters="true")
    rows = frame.where(condition.format(BASE_TIME + 1_700_000, BASE_TIME + 1_709_000)).collect()
    assert [row.offset for row in rows] == list(range(1700, 1710))
    assert [row.timestamp for row in rows] == [
        (EPOCH + timedelta(milliseconds=BASE_TIME + 1000 * row.offset)).astimezone().replace(tzinfo=None) for row in rows
    ]
    (plan,) = reported(spark, "scan_planned")
    (push,) = reported(spark, "filters_pushed")
    reads = reported(spark, "split_read")
    assert push["left_to_spark"] == "0"
    assert (plan["entries_left_out"], plan["entries"]) == ("3", "1")
    fetched = sum(int(read["bytes_fetched"]) for read in reads)
    assert 0 < fetched <= size_bytes / 4
    assert sum(int(read["rows"]) for read in reads) == 10


def test_what_a_scan_cannot_do_is_left_to_spark_and_counted(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    spark.conf.set(PUSHDOWN, "true")
    frame = load(spark, archived("pantry"), topics="photos", pushFilters="true")
    rows = frame.where("offset in (1, 3) and length(value) > 0 and not offset = 1").collect()
    assert [row.offset for row in rows] == [3]
    (push,) = reported(spark, "filters_pushed")
    assert (push["asked"], push["left_to_spark"]) == ("4", "3")  # that an offset is no null needs no look


def test_an_archive_that_has_nothing_to_read_is_an_empty_dataframe(spark: SparkSession) -> None:
    frame = load(spark, archived("pantry"), topics="empty.shelf")
    assert frame.collect() == []
    assert frame.columns[0] == "key"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": "photos", "startingOfsets": "earliest"}, "unknown option 'startingofsets'; did you mean 'startingOffsets'"),
        ({}, "which topics"),
        ({"topics": "photos", "columns": "offset,size"}, "columns: size is not one of"),
        ({"topics": "nothing.of.this.name"}, "topic nothing.of.this.name is not in"),
        ({"topics": "photos", "startingOffsets": '{"photos": {"0": 77}}'}, "offset 77 was requested, the archive has"),
    ],
)
def test_what_is_wrong_with_the_options_is_said(spark: SparkSession, options: dict[str, str], says: str) -> None:
    with pytest.raises(PySparkException, match=re.escape(says)):
        load(spark, archived("pantry"), **options).collect()


def test_a_table_that_could_not_be_read_is_not_created(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW … USING headwater OPTIONS"):
        spark.sql("CREATE TABLE never USING headwater OPTIONS (store 'file:///nowhere', topics '*')")
    assert not spark.catalog.tableExists("never")


def test_a_store_has_to_be_named_and_a_schema_cannot_be_given(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="the archive is missing"):
        spark.read.format("headwater").option("topics", "photos").load().collect()
    with pytest.raises(PySparkException, match="a schema cannot be given"):
        reading(spark, archived("pantry"), topics="photos").schema("offset bigint").load().collect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "hdfs://here"}, "no store for"),
        ({"onCorrupt": "quarantine", "quarantinePath": "hdfs://aside"}, "no store for"),
        ({"onCorrupt": "quarantine", "quarantinePath": "aside"}, "an absolute path or a URL"),
    ],
)
def test_places_that_cannot_be_are_told_when_the_dataframe_is_made(options: dict[str, str], says: str) -> None:
    source = HeadwaterSource({"topics": "photos", "store": "file:///archive", **options})
    with pytest.raises(UsageError, match=says):
        source.reader(source.schema())


def test_damage_fails_the_task_with_object_and_offset_or_is_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    store, aside = tmp_path / "archive", tmp_path / "aside"
    soup(store, entries=2)
    damaged = sorted(store.rglob("*.log"))[1]
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 2] ^= 0x01
    damaged.chmod(0o600)
    damaged.write_bytes(raw)
    with pytest.raises(PySparkException, match=rf"(?s)CorruptData.*{damaged.name}.*byte \d+.*offset"):
        load(spark, store.as_uri(), topics="soup").collect()
    frame = load(spark, store.as_uri(), topics="soup", columns="offset", onCorrupt="quarantine", quarantinePath=str(aside))
    offsets = [row.offset for row in frame.collect()]
    assert set(range(500)) <= set(offsets) < set(range(1000))
    missing = set(range(1000)) - set(offsets)
    rows = spark.read.json(str(aside)).collect()
    assert {offset for row in rows for offset in range(row.first_offset, row.last_offset + 1)} == missing
    assert {Path(row.object).name for row in rows} == {damaged.name}


def test_a_dataframe_survives_that_its_objects_are_merged_away(spark: SparkSession, tmp_path: Path) -> None:
    archive = soup(tmp_path, entries=3)
    frame = load(spark, tmp_path.as_uri(), topics="soup", columns="offset")
    assert frame.count() == 1500  # planned now, and kept
    store, entries = archive.store, archive.head.entries
    run = b"".join(whole(store, entry.key, entry.size_bytes) for entry in entries)
    archive.commit(archive.upload(run))
    for entry in entries:
        store.delete(entry.key)
        store.delete(entry.index_key)
    assert sorted(row.offset for row in frame.collect()) == list(range(1500))


def whole(store: Any, key: str, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    store.read_into(key, memoryview(buffer), start=0)
    return bytes(buffer)
