"""One Spark session for all tests of a process that ask for it, and archives that its workers can read."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.pipeline.spark.data_source import HeadwaterSource
from headwater_core.objectstore.directory import DirectoryStore
from tests.fixtures import unpack
from tests.recovery.archived import archive

ROOT = Path(__file__).parents[3]
NO_JAVA = "Spark tests did not run: they need Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.authenticate.socketTimeout": "120s",  # within the usual 15 s a stream's worker does not start on a busy machine
    # For a JVM that ends soon; what Spark does with the tracebacks of failing batches overflows the usual stack.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
}


def java_version() -> int | None:
    """The major version of the Java that Spark would start; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    try:
        said = subprocess.run([f"{home}/bin/java" if home else "java", "-version"], capture_output=True, text=True, timeout=60).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def need_java() -> None:
    """Skip, saying so in one line of the summary; fail where REQUIRE_JAVA is set, as in .ci/run."""
    if (java_version() or 0) < 17:
        if os.environ.get("REQUIRE_JAVA"):
            pytest.fail(NO_JAVA, pytrace=False)
        pytest.skip(NO_JAVA)


@pytest.fixture(scope="session")
def spark_context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Starting it takes some 8 s. Tests ask for `spark`."""
    need_java()
    home = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master("local[2]").appName("headwater-tests")
        for name, value in {**SETTINGS, "spark.local.dir": str(home), "spark.sql.warehouse.dir": str(home / "warehouse")}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def spark(spark_context: SparkSession) -> SparkSession:
    """A session of its own over the one JVM: settings made in a test are gone with it."""
    session = spark_context.newSession()
    session.dataSource.register(HeadwaterSource)
    return session


@functools.cache
def archived(name: str, layout: str = "segment") -> str:
    """The URL of an archive of one of the real log directories, made once per process. Shared: do not change it."""
    root = Path(tempfile.mkdtemp(prefix=f"headwater-archive-{name}-{layout}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    archive(unpack(name), DirectoryStore(root), layout=layout)
    return root.as_uri()
