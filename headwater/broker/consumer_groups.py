"""All groups of a cluster, as their coordinators describe them: classic, consumer (KIP-848), share and streams groups.

A listing is complete or it fails. A broker lists the groups that it has loaded, so every partition of the offsets topic must have had the
same leader before and after, and a group that was known before and is not listed must be unknown to its own coordinator too. ListGroups
leaves out what a user may not describe, unless it may describe the cluster, which release needs anyway (DescribeQuorum). OffsetFetch leaves
out topics that it may not describe: who may delete records of a topic may describe it.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Protocol

from archival.broker.broker_view import Group
from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater_core.errors import TransientError, Unauthorised
from headwater_core.partition import TopicPartition

GROUPS_MAX = 100  # that one request names; a group may have committed thousands of offsets
GROUPS_SMALL_MAX = 400  # where those before have committed few: each request waits for a broker that does something else
COMMITS_FEW = 10_000  # in one answer
PARTITIONS_MAX = 20_000  # partitions of which groups share one value
_OFFSETS_TOPIC = "__consumer_offsets"
_UNKNOWN_TOPIC, _NO_GROUP = 3, 69
_DENIED = {29: "TOPIC_AUTHORIZATION_FAILED", 30: "GROUP_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED"}
_WITHOUT_MEMBERS = ("empty", "dead")
_DESCRIBED_BY = {
    "consumer": BrokerApi.CONSUMER_GROUP_DESCRIBE,
    "share": BrokerApi.SHARE_GROUP_DESCRIBE,
    "streams": BrokerApi.STREAMS_GROUP_DESCRIBE,
    "classic": BrokerApi.DESCRIBE_GROUPS,
}

_partition = lru_cache(PARTITIONS_MAX)(TopicPartition)  # thousands of groups read the same partitions


class Requests(Protocol):
    def ask(self, api: BrokerApi, fields: Mapping[str, Any]) -> dict[str, Any]: ...


def list_groups(own: Requests, connect: Callable[[BrokerAddress], BrokerConnection], known: Collection[str]) -> list[Group]:
    """List all groups that any broker coordinates. Raises TransientError, Unauthorised and UnsupportedFormat where one cannot be read.

    own    to any broker of the cluster
    known  groups that are in the list, unless their coordinators know nothing of them any more
    """
    before, addresses = _coordinators(own)
    found: list[Group] = []
    for address in addresses:
        with closing(connect(address)) as connection:
            found += _groups_of(connection)
    missing = sorted(set(known) - {group.name for group in found})
    for address, names in _addresses(own, missing).items():
        with closing(connect(address)) as connection:
            for name, commits in (*_commits(connection, names), *_share_commits(connection, names)):
                if commits:
                    raise TransientError(f"broker {address} has commits of group {name}, which no broker has listed")
    if _coordinators(own)[0] != before:
        raise TransientError(f"partitions of {_OFFSETS_TOPIC} changed their leaders while groups were listed")
    return found


def _coordinators(own: Requests) -> tuple[dict[int, tuple[int, int]], list[BrokerAddress]]:
    """Return leader and leader epoch of each partition that holds groups, and where all brokers are."""
    fields = {
        "topics": [{"topic_id": None, "name": _OFFSETS_TOPIC}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    metadata = own.ask(BrokerApi.METADATA, fields)
    leaders: dict[int, tuple[int, int]] = {}
    if [topic["name"] for topic in metadata["topics"]] != [_OFFSETS_TOPIC]:
        raise TransientError(f"a broker does not describe {_OFFSETS_TOPIC}, which was named")
    for topic in metadata["topics"]:
        if topic["error_code"] != _UNKNOWN_TOPIC:  # no group was ever made
            _check(topic["error_code"], f"{_OFFSETS_TOPIC} cannot be described")
        for partition in topic["partitions"]:
            if partition["leader_id"] < 0:
                raise TransientError(f"{_OFFSETS_TOPIC}:{partition['partition_index']} has no leader: its groups are unknown")
            leaders[partition["partition_index"]] = partition["leader_id"], partition["leader_epoch"]
    addresses = {broker["node_id"]: BrokerAddress(broker["host"], broker["port"]) for broker in metadata["brokers"]}
    if lacking := {leader for leader, _ in leaders.values()} - addresses.keys():
        raise TransientError(f"broker {min(lacking)} leads a partition of {_OFFSETS_TOPIC} and is not there")
    return leaders, list(addresses.values())


def _groups_of(connection: BrokerConnection) -> Iterator[Group]:
    """Yield all groups of one coordinator."""
    answer = connection.ask(BrokerApi.LIST_GROUPS, {"states_filter": [], "types_filter": []})
    _check(answer["error_code"], f"broker {connection.address} does not list its groups")
    listed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for group in answer["groups"]:
        listed[group.get("group_type", "classic").lower()].append(group)
    if unknown := sorted(listed.keys() - _DESCRIBED_BY.keys()):
        raise TransientError(f"broker {connection.address} has groups of type {unknown[0]}: this version does not know what they have read")
    for kind, groups in listed.items():
        read = _described_share_commits if kind == "share" else _commits
        commits = dict(read(connection, [group["group_id"] for group in groups]))
        active = [group["group_id"] for group in groups if group["group_state"].lower() not in _WITHOUT_MEMBERS]
        consumers = {group["group_id"] for group in groups if kind != "classic" or group["protocol_type"] == "consumer"}
        topics = dict(_subscriptions(connection, _DESCRIBED_BY[kind], [name for name in active if name in consumers]))
        for name in commits:
            subscribed = topics.get(name) if name in active and name in consumers else frozenset[str]()  # of Connect's workers: none
            yield Group(name, name in active, commits[name], subscribed)


def _commits(connection: BrokerConnection, names: Sequence[str]) -> Iterator[tuple[str, dict[TopicPartition, int]]]:
    """Yield committed offsets by group. Those of an open transaction are not among them: a restart reads what was committed before it."""
    first, count = 0, GROUPS_MAX
    while some := names[first : first + count]:
        found, first = 0, first + count
        fields = {"groups": [{"group_id": name, "topics": None} for name in some], "require_stable": False}
        for group in _answers(connection, BrokerApi.OFFSET_FETCH, fields, some):
            commits: dict[TopicPartition, int] = {}
            for topic in group["topics"]:
                for partition in topic["partitions"]:
                    _check(partition["error_code"], f"commits of group {group['group_id']} cannot be read")
                    if partition["committed_offset"] >= 0:
                        commits[_partition(topic["name"], partition["partition_index"])] = partition["committed_offset"]
            found += len(commits)
            yield group["group_id"], commits
        count = min(2 * count, GROUPS_SMALL_MAX) if found < COMMITS_FEW else GROUPS_MAX


def _share_commits(connection: BrokerConnection, names: Sequence[str]) -> Iterator[tuple[str, dict[TopicPartition, int]]]:
    if connection.knows(BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS):
        yield from _described_share_commits(connection, names)


def _described_share_commits(connection: BrokerConnection, names: Sequence[str]) -> Iterator[tuple[str, dict[TopicPartition, int]]]:
    """Yield start offsets by share group: everything before them was acknowledged, or given up."""
    for some in _slices(names):
        fields = {"groups": [{"group_id": name, "topics": None} for name in some]}
        for group in _answers(connection, BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS, fields, some):
            commits: dict[TopicPartition, int] = {}
            for topic in group["topics"]:
                for partition in topic["partitions"]:
                    _check(partition["error_code"], f"start offsets of share group {group['group_id']} cannot be read")
                    if partition["start_offset"] >= 0:
                        commits[_partition(topic["topic_name"], partition["partition_index"])] = partition["start_offset"]
            yield group["group_id"], commits


def _subscriptions(connection: BrokerConnection, api: BrokerApi, names: Sequence[str]) -> Iterator[tuple[str, frozenset[str] | None]]:
    field = "groups" if api == BrokerApi.DESCRIBE_GROUPS else "group_ids"
    for some in _slices(names):
        for group in _answers(connection, api, {field: some, "include_authorized_operations": False}, some):
            match api:
                case BrokerApi.DESCRIBE_GROUPS:
                    yield group["group_id"], _classic_topics(group)
                case BrokerApi.STREAMS_GROUP_DESCRIBE:
                    yield group["group_id"], _source_topics(group)
                case _:
                    yield group["group_id"], _member_topics(group)


def _member_topics(group: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the topics to which members subscribe by name, and those assigned to them; None where nothing is assigned for a pattern yet.

    Members of one pattern share what it matches: with more members than partitions some are never assigned anything.
    """
    topics: set[str] = set()
    matches: dict[str, set[str]] = defaultdict(set)
    for member in group["members"]:
        named = set(member["subscribed_topic_names"])
        assignments = (member["assignment"], member.get("target_assignment"))
        assigned = {part["topic_name"] for assignment in assignments for part in (assignment or {}).get("topic_partitions", ())}
        topics |= named | assigned
        if pattern := member.get("subscribed_topic_regex"):
            matches[pattern] |= assigned - named
    return frozenset(topics) if all(matches.values()) else None


