"""Brokers that coordinate groups, and the cluster that they make."""

import struct
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from archival.broker.broker_view import Group
from headwater.broker.broker_connection import BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties
from headwater.broker.consumer_groups import list_groups
from headwater_core.partition import TopicPartition
from tests.headwater.socket_broker import ALL, SocketBroker

OFFSETS = "__consumer_offsets"


def subscription(*topics: str) -> bytes:
    """As a classic consumer joins with, version 1."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + struct.pack(">i", 0)


class Coordinator(SocketBroker):
    """A broker that coordinates groups. Codes are answered instead of what there is.

    groups   name: type, state, protocol type
    commits  of groups, by name; the start offsets of share groups
    joining  patterns of further members, to which nothing is assigned
    """

    def __init__(self, knows: Mapping[BrokerApi, int] = ALL | {BrokerApi.LIST_GROUPS: 5}) -> None:
        super().__init__(
            {
                BrokerApi.METADATA: lambda _: self.cluster.metadata(),
                BrokerApi.LIST_GROUPS: lambda _: self._listed(),
                BrokerApi.OFFSET_FETCH: self._commits,
                BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS: self._starts,
                BrokerApi.DESCRIBE_GROUPS: self._classic,
                BrokerApi.CONSUMER_GROUP_DESCRIBE: self._described,
                BrokerApi.SHARE_GROUP_DESCRIBE: self._described,
                BrokerApi.STREAMS_GROUP_DESCRIBE: self._streams,
                BrokerApi.FIND_COORDINATOR: lambda fields: self.cluster.coordinators(fields),
            },
            knows=knows,
        )
        self.cluster: Cluster
        self.groups: dict[str, tuple[str, str, str]] = {}
        self.commits: dict[str, dict[TopicPartition, int]] = {}
        self.metadata: dict[str, list[bytes]] = {}
        self.subscribed: dict[str, list[str]] = {}
        self.assigned: dict[str, list[str]] = {}
        self.pattern: dict[str, str] = {}
        self.joining: dict[str, list[str]] = {}
        self.sources: dict[str, list[str] | None] = {}
        self.list_code = 0
        self.group_code: dict[str, int] = {}
        self.partition_code = 0
        self.described_code: dict[str, int] = {}

    def _listed(self) -> Mapping[str, Any]:
        groups = [
            {"group_id": name, "group_type": kind, "group_state": state, "protocol_type": protocol}
            for name, (kind, state, protocol) in self.groups.items()
        ]
        return {"error_code": self.list_code, "groups": groups}

    def _commits(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def topic(partition: TopicPartition, offset: int) -> Mapping[str, Any]:
            part = {"partition_index": partition.partition, "committed_offset": offset, "committed_leader_epoch": -1, "metadata": ""}
            return {"name": partition.topic, "partitions": [part | {"error_code": self.partition_code}]}

        return {"groups": [self._answer(asked["group_id"], topic) for asked in fields["groups"]]}

    def _starts(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def topic(partition: TopicPartition, offset: int) -> Mapping[str, Any]:
            part = {"partition_index": partition.partition, "start_offset": offset, "leader_epoch": 0, "error_message": None}
            return {
                "topic_name": partition.topic,
                "topic_id": bytes(15) + b"\1",
                "partitions": [part | {"error_code": self.partition_code}],
            }

        return {"groups": [self._answer(asked["group_id"], topic) | {"error_message": None} for asked in fields["groups"]]}

    def _answer(self, name: str, topic: Any) -> dict[str, Any]:
        topics = [topic(partition, offset) for partition, offset in self.commits.get(name, {}).items()]
        return {"group_id": name, "topics": topics, "error_code": self.group_code.get(name, 0)}

    def _classic(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def group(name: str) -> Mapping[str, Any]:
            state = self.groups.get(name, ("", "Dead", ""))[1]
            members = [
                {"member_id": "1", "group_instance_id": None, "client_id": "c", "client_host": "h", "member_metadata": metadata}
                | {"member_assignment": b""}
                for metadata in self.metadata.get(name, [])
            ]
            answer = {"error_code": self.described_code.get(name, 0), "group_id": name, "group_state": state, "protocol_type": "consumer"}
            return answer | {"protocol_data": "range", "members": members, "authorized_operations": -1}

        return {"groups": [group(name) for name in fields["groups"]]}

    def _described(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def group(name: str) -> Mapping[str, Any]:
            assigned = [{"topic_id": bytes(15) + b"\2", "topic_name": topic, "partitions": [0]} for topic in self.assigned.get(name, [])]
            member: dict[str, Any] = {
                "member_id": "1",
                "instance_id": None,
                "rack_id": None,
                "member_epoch": 1,
                "client_id": "c",
                "client_host": "h",
            }
            member |= {"subscribed_topic_names": self.subscribed.get(name, []), "subscribed_topic_regex": self.pattern.get(name)}
            member |= {"assignment": {"topic_partitions": []}, "target_assignment": {"topic_partitions": []}}
            member["target_assignment" if self.groups[name][0] != "Share" else "assignment"] = {"topic_partitions": assigned}
            joined = {"subscribed_topic_names": [], "target_assignment": {"topic_partitions": []}}
            members = [member, *(member | joined | {"subscribed_topic_regex": pattern} for pattern in self.joining.get(name, []))]
            return self._head(name) | {"assignor_name": "uniform", "members": members}

        return {"groups": [group(name) for name in fields["group_ids"]]}

    def _streams(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def group(name: str) -> Mapping[str, Any]:
            sources = self.sources[name]
            internal = {"name": "repartition", "partitions": 1, "replication_factor": 1, "topic_configs": []}
            part = {"subtopology_id": "0", "source_topics": sources, "repartition_sink_topics": [], "state_changelog_topics": []}
            parts: list[dict[str, Any]] | None = [part | {"repartition_source_topics": [internal]}] if sources is not None else None
            return self._head(name) | {"topology": {"epoch": 1, "subtopologies": parts}, "members": []}

        return {"groups": [group(name) for name in fields["group_ids"]]}

    def _head(self, name: str) -> dict[str, Any]:
        head = {"error_code": self.described_code.get(name, 0), "error_message": None, "group_id": name, "authorized_operations": -1}
        return head | {"group_state": self.groups[name][1], "group_epoch": 1, "assignment_epoch": 1}


class Cluster:
    """Brokers 7 and 8; the offsets topic has a partition at each of them."""

    def __init__(self, own: Coordinator, other: Coordinator) -> None:
        self.own, self.other = own, other
        own.cluster = other.cluster = self
        self.leaders: list[tuple[int, int]] = [(7, 3), (8, 5)]
        self.changes_leaders = False
        self.offsets_code = 0
        self.coordinator_code = 0

    def metadata(self) -> Mapping[str, Any]:
        parts: list[dict[str, Any]] = [
            {"error_code": 0, "partition_index": number, "leader_id": leader, "leader_epoch": epoch}
            | {"replica_nodes": [], "isr_nodes": [], "offline_replicas": []}
            for number, (leader, epoch) in enumerate(self.leaders)
        ]
        topic: dict[str, Any] = {"error_code": self.offsets_code, "name": OFFSETS, "topic_id": bytes(15) + b"\3", "is_internal": True}
        topic |= {"partitions": [] if self.offsets_code else parts, "topic_authorized_operations": -1}
        if self.changes_leaders:
            self.leaders = [(8, 4), (8, 5)]
        brokers = [
            {"node_id": node, "host": broker.address.host, "port": broker.address.port, "rack": None}
            for node, broker in ((7, self.own), (8, self.other))
        ]
        return {"brokers": brokers, "cluster_id": "kitchen-1", "controller_id": 7, "topics": [topic]}

    def coordinators(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        answers = [
            {"key": key, "node_id": 8, "host": self.other.address.host, "port": self.other.address.port}
            | {"error_code": self.coordinator_code, "error_message": None}
            for key in fields["coordinator_keys"]
        ]
        return {"coordinators": answers}

    def listing(self, *known: str) -> dict[str, Group]:
        properties = ClientProperties(request_timeout_s=5)
        with closing(BrokerConnection(self.own.address, properties)) as own:
            groups = list_groups(own, lambda address: BrokerConnection(address, properties), known)
        assert len(groups) == len({group.name for group in groups})
        return {group.name: group for group in groups}
