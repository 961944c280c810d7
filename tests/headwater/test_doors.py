"""What other programs import of us: it is loaded when it is used, and says so in a sentence when something of theirs is in the way."""

import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement
from pyspark.sql.types import StructType

import headwater
import headwater_core
from headwater.pipeline.scan import arrow_stream
from headwater.pipeline.spark.data_source import HeadwaterSource
from headwater_core.errors import UsageError
from pyspark_headwater import DefaultSource

ROOT = Path(__file__).parents[2]
HIDES = "headwater_core.errors.UsageError: {} hides the package '{}' of Headwater, which needs that name for itself: rename yours"
LACKS_SOURCES = "import sys; sys.modules['pyspark.sql.datasource'] = None"
COMMAND = "import sys; from headwater.cli import main; sys.argv = ['headwater', *sys.argv[1:]]; main()"


def run(program: str, *arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=directory, capture_output=True, text=True, timeout=60)


def loaded(statement: str) -> set[str]:
    """The top-level modules that `statement` loads."""
    done = run(f"import sys; before = set(sys.modules); {statement}; print(*{{name.split('.')[0] for name in {{*sys.modules}} - before}})")
    assert not done.stderr
    return set(done.stdout.split())


def test_objects_name_the_version_that_the_program_says() -> None:
    """Written twice, so that importing headwater loads nothing."""
    assert headwater.__version__ == headwater_core.VERSION


def test_importing_headwater_loads_nothing() -> None:
    assert loaded("import headwater") == {"headwater"}


def test_the_doors_are_there_for_those_who_look() -> None:
    assert headwater.scan is arrow_stream.scan
    assert headwater.spark.HeadwaterSource is HeadwaterSource
    assert {"scan", "spark"} <= set(dir(headwater))
    with pytest.raises(AttributeError, match="has no attribute 'scann'"):
        getattr(headwater, "scann")  # noqa: B009 - for mypy it is not there, either


@pytest.mark.parametrize(
    ("statement", "library", "extra"),
    [
        ("headwater.scan", "pyarrow", "scan"),
        ("headwater.scan", "numba", "scan"),
        ("headwater.spark", "pyspark", "spark"),
        ("from headwater.spark import register", "pyspark", "spark"),
    ],
)
def test_a_library_that_is_missing_is_named_with_what_installs_it(statement: str, library: str, extra: str) -> None:
    done = run(f"import headwater, sys; sys.modules[{library!r}] = None; {statement}")
    assert re.search(rf'needs {library}(\.sql)?, which is not installed: pip install "headwater\[{extra}\]"\n$', done.stderr)
    assert "another exception" not in done.stderr


def test_the_extra_installs_a_spark_that_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    (wanted,) = [Requirement(text).specifier for text in extras if text.startswith("pyspark")]
    assert [wanted.contains(version) for version in ("4.0.1", "4.1.4", pyspark.__version__, "4.3.0")] == [False, True, True, False]


@pytest.mark.parametrize("version", ["4.0.1", "3.5.6"])
@pytest.mark.parametrize(
    "statement",
    [
        "import headwater; headwater.spark",
        "from headwater.spark import register",
        "from pyspark_headwater import DefaultSource; DefaultSource({}).schema()",
        "import headwater.pipeline.spark.data_source",
        "import headwater.pipeline.spark.tasks",
    ],
)
def test_an_older_spark_is_named_with_the_one_that_is_needed(statement: str, version: str) -> None:
    lacks = "import pyspark.sql.datasource as d; del d.Filter" if version > "4" or "Default" in statement else LACKS_SOURCES
    done = run(f"import pyspark.version as v; v.__version__ = {version!r}; {lacks}; {statement}")
    assert done.stderr.splitlines()[-1] == f"headwater_core.errors.UsageError: Headwater needs Spark 4.1 or newer, this is {version}"
    assert "another exception" not in done.stderr


def test_a_job_on_an_older_spark_ends_with_a_sentence(tmp_path: Path) -> None:
    older = "import pyspark.version as v; v.__version__ = '4.0.1'; " + COMMAND
    (tmp_path / "archive").mkdir()
    store = f"file://{tmp_path}/archive"
    for job in (["scrub"], ["export", "orders", "--table", "lake.orders"]):
        done = run(older, "jobs", *job, "--master", "local[1]", "--store", store, "--data-dir", str(tmp_path / "state"), directory=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("headwater: Headwater needs Spark 4.1 or newer, this is 4.0.1")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("statement", ["import headwater; headwater.scan", "import headwater; headwater.spark", "import headwater.spark"])
def test_a_file_that_hides_a_package_is_named_by_the_doors(tmp_path: Path, statement: str) -> None:
    (tmp_path / "manifests.py").touch()
    done = run(statement, directory=tmp_path)
    assert done.stderr.splitlines()[-1] == HIDES.format(tmp_path / "manifests.py", "manifests")
    assert "another exception" not in done.stderr


def test_a_file_that_hides_a_package_is_named_where_a_task_is_unpickled(tmp_path: Path) -> None:
    """As a Spark worker does it: nothing of ours runs before, and what is unpickled imports its modules."""
    source = HeadwaterSource({"store": "file:///nowhere", "topics": "orders"})
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps(source.reader(source.schema())))
    (tmp_path / "hydration").mkdir()
    (tmp_path / "hydration" / "__init__.py").touch()
    done = run("import pickle; pickle.load(open('task', 'rb'))", directory=tmp_path)
    assert done.stderr.splitlines()[-1] == HIDES.format(tmp_path / "hydration", "hydration")
    assert "another exception" not in done.stderr


def test_a_file_that_hides_a_package_is_named_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "archival.py").touch()
    done = run(COMMAND, "jobs", "scrub", "--store", "file:///nowhere", directory=tmp_path)
    assert done.returncode == UsageError.exit_code
    assert done.stderr == f"headwater: {HIDES.format(tmp_path / 'archival.py', 'archival').partition(': ')[2]}\n"
    assert run(COMMAND, "--version", directory=tmp_path).returncode == 0


def test_what_spark_looks_at_first_loads_pyspark_alone() -> None:
    ours = {"archival", "headwater", "headwater_core", "hydration", "manifests", "recovery"}
    found = loaded("import pyspark_headwater")
    assert "pyspark" in found
    assert not found & {*ours, "boto3", "msgspec", "numba", "structlog"}


def test_a_broken_installation_does_not_disturb_sparks_search(tmp_path: Path) -> None:
    (tmp_path / "headwater.py").touch()
    done = run("import pyspark_headwater as found; print(found.DefaultSource.name())", directory=tmp_path)
    assert done.stdout == "headwater\n"
    done = run("import pyspark_headwater as found; found.DefaultSource({}).schema()", directory=tmp_path)
    assert done.stderr.splitlines()[-1] == HIDES.format(tmp_path / "headwater.py", "headwater")


def test_the_source_that_spark_finds_is_the_one_to_register() -> None:
    options = {"store": "file:///nowhere", "topics": "orders", "columns": "offset,value"}
    found, registered = DefaultSource(options), HeadwaterSource(options)
    schema = found.schema()
    assert isinstance(schema, StructType)
    assert schema == registered.schema()
    assert type(found.reader(schema)) is type(registered.reader(schema))
    assert type(found.streamReader(schema)) is type(registered.streamReader(schema))
    with pytest.raises(UsageError, match="topcs"):
        DefaultSource({"store": "file:///nowhere", "topcs": "orders"}).schema()
