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
    named = re.findall(r"[`\"]((?:\w+/)+\w+\.py)[`:]", page.read_text("utf-8"))
    missing = [each for each in named if not (ROOT / each).is_file()]
    missing += [str(each) for each in links(page) if not each.exists()]
    assert missing == []


def test_the_index_leads_to_every_page() -> None:
    pages = {page for page in PAGES if page.parent != ROOT} - {INDEX}
    assert pages
    assert pages <= set(links(INDEX))
