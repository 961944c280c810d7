"""A user's file that has the name of one of our packages is found and named; nothing else is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from headwater_core import installation
from headwater_core.installation import PACKAGES, check_packages
from tests.test_layers import ROOTS


def check_in(directory: Path, before: str = "pass") -> str:
    """The last line that Python says when a program in `directory` checks, after `before`; empty when all is well."""
    program = f"{before}; from headwater_core.installation import check_packages; check_packages()"
    done = subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("name", ["archival", "headwater", "hydration", "manifests", "recovery"])
def test_a_module_that_hides_a_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").touch()
    assert check_in(tmp_path) == (
        f"headwater_core.errors.UsageError: {tmp_path}/{name}.py hides the package '{name}' of Headwater, "
        "which needs that name for itself: rename yours"
    )


def test_a_package_that_hides_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "__init__.py").touch()
    assert f": {tmp_path}/manifests hides the package 'manifests'" in check_in(tmp_path)


def test_what_hides_nothing_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()  # no package: Python prefers one that is, wherever it lies
    for name in ("pipeline", "model", "control", "segments", "gateway"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('never imported')")
    assert check_in(tmp_path) == ""


def test_every_package_at_the_root_is_checked_but_the_one_that_only_spark_imports() -> None:
    assert {*PACKAGES, "pyspark_headwater"} == set(ROOTS)


def test_a_module_that_is_loaded_already_counts(tmp_path: Path) -> None:
    (tmp_path / "recovery.py").touch()
    assert "recovery.py hides" in check_in(tmp_path, "import recovery, sys; sys.path.remove('')")
    made_by_the_program = "import sys, types; sys.path.remove(''); sys.modules['recovery'] = types.ModuleType('recovery')"
    assert check_in(tmp_path, made_by_the_program) == ""  # there is no file to rename


def test_an_installation_that_is_reached_by_a_link_is_the_same_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(Path(installation.__file__).parents[1])
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "link" / "headwater_core" / "installation.py"))
    check_packages()
