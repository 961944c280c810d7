"""`headwater scan`: a bucket to Parquet files."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headwater_core.objectstore.directory import DirectoryStore
from tests.fixtures import Isolation, expected
from tests.headwater.conftest import Stage
from tests.headwater.pipeline.archives import fixture, rows
from tests.headwater.pipeline.growing import Growing
from tests.headwater_core.segments.builders import a_segment


@pytest.fixture
def filled(stage: Stage) -> Stage:
    kitchen, bucket = fixture("kitchen"), DirectoryStore(stage.bucket)
    for info in kitchen.list(""):
        bucket.create(info.key, kitchen.get(info.key)[0])
    return stage


def wanted(isolation: Isolation) -> list[dict[str, object]]:
    found = [{name: value for name, value in row.items() if name != "leader_epoch"} for row in expected("kitchen", isolation)]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_files_hold_what_the_broker_delivered(filled: Stage, isolation: Isolation) -> None:
    into = filled.root / "parquet"
    ran = filled.run("scan", "*", "--to-parquet", str(into), "--headers", "--isolation", isolation, "--split-bytes", "4KiB", "-o", "json")
    assert ran.code == 0, ran.err
    (summary,) = json.loads(ran.out)
    files = sorted(into.iterdir())
    assert rows(pq.read_table(into)) == wanted(isolation)
    assert summary["records"] == len(wanted(isolation))
    assert summary["files"] == len(files) > 1
    assert summary["written_bytes"] == sum(path.stat().st_size for path in files)
    assert {path.suffix for path in files} == {".parquet"}
    assert [path.name for path in filled.root.iterdir() if "partial" in path.name] == []


def test_columns_and_bounds(filled: Stage) -> None:
    (topic, *_) = sorted({str(row["topic"]) for row in wanted("read_uncommitted")})
    times = sorted(int(str(row["timestamp"])) for row in wanted("read_uncommitted") if row["topic"] == topic)
    into = filled.root / "one"
    assert filled.run("scan", topic, "--to-parquet", str(into), "--columns", "offset", "--from", "1", "--to", "3").code == 0
    assert pq.read_table(into).schema.names == ["offset"]
    assert set(pq.read_table(into)["offset"].to_pylist()) == {1, 2}
    after = datetime.fromtimestamp(times[-1] / 1000 + 60, UTC).isoformat()
    ran = filled.run("scan", topic, "--to-parquet", str(filled.root / "none"), "--from", after)
    assert ran.code == 0, ran.err
    assert pq.read_table(filled.root / "none").num_rows == 0
    assert "value" in pq.read_table(filled.root / "none").schema.names


def test_a_dry_run_says_what_it_would_read_and_reads_only_manifests(filled: Stage) -> None:
    into = filled.root / "parquet"
    ran = filled.run("scan", "*", "--to-parquet", str(into), "--dry-run", "-o", "jsonl")
    assert ran.code == 0, ran.err
    assert not into.exists()
    assert sum(row["size_bytes"] for row in ran.rows) > 0
    assert {(row["topic"], row["partition"]) for row in ran.rows} >= {
        (row["topic"], row["partition"]) for row in wanted("read_uncommitted")
    }


def test_a_directory_in_use_is_left_alone(filled: Stage) -> None:
    into = filled.root / "mine"
    into.mkdir()
    (into / "thesis.tex").write_text("x")
    ran = filled.run("scan", "*", "--to-parquet", str(into))
    assert ran.code == 2
    assert "is not empty" in ran.err
    assert [path.name for path in into.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_is_taken(filled: Stage) -> None:
    into = filled.root / "empty"
    into.mkdir()
    assert filled.run("scan", "*", "--to-parquet", str(into)).code == 0
    assert pq.read_table(into).num_rows == len(wanted("read_uncommitted"))


def damage_one(filled: Stage) -> Path:
    path = max((filled.bucket / "data").rglob("*.log"), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def test_damage_ends_the_scan_and_nothing_is_left(filled: Stage) -> None:
    damaged = damage_one(filled)
    into = filled.root / "parquet"
    ran = filled.run("scan", "*", "--to-parquet", str(into))
    assert ran.code == 4
    assert damaged.name in ran.err
    assert "offset" in ran.err
    assert not [path for path in filled.root.iterdir() if path.name.startswith("parquet")]


def test_damage_in_quarantine_is_a_partial_result(filled: Stage) -> None:
    damage_one(filled)
    into, side = filled.root / "parquet", filled.root / "side"
    ran = filled.run("scan", "*", "--to-parquet", str(into), "--on-corrupt", "quarantine", "--quarantine", str(side), "-o", "json")
    assert ran.code == 3
    (summary,) = json.loads(ran.out)
    listed = [json.loads(line) for path in side.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert summary["damaged"] == len(listed) >= 1
    lost = {(each["topic"], each["partition"], at) for each in listed for at in range(each["first_offset"], each["last_offset"] + 1)}
    found = {(row["topic"], row["partition"], row["offset"]) for row in pq.read_table(into).to_pylist()}
    assert found == {(row["topic"], row["partition"], row["offset"]) for row in wanted("read_uncommitted")} - lost
    assert lost


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nobody",), 6, "nobody"),
        (("no*body",), 6, "no topic"),
        (("*", "--columns", "values"), 2, "value"),
        (("*", "--from", "yesterday"), 2, "neither earliest nor latest"),
        (("*", "--on-corrupt", "quarantine"), 2, "quarantinePath"),
    ],
)
def test_what_cannot_be_asked_is_said(filled: Stage, arguments: tuple[str, ...], code: int, said: str) -> None:
    ran = filled.run("scan", *arguments, "--to-parquet", str(filled.root / "parquet"))
    assert ran.code == code
    assert said in ran.err
    assert not (filled.root / "parquet").exists()


@pytest.mark.parametrize("library", ["pyarrow", "numba"])
def test_a_missing_extra_is_named(tmp_path: Path, library: str) -> None:
    program = f"import sys; sys.modules['{library}'] = None; from headwater.cli import main; main()"
    arguments = ["scan", "soup", "--to-parquet", str(tmp_path / "parquet"), "--store", tmp_path.as_uri()]
    ran = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert f'needs {library}, which is not installed: pip install "headwater[scan]"' in ran.stderr


def test_a_former_incarnation_is_listed_and_scanned(stage: Stage) -> None:
    growing = Growing(stage.bucket)
    growing.append("pay", records=3)
    former = growing.archive("pay").head.topic_id
    del growing.archives["pay", 0]
    growing.archive("pay", incarnation=2).append(a_segment(0, 2))
    assert len(printed(stage, "topics", "list")) == 1
    listed = printed(stage, "topics", "list", "--all")
    assert {row["topic_id"]: row["current"] for row in listed} == {former: False, growing.archive("pay").head.topic_id: True}
    assert former in stage.run("topics", "list", "--all").out
    ran = stage.run("scan", f"pay@{former}", "--to-parquet", str(stage.root / "out"), "-o", "json")
    assert (ran.code, [each["records"] for each in json.loads(ran.out)]) == (0, [3]), ran.err


def printed(stage: Stage, *verb: str) -> list[dict[str, Any]]:
    ran = stage.run(*verb, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_an_open_transaction_that_ends_a_scan_or_an_export_is_named(stage: Stage) -> None:
    assert stage.run("flush", "refunds", log=stage.log("pantry")).code == 0
    committed = ("--isolation", "read_committed")
    scans = [
        ("scan", "refunds", "--to-parquet", "out", *committed, "--dry-run"),
        ("scan", "refunds", "--to-parquet", "out", *committed),
        ("jobs", "export", "refunds", "--to", "lake", "--dry-run"),
        ("jobs", "export", "refunds", "--to", "lake"),
        ("jobs", "export", "refunds", "--to", "lake"),
    ]
    shown = [stage.run(*arguments).err for arguments in scans]
    named = [
        line for text in shown for line in text.splitlines() if line.startswith("not read because a transaction is open: refunds:0 from")
    ]
    assert len(named) == len(scans), shown
    assert len(set(named)) == 1
    assert " of 1 range into 1 file, " in shown[3]
    (row,) = json.loads(stage.run(*scans[-1], "-o", "json").out)["open_transactions"]
    assert (row["topic"], row["partition"]) == ("refunds", 0)
    (explained,) = json.loads(stage.run("explain", f"refunds:0@{row['offset']}", "-o", "json").out)
    assert f"open from offset {row['offset']} on" in explained["uncommitted"]
    (before,) = json.loads(stage.run("explain", "refunds:0@0", "-o", "json").out)
    assert before["uncommitted"] == "" or row["offset"] == 0
    assert "open" not in stage.run("scan", "refunds", "--to-parquet", "all").err
