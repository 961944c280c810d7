"""All groups of a cluster are listed, or the listing fails."""

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from archival.broker.broker_view import Group
from headwater.broker.broker_connection import BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties
from headwater.broker.consumer_groups import list_groups, subscribed_topics
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat
from headwater_core.partition import TopicPartition
from tests.headwater.socket_broker import ALL, SocketBroker

SOUP, BREAD = TopicPartition("soup", 0), TopicPartition("bread", 1)
OFFSETS = "__consumer_offsets"
CODES = [(30, Unauthorised), (29, Unauthorised), (31, Unauthorised), (14, TransientError), (16, TransientError), (-1, TransientError)]


def subscription(*topics: str) -> bytes:
    """As a classic consumer joins with, version 1."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + struct.pack(">i", 0)


class Coordinator(SocketBroker):
    """A broker that coordinates groups. Codes are answered instead of what there is.

    groups   name: type, state, protocol type
    commits  of groups, by name; the start offsets of share groups
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
            return self._head(name) | {"assignor_name": "uniform", "members": [member]}

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


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Coordinator() as own, Coordinator() as other:
        yield Cluster(own, other)


def test_groups_of_each_type_are_found_at_any_broker(cluster: Cluster) -> None:
    own, other = cluster.own, cluster.other
    own.groups = {"mail": ("Classic", "Stable", "consumer"), "bills": ("Consumer", "Reconciling", "consumer")}
    own.commits = {"mail": {SOUP: 12}, "bills": {SOUP: 31, BREAD: -1}}
    own.metadata = {"mail": [subscription("soup"), subscription("soup", "bread")]}
    own.subscribed, own.assigned = {"bills": ["soup"], "share": ["tea"]}, {"bills": ["bread"], "share": ["soup"]}
    other.groups = {"share": ("Share", "Stable", "share"), "app": ("Streams", "Stable", "streams"), "simple": ("Classic", "Empty", "")}
    other.groups |= {"workers": ("Classic", "Stable", "connect")}
    other.commits = {"share": {SOUP: 7, BREAD: -1}, "app": {BREAD: 4}, "simple": {SOUP: 3}}
    other.subscribed, other.assigned = own.subscribed, own.assigned
    other.sources = {"app": ["bread"]}
    assert cluster.listing() == {
        "mail": Group("mail", True, {SOUP: 12}, frozenset({"soup", "bread"})),
        "bills": Group("bills", True, {SOUP: 31}, frozenset({"soup", "bread"})),
        "share": Group("share", True, {SOUP: 7}, frozenset({"soup", "tea"})),
        "app": Group("app", True, {BREAD: 4}, frozenset({"bread", "repartition"})),
        "simple": Group("simple", False, {SOUP: 3}),
        "workers": Group("workers", True, {}),
    }


def test_hundreds_of_groups_take_requests_of_a_hundred(cluster: Cluster) -> None:
    names = [f"group-{number}" for number in range(250)]
    cluster.own.groups = dict.fromkeys(names, ("Classic", "Empty", "consumer"))
    cluster.own.commits = {name: {SOUP: number} for number, name in enumerate(names)}
    assert {name: group.commits[SOUP] for name, group in cluster.listing().items()} == {name: at for at, name in enumerate(names)}
    assert len([api for api, _ in cluster.own.asked if api == BrokerApi.OFFSET_FETCH]) == 3


def test_what_members_read_is_unknown_while_they_join(cluster: Cluster) -> None:
    own = cluster.own
    own.groups = {
        "joins": ("Classic", "PreparingRebalance", "consumer"),
        "other-client": ("Classic", "Stable", "consumer"),
        "pattern": ("Consumer", "Assigning", "consumer"),
        "app": ("Streams", "NotReady", "streams"),
    }
    own.metadata = {"joins": [b""], "other-client": [subscription("soup"), b"\0\0\0\0\0\1\0\xff"]}
    own.pattern, own.sources = {"pattern": "so.*"}, {"app": None}
    assert {name: group.topics for name, group in cluster.listing().items()} == dict.fromkeys(own.groups)
    own.assigned = {"pattern": ["soup"]}
    assert cluster.listing()["pattern"].topics == frozenset({"soup"})


def test_a_broker_that_names_no_types_has_classic_groups() -> None:
    with Coordinator(ALL) as own, Coordinator(ALL) as other:
        cluster = Cluster(own, other)
        own.groups, own.commits = {"mail": ("", "Empty", "consumer")}, {"mail": {SOUP: 12}}
        assert cluster.listing() == {"mail": Group("mail", False, {SOUP: 12})}


