"""Exports into Iceberg and Delta tables, killed between commits. For where the table formats' packages are.

TABLE_JARS names a directory with the jars of the running Spark's version; docs/jobs.md says which have been tried.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline import tables
from pipeline.decode import COLUMNS
from pipeline.jobs import StorePlace
from pipeline.query import parse_query
from tests.pipeline.bucket import TOPICS, a_bucket
from tests.pipeline.test_export import as_row, wanted

ROOT = Path(__file__).parents[2]
JARS = os.environ.get("TABLE_JARS", "")
NAMES = {"iceberg": "lake.db.kafka", "delta": "kafka"}
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not JARS, reason="TABLE_JARS names no directory of jars"),
]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_table_holds_each_offset_once_though_the_export_was_killed(table_format: str, tmp_path: Path) -> None:
    a_bucket().write_to(tmp_path / "bucket")

    def run(kill_at: str = "") -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.peers.test_tables", table_format, str(tmp_path)]
        environment = {**os.environ, "HEADWATER_KILL_AT": kill_at, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False)
        return ran.returncode, ran.stdout

    assert run("export.table_committed:2")[0] == -signal.SIGKILL
    for commits_some in (True, False):
        code, out = run()
        assert code == 0, out
        told = json.loads(out.splitlines()[-1])
        assert (told["commits"] > 0) == commits_some
        assert told["rows"] == wanted()


def export(table_format: str, place: Path) -> dict[str, Any]:
    """One run in commits of a few ranges; what it did, and what the table holds then."""
    tables.COMMIT_BYTES = 40 << 10
    spark = session(table_format, place)
    query = parse_query({"topics": TOPICS, "columns": COLUMNS, "splitBytes": 16 << 10, "isolation": "read_committed"})
    tables.check_format(spark, table_format)
    name = NAMES[table_format]
    done = tables.TableExport(spark, StorePlace((place / "bucket").as_uri()), query, name, table_format).run()
    return {"commits": done.commits, "rows": list(rows(spark, name))}


def rows(spark: SparkSession, name: str) -> Iterator[dict[str, Any]]:
    for row in sorted(spark.table(name).collect(), key=lambda row: (row["topic"], row["partition"], row["offset"])):
        yield as_row(row.asDict(recursive=True) | {"timestamp": row["timestamp"].astimezone(UTC)})


def session(table_format: str, place: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(str(jar) for jar in Path(JARS).glob("*.jar")),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    if table_format == "iceberg":
        settings |= {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(place / "lake"),
        }
    else:
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{place}/metastore;create=true",
        }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    print(json.dumps(export(sys.argv[1], Path(sys.argv[2]))))
