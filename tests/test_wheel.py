"""The wheel, installed away from the checkout, works beside a job that uses the names that our modules have inside."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater import __version__
from tests.fixtures import expected
from tests.headwater.pipeline.spark_fixtures import SETTINGS, archived, need_java

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

SCAN = """
import json, sys
import control, model, pipeline
import headwater
batches = headwater.scan(sys.argv[1], "*", columns=["topic", "partition", "offset"])
rows = sum(batch.num_rows for batch in batches)
ours = ("headwater", "headwater_core", "hydration", "manifests")
files = sorted({str(module.__file__) for name, module in sys.modules.items() if name.partition(".")[0] in ours})
print(json.dumps({"rows": rows, "files": files, "theirs": [control.OURS, model.OURS, pipeline.OURS]}))
"""
SPARK = """
import json, sys
from pathlib import Path
import control, model, pipeline
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.python.worker.reuse", "false")
for name, value in json.loads(sys.argv[2]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def count(session):
    return session.read.format("headwater").option("store", sys.argv[1]).option("topics", "bills").load().count()

rows = count(spark)
from headwater.spark import register
registered = spark.newSession()
register(registered)  # does no harm where Spark has found it
rows_registered = count(registered)
Path("manifests.py").touch()
errors = []
for session in (spark, registered):
    try:
        count(session)
    except PySparkException as error:
        errors.append(str(error))
theirs = spark.sparkContext.parallelize([0], 1).map(lambda _: [control.OURS, model.OURS, pipeline.OURS]).first()
print(json.dumps({"rows": [rows, rows_registered], "errors": errors, "theirs": theirs}))
spark.stop()
"""


@dataclass(frozen=True)
class Installed:
    """Headwater in a directory of its own, and Python with its dependencies, but without the checkout."""

    site: Path
    python: Path

    def run(self, *arguments: str | Path, directory: Path) -> str:
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may lead to the checkout
        settings = outside | {"PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run([self.python, *arguments], cwd=directory, env=settings, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("wheel")
    source, site = root / "source", root / "site"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package in {name.partition(".")[0] for name in settings["tool"]["setuptools"]["packages"]}:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", root, source], check=True)
    (wheel,) = root.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True)
    # -S: files in site-packages that put a checkout on the path, as an editable installation does, are not looked at
    path = [str(site), *(each for each in sys.path if each and not (Path(each) / "headwater_core").is_dir())]
    python = root / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{":".join(path)}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return Installed(site, python)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of a user's program, with modules of its own."""
    for package in ("pipeline", "control"):
        (tmp_path / package).mkdir()
    for name in ("pipeline/__init__.py", "control/__init__.py", "model.py"):
        (tmp_path / name).write_text(f"OURS = {name!r}")
    return tmp_path


def test_the_command_says_its_version(installed: Installed, job: Path) -> None:
    assert installed.run(installed.site / "bin" / "headwater", "--version", directory=job) == f"headwater {__version__}\n"


def test_the_wheel_carries_compiled_code_where_there_is_a_compiler(installed: Installed, job: Path) -> None:
    if not shutil.which("cc") and not os.environ.get("REQUIRE_COMPILER"):
        pytest.skip("no C compiler")
    (job / "job.py").write_text("from headwater_core.segments import compiled_walk; print(compiled_walk.__file__)")
    assert installed.run("job.py", directory=job).startswith(str(installed.site))


def test_a_scan_works_in_a_job_with_names_of_its_own(installed: Installed, job: Path) -> None:
    (job / "job.py").write_text(SCAN)
    found = json.loads(installed.run("job.py", archived("kitchen"), directory=job))
    assert found["rows"] == len(expected("kitchen", "read_uncommitted"))
    assert found["theirs"] == ["control/__init__.py", "model.py", "pipeline/__init__.py"]
    assert found["files"]
    assert all(file.startswith(str(installed.site)) for file in found["files"])


@pytest.mark.long
def test_spark_finds_the_format_in_a_job_with_names_of_its_own(installed: Installed, job: Path) -> None:
    need_java()
    (job / "job.py").write_text(SPARK)
    found = json.loads(installed.run("job.py", archived("kitchen"), json.dumps(SETTINGS), directory=job))
    bills = sum(record["topic"] == "bills" for record in expected("kitchen", "read_uncommitted"))
    assert found["rows"] == [bills, bills]
    assert found["theirs"] == ["control/__init__.py", "model.py", "pipeline/__init__.py"]
    hidden = f"headwater_core.errors.UsageError: {job}/manifests.py hides the package 'manifests' of Headwater"
    assert ["another exception" in each for each in found["errors"]] == [False, False]
    assert [hidden in each for each in found["errors"]] == [True, True]