def test_a_type_that_nobody_knows_fails_the_listing(cluster: Cluster) -> None:
    cluster.other.groups = {"new": ("Quantum", "Empty", "")}
    with pytest.raises(TransientError, match="groups of type quantum"):
        cluster.listing()


def test_share_groups_whose_offsets_a_broker_does_not_tell_fail_the_listing() -> None:
    old: dict[BrokerApi, int] = {**ALL}
    del old[BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS]
    old[BrokerApi.LIST_GROUPS] = 5
    with Coordinator(old) as own, Coordinator(old) as other:
        cluster = Cluster(own, other)
        assert cluster.listing() == {}
        own.groups = {"share": ("Share", "Empty", "share")}
        with pytest.raises(UnsupportedFormat, match="DESCRIBE_SHARE_GROUP_OFFSETS"):
            cluster.listing()


@pytest.mark.parametrize(("code", "kind"), CODES)
@pytest.mark.parametrize("group_type", ["Classic", "Consumer", "Share", "Streams"])
def test_any_error_fails_the_listing(cluster: Cluster, code: int, kind: type[HeadwaterError], group_type: str) -> None:
    own, other = cluster.own, cluster.other
    own.groups, own.commits = {"mail": ("Classic", "Empty", "consumer")}, {"mail": {SOUP: 12}}
    other.groups, other.commits = {"bills": (group_type, "Stable", "consumer")}, {"bills": {SOUP: 31}}
    other.metadata, other.sources = {"bills": [subscription("soup")]}, {"bills": ["soup"]}
    assert len(cluster.listing()) == 2
    other.list_code = code
    with pytest.raises(kind):
        cluster.listing()
    other.list_code, other.group_code = 0, {"bills": code}
    with pytest.raises(kind):
        cluster.listing()
    other.group_code, other.partition_code = {}, code
    with pytest.raises(kind):
        cluster.listing()
    other.partition_code, other.described_code = 0, {"bills": code}
    with pytest.raises(kind):
        cluster.listing()
    other.described_code, cluster.offsets_code = {}, code
    with pytest.raises(kind):
        cluster.listing()


def test_an_answer_about_other_groups_is_none(cluster: Cluster) -> None:
    cluster.own.groups = {"mail": ("Classic", "Empty", "consumer"), "bills": ("Classic", "Empty", "consumer")}
    cluster.own.answers[BrokerApi.OFFSET_FETCH] = lambda _: {"groups": [{"group_id": "mail", "topics": [], "error_code": 0}]}
    with pytest.raises(TransientError, match="answered for other groups"):
        cluster.listing()


def test_a_broker_that_is_away_fails_the_listing(cluster: Cluster) -> None:
    cluster.other.close()
    with pytest.raises(TransientError):
        cluster.listing()


def test_a_partition_without_a_leader_fails_the_listing(cluster: Cluster) -> None:
    cluster.leaders = [(7, 3), (-1, 5)]
    with pytest.raises(TransientError, match="has no leader"):
        cluster.listing()
    cluster.leaders = [(7, 3), (9, 5)]
    with pytest.raises(TransientError, match="broker 9 leads a partition"):
        cluster.listing()


def test_an_election_during_the_listing_fails_it(cluster: Cluster) -> None:
    cluster.changes_leaders = True
    with pytest.raises(TransientError, match="changed their leaders"):
        cluster.listing()


def test_a_cluster_that_never_had_a_group_has_none(cluster: Cluster) -> None:
    cluster.offsets_code = 3
    assert cluster.listing() == {}


def test_a_group_that_was_known_is_gone_only_where_its_coordinator_says_so(cluster: Cluster) -> None:
    cluster.other.group_code = {"mail": 69}
    assert cluster.listing("mail") == {}
    cluster.other.group_code, cluster.other.commits = {}, {"mail": {SOUP: 12}}
    with pytest.raises(TransientError, match="which no broker has listed"):
        cluster.listing("mail")
    cluster.other.commits, cluster.coordinator_code = {}, 15
    with pytest.raises(TransientError, match="group mail has no coordinator"):
        cluster.listing("mail")


def test_a_subscription_cut_anywhere_is_unknown() -> None:
    whole = subscription("soup", "bread")
    assert subscribed_topics(whole) == frozenset({"soup", "bread"})
    names = len(whole) - 8
    assert [size for size in range(names) if subscribed_topics(whole[:size]) is not None] == []
    assert subscribed_topics(whole[:names]) == frozenset({"soup", "bread"})  # later fields are not read
    assert subscribed_topics(struct.pack(">hi", 1, -1)) is None
