"""A cluster with users, ACLs, quotas and settings is lost. A real broker starts on its state and the newest of its records, or on none of
them, and writes on where the archive ends; a gateway beside it serves the rest."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourceType,
)

from headwater import cli
from tests.fixtures import Isolation, expected_cluster, private_copy
from tests.peers.agent import Headwater
from tests.peers.guarded import GuardedBroker, acl, acls, add_acls, add_users, login_error, refused, users
from tests.peers.java_client import java_configs, java_consume, java_coordinated
from tests.peers.kafka import KafkaBroker, expect_same, produce

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kitchen")]  # both modes begin with one archive

UNCOMMITTED: Isolation = "read_uncommitted"
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
MODES: Mapping[str, tuple[str, ...]] = {"instant": (), "partial": ("--keep-bytes", "1")}
NEW = "bmV3"  # in base64
OTHERS = expected_cluster("kitchen")
TOPICS = [topic["name"] for topic in OTHERS["topics"] if not topic["internal"]]
COMPACTED = "menu"
NO_RETENTION = {"log.initial.task.delay.ms": 86_400_000}  # the kitchen's records are older than its retention


class Lost(NamedTuple):
    """
    bucket    its archive: each log in two runs at most
    second    where the second run of each partition begins
    ends      of its logs
    records   of its topics, as clients saw them
    state     all else that clients saw; transactional ids are not recovered, they begin anew
    """

    bucket: Path
    second: Mapping[tuple[str, int], int]
    ends: Mapping[tuple[str, int], int]
    records: Mapping[Isolation, list[dict[str, Any]]]
    state: Mapping[str, Any]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    """The kitchen, in which passwords are known, and a baker who may do with specials what is not denied."""
    root = tmp_path_factory.mktemp("lost")
    headwater = Headwater(root / "before", private_copy("kitchen", root))
    flush = ["flush", "--config", str(headwater.file)]
    assert cli.run(flush) == 0
    second = {place: head.next_offset for place, head in headwater.heads().items()}
    with GuardedBroker(root / "kitchen", root / "broker", properties=NO_RETENTION) as broker:
        add_users(broker.admin, "baker", "chef", "waiter")
        add_acls(broker.admin, [acl(ResourceType.TOPIC, "specials", "baker", AclOperation.ALL, AclPermissionType.ALLOW)])
        write_everywhere(broker, b"last")
        reads = {isolation: java_consume(broker.bootstrap, TOPICS, isolation) for isolation in ISOLATIONS}
        found = state(broker)
    assert all(each in found["configs"] for each in OTHERS["client_metrics_and_group_configs"])
    assert found["groups"] == OTHERS["groups"]
    assert cli.run(flush) == 0
    ends = {place: end for place, (_, end) in reads[UNCOMMITTED].bounds.items()}
    return Lost(headwater.bucket, second, ends, {isolation: read.records for isolation, read in reads.items()}, found)


def write_everywhere(broker: KafkaBroker, value: bytes) -> None:
    producer = broker.producer()
    for topic in OTHERS["topics"]:
        if topic["name"] in TOPICS:
            for each in topic["partitions"]:
                produce(producer, topic["name"], [value], keys=[value], partition=each["partition"])


def state(broker: GuardedBroker) -> dict[str, Any]:
    coordinated = java_coordinated(broker.bootstrap)
    return {
        "ids": broker.topic_ids(broker.topics()),
        "configs": java_configs(broker.bootstrap),
        "users": users(broker.admin),
        "acls": acls(broker.admin),
        "groups": coordinated.groups,
        "transactions": coordinated.transactions,
        "quotas": coordinated.quotas,
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_cluster_goes_on_where_its_archive_ends_and_a_gateway_serves_the_rest(
    mode: str, lost: Lost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, into = shutil.copytree(lost.bucket, tmp_path / "bucket"), tmp_path / "kafka"
    options = ["--store", f"file://{bucket}", "--data-dir", str(tmp_path / "state")]
    request = ["cluster", "--mode", mode, *MODES[mode], "--take-over", "--into", str(into)]
    assert cli.run(["recover", "apply", *request, *options]) == 0
    assert "in full all the same: 3 compacted topics" in capsys.readouterr().err
    begins = lost.ends if mode == "instant" else lost.second
    starts = {place: 0 if place[0] == COMPACTED else begins.get(place, 0) for place in lost.ends}
    beside = Headwater(tmp_path / "beside", into, store=f'url = "file://{bucket}"')
    with GuardedBroker(into, tmp_path / "broker") as broker:
        with beside.gateway() as bootstrap:
            for isolation, records in lost.records.items():
                expect_same(java_consume(bootstrap, TOPICS, isolation).records, records, isolation)
        write_everywhere(broker, b"new")
        read = java_consume(broker.bootstrap, TOPICS, UNCOMMITTED)
        assert {place_of(each): each["offset"] for each in read.records if each["value"] == NEW} == lost.ends
        assert {place: start for place, (start, _) in read.bounds.items()} == starts
        local = [each for each in lost.records[UNCOMMITTED] if each["offset"] >= starts[place_of(each)]]
        expect_same([each for each in read.records if each["value"] != NEW], local, mode)
        expect_guarded(broker)
        assert cli.run(["recover", "finish", "--into", str(into), "--bootstrap-servers", broker.bootstrap, *options]) == 0
        found = state(broker)
        for name, wanted in {**lost.state, "transactions": []}.items():
            assert found[name] == wanted, name
    assert cli.run(["flush", "--config", str(beside.file)]) == 0
    heads = beside.heads()
    assert all(heads[place].next_offset > end for place, end in lost.ends.items())


def place_of(record: dict[str, Any]) -> tuple[str, int]:
    return record["topic"], record["partition"]


def expect_guarded(broker: GuardedBroker) -> None:
    """Who knows an old password may do what was allowed and not denied, and no other may."""
    assert login_error(broker, "chef", "another password").code() == KafkaError._AUTHENTICATION
    for user, topic in (("chef", "orders.in"), ("baker", "specials")):
        assert refused(broker, user, topic) is None
    unwritten = refused(broker, "waiter", "orders.in")
    assert unwritten is not None
    assert unwritten.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    baker = AdminClient({**broker.login("baker")})
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        baker.delete_topics(["specials"])["specials"].result(30)
