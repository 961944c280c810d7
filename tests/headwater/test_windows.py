"""The verbs' tables on terminals of several widths: a number, a name or a state is never cut."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import private_copy
from tests.headwater.terminal import Screen, on_terminal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("windows")]

WIDTHS = (80, *(pytest.param(width, marks=pytest.mark.long) for width in (120, 200)))


@dataclass(frozen=True, slots=True)
class Site:
    """A broker's log, of which some is archived. known: what verbs said in JSON."""

    root: Path
    log: Path
    known: dict[tuple[str, ...], list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        return ("--log-dir", str(self.log), "--data-dir", str(self.root / "state"), "--store", f"file://{self.root}/bucket")

    def shown(self, width: int, *arguments: str, **how: Any) -> Screen:
        return on_terminal(width, *arguments, *self.places, cwd=self.root, **how)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        if arguments not in self.known:
            command = [sys.executable, "-c", "from headwater.cli import main; main()", *arguments, "-o", "jsonl", *self.places]
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True, timeout=60)
            self.known[arguments] = [json.loads(line) for line in done.stdout.splitlines()]
        return self.known[arguments]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("windows")
    site = Site(root, private_copy("pantry", root))
    archived = site.shown(80, "archive")
    assert archived.code == 0, archived.text
    yield site
    shutil.rmtree(root)


def check_whole(screen: Screen, width: int, rows: list[list[object]]) -> None:
    """Each of `rows` stands in one line, whole, and the window is wide enough for it."""
    assert screen.code == 0, screen.text
    lines = [line.split() for line in screen.lines if len(line) <= width]
    for row in rows:
        cells = [word for cell in row for word in str(cell).split()]
        assert any(line[:1] == cells[:1] and set(cells) <= set(line) for line in lines), (cells, screen.text)
    assert "…" not in screen.text
    assert any(line.startswith("───") and len(line) <= width for line in screen.lines)


def archive_end(row: dict[str, Any]) -> object:
    return row["last_offset"] + 1 if row["last_offset"] is not None else row["archive_start"]


@pytest.mark.parametrize("width", WIDTHS)
def test_status_by_partition(site: Site, width: int) -> None:
    rows = site.rows("status")
    assert len({row["state"] for row in rows}) > 1
    screen = site.shown(width, "status", "-p")
    check_whole(screen, width, [[row["topic"], row["partition"], archive_end(row), row["high_watermark"], row["state"]] for row in rows])
    for row in rows:
        assert row["state"] == "archived" or row["reason"].split("has waited")[0] in " ".join(screen.text.split())
    assert ("not shown at 80 columns: cached" in screen.text) == (width == 80)


@pytest.mark.parametrize("width", WIDTHS)
def test_status_is_by_topic_with_one_line_that_sums_up(site: Site, width: int) -> None:
    rows = site.rows("status")
    topics: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        topics.setdefault(row["topic"], []).append(row)
    screen = site.shown(width, "status")
    current = {topic: sum(row["lag_bytes"] == 0 for row in partitions) for topic, partitions in topics.items()}
    check_whole(screen, width, [[topic, len(partitions), current[topic]] for topic, partitions in topics.items()])
    assert f"{len(rows)} partitions, {sum(current.values())} current, " in screen.text
    assert sum(line.split()[:1] in [[topic] for topic in topics] for line in screen.lines) == len(topics)


@pytest.mark.parametrize("width", WIDTHS)
def test_topics_are_listed_and_shown(site: Site, width: int) -> None:
    listed = site.rows("topics", "list")
    whole = [[row["topic"], row["topic_id"], row["partitions"], row["objects"]] for row in listed]
    check_whole(site.shown(width, "topics", "list"), width, whole)
    topic = max(listed, key=lambda row: int(row["partitions"]))["topic"]
    whole = [[row["topic"], row["partition"], row["last_offset"] + 1, row["objects"]] for row in site.rows("topics", "show", topic)]
    check_whole(site.shown(width, "topics", "show", topic), width, whole)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_pass_and_a_recovery_would_do(site: Site, width: int) -> None:
    due = site.rows("flush", "--dry-run")
    assert due
    check_whole(site.shown(width, "flush", "--dry-run"), width, [[row["topic"], row["partition"]] for row in due])
    [plan] = site.rows("recover", "plan", "topic", "--all")
    records = {
        topic["topic"]: sum(entry["records"] for partition in topic["partitions"] for entry in partition["entries"])
        for topic in plan["topics"]
    }
    check_whole(site.shown(width, "recover", "plan", "topic", "--all"), width, [[topic, count] for topic, count in records.items()])


def test_names_longer_than_the_window_are_not_cut(site: Site, tmp_path: Path) -> None:
    damaged = Site(tmp_path, site.log)
    shutil.copytree(site.root / "bucket", tmp_path / "bucket")
    victim = max((tmp_path / "bucket").rglob("*.log"), key=lambda path: len(str(path)))
    victim.unlink()
    found = damaged.shown(80, "verify")
    assert found.code == 4
    key = str(victim.relative_to(tmp_path / "bucket"))
    assert len(key) > 60
    assert key in found.text
    settings = site.rows("config", "show")
    shown = site.shown(80, "config", "show")
    assert all(row["key"] in shown.text and str(row["value"] or "") in shown.text for row in settings)
    assert site.shown(80, "read", "cookbook.1990:0", "--count", "1", "--set", "hydration.read_priority=offloaded-first").code == 0
    files = site.rows("cache", "show")
    assert files
    cached = site.shown(80, "cache", "show")
    assert all(f"  {row['name']}\n" in cached.text for row in files)


def without_ages(text: str) -> str:
    """Two commands, one after the other, find the same a moment older."""
    return re.sub(r"[0-9.]+ s ago", "a while ago", text)


def test_one_partition_is_shown_with_its_reason(site: Site) -> None:
    row = next(row for row in site.rows("status") if row["state"] == "archived")
    screen = site.shown(80, "status", f"{row['topic']}:{row['partition']}")
    check_whole(screen, 80, [[row["topic"], row["partition"], archive_end(row), row["high_watermark"], "archived"]])
    assert without_ages(row["reason"]) in without_ages(" ".join(screen.text.split()))


def test_a_watched_status_is_drawn_again_until_it_is_interrupted(site: Site) -> None:
    def twice(printed: str) -> bool:
        return printed.count("Ctrl-C ends it") >= 2 and printed.count(" partitions, ") >= 2

    screen = site.shown(80, "status", "--watch", "--interval", "500ms", height=15, until=twice)
    assert screen.code == 130
    assert "more lines" in screen.text  # what has no room is counted: the worst stays in sight
    drawn = screen.text.split("Ctrl-C ends it")[1].splitlines()
    assert len(drawn) <= 15


def test_a_recovered_directory_says_that_it_was_recovered(site: Site, tmp_path: Path) -> None:
    into = tmp_path / "recovered"
    cluster = json.loads((site.root / "bucket" / "headwater.json").read_bytes())["cluster_id"]
    done = site.shown(80, "recover", "apply", "topic", "--all", "--into", str(into), "--cluster-id", cluster)
    assert done.code == 0, done.text
    found = Site(site.root, into)
    partitions = len(found.rows("status"))
    screen = found.shown(80, "status")
    assert f"{partitions} partitions, {partitions} recovered" in screen.text
    assert "read-only until a broker starts on it" in screen.text
    assert "behind" not in screen.text
