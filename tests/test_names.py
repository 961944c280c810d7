"""Names: unique within a package, equal where the job is equal, and the field's own words (CONTRIBUTING.md, "Where a thing goes")."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOUNS = {"testing", "wiring"}

# Words that this project once used for something the field has a name for, and in how many names product code defined each at 0.1.0.
# None may be added; whoever renames some lowers the number. Names that are stored in a bucket or a data directory count, and stay.
BANNED = {
    "settled": 28, "said": 64, "told": 5, "asked": 15, "held": 194, "meant": 15, "outrun": 2, "vain": 6, "look": 93, "rest": 89,
    "place": 337, "beneath": 4, "beside": 14, "left": 110, "given": 52, "trouble": 37, "mend": 0, "border": 6, "namesake": 0,
    "sight": 4, "doubt": 7, "spoil": 3, "verb": 41, "each": 999,
}  # fmt: skip

STUTTERS_MAX = 56  # modules that repeat the name of their package; a new one takes the plain noun


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


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def defined_names(path: Path) -> Iterator[str]:
    """Yield the module's own name and every name that it defines; imported names are up to others."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_banned_words_only_get_fewer() -> None:
    from tests.test_layers import sources

    found = Counter(word for path in sources() for name in defined_names(path) for word in words(name) if word in BANNED)
    assert not {word: (count, BANNED[word]) for word, count in found.items() if count > BANNED[word]}


def test_words_of_a_name_are_found_in_both_spellings() -> None:
    assert words("_HELD_back") == ["held", "back"]
    assert words("HeldSetting2") == ["held", "setting"]


def test_modules_that_repeat_their_packages_name_only_get_fewer() -> None:
    packages = [(path, path.parent.name) for path in modules()]
    stutters = [
        path.relative_to(ROOT).as_posix() for path, package in packages if {package, package.rstrip("s")} & set(path.stem.split("_"))
    ]
    assert len(stutters) <= STUTTERS_MAX, stutters


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


def test_no_two_public_classes_of_a_package_bear_one_name() -> None:
    """Other packages may have their own `Report`, where its job is the same."""
    from tests.test_layers import sources

    named = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[path.parent, node.name].append(path.relative_to(ROOT).as_posix())
    assert not {name: paths for name, paths in named.items() if len(paths) > 1}
