"""The command line of a recovery into a running cluster, without one. With one: tests/peers/test_running_cluster.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

import recovery
from headwater import cli
from headwater.running_recovery import check_handed, named_log_dirs, say_handed, write_reassignment
from headwater_core.errors import Partial
from manifests.repository import ManifestRepository
from recovery.given_state import Handed
from recovery.partition_swap import NamedLogDir
from recovery.target import REASSIGNMENT
from recovery.topic_creation import with_created_topics
from tests.recovery.running import Running
from tests.recovery.test_cluster_state import Kitchen, replicated
from tests.recovery.written_archive import Archive, plain


def test_log_directories_are_named_with_their_broker_or_without() -> None:
    assert named_log_dirs(["/a", "3=/b=c"]) == [NamedLogDir(Path("/a")), NamedLogDir(Path("/b=c"), 3)]


def test_what_stays_or_failed_is_a_partial_success() -> None:
    check_handed(None)
    check_handed([Handed("acl", "a", "", "given"), Handed("acl", "b", "", "there")])
    with pytest.raises(Partial, match=r"left as the running cluster has it: 1; not given: 1: run the same command again"):
        check_handed([Handed("acl", "a", "", "stays"), Handed("acl", "b", "", "failed", "no")])


def test_rows_of_programs_have_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"topic": "orders"}]
    say_handed([Handed("acl", "a", "", "given")], "json", rows)
    assert [each.get("kind") for each in rows] == [None, "acl"]
    assert "given to the running cluster: 1 of 1 offsets, ACLs, quotas and settings" in capsys.readouterr().err


def test_what_place_prints_for_programs_is_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, cluster, into = Archive(), Running(), tmp_path / "staging"
    archive.topic("orders", [plain(0)])
    plan = recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True), running=cluster)
    recovery.apply(plan, into, archive.store, create=lambda made: with_created_topics(made, cluster))
    log_dir = cluster.make_directories(tmp_path / "log")
    structlog.reset_defaults()  # as in a process of its own
    capsys.readouterr()
    assert cli.run(["--log-level", "info", "recover", "place", "--into", str(into), "--log-dir", str(log_dir), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert [each["node_id"] for each in json.loads(out)] == [1]
    assert "partitions_placed" in err


def test_other_replicas_come_back_by_a_file_for_kafkas_own_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kitchen, cluster = Kitchen(topics=replicated(Kitchen().state, 2)), Running(nodes={1: None, 2: None})
    plan = recovery.plan(kitchen.repository, None, recovery.Options(cluster="latest", running=True), running=cluster)
    write_reassignment(tmp_path, plan)
    assert {len(each["replicas"]) for each in json.loads((tmp_path / REASSIGNMENT).read_text())["partitions"]} == {2}
    assert "kafka-reassign-partitions.sh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["recover", "plan", "topic", "orders", "--bootstrap-servers", "localhost:9"], "--bootstrap-servers is for --running"),
        (["recover", "plan", "topic", "orders", "--running"], "no broker is given: --bootstrap-servers, or log.bootstrap_servers"),
        (["recover", "apply", "topic", "orders", "--running", "--into", "x", "--bootstrap-servers", "nobody"], "is not host:port"),
        (["recover", "plan", "topic", "orders", "--brokers", "2"], "several brokers are for a recovery of the whole cluster"),
        (["recover", "place"], "--into DIR is needed"),
        (["recover", "place", "--into", "x"], "no recovery was started in x"),
        (["recover", "place", "--into", "x", "--log-dir", "y"], "no recovery was started in x"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0)])
    bucket = tmp_path / "bucket"
    for info in archive.store.list(""):
        path = bucket / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.get(info.key)[0])
    options = [] if "place" in arguments else ["--store", f"file://{bucket}", "--data-dir", str(tmp_path / "state")]
    assert cli.run([*arguments, *options]) in (2, 6)
    assert text in capsys.readouterr().err
