"""The demo is real: it succeeds on what the broker delivered, and fails when one record differs."""

import json
import lzma
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from headwater import demo
from headwater.replay import expected_records
from tests.fixtures import KAFKA, expected
from tests.headwater.conftest import Stage
from tests.headwater.terminal import on_terminal

pytestmark = pytest.mark.slow


def test_what_ships_is_the_fixture() -> None:
    with as_file(files("headwater") / "demo_data") as shipped:
        assert (shipped / "pantry.tar.xz").read_bytes() == (KAFKA / "pantry.tar.xz").read_bytes()
        for isolation in ("read_uncommitted", "read_committed"):
            assert list(expected_records(shipped / f"pantry.{isolation}.jsonl.xz")) == expected("pantry", isolation)


def test_the_whole_story(stage: Stage) -> None:
    ran = stage.run_bare("demo", "-o", "json", "--dir", str(stage.root / "demo"))
    assert ran.code == 0, ran.err
    story = json.loads(ran.out)
    topics = {topic["topic"]: topic for topic in story["topics"]}
    everything = expected("pantry", "read_uncommitted")
    assert sum(topic["records"] for topic in topics.values()) == len(everything)
    assert 0 < sum(topic["from_archive"] for topic in topics.values()) < len(everything)
    assert all(topic["recovered_bytes"] == topic["archived_bytes"] for topic in topics.values())
    assert topics["thermo-samples"]["released_bytes"] > 0
    assert story["elapsed_s"] < 60
    again = stage.run_bare("demo", "--dir", str(stage.root / "demo"))
    assert again.code == 2  # a directory that is there already is somebody's


def test_one_record_that_differs_is_a_failure(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = tmp_path / "altered"
    with as_file(files("headwater") / "demo_data") as shipped:
        shutil.copytree(shipped, altered)
    path = altered / "pantry.read_committed.jsonl.xz"
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    record = json.loads(lines[1234])
    record["headers"].append(["planted", None])
    lines[1234] = json.dumps(record)
    path.write_bytes(lzma.compress("\n".join(lines).encode()))

    @contextmanager
    def altered_data(name: str) -> Iterator[Path]:
        yield altered / name

    monkeypatch.setattr(demo, "_data", altered_data)
    ran = stage.run_bare("demo")
    assert ran.code == 4
    assert f"{record['topic']}:{record['partition']} offset {record['offset']} differs in headers" in ran.err


def test_the_last_screen_says_that_it_worked_and_what_to_copy(stage: Stage) -> None:
    place = stage.root / ("a-directory-with-a-long-name-" * 3)
    played = on_terminal(80, "demo", "--keep-running", "--dir", str(place), cwd=stage.root, until=lambda text: "Ctrl-C ends it." in text)
    assert played.code == 0
    total = sum(len(expected("pantry", isolation)) for isolation in ("read_uncommitted", "read_committed"))
    assert f"It worked: {2 * total} of {2 * total} records were read back equal" in " ".join(played.text.split())
    for isolation in ("read_uncommitted", "read_committed"):
        count = str(len(expected("pantry", isolation)))
        lines = [line.split()[-3:] for line in played.lines if isolation in line and line.endswith(count)]
        assert lines == [[isolation, count, count]] * 2
    hints = [line.strip() for line in played.lines if line.startswith("  ")]
    assert f"export HEADWATER_CONFIG={place}/headwater.toml" in hints
    assert any(re.fullmatch(r"kcat -C -b 127\.0\.0\.1:\d+ -t recipes\.zstd -o beginning -e", hint) for hint in hints)
    found = on_terminal(80, "status", cwd=stage.root, HEADWATER_CONFIG=f"{place}/headwater.toml")
    assert "48 partitions, 48 recovered" in found.text
    assert "behind" not in found.text
