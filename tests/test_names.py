"""Names: no dependency may bring a top-level name of ours, and a module is a noun that no other module bears."""

import ast
import tomllib
from collections import defaultdict
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOUNS = {"testing", "wiring"}


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


def modules() -> list[Path]:
    """Those whose names are up to us: a verb of the command line has its own module and function, and each package its config."""
    from tests.test_layers import sources

    return [path for path in sources() if path.parent.name != "commands" and path.stem not in ("__init__", "config")]


def test_no_two_modules_bear_one_name() -> None:
    named = defaultdict(list)
    for path in modules():
        named[path.stem].append(path.relative_to(ROOT).as_posix())
    assert not {stem: paths for stem, paths in named.items() if len(paths) > 1}


def test_a_module_is_a_noun() -> None:
    """As far as endings show: `archiving` and `archived` are what happens, not what is there."""
    assert not [path for path in modules() if path.stem.endswith(("ing", "ed")) and path.stem not in NOUNS]


def test_no_function_bears_its_modules_name() -> None:
    alike = []
    for path in modules():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == path.stem:
                alike.append(path.relative_to(ROOT).as_posix())
    assert not alike


def test_no_name_in_a_packages_face_hides_a_module_of_it() -> None:
    hidden = []
    for face in ROOT.glob("[a-z]*/**/__init__.py"):
        if face.is_relative_to(ROOT / "tests") or ".venv" in face.parts:
            continue
        stems = {path.stem for path in face.parent.glob("*.py")}
        names = {node.name for node in ast.parse(face.read_bytes()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        hidden += [f"{face.parent.name}.{name}" for name in names & stems]
    assert not hidden


def test_no_two_public_classes_bear_one_name() -> None:
    from tests.test_layers import sources

    named = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(path.relative_to(ROOT).as_posix())
    assert not {name: paths for name, paths in named.items() if len(paths) > 1}
