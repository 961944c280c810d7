"""Spark with a table format, for the peer tests: Maven fetches the formats' jars once, pip the Spark that Iceberg has a package for."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.headwater.pipeline.spark_fixtures import SETTINGS, need_java
from tests.peers.cache import fetched

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_JARS = {"iceberg": ("org.apache.iceberg",), "delta": ("io.delta", "io.unitycatalog")}  # whose groups; what else they need, Spark has
FORMATS = pytest.mark.parametrize("table_format", ["iceberg", pytest.param("delta", marks=pytest.mark.long)])
NAMESPACES = {"iceberg": "lake.db.", "delta": ""}


@cache
def jars(table_format: str) -> str:
    """What spark.jars wants. The first call fetches 50 MB for Iceberg, 15 MB for Delta."""

    def fetch(into: Path) -> None:
        command = ["mvn", "-B", "-q", "-f", str(_HERE / "tables.xml"), "dependency:copy-dependencies"]
        command += [f"-DincludeGroupIds={','.join(_JARS[table_format])}", f"-DoutputDirectory={into}"]
        subprocess.run(command, check=True, timeout=900, stdout=2)  # what a quiet Maven writes is no part of an answer

    directory = fetched(f"{table_format}-1", fetch)
    return ",".join(str(jar) for jar in sorted(directory.glob("*.jar")))


@cache
def python_path(table_format: str) -> str:
    """For a program that is to run on the format's Spark: this environment's, or one of its own before it."""

    def install(into: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--use-pep517", "--no-deps", "--require-hashes"]
        command += ["--target", str(into), "--requirement", str(_HERE / "spark-4.1.txt")]
        subprocess.run(command, check=True, timeout=900, stdout=2)

    own = [str(fetched("spark-4.1.4", install))] if table_format == "iceberg" else []
    return os.pathsep.join([*own, str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def settings(table_format: str, place: Path) -> dict[str, str]:
    """Of a session whose tables lie in `place`."""
    found = {**SETTINGS, "spark.jars": jars(table_format), "spark.sql.warehouse.dir": str(place / "warehouse")}
    if table_format == "iceberg":
        return found | {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(place / "lake"),
        }
    return found | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{place}/metastore;create=true",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def submit_arguments(table_format: str, place: Path) -> str:
    """PYSPARK_SUBMIT_ARGS, with which the command line gets such a session."""
    return " ".join(f'--conf "{name}={value}"' for name, value in settings(table_format, place).items()) + " pyspark-shell"


def environment(table_format: str) -> dict[str, str]:
    need_java()
    return {**os.environ, "PYTHONPATH": python_path(table_format), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(scenarios: str, table_format: str, place: Path, kill_at: str = "") -> tuple[int, Any]:
    command = [sys.executable, "-m", "tests.peers.table_program", scenarios, table_format, str(place)]
    ran = subprocess.run(
        command,
        cwd=place,
        env={**environment(table_format), "KILL_AT": kill_at},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if kill_at:
        return ran.returncode, None
    assert ran.returncode == 0, ran.stderr[-6000:]
    return 0, json.loads(ran.stdout.splitlines()[-1])
