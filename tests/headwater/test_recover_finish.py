"""`headwater recover status`, and what of it is left for `finish`. `finish` itself: tests/recovery/test_held_settings.py."""

import json
from pathlib import Path

import pytest

import recovery
from headwater import cli
from manifests.repository import ManifestRepository
from recovery.topic_creation import with_created_topics
from tests.headwater.conftest import Stage
from tests.headwater.test_verbs import flip, objects
from tests.recovery.running import Running
from tests.recovery.written_archive import Archive, plain


def test_a_directory_that_somebody_formatted_is_no_finished_recovery(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    into = stage.root / "recovered"
    path = next(path for path in objects(stage, ".log") if "bills" in path.parts)
    flip(path, -3)
    assert stage.run("recover", "apply", "topic", "--all", "--into", str(into)).code == 4
    assert stage.run_bare("recover", "status", "--into", str(into), "-o", "jsonl").rows[0]["state"] == "unfinished"
    (into / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n")
    flip(path, -3)
    applied = stage.run("recover", "apply", "topic", "--all", "--into", str(into))
    assert applied.code == 4
    assert "Remove meta.properties" in applied.err
    status = stage.run_bare("recover", "status", "--into", str(into), "-o", "jsonl")
    assert (status.code, status.rows[0]["state"]) == (4, "damaged")


def test_status_says_what_is_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, cluster = Archive(), Running(nodes={1: None, 2: None})
    archive.topic("orders", [plain(0)], **{"retention.ms": "600"})
    plan = recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True), running=cluster)
    recovery.apply(plan, tmp_path / "staging", archive.store, create=lambda made: with_created_topics(made, cluster))
    assert cli.run(["recover", "status", "--into", str(tmp_path / "staging")]) == 0
    said = capsys.readouterr().err
    assert "held back: orders retention.ms, 600; it has -1" in said
    assert "broker 1: not placed" in said
    assert "not given to the cluster" in said
    log_dir = cluster.make_directories(tmp_path / "log")
    assert cli.run(["recover", "place", "--into", str(tmp_path / "staging"), "--log-dir", f"1={log_dir}"]) == 0
    assert cli.run(["recover", "status", "--into", str(tmp_path / "staging"), "-o", "jsonl"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["node_id"] for each in row["placed"]] == [1]
    assert (row["running"], row["handed_over_ms"]) == (True, None)
