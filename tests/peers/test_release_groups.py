"""Release at a real broker goes no further than each group has read: classic, KIP-848 and share groups."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.peers.agent import Agent, Headwater
from tests.peers.guarded import MECHANISM, PASSWORD, GuardedBroker, acl, add_acls, add_users
from tests.peers.java_client import java_client
from tests.peers.kafka import KafkaBroker, commit, produce
from tests.peers.test_broker import base_of_the_newest, eventually, log_start, release_of, status

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SHARE = {
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.share.delivery.count.limit": 10,
}
RECORDS = 60


def accept(broker: KafkaBroker, offsets: range) -> None:
    java_client().request("share", broker.bootstrap, "share", "soup", ",".join(f"0:{offset}" for offset in offsets))


def joined(broker: KafkaBroker) -> Consumer:
    """A member of a KIP-848 group, which has committed nothing."""
    config = {"group.id": "new", "group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **config})
    consumer.subscribe(["soup"])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


def test_release_stops_at_the_slowest_group_of_any_type(tmp_path: Path) -> None:
    properties = {**SHARE, "log.segment.delete.delay.ms": 3_600_000}  # so that the files show where segments began
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=properties) as broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        java_client().request("group", broker.bootstrap, "share", "share.auto.offset.reset", "earliest")
        produce(broker.producer(), "soup", [b"x" * 300] * RECORDS)
        bases = sorted(int(path.stem) for path in (broker.log_dir / "soup-0").glob("*.log"))
        assert len(bases) > 5
        classic = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "classic"})
        new = joined(broker)
        accept(broker, range(bases[2] + 1))
        headwater = release_of(broker, "headwater", "soup")

        def waits_for(group: str, offset: int) -> bool:
            shown: dict[str, Any] = status(headwater, "soup:0")
            found = log_start(broker, "soup"), shown["release_group"], shown["release_group_offset"]
            assert found == (max(base for base in bases if base <= offset), group, offset)
            return True

        with Agent(headwater) as agent:
            agent.address()
            eventually("a member without a commit holds everything", lambda: waits_for("new", 0), agent, patience_s=150)
            commit(classic, "soup", {0: bases[1]})
            commit(new, "soup", {0: bases[3] + 1})
            eventually("classic, at the bound of a segment", lambda: waits_for("classic", bases[1]), agent, patience_s=150)
            commit(classic, "soup", {0: RECORDS})
            [share] = java_client().request("shared", broker.bootstrap, "share")  # what is kept of it may be one record behind
            assert bases[2] <= share["start"] <= bases[2] + 1
            eventually("share", lambda: waits_for("share", share["start"]), agent, patience_s=150)
            accept(broker, range(bases[2] + 1, RECORDS))
            eventually("KIP-848", lambda: waits_for("new", bases[3] + 1), agent, patience_s=150)
            commit(new, "soup", {0: RECORDS})
            eventually("all have read all", lambda: log_start(broker, "soup") == bases[-1], agent, patience_s=150)
            admin = broker.admin  # its futures die with it
            for deleted in admin.delete_consumer_groups(["classic", "share"]).values():
                deleted.result(30)
            produce(broker.producer(), "soup", [b"x" * 300] * RECORDS)
            commit(new, "soup", {0: 2 * RECORDS})
            newest = base_of_the_newest(broker, "soup")
            eventually("groups that are deleted hold nothing", lambda: log_start(broker, "soup") == newest, agent, patience_s=150)
            agent.stop()
        new.close()
        classic.close()


def test_a_group_that_may_not_be_described_holds_everything(tmp_path: Path) -> None:
    with GuardedBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        produce(broker.producer(), "soup", [b"x" * 300] * RECORDS)
        late = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "late"})
        commit(late, "soup", {0: RECORDS})
        late.close()
        add_users(broker.admin, "agent")

        def allowed(kind: ResourceType, name: str, *operations: AclOperation) -> None:
            add_acls(broker.admin, [acl(kind, name, "agent", operation, AclPermissionType.ALLOW) for operation in operations])

        allowed(ResourceType.TOPIC, "*", AclOperation.DESCRIBE)
        allowed(ResourceType.TOPIC, "soup", AclOperation.DELETE)
        allowed(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
        client = tmp_path / "client.properties"
        client.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={MECHANISM}\nsasl.jaas.config="
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="agent" password="{PASSWORD}";\n'
        )
        headwater: Headwater = release_of(broker, "headwater", "soup", bootstrap_servers=broker.sasl, client_properties=str(client))
        with Agent(headwater) as agent:
            agent.address()
            eventually("it says so", lambda: "GROUP_AUTHORIZATION_FAILED" in status(headwater, "soup:0")["release_reason"], agent)
            assert log_start(broker, "soup") == 0
            agent.stop()
        allowed(ResourceType.GROUP, "*", AclOperation.DESCRIBE)
        with Agent(headwater) as agent:
            eventually("released", lambda: log_start(broker, "soup") == base_of_the_newest(broker, "soup"), agent)
            agent.stop()
