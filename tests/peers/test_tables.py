"""Exports into Iceberg and Delta tables: each offset once, whatever becomes of the run, the rows, or the table's history."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.peers.tables import python_path, submit_arguments
from tests.pipeline.bucket import a_bucket
from tests.pipeline.growing import Growing
from tests.pipeline.spark import need_java
from tests.pipeline.test_export import wanted

pytestmark = pytest.mark.peer
FORMATS = pytest.mark.parametrize("table_format", ["iceberg", "delta"])


def environment(table_format: str) -> dict[str, str]:
    need_java()
    return {**os.environ, "PYTHONPATH": python_path(table_format), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(story: str, table_format: str, place: Path, kill_at: str = "") -> tuple[int, Any]:
    command = [sys.executable, "-m", "tests.peers.table_program", story, table_format, str(place)]
    ran = subprocess.run(
        command,
        cwd=place,
        env={**environment(table_format), "HEADWATER_KILL_AT": kill_at},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if kill_at:
        return ran.returncode, None
    assert ran.returncode == 0, ran.stderr[-6000:]
    return 0, json.loads(ran.stdout.splitlines()[-1])


@FORMATS
def test_a_table_holds_each_offset_once_though_the_export_was_killed(table_format: str, tmp_path: Path) -> None:
    a_bucket().write_to(tmp_path / "bucket")
    for step in ("export.table_created", "export.table_committed:2"):
        assert run("pantry", table_format, tmp_path, kill_at=step)[0] == -signal.SIGKILL
    for told, commits_some in zip(run("pantry", table_format, tmp_path)[1], (True, False), strict=True):
        assert (told["code"], told["notes"]) == (0, [])
        assert (told["commits"] > 0) == commits_some
        assert told["rows"] == wanted()


@FORMATS
def test_what_is_deleted_from_a_table_stays_deleted(table_format: str, tmp_path: Path) -> None:
    told = {each["what"]: each for each in run("progress", table_format, tmp_path)[1]}
    offsets = {what: [tuple(each) for each in facts["offsets"]] for what, facts in told.items()}
    first = [(partition, offset) for partition in range(2) for offset in range(6)]
    assert offsets["first"] == first
    assert offsets["one more"] == [*first, (1, 6)]
    assert offsets["newest row deleted"] == first
    assert offsets["all rows deleted, and history forgotten"] == []
    assert offsets["two more"] == [(0, 6), (0, 7)]
    for what in ("other isolation", "other columns"):
        assert told[what]["code"] == 2
        assert what.removeprefix("other ") in told[what]["error"]
    assert offsets["rolled back"] == [(0, 6), (0, 7), (0, 8)]  # what the table had lost with that is exported again
    assert offsets["one of two at once"] == [*offsets["rolled back"], (0, 9)]
    assert told["the other"]["code"] == 7
    twice = [(0, 9)] if table_format == "iceberg" else []  # there nothing refuses it, and the error says so
    assert offsets["the other"] == [*offsets["one of two at once"], *twice]
    assert ("may be there twice" in told["the other"]["error"]) == bool(twice)
    assert not any(facts.get("notes") for facts in told.values())


@FORMATS
def test_one_partitions_damage_stops_no_other(table_format: str, tmp_path: Path) -> None:
    told = {each["what"]: each for each in run("damage", table_format, tmp_path)[1]}
    rows = {what: Counter(tuple(each) for each in facts.get("offsets", ())) for what, facts in told.items()}
    users = Counter({(partition, offset): 1 for partition in range(2) for offset in range(6)})
    pay = Counter({(partition, offset): 1 for partition in range(2) for offset in range(3)})
    new = Counter({(1, offset): 1 for offset in range(6, 16)})
    for what in ("damaged", "still damaged"):
        assert told[what]["code"] == 3
        assert [(topic, partition) for topic, partition, _ in told[what]["failed"]] == [("users", 0)]
        stopped = Counter({(0, offset): 1 for offset in range(6, 11)})
        assert not rows[what] - (users + pay + new + stopped)  # of partition 0 what lies before the damage, at most
        assert not (users + pay + new) - rows[what]
    mended = users + pay + new + Counter({(0, offset): 1 for offset in range(6, 16)})
    assert rows["mended"] == mended
    assert told["created again, and one gone"]["code"] == 3
    assert [(topic, partition) for topic, partition, _ in told["created again, and one gone"]["failed"]] == [("users", 1)]
    assert rows["created again, and one gone"] == mended + Counter({(0, 0): 1, (0, 1): 1})
    old = told["an older version's"]
    assert (old["ranges"], old["code"]) == (0, 0)
    assert "taken over" in old["notes"][0]
    assert told["taken over"]["offsets"] == [[0, 16]]  # what was deleted since is known
    assert told["taken over"]["notes"] == []
    assert told["no export"]["code"] == 2


def test_the_command_line_ends_with_a_line_and_the_exit_code(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "bucket")
    for partition in range(2):
        growing.append("users", partition, records=3)
    path = tmp_path / "bucket" / growing.archive("users", 0).head.entries[0].key
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    def export(*options: str, table: str = "kafka") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from headwater.cli import main; main()", "jobs", "export", "users", "--table", table]
        command += ["--format", "delta", "--master", "local[2]", "--store", growing.url, "--data-dir", str(tmp_path / "state"), *options]
        settings = {**environment("delta"), "PYSPARK_SUBMIT_ARGS": submit_arguments("delta", tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900, check=False)

    ran = export("-o", "json", "--commit-bytes", "1MiB")
    assert ran.returncode == 3, ran.stderr[-4000:]
    summary = json.loads(ran.stdout)
    assert (summary["ranges"], summary["commits"]) == (1, 1)
    assert [(each["topic"], each["partition"]) for each in summary["failed"]] == [("users", 0)]
    ran = export(table="nowhere.at.all")
    said = [line for line in ran.stderr.splitlines() if line.startswith("headwater: ")]
    assert (ran.returncode, len(said)) == (1, 1), ran.stderr[-4000:]
    assert "Traceback" not in ran.stderr
