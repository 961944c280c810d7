"""The disk is full, under the state or under the bucket, after any number of bytes: reported, nothing is lost, and room mends it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater_core.errors import DiskFull, Partial
from tests.e2e.sample_topics import SEGMENTS, a_sample_log, sample_records
from tests.fixtures import KAFKA
from tests.headwater.conftest import Ran, Stage
from tests.headwater.test_bad_input import can_mount
from tests.headwater.test_verbs import as_expected

ROOT = KAFKA.parents[2]
FLUSH = ["flush", "--set", "log.owned=true", "-o", "jsonl"]
TO_READ = ("orders.placed", "thermo-samples")
COLLECT = ["gc", "--yes", "-o", "jsonl", "--set", "archival.reader_lease=0s"]
READ = [["read", topic] for topic in TO_READ]
WANTED = [record for record in sample_records("read_uncommitted") if record["topic"] in TO_READ]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own"),
]


def on_a_small_disk(stage: Stage, directory: Path, kib: int, verbs: list[list[str]], later: list[list[str]], log: Path) -> list[Ran]:
    directory.mkdir()
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(log)]
    encoded = [json.dumps([[*verb, *places] for verb in each]) for each in (verbs, later)]
    ran = subprocess.run(
        ["unshare", "-rm", sys.executable, "-m", "tests.e2e.small_disk", str(directory), str(kib), *encoded],
        cwd=stage.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [Ran(*each) for each in json.loads(ran.stdout)]


def rows(reads: list[Ran]) -> list[dict[str, Any]]:
    assert {ran.code for ran in reads} == {0}, [ran.err for ran in reads]
    return [as_expected(row) for ran in reads for row in ran.rows]


def in_words(ran: Ran) -> None:
    assert "Traceback" not in ran.err
    assert ran.code in (DiskFull.exit_code, Partial.exit_code), (ran.code, ran.err)
    assert "no space left" in ran.err.lower()


@pytest.mark.parametrize("kib", [4, *(pytest.param(kib, marks=pytest.mark.long) for kib in (8, 16))])
def test_no_room_for_the_agents_state(stage: Stage, kib: int) -> None:
    """The journal, the writer's name, the waiting tails: whatever it is that finds no room."""
    log = a_sample_log(stage.root)
    first, *before, again, verified = on_a_small_disk(stage, stage.data_dir, kib, [FLUSH, *READ], [FLUSH, ["verify", "--data"]], log)
    in_words(first)
    assert rows(before) == WANTED
    assert (again.code, verified.code) == (0, 0), again.err


@pytest.mark.parametrize("kib", [60, pytest.param(300, marks=pytest.mark.long)])
def test_no_room_for_the_bucket(stage: Stage, kib: int) -> None:
    """What does not fit is not released: the records stay readable, and are archived when there is room."""
    log = a_sample_log(stage.root)
    first, *before, again, verified, full = on_a_small_disk(
        stage, stage.bucket, kib, [FLUSH, *READ], [FLUSH, ["verify", "--data"], ["status", "-o", "jsonl"]], log
    )
    in_words(first)
    assert rows(before) == WANTED
    assert (again.code, verified.code) == (0, 0), again.err
    assert {row["state"] for row in full.rows} == {"archived"}
    assert sum(row["objects"] for ran in (first, again) for row in ran.rows) == SEGMENTS


@pytest.mark.parametrize("kib", [pytest.param(4, marks=pytest.mark.long), 140])
def test_no_room_for_what_is_recovered(stage: Stage, kib: int) -> None:
    log = a_sample_log(stage.root)
    assert stage.run("flush", log=log).code == 0
    into = stage.root / "recovered"
    recover = ["recover", "apply", "topic", "--all", "--into", str(into / "log"), "-o", "json"]
    first, second, again = on_a_small_disk(stage, into, kib, [recover, recover], [recover], log)
    for each in (first, second):
        assert "Traceback" not in each.err
        assert each.code == DiskFull.exit_code, each.err
        assert "make room" in each.err
    assert again.code == 0, again.err
    assert json.loads(again.out)[0]["again"] is False


@pytest.mark.parametrize("kib", [pytest.param(60, marks=pytest.mark.long), 300])
def test_no_room_to_collect(stage: Stage, kib: int) -> None:
    """What the full bucket's uploads have left is deleted, as far as that needs no room, and all of it later."""
    log = a_sample_log(stage.root)
    first, full, again, flushed, verified = on_a_small_disk(
        stage, stage.bucket, kib, [FLUSH, COLLECT], [COLLECT, FLUSH, ["verify", "--data"]], log
    )
    in_words(first)
    if full.code:
        in_words(full)
    assert (again.code, flushed.code, verified.code) == (0, 0, 0), again.err + flushed.err + verified.err
