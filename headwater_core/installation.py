"""Checks that Python imports this installation's packages, and not a user's module of the same name.

A program's own directory, and on a Spark worker the directory it was started in, come before installed packages. So a
recovery.py there is what `import recovery` finds.
"""

import importlib.util
from pathlib import Path

from headwater_core.errors import UsageError

PACKAGES = ("archival", "headwater", "headwater_core", "hydration", "manifests", "recovery")


def check_packages() -> None:
    """Raises UsageError when a package of ours is hidden, and names the file that hides it. Imports none of them."""
    root = Path(__file__).parents[1]
    for name in PACKAGES:
        found = _file_of(name)
        if found is not None and not _is_same(found.parent, root / name):
            file = found.parent if found.stem == "__init__" else found
            raise UsageError(f"{file} hides the package {name!r} of Headwater, which needs that name for itself: rename yours")


def _file_of(name: str) -> Path | None:
    """What `import name` would load, or has loaded; None when there is nothing, or nothing with a file."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that a program put together itself
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _is_same(one: Path, other: Path) -> bool:
    """By name, as in a zip file or where each file is a link of its own; or by what links lead to."""
    return one == other or one.resolve() == other.resolve()
