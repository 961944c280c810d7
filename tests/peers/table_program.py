"""What the tests run on a table format's own Spark: `python -m tests.peers.table_program SCENARIO,... FORMAT PLACE`. Prints JSON.

Scenarios share a session, most of whose time goes into its first export; each has a table and an archive of its own.
"""

import json
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

import tests.kill_at  # noqa: F401
from headwater.pipeline.export.checkpoint import pending_of
from headwater.pipeline.export.directory_export import verdict
from headwater.pipeline.runner import StorePlace
from headwater.pipeline.scan.query import COLUMNS
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater.pipeline.spark import table_export
from headwater.pipeline.spark.spark_errors import as_headwater_errors
from headwater.pipeline.spark.table_export import TableExport, table_schema
from headwater_core.errors import HeadwaterError
from tests.headwater.pipeline.bucket import TOPICS
from tests.headwater.pipeline.export.test_directory_export import as_row
from tests.headwater.pipeline.growing import Growing
from tests.headwater_core.segments.builders import a_segment
from tests.peers.tables import NAMESPACES, settings


def open_session(table_format: str, place: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings(table_format, place).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Lake:
    """One table and one archive of a scenario."""

    def __init__(self, spark: SparkSession, scenario: str, table_format: str, place: Path) -> None:
        self.spark, self.format = spark, table_format
        self.table = f"kafka_{scenario}"
        self.name = NAMESPACES[table_format] + self.table
        self.place, self._warehouse = place / scenario, place / "warehouse"
        self.place.mkdir(exist_ok=True)

    def made(self, topics: str | tuple[str, ...] = "users", table: str | None = None, **options: Any) -> TableExport:
        commit_bytes = options.pop("commit_bytes", None)
        query = parse_query({"topics": topics, "columns": COLUMNS, "splitBytes": 16 << 10, "isolation": "read_committed", **options})
        table_export.check_format(self.spark, self.format)
        place = StorePlace((self.place / "bucket").as_uri())
        return TableExport(self.spark, place, query, table or self.name, self.format, commit_bytes=commit_bytes)

    def export(self, *topics: Any, **options: Any) -> dict[str, Any]:
        """One run; what came of it."""
        try:
            with as_headwater_errors():
                work = self.made(*topics, **options)
        except HeadwaterError as error:
            return {"error": f"{type(error).__name__}: {error}", "code": error.exit_code}
        return self.run(work) | {"notes": work.notes}

    def run(self, work: TableExport) -> dict[str, Any]:
        try:
            with as_headwater_errors():
                done = work.run()
        except HeadwaterError as error:
            return {"error": f"{type(error).__name__}: {error}", "code": error.exit_code}
        failure = verdict(done.failed)
        return {
            "ranges": done.ranges,
            "commits": done.commits,
            "failed": [(each.topic, each.partition, each.error) for each in done.failed],
            "code": failure.exit_code if failure else 0,
        }

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(table=self.name)).collect()

    def offsets(self, table: str | None = None) -> list[tuple[int, int]]:
        """(partition, offset) of every row, in order."""
        self.spark.catalog.refreshTable(table or self.name)
        return sorted(
            (row["partition"], row["offset"]) for row in self.spark.table(table or self.name).select("partition", "offset").collect()
        )

    def forget(self) -> None:
        """What table maintenance does: nothing but what the table holds now is remembered."""
        if self.format == "iceberg":
            options = f"table => 'db.{self.table}', older_than => TIMESTAMP '2999-01-01', retain_last => 1"
            self.sql(f"CALL lake.system.expire_snapshots({options})")
        else:  # as its log is shortened after 30 days
            log = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
            place = self._warehouse / self.table
            log.forTable(self.spark._jsparkSession, str(place)).checkpoint()
            for path in sorted((place / "_delta_log").glob("*.json"))[:-1]:
                path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            log.clearCache()

    def newest_commit(self) -> str:
        if self.format == "iceberg":
            return str(self.spark.table(f"{self.name}.refs").collect()[0]["snapshot_id"])
        return str(self.spark.sql(f"DESCRIBE HISTORY {self.name}").collect()[0]["version"])

    def roll_back(self, commit: str) -> None:
        if self.format == "iceberg":
            self.sql(f"CALL lake.system.rollback_to_snapshot('db.{self.table}', {commit})")
        else:
            self.sql(f"RESTORE TABLE {{table}} TO VERSION AS OF {commit}")


def rows(lake: Lake) -> Iterator[dict[str, Any]]:
    for row in sorted(lake.spark.table(lake.name).collect(), key=lambda row: (row["topic"], row["partition"], row["offset"])):
        yield as_row(row.asDict(recursive=True) | {"timestamp": row["timestamp"].astimezone(UTC)})