def _source_topics(group: Mapping[str, Any]) -> frozenset[str] | None:
    subtopologies = (group["topology"] or {}).get("subtopologies")
    if subtopologies is None:  # not initialised, or its source topics are missing
        return None
    named = (*(part["source_topics"] for part in subtopologies),)
    internal = (topic["name"] for part in subtopologies for topic in part["repartition_source_topics"])
    return frozenset[str](internal).union(*named)


def _classic_topics(group: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the topics that all members subscribe to; None while the group rebalances: the coordinator does not show them then."""
    topics = [subscribed_topics(member["member_metadata"]) for member in group["members"]]
    known = [found for found in topics if found is not None]
    return frozenset[str]().union(*known) if group["group_state"] == "Stable" and len(known) == len(topics) > 0 else None


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics that one member of a classic consumer group subscribes to; None for bytes of another kind.

    Source: Kafka's ConsumerProtocolSubscription: version, and an array of topics; later versions append fields.
    """
    try:
        count, position = struct.unpack_from(">i", metadata, 2)[0], 6
        topics = set()
        if count < 0:
            return None
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            name = metadata[position + 2 : position + 2 + size]
            if size < 0 or len(name) != size:
                return None
            topics.add(name.decode())
            position += 2 + size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def _addresses(own: Requests, names: Sequence[str]) -> Mapping[BrokerAddress, list[str]]:
    """Return group names by their coordinator."""
    found: dict[BrokerAddress, list[str]] = defaultdict(list)
    for some in _slices(names):
        answers = own.ask(BrokerApi.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": some})["coordinators"]
        for answer in answers:
            _check(answer["error_code"], f"group {answer['key']} has no coordinator")
            found[BrokerAddress(answer["host"], answer["port"])].append(answer["key"])
        if {answer["key"] for answer in answers} != set(some):
            raise TransientError("a broker was asked for the coordinators of some groups and named others")
    return found


def _answers(connection: BrokerConnection, api: BrokerApi, fields: Mapping[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return one answer for each group, without an error; a group that was deleted meanwhile has none. Raises what an answer says."""
    answers: list[dict[str, Any]] = connection.ask(api, fields)["groups"]
    if {answer["group_id"] for answer in answers} != set(names):
        raise TransientError(f"broker {connection.address}: {api.name} was answered for other groups")
    found = [answer for answer in answers if answer["error_code"] != _NO_GROUP]
    for answer in found:
        _check(answer["error_code"], f"broker {connection.address}: group {answer['group_id']} cannot be read")
    return found


def _check(code: int, what: str) -> None:
    if code in _DENIED:
        raise Unauthorised(
            f"{what}: {_DENIED[code]}; give the user of log.client_properties DESCRIBE on the cluster, its topics and groups"
        )
    if code:
        raise TransientError(f"{what}: code {code}")


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), GROUPS_MAX):
        yield names[first : first + GROUPS_MAX]
