"""Our packages sit at the root under plain nouns, so no dependency may bring a top-level name of ours."""

import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_no_dependency_provides_a_top_level_name_of_ours() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    ours = {name.partition(".")[0] for name in listed} | {"pipeline", "tests", "bench"}
    provided = packages_distributions()
    assert "click" in provided  # the environment was really looked at
    clashes = {name: found for name in ours if (found := set(provided.get(name, ())) - {"headwater"})}
    assert not clashes


def test_our_names_shadow_nothing_of_the_standard_library() -> None:
    import sys

    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert ours
    assert not ours & sys.stdlib_module_names