def pantry(lake: Lake) -> list[dict[str, Any]]:
    """Two runs over the bucket that is there, in commits of a few ranges, and all that the table holds after each."""
    return [lake.export(TOPICS, commit_bytes=40 << 10) | {"rows": list(rows(lake))} for _ in range(2)]


def progress(lake: Lake) -> list[dict[str, Any]]:
    """What an export does with rows that are deleted, a table that forgets or is rolled back, and other settings."""
    growing, results = Growing(lake.place / "bucket"), []

    def note(what: str, **facts: Any) -> None:
        results.append({"what": what, **facts, "offsets": lake.offsets()})

    for partition in range(2):
        growing.append("users", partition, records=3, batches=2)
    note("first", **lake.export())
    growing.append("users", 1, records=1)
    note("one more", **lake.export())
    lake.sql("DELETE FROM {table} WHERE partition = 1 AND offset = 6")
    note("newest row deleted", **lake.export())
    lake.sql("DELETE FROM {table} WHERE offset >= 0")
    lake.forget()
    note("all rows deleted, and history forgotten", **lake.export())
    growing.append("users", 0, records=2)
    note("two more", **lake.export())
    note("other isolation", **lake.export(isolation="read_uncommitted"))
    note("other columns", **lake.export(columns="value,partition,offset,timestamp"))
    before = lake.newest_commit()
    growing.append("users", 0, records=1)
    lake.export()
    lake.roll_back(before)
    note("rolled back", **lake.export())
    growing.append("users", 0, records=1)
    one, other = lake.made(), lake.made()
    note("one of two at once", **lake.run(one))
    note("the other", **lake.run(other))
    return results


def damage(lake: Lake) -> list[dict[str, Any]]:
    """One damaged range, a topic that is created again, and a partition that is gone: each alone; and what an older version left."""
    growing, results = Growing(lake.place / "bucket"), []
    for partition in range(2):
        growing.append("users", partition, records=3, batches=2)
        growing.append("pay", partition, records=3)
    both = ("users", "pay")
    lake.export(both)
    for partition in range(2):
        growing.append("users", partition, records=5)
        growing.append("users", partition, records=5)
    path = lake.place / "bucket" / growing.archive("users", 0).head.entries[1].key
    sound = path.read_bytes()
    path.write_bytes(sound[:-3] + bytes([sound[-3] ^ 0xFF]) + sound[-2:])
    results.append({"what": "damaged", **lake.export(both, splitBytes=1), "offsets": lake.offsets()})
    results.append({"what": "still damaged", **lake.export(both, splitBytes=1), "offsets": lake.offsets()})
    path.write_bytes(sound)
    results.append({"what": "mended", **lake.export(both), "offsets": lake.offsets()})
    del growing.archives["pay", 0]
    growing.archive("pay", incarnation=2).append(a_segment(0, 1, records=2))
    (head,) = (lake.place / "bucket" / "meta" / "users").glob("*/1/manifest.json")
    head.unlink()
    results.append({"what": "created again, and one gone", **lake.export(both), "offsets": lake.offsets()})

    query = parse_query({"topics": "users", "columns": COLUMNS, "isolation": "read_committed"})
    place = StorePlace((lake.place / "bucket").as_uri())
    (split,) = plan_scan(place.open(), query).splits
    old = lake.name.replace("kafka", "old")
    task = [(bytearray(pickle.dumps((split, pending_of(split.partition_id, split.first, split.end)))),)]
    frame = lake.spark.createDataFrame(task, "task binary").mapInArrow(
        table_export._Read(place, query), from_arrow_schema(table_schema(query))
    )
    frame.writeTo(old).using(lake.format).partitionedBy(F.col("topic"), F.col("date")).create()
    results.append({"what": "an older version's", **lake.export(table=old), "offsets": lake.offsets(old)})
    lake.spark.sql(f"DELETE FROM {old} WHERE offset >= 0").collect()
    growing.append("users", 0, records=1)
    results.append({"what": "taken over", **lake.export(table=old), "offsets": lake.offsets(old)})
    lake.spark.range(3).writeTo(old + "er").using(lake.format).create()
    results.append({"what": "no export", **lake.export(table=old + "er")})
    return results


if __name__ == "__main__":
    scenarios, table_format, place = sys.argv[1:]
    spark = open_session(table_format, Path(place))
    print(
        json.dumps({scenario: globals()[scenario](Lake(spark, scenario, table_format, Path(place))) for scenario in scenarios.split(",")})
    )
