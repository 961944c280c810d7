"""Imports point down only, and a library that has one home stays there (docs/design.md, "Packages")."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS: tuple[tuple[str, ...], ...] = (  # from the top; packages of one layer do not import each other
    ("headwater", "pyspark_headwater"),
    ("headwater.admin",),
    ("headwater.drill",),
    ("headwater.pipeline.spark",),
    ("headwater.pipeline.export", "headwater.pipeline.scrub"),
    ("headwater.pipeline.scan",),
    ("headwater.gateway", "headwater.pipeline"),
    ("recovery",),
    ("archival", "hydration"),
    ("manifests",),
    ("headwater_core.control", "headwater_core.layouts"),
    ("headwater_core.segments", "headwater_core.objectstore"),
    ("headwater_core",),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
ROOTS = sorted({package.partition(".")[0] for package in LEVEL})

HOMES = {  # library: the only places that may import it
    "prometheus_client": ("headwater/admin/",),
    "starlette": ("headwater/admin/",),
    "uvicorn": ("headwater/admin/",),
    "awscrt": ("headwater_core/objectstore/digest.py", "headwater_core/segments/"),
    "boto3": ("headwater_core/objectstore/s3/",),
    "botocore": ("headwater_core/objectstore/s3/",),
    "click": ("headwater/",),
    "confluent_kafka": ("headwater/",),
    "cramjam": ("headwater_core/segments/codecs.py",),
    "kio": ("headwater/gateway/",),
    "lmdb": ("manifests/index.py",),
    "pyspark": ("headwater/pipeline/spark/", "headwater/spark.py", "pyspark_headwater/"),
    "pysyncobj": ("headwater_core/control/node.py", "headwater_core/control/peer_transport.py"),
    "rich": ("headwater/",),
    "watchdog": ("archival/schedule/watch.py",),
}
NEVER_IN_THE_AGENT = {"numba", "numpy", "pandas", "pyarrow"}


def sources() -> list[Path]:
    return sorted(path for package in ROOTS for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every absolute import in `path`, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def layer_of(name: str) -> str | None:
    """The innermost package of the table that holds the module `name`; None for what is not ours."""
    while name and name not in LEVEL:
        name = name.rpartition(".")[0]
    return name or None


def test_every_package_at_the_root_has_a_layer() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert packages
    assert packages == set(ROOTS)


def test_imports_point_down_only() -> None:
    upward = []
    for path in sources():
        package = layer_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        assert package is not None
        for line, name in imports(path):
            layer = layer_of(name)
            if layer is not None and layer != package and LEVEL[layer] <= LEVEL[package]:
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if name.partition(".")[0] in ("bench", "tests"):
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not upward


def test_the_gateway_and_the_pipeline_do_not_import_each_other() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for one, other in (("gateway", "pipeline"), ("pipeline", "gateway"))
        for path in (ROOT / "headwater" / one).rglob("*.py")
        for line, name in imports(path)
        if f"{name}.".startswith(f"headwater.{other}.")
    ]
    assert not found


def test_each_library_stays_in_its_home() -> None:
    wrong = []
    for path in sources():
        where = path.relative_to(ROOT).as_posix()
        for line, name in imports(path):
            library = name.partition(".")[0]
            if library in NEVER_IN_THE_AGENT and not where.startswith("headwater/pipeline/"):
                wrong.append(f"{where}:{line} imports {name}")
            if library in HOMES and not where.startswith(HOMES[library]):
                wrong.append(f"{where}:{line} imports {name}")
    assert not wrong


def test_words_need_the_standard_library_only() -> None:
    import sys

    foreign = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "headwater_core").glob("*.py")
        for line, name in imports(path)
        if layer_of(name) != "headwater_core" and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not foreign


@pytest.mark.parametrize("package", ROOTS)
def test_the_installed_packages_are_the_ones_on_disk(package: str) -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    on_disk = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / package).rglob("__init__.py")}
    assert on_disk == {name for name in listed if name.partition(".")[0] == package}
