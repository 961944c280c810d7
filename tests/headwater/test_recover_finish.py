"""`headwater recover status` and `finish` as commands. What `finish` does: tests/recovery/test_held_settings.py."""

import json
from pathlib import Path

import pytest

import recovery
from headwater import cli
from manifests.repository import ManifestRepository
from recovery.held_settings import LogBounds
from recovery.running_cluster import RunningTopic
from recovery.topic_creation import with_created_topics
from tests.headwater.conftest import Stage
from tests.headwater.running_broker import RunningBroker
from tests.headwater.test_verbs import flip, objects
from tests.recovery.running import Running
from tests.recovery.written_archive import Archive, commit, plain


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


@pytest.mark.parametrize(("minutes", "options"), [("0", []), ("10080", ["--unchecked-groups"])])
def test_groups_that_are_gone_are_named_with_what_to_do(
    minutes: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, into = Archive(), str(tmp_path / "log")
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("__consumer_offsets", [commit(0, ("cooks", "orders", 0, 3))])
    recovery.apply(plan := archive.plan(), Path(into), archive.store)
    for info in archive.store.list(""):
        path = tmp_path / "bucket" / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.store.get(info.key)[0])
    cluster = Running(name=plan.cluster_id)
    for topic in plan.topics:
        cluster.topics[topic.topic] = RunningTopic(topic.topic_id, {0: (1,)})
        cluster.bounds[topic.topic, 0] = LogBounds(0, topic.partitions[0].log_end)
        cluster.settings[topic.topic] = {**topic.configs}
    lost = "group cooks has no offsets at all, 1 came back"
    with RunningBroker(cluster) as broker:
        verb = ["recover", "finish", "--into", into, "--bootstrap-servers", str(broker.address)]
        verb += ["--store", f"file://{tmp_path / 'bucket'}", "--data-dir", str(tmp_path / "state")]
        cluster.dynamic[4, "1"] = {"offsets.retention.minutes": "10080"}
        assert cli.run(verb) == 4
        assert f"  {lost}\n--unchecked-groups compares logs alone" in capsys.readouterr().err
        cluster.dynamic[4, "1"] = {"offsets.retention.minutes": minutes}
        assert cli.run([*verb, *options]) == 0
    note = f"note: {lost}\nnote: without an offset a group begins by its reset policy"
    assert (note in capsys.readouterr().err, cluster.settings["orders"]["retention.ms"]) == (not options, "600")
