"""Exports into Iceberg and Delta tables: each offset once, whatever becomes of the run."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.headwater.pipeline.bucket import a_bucket
from tests.headwater.pipeline.export.test_directory_export import wanted
from tests.headwater.pipeline.growing import Growing
from tests.peers.tables import FORMATS, environment, run, submit_arguments

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.mark.long
@FORMATS
def test_a_table_holds_each_offset_once_though_the_export_was_killed(table_format: str, tmp_path: Path) -> None:
    (tmp_path / "pantry").mkdir()
    a_bucket().write_to(tmp_path / "pantry" / "bucket")
    for step in ("export.table_created", "export.table_committed:2"):
        assert run("pantry", table_format, tmp_path, kill_at=step)[0] == -signal.SIGKILL
    for result, commits_some in zip(run("pantry", table_format, tmp_path)[1]["pantry"], (True, False), strict=True):
        assert (result["code"], result["notes"]) == (0, [])
        assert (result["commits"] > 0) == commits_some
        assert result["rows"] == wanted()


@pytest.mark.long
def test_the_command_line_ends_with_a_line_and_the_exit_code(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "bucket")
    for partition in range(2):
        growing.append("users", partition, records=3)
    path = tmp_path / "bucket" / growing.archive("users", 0).head.entries[0].key
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    def export(*options: str, table: str = "kafka") -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "tests.kill_at",
            "jobs",
            "export",
            "users",
            "--table",
            table,
        ]
        command += ["--format", "delta", "--master", "local[2]", "--store", growing.url, "--data-dir", str(tmp_path / "state"), *options]
        settings = {**environment("delta"), "PYSPARK_SUBMIT_ARGS": submit_arguments("delta", tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900, check=False)

    ran = export("-o", "json", "--commit-bytes", "1MiB")
    assert ran.returncode == 3, ran.stderr[-4000:]
    summary = json.loads(ran.stdout)
    assert (summary["ranges"], summary["commits"]) == (1, 1)
    assert [(each["topic"], each["partition"]) for each in summary["failed"]] == [("users", 0)]
    ran = export(table="nowhere.at.all")
    lines = [line for line in ran.stderr.splitlines() if line.startswith("headwater: ")]
    assert (ran.returncode, len(lines)) == (1, 1), ran.stderr[-4000:]
    assert "Traceback" not in ran.stderr
