"""A cluster of three real brokers starts on what recovery placed for it anew: every record is there, is copied, and outlives a broker."""

from pathlib import Path

import pytest

import recovery
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from recovery.replica_placement import numbered_brokers
from tests.fixtures import expected, expected_cluster, unpack
from tests.peers.cluster import BROKER_PROPERTIES, PATIENT, wait_in_sync
from tests.peers.java_client import java_consume, java_coordinated
from tests.peers.kafka import KafkaBroker, expect_same, free_port, produce
from tests.recovery.test_cluster_state import Kitchen, replicated

pytestmark = pytest.mark.peer

BROKERS = numbered_brokers(3, 1)


def test_three_brokers_start_copy_and_go_on_without_one(tmp_path: Path) -> None:
    kitchen = Kitchen(topics=replicated(MetadataLog(unpack("kitchen") / DIRECTORY).read(), 3))
    plan = kitchen.plan(recovery.Options(cluster="latest", brokers=BROKERS, keep_offsets=True))
    recovery.apply(plan, tmp_path / "recovered", kitchen.store)
    ports = [(free_port(), free_port()) for _ in BROKERS]
    voters = ",".join(f"{each.node_id}@127.0.0.1:{controller}" for each, (_, controller) in zip(BROKERS, ports, strict=True))
    brokers = [
        KafkaBroker(
            tmp_path / "recovered" / each.directory,
            tmp_path / f"work-{each.node_id}",
            properties=BROKER_PROPERTIES | PATIENT | {"node.id": each.node_id, "controller.quorum.voters": voters},
            ports=of,
        )
        for each, of in zip(BROKERS, ports, strict=True)
    ]
    bootstrap = ",".join(each.bootstrap for each in brokers)
    topics = sorted({record["topic"] for record in expected("kitchen", "read_uncommitted")})
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        wait_in_sync(bootstrap, 3)
        read = java_consume(bootstrap, topics, "read_uncommitted")
        expect_same(read.records, expected("kitchen", "read_uncommitted"), "of three brokers")
        before, found = expected_cluster("kitchen"), java_coordinated(bootstrap)
        assert {group["type"] for group in before["groups"]} == {"Classic", "Consumer"}
        assert found.groups == before["groups"]
        assert found.transactions == []  # each has ended, and its id begins anew
        assert found.quotas == sorted(before["client_quotas"], key=lambda line: str(line["entity"]))
        leaders = {
            topic.leader for found in brokers[0].admin.list_topics(timeout=20).topics.values() for topic in found.partitions.values()
        }
        assert leaders == {1, 2, 3}
        produce(brokers[0].producer(enable_idempotence="true"), "menu", [b"new"], keys=[b"key"])
        brokers[1].stop()
        produce(brokers[0].producer(enable_idempotence="true"), "menu", [b"without it"], keys=[b"key"])
        brokers[1].start()
        wait_in_sync(bootstrap, 3)
        values = [record["value"] for record in java_consume(bootstrap, ["menu"], "read_uncommitted").records]
        assert values[-2:] == ["bmV3", "d2l0aG91dCBpdA=="]
    finally:
        for broker in brokers:
            broker.kill()
