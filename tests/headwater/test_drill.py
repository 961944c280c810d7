"""`headwater drill`, as a user runs it: killed at each step, on a full disk, over a damaged bucket, beside an agent."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.drill import drill_run
from headwater.drill.drill_report import DrillOutcome, decode_report
from headwater.drill.report_store import ReportStore
from headwater.drill_text import report_text
from headwater_core.errors import DiskFull, Locked, NothingExamined, Partial, StoreGone, UsageError, VerificationFailed
from tests.e2e.sample_topics import a_sample_log
from tests.fixtures import KAFKA, expected_cluster
from tests.headwater.conftest import Stage
from tests.headwater.test_bad_input import can_mount
from tests.recovery.written_archive import Archive, data, marker, plain

ROOT = KAFKA.parents[2]


def bucket_files(stage: Stage) -> dict[str, bytes]:
    return {str(path.relative_to(stage.bucket)): path.read_bytes() for path in stage.bucket.rglob("*") if path.is_file()}


def scratches(stage: Stage) -> list[Path]:
    return sorted((stage.data_dir / "drills").glob("scratch-*"))


@pytest.fixture
def archived(stage: Stage) -> Path:
    log = a_sample_log(stage.root)
    assert stage.run("flush", log=log).code == 0
    return log


def test_the_report_is_text_json_and_a_line_of_status(stage: Stage, archived: Path) -> None:
    before = bucket_files(stage)
    shown = stage.run("drill", "--sample", "50%", "--seed", "7", log=archived)
    assert shown.code == 0, shown.err
    assert "PASSED" in shown.out
    again = stage.run("drill", "--sample", "50%", "--seed", "7", "-o", "json", log=archived)
    report = decode_report(again.out.encode(), "stdout")
    assert (again.code, report.outcome) == (0, DrillOutcome.PASSED)
    assert report.request.seed == 7
    assert f"seed {7}" in shown.out
    assert report.compared.records > 0
    lines = stage.run("drill", "-o", "jsonl", log=archived)
    assert len(lines.rows) == 1
    kept = sorted((stage.data_dir / "drills").glob("report-*"))
    assert [path.suffix for path in kept] == [".json", ".txt"] * 3
    assert kept[1].read_text() == shown.out
    assert bucket_files(stage) == before
    assert scratches(stage) == []
    assert "last drill" in stage.run("status", log=archived).err


def test_of_named_topics_and_only_shown(stage: Stage, archived: Path) -> None:
    dry = stage.run("drill", "orders.placed", "--dry-run", "-o", "jsonl", log=archived)
    assert dry.code == 0
    assert {row["topic"] for row in dry.rows} == {"orders.placed"}
    assert not (stage.data_dir / "drills").exists()
    done = stage.run("drill", "orders.placed", "-o", "json", log=archived)
    assert {each["topic"] for each in json.loads(done.out)["windows"]} == {"orders.placed"}
    assert stage.run("drill", "no.such", log=archived).code == 6
    dry = stage.run("drill", "orders.p*", "--dry-run", "-o", "jsonl", log=archived)
    assert (dry.code, {row["topic"] for row in dry.rows}) == (0, {"orders.placed"})
    assert stage.run("drill", "no.s*", "--dry-run", log=archived).code == 6
    assert stage.run("drill", "a b*", log=archived).code == UsageError.exit_code
    assert stage.run("drill", "orders.placed", "--cluster", log=archived).code == UsageError.exit_code


def test_a_cluster_comes_back_with_what_its_snapshot_has(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    ran = stage.run("drill", "--cluster", "-o", "json", log=log)
    report = decode_report(ran.out.encode(), "stdout")
    assert (ran.code, report.outcome, report.request.cluster) == (0, DrillOutcome.PASSED, True), ran.err
    assert report.compared.records > 0
    expected = expected_cluster("kitchen")
    assert report.metadata == {
        "topics": len(expected["topics"]),
        "users": sum(len(user["credentials"]) for user in expected["scram_users"]),
        "ACLs": len(expected["acls"]),
        "quotas": sum(len(each["quotas"]) for each in expected["client_quotas"]),
        "tokens": 0,
        "settings": 7,
        "feature levels": len(expected["features"]),
    }
    assert report.unchecked
    assert all(each in report_text(report) for each in report.unchecked)


def test_a_failure_is_said_kept_and_remembered(stage: Stage, archived: Path) -> None:
    path = max((path for path in (stage.bucket / "data").rglob("*.log")), key=lambda path: path.stat().st_size)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(raw))
    ran = stage.run("drill", log=archived)
    assert ran.code == VerificationFailed.exit_code
    assert path.name in ran.err
    [kept] = scratches(stage)
    assert str(kept) in ran.out
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert (last.outcome, last.passed_ms) == (DrillOutcome.FAILED, 0)
    assert "failed" in stage.run("status", log=archived).err
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    assert stage.run("drill", log=archived).code == 0
    assert scratches(stage) == []


@pytest.mark.parametrize("only_shown", [[], ["--dry-run"]])
def test_a_transaction_that_comes_back_in_part_is_named(stage: Stage, only_shown: list[str]) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, producer_epoch=1)])
    archive.topic("menu", [plain(0), data(1, 7)])
    for info in archive.store.list(""):
        path = stage.bucket / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.get(info.key)[0])
    ran = stage.run("drill", *only_shown)
    assert ran.code == Partial.exit_code, ran.err
    assert "torn: transaction" in ran.err
    assert "producer id 7" in ran.err


def test_the_exit_code_of_a_dry_run_says_what_is_known_already(stage: Stage, archived: Path) -> None:
    [*_, manifest] = sorted((stage.bucket / "meta" / "orders.placed").rglob("*/manifest.json"))
    raw = manifest.read_bytes()
    manifest.unlink()
    dry = stage.run("drill", "--dry-run", log=archived)
    assert (dry.code, "left out: " in dry.err) == (Partial.exit_code, True)
    manifest.write_bytes(raw)
    max(stage.bucket.glob("data/*/orders.placed/**/*.log")).unlink()
    dry = stage.run("drill", "--dry-run", log=archived)
    assert (dry.code, "already known: " in dry.err) == (VerificationFailed.exit_code, True)
    assert stage.run("drill", "--dry-run", "--scratch-bytes", "1MiB", "--sample", "0.000001%", log=archived).code != 0


def test_a_live_comparison_that_was_requested_and_has_no_cluster_is_no_pass(stage: Stage, archived: Path) -> None:
    ran = stage.run("drill", "orders.placed", "--live", log=archived)
    assert ran.code == Partial.exit_code
    assert "log.bootstrap_servers is not set" in ran.err
    ran = stage.run("drill", "orders.placed", log=archived)
    assert ran.code == 0
    assert "live cluster: nothing compared, log.bootstrap_servers is not set" in ran.err


def test_a_failure_is_said_though_what_was_restored_cannot_be_kept(stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr("headwater.drill.scratch.Scratch.keep", full)
    path = max(stage.bucket.glob("data/*/orders.placed/**/*.log"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(raw))
    assert stage.run("drill", log=archived).code == VerificationFailed.exit_code
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert (last.outcome, last.findings) == (DrillOutcome.FAILED, 1)
    assert scratches(stage) == []


def test_a_plan_that_there_is_no_room_for_says_so_by_its_exit_code(stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = stage.root / "recovered"
    assert stage.run("recover", "plan", "topic", "--all", "--into", str(into)).code == 0
    monkeypatch.setattr("recovery.forecast._free_bytes", lambda _: 1000)
    for verb in ("plan", "apply"):
        ran = stage.run("recover", verb, "topic", "--all", "--into", str(into), *(["--dry-run"] if verb == "apply" else []))
        assert (ran.code, "NOT ENOUGH" in ran.err) == (DiskFull.exit_code, True)
    assert stage.run("recover", "plan", "topic", "--all").code == 0  # into no directory that is known


def test_it_is_kept_on_request(stage: Stage, archived: Path) -> None:
    ran = stage.run("drill", "--keep", log=archived)
    [kept] = scratches(stage)
    assert ran.code == 0
    assert f"kept: {kept}" in ran.err
    assert (kept / "log" / "meta.properties").exists()


def test_an_empty_bucket_fails_and_says_so(stage: Stage) -> None:
    stage.bucket.mkdir()
    ran = stage.run("drill")
    assert ran.code == NothingExamined.exit_code
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert last.outcome is DrillOutcome.NOTHING


def test_never_in_a_log_directory_or_the_bucket(stage: Stage, archived: Path) -> None:
    for place in (archived, archived / "x", stage.bucket / "x"):
        assert stage.run("drill", "--scratch", str(place), log=archived).code == UsageError.exit_code
        assert not (place / "drill.lock").exists()


def test_a_kafka_that_is_none_is_refused(stage: Stage, archived: Path) -> None:
    ran = stage.run("drill", "--kafka-home", str(stage.root), log=archived)
    assert ran.code == UsageError.exit_code
    assert "no unpacked Kafka" in ran.err


def test_one_at_a_time(stage: Stage, archived: Path) -> None:
    from headwater.drill.scratch import open_scratch

    with open_scratch(stage.data_dir / "drills", "20260131T120000.123Z-9f86d081"):
        assert stage.run("drill", log=archived).code == Locked.exit_code
    assert ReportStore(stage.data_dir, 10).last() is None


@pytest.mark.slow
@pytest.mark.parametrize("step", [*drill_run.MILESTONES, "recover.fetched", "recover.placed:3", "recover.identity", "recover.finished"])
def test_killed_at_any_step_the_next_one_finds_what_is_left(step: str, stage: Stage, archived: Path) -> None:
    before = bucket_files(stage)
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(archived)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KILL_AT": step}
    command = [sys.executable, "-m", "tests.kill_at", "drill", *places]
    ran = subprocess.run(command, cwd=stage.root, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == -signal.SIGKILL, f"{step} was never reached: {ran.stderr[-1000:]}"
    assert bucket_files(stage) == before
    assert len(scratches(stage)) == (step != "drill.reported")
    again = stage.run("drill", log=archived)
    assert again.code == 0, again.err
    assert scratches(stage) == []
    assert bucket_files(stage) == before


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own")
@pytest.mark.parametrize(("more_kib", "reserve"), [(-20, 0), (40, 0), (10_000, 1)])
def test_no_room_for_what_is_restored(more_kib: int, reserve: int, stage: Stage, archived: Path) -> None:
    """Said before anything is restored, where it can be known; and what is begun leaves nothing."""
    needed = sum(row["size_bytes"] for row in stage.run("drill", "--dry-run", "-o", "jsonl", log=archived).rows)
    kib = round(needed * drill_run.ROOM_FACTOR / 1024) + more_kib
    small = stage.root / "small"
    small.mkdir()
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(archived), "--scratch", str(small)]
    program = "from headwater.drill import scratch; scratch.RESERVE_BYTES *= RESERVE; from headwater.cli import main; main()"
    script = (
        f'mount -t tmpfs -o size={kib}k none "{small}" && "{sys.executable}" -c "{program.replace("RESERVE;", f"{reserve};")}" drill "$@"; '
        f'code=$?; ls -A "{small}"; exit $code'
    )
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *places],
        cwd=stage.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == DiskFull.exit_code, (ran.returncode, ran.stderr)
    assert "make room" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout.split() == ["drill.lock"]
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert last.outcome is DrillOutcome.UNFINISHED
    assert stage.run("drill", log=archived).code == 0


def test_no_room_for_the_report_is_said(stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.data_dir / "drills").mkdir()
    (stage.data_dir / "drills" / "last.json").mkdir()
    ran = stage.run("drill", log=archived)
    assert ran.code != 0
    assert scratches(stage) == []
    shutil.rmtree(stage.data_dir / "drills" / "last.json")
    assert stage.run("drill", log=archived).code == 0


@pytest.mark.parametrize("failure", [ValueError("year 58877 is out of range"), DiskFull("no room")])
def test_a_text_that_cannot_be_made_takes_neither_report_nor_verdict_away(
    failure: Exception, stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise failure

    monkeypatch.setattr("headwater.drill_text.report_text", fail)
    ran = stage.run("drill", log=archived)
    assert ran.code == 0, ran.err
    assert "could not be written as text" in ran.out
    [kept] = (stage.data_dir / "drills").glob("report-*")
    assert decode_report(kept.read_bytes(), kept.name).outcome is DrillOutcome.PASSED


@pytest.mark.parametrize(
    ("failure", "code"),
    [(MemoryError(), 5), (OSError(5, "Input/output error"), 5), (StoreGone("the store is gone"), 5), (PermissionError(13, "x"), 5)],
)
def test_trouble_of_the_machine_is_reported_and_no_damage(
    failure: Exception, code: int, stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr("headwater.drill_session.carry_out", fail)
    ran = stage.run("drill", log=archived)
    assert ran.code == code, ran.err
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert (last.outcome, last.findings) == (DrillOutcome.UNFINISHED, 0)
    assert scratches(stage) == []


def test_a_defect_leaves_a_report(stage: Stage, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("headwater.drill_session.carry_out", fail)
    with pytest.raises(KeyError):
        stage.run("drill", log=archived)
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    assert last.error == "KeyError('ours')"
    assert scratches(stage) == []
