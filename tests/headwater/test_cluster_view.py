"""`headwater cluster`: what the archive knows of a cluster that a real broker wrote, and what it never shows."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster_view import HIDDEN, differences, group_differences, section_rows, share_differences
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_records import ConfigRecord, FeatureLevel, Topic
from headwater_core.segments.metadata.record_schemas import ACL, REGISTER_BROKER, REMOVE_ACL, SCRAM, TOKEN, make_record
from headwater_core.segments.records import Record
from recovery.archived_groups import CommittedOffset, SharePlace
from tests.fixtures import expected_cluster
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running
from tests.headwater_core.segments.builders import a_batch
from tests.headwater_core.segments.metadata.test_metadata_snapshot import BROKER, TOKEN_FIELDS
from tests.headwater_core.segments.metadata.test_record_schemas import AN_ACL, SECRET
from tests.headwater_core.segments.metadata.written_log import SOUP, Log, a_partition


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def archived(stage: Stage, name: str, *options: str) -> None:
    ran = stage.run("flush", "-o", "jsonl", *options, log=stage.log(name))
    assert ran.code == 0, ran.err


def shown(stage: Stage, *arguments: str) -> Any:
    ran = stage.run("cluster", *arguments, "-o", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_all_that_the_admin_client_said_of_a_cluster_is_shown(stage: Stage) -> None:
    archived(stage, "kitchen")
    found, expected = shown(stage, "show"), expected_cluster("kitchen")
    assert [(row["topic"], row["topic_id"], row["partitions"], row["configs"]) for row in found["topics"]] == [
        (each["name"], each["topic_id"], len(each["partitions"]), each["configs"]) for each in expected["topics"]
    ]
    assert {row["feature"]: row["level"] for row in found["features"]} == expected["features"]
    assert {(row["user"], row["mechanism"], row["iterations"]) for row in found["users"]} == {
        (user["user"], each["mechanism"], each["iterations"]) for user in expected["scram_users"] for each in user["credentials"]
    }
    assert sorted(_acl(row) for row in found["acls"]) == sorted(
        (each["principal"], each["permission"], each["operation"], each["resource_type"], each["resource_name"], each["pattern_type"])
        for each in expected["acls"]
    )
    assert sorted((json.dumps(row["entities"], sort_keys=True), row["key"], row["value"]) for row in found["quotas"]) == sorted(
        (json.dumps(each["entity"], sort_keys=True), key, value)
        for each in expected["client_quotas"]
        for key, value in each["quotas"].items()
    )
    others = {"<default>" if row["name"] == "(default)" else row["name"] for row in found["configs"] if row["resource"] == "broker"}
    assert others == expected["broker_configs"].keys()
    assert {row["name"] for row in found["configs"] if row["resource"] in ("group", "client-metrics")} == {
        each["name"] for each in expected["client_metrics_and_group_configs"]
    }
    assert {(row["group"], row["topic"], row["partition"]): row["offset"] for row in found["groups"]} == {
        (group["group"], each["topic"], each["partition"]): each["offset"] for group in expected["groups"] for each in group["offsets"]
    }
    assert all(row["lag"] == row["end"] - row["offset"] for row in found["groups"])
    assert found["unknown"] == []
    assert [(row["broker"], row["rack"], row["endpoints"]) for row in found["brokers"]] == [(1, None, ["PLAINTEXT://127.0.0.1:19210"])]
    assert [(row["controller"], row["endpoints"]) for row in found["controllers"]] == [(1, ["CONTROLLER://127.0.0.1:19211"])]
    assert found["tokens"] == []


def test_a_delegation_token_is_shown_by_its_owner_and_not_by_its_id(log: Log) -> None:
    log.append(make_record(TOKEN, 0, TOKEN_FIELDS))
    assert section_rows(MetadataLog(log.directory).read(), "tokens") == [{"owner": "o", "issued_ms": 5, "expires_ms": 5}]


def _acl(row: dict[str, Any]) -> tuple[str, ...]:
    of_kafka = (str(row[key]).upper().replace("-", "_") for key in ("permission", "operation", "resource"))
    return (row["principal"], *of_kafka, row["name"], row["pattern"].upper())


def test_no_form_of_output_holds_a_secret(stage: Stage) -> None:
    archived(stage, "kitchen")
    dumped = {"c3ByZ3ppa282a2U4Nm51aG04eGgzbXR0cA==", "spr" + "gziko6ke86nuhm8xh3mttp", "/FuNFa5114yalQCMKSajOU"}
    for form in ("table", "json", "jsonl"):
        ran = stage.run("cluster", "show", "-o", form)
        assert ran.code == 0
        assert "chef" in ran.out
        assert not any(secret in ran.out + ran.err for secret in dumped)


def test_it_is_shown_by_section_number_and_time(stage: Stage) -> None:
    archived(stage, "kitchen")
    (snapshot,) = shown(stage, "show", "--list")
    assert shown(stage, "show", "users", "acls").keys() == {"snapshot", "users", "acls"}
    assert shown(stage, "show", "features", "--at", str(snapshot["number"]))["snapshot"] == snapshot
    at = shown(stage, "show", "groups", "--at", snapshot["taken"])
    assert at["snapshot"] == snapshot
    assert at["groups"] == shown(stage, "show", "groups")["groups"]  # nothing was written after the snapshot
    for absent in ("2001-01-01T00:00:00Z", "99"):
        ran = stage.run("cluster", "show", "--at", absent)
        assert ran.code == 6
    assert "secrets" in stage.run("cluster", "show", "--list").out
    assert stage.run("cluster", "diff", "1", snapshot["taken"], "-o", "jsonl").rows == []
    assert stage.run("cluster", "show", "--at", "yesterday").code == 2


def test_what_has_changed_between_two_snapshots_is_listed(stage: Stage) -> None:
    archived(stage, "kitchen")
    (first,) = shown(stage, "show", "--list")
    metadata = stage.root / "kitchen" / DIRECTORY
    end, change = first["end_offset"], ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="77")
    with (metadata / f"{0:020}.log").open("ab") as file:
        file.write(a_batch(end, [Record(end, 0, None, change.encode(), ())], epoch=first["end_epoch"]))
    ran = stage.run("archive", log=stage.root / "kitchen")
    assert ran.code == 0, ran.err
    (row,) = stage.run("cluster", "diff", str(first["number"]), "latest", "-o", "jsonl").rows
    assert (row["section"], row["change"], row["name"], row["after"]) == (
        "configs",
        "added",
        "broker (default) log.retention.ms",
        {"value": "77"},
    )
    assert "log.retention.ms" in stage.run("cluster", "diff", str(first["number"]), "latest").out


def test_an_archive_without_a_snapshot_says_so_and_damage_is_named(stage: Stage) -> None:
    archived(stage, "kitchen", "--set", "cluster.snapshots=false")
    empty = stage.run("cluster", "show")
    assert (empty.code, "no snapshot" in empty.err) == (6, True)
    ran = stage.run("archive", log=stage.root / "kitchen")
    assert ran.code == 0
    (snapshot,) = shown(stage, "show", "--list")
    listed = stage.bucket / "cluster" / "latest.json"
    aside = listed.rename(stage.root / "latest.json")
    without = stage.run("cluster", "show", "--list", "-o", "jsonl")
    assert ([each["key"] for each in without.rows], "it is lost" in without.err) == ([snapshot["key"]], True)
    aside.rename(listed)
    path = stage.bucket / snapshot["key"]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"!")
    assert stage.run("cluster", "show").code == 4
    path.unlink()
    gone = stage.run("cluster", "show")
    assert (gone.code, snapshot["key"] in gone.err) == (6, True)


@pytest.mark.parametrize("with_agent", [False, True])
def test_a_pass_without_a_snapshot_of_the_cluster_is_a_partial_success(stage: Stage, with_agent: bool) -> None:
    log = stage.log("kitchen")
    listed = stage.bucket / "cluster" / "latest.json"
    listed.parent.mkdir(parents=True)
    listed.write_text("{}")
    with running(stage, log) if with_agent else nullcontext():
        ran = stage.run("archive", log=log)
    assert ran.code == 3
    assert "the cluster's metadata (users, ACLs, settings, topics) could not be archived: cluster/latest.json" in ran.err
    listed.unlink()
    assert stage.run("archive", log=log).code == 0
    assert [each["number"] for each in shown(stage, "show", "--list")] == [1]


def test_without_secrets_none_is_in_the_bucket(stage: Stage) -> None:
    archived(stage, "kitchen", "--set", "cluster.secrets=false")
    found = shown(stage, "show")
    assert not found["snapshot"]["has_secrets"]
    assert found["users"] == []
    assert len(found["acls"]) == 3
    assert "without secrets" in stage.run("cluster", "show", "features").out


def test_a_recovery_without_secrets_is_a_partial_success_that_names_them(stage: Stage) -> None:
    archived(stage, "kitchen", "--set", "cluster.secrets=false")
    for verb in ("plan", "apply"):
        ran = stage.run("recover", verb, "cluster", "--into", str(stage.root / "recovered"))
        assert ran.code == 3, ran.err
        assert "users, delegation tokens and passwords in settings: the snapshot was taken with cluster.secrets = false" in ran.err
    assert (stage.root / "recovered" / "meta.properties").exists()


def test_without_snapshots_nothing_is_written(stage: Stage) -> None:
    archived(stage, "kitchen", "--set", "cluster.snapshots=false")
    assert not (stage.bucket / "cluster").exists()


def test_a_running_agent_archives_the_cluster_by_itself(stage: Stage) -> None:
    with running(stage, stage.log("kitchen")) as agent:
        taken = agent.wait_for("cluster_snapshot_taken")
        assert agent.stop() == 0
    (snapshot,) = shown(stage, "show", "--list")
    assert (snapshot["number"], snapshot["end_offset"]) == (taken["number"], taken["offset"])


def test_what_differs_is_named_and_a_password_is_only_another_one(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(), ConfigRecord(resource_name="soup", name="retention.ms", value="1"))
    log.append(make_record(SCRAM, 0, SECRET), make_record(ACL, 0, AN_ACL), make_record(REGISTER_BROKER, 4, BROKER))
    log.append(ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value="one"))
    before = MetadataLog(log.directory).read()
    log.append(ConfigRecord(resource_name="soup", name="retention.ms", value="2"), make_record(SCRAM, 0, SECRET | {"storedKey": b"new"}))
    log.append(make_record(ACL, 0, AN_ACL | {"id": SOUP, "permissionType": 2}), make_record(REMOVE_ACL, 0, {"id": AN_ACL["id"]}))
    log.append(ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value="two"), FeatureLevel(name="x", level=1))
    log.append(make_record(REGISTER_BROKER, 4, BROKER | {"brokerEpoch": 9}))
    found = list(differences(before, MetadataLog(log.directory).read()))
    assert [(row["section"], row["change"], row["name"]) for row in found] == [
        ("topics", "changed", "soup"),
        ("acls", "removed", AN_ACL["id"]),
        ("acls", "added", SOUP),
        ("features", "added", "x"),
        ("users", "changed", "chef SCRAM-SHA-256"),
        ("configs", "changed", "broker 1 ssl.key.password"),
    ]
    assert found[0]["before"] == {"configs": {"retention.ms": "1"}}
    assert found[-1]["before"] == {"value": HIDDEN}
    assert not any(secret in str(found) for secret in ("salty", "stored", "'one'", "'two'"))


def test_a_cluster_comes_back_on_several_brokers_with_its_archive_as_its_own(stage: Stage) -> None:
    log_dir = stage.log("kitchen")
    assert stage.run("flush", log=log_dir).code == 0
    brokers = stage.root / "brokers.toml"
    brokers.write_text('[[broker]]\nid = 1\nrack = "a"\n[[broker]]\nid = 5\ndirectory = "five"\nrack = "b"\n')
    into = stage.root / "recovered"
    request = ("cluster", "--brokers", str(brokers), "--take-over", "--into", str(into))
    planned = stage.run("recover", "plan", *request)
    assert planned.code == 0, planned.err
    assert "five" in planned.out
    assert "takes the archive over from cluster" in planned.err
    applied = stage.run("recover", "apply", *request)
    assert applied.code == 0, applied.err
    assert "controller.quorum.voters=1@HOST1:PORT,5@HOST5:PORT" in applied.err
    assert "broker.rack=b" in applied.err
    assert "is the archive of the recovered cluster now" in applied.err
    assert sorted(each.parent.name for each in into.glob("*/meta.properties")) == ["five", "node-1"]
    owner, listed = (json.loads((stage.bucket / name).read_text()) for name in ("headwater.json", "cluster/latest.json"))
    assert owner["cluster_id"] == listed["cluster_id"] not in owner["former"]
    again = stage.run("recover", "apply", *request)
    assert (again.code, "nothing was done" in again.err) == (0, True), again.err
    refused = stage.run("flush", log=log_dir)
    assert refused.code == 7
    assert "--take-over" in refused.err
    assert "--cluster-id" in refused.err
    assert stage.run("verify").code == 0
    for wrong in ("0", "x.toml"):
        assert stage.run("recover", "plan", "cluster", "--brokers", wrong).code == 2
    assert stage.run("recover", "plan", "topic", "menu", "--take-over").code == 2


def test_what_groups_committed_meanwhile_differs_with_their_lag() -> None:
    stays, moves, goes, comes = (CommittedOffset(name, "soup", 0, 3, 10) for name in ("stays", "moves", "goes", "comes"))
    found = list(group_differences([stays, moves, goes], [stays, moves._replace(offset=9, end=12), comes]))
    assert [(each["section"], each["name"], each["change"], each["before"], each["after"]) for each in found] == [
        ("groups", "comes soup:0", "added", None, {"offset": 3, "lag": 7}),
        ("groups", "goes soup:0", "removed", {"offset": 3, "lag": 7}, None),
        ("groups", "moves soup:0", "changed", {"offset": 3, "lag": 7}, {"offset": 9, "lag": 3}),
    ]


def test_where_share_groups_are_differs_as_well() -> None:
    stays, moves, goes = (SharePlace(name, "soup", 0, 3, 10, 7) for name in ("stays", "moves", "goes"))
    found = list(share_differences([stays, moves, goes], [stays, moves._replace(start=9, lag=1)]))
    assert [(each["section"], each["name"], each["change"], each["before"], each["after"]) for each in found] == [
        ("share-groups", "goes soup:0", "removed", {"start": 3, "lag": 7}, None),
        ("share-groups", "moves soup:0", "changed", {"start": 3, "lag": 7}, {"start": 9, "lag": 1}),
    ]
