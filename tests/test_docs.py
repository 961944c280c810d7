"""The pages of docs/ point at what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "docs" / "README.md"


def links(page: Path) -> list[Path]:
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    return [(page.parent / each).resolve() for each in found if "://" not in each]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_and_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"[`\"]((?:\w+/)+\w+\.(?:py|h))[`:]", page.read_text("utf-8"))
    missing = [each for each in named if not (ROOT / each).is_file()]
    missing += [str(each) for each in links(page) if not each.exists()]
    assert missing == []


def test_the_index_leads_to_every_page() -> None:
    pages = {page for page in PAGES if page.parent != ROOT} - {INDEX}
    assert pages
    assert pages <= set(links(INDEX))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "packages").glob("*.md")), ids=lambda page: page.stem)
def test_the_page_of_a_package_lists_each_of_its_modules(page: Path) -> None:
    packages = [page.stem, "pyspark_headwater"] if page.stem == "headwater" else [page.stem]
    modules = [path.stem for package in packages for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    listed = re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(modules)


def test_every_package_has_a_page() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench", "pyspark_headwater"}
    assert {page.stem for page in (ROOT / "docs" / "packages").glob("*.md")} == packages
