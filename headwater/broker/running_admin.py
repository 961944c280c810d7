"""A running cluster, into which topics and what goes with them come back, by its brokers' own protocol."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.cluster_admin import KafkaAdmin
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat, UsageError
from headwater_core.partition import topic_id_text
from recovery.given_state import Acl, QuotaEntity, Resource
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import GroupCommit, Place
from recovery.running_cluster import NewTopic, RunningTopic, RunningView

TOPICS_MAX = 100  # that one request creates; a controller makes them in one step, of which the records have a limit
PARTITIONS_MAX = 2_000  # likewise
GROUPS_MAX = 100  # that one request is about
COMMITS_MAX = 1_000
ACLS_MAX = 500
_PATIENCE_MS = 30_000
_ANY = 1
_PAUSE_S, _PAUSES = 0.1, 300  # while a broker waits for its next block of producer ids, or a coordinator comes into being and loads
_ENDING_PAUSES = 100  # while a coordinator ends a transaction
_LOADING, _NO_COORDINATOR, _NOT_COORDINATOR, _NO_GROUP, _CONCURRENT = 14, 15, 16, 69, 51
_AWAY = (_LOADING, _NO_COORDINATOR, _NOT_COORDINATOR)
_OF_GROUPS, _OF_TRANSACTIONS = 0, 1  # types of coordinators
_RETENTION_VERSION = 4  # the last one of OffsetCommit with a retention of its own
_EXISTS, _TIMED_OUT, _NOT_CONTROLLER = 36, 7, 41
_NAMES = {
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    12: "OFFSET_METADATA_TOO_LARGE",
    25: "UNKNOWN_MEMBER_ID: the group has members; stop them, and run the same command again",
    22: "ILLEGAL_GENERATION: the group has members; stop them, and run the same command again",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    37: "INVALID_PARTITIONS",
    39: "INVALID_REPLICA_ASSIGNMENT",
    40: "INVALID_CONFIG",
    42: "INVALID_REQUEST",
    44: "POLICY_VIOLATION",
    51: "CONCURRENT_TRANSACTIONS: its coordinator waits for a transaction to end",
    54: "SECURITY_DISABLED: the brokers have no authorizer",
    68: "NON_EMPTY_GROUP: the group has members; stop them, and run the same command again",
    113: "STALE_MEMBER_EPOCH: the group has members; stop them, and run the same command again",
}
_REFUSED = (29, 30, 31)
_PASSES = (5, 7, 13, 14, 15, 16, 41)  # LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, a coordinator or controller that moves or loads
_DYNAMIC = {4: 3, 16: 7, 32: 8}  # by the type of a resource, the source of a value that was set by a request: Kafka's ConfigSource

T = TypeVar("T")


class RunningKafkaAdmin(KafkaAdmin):
    """See recovery.running_cluster.RunningAdmin, recovery.given_state.StateAdmin and headwater.drill.equipment.Coordinators. For one
    thread."""

    _sleep: Callable[[float], None] = staticmethod(time.sleep)

    def view(self) -> RunningView:
        said = self._first.ask(
            BrokerApi.METADATA, {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        )
        topics: dict[str, RunningTopic] = {}
        for topic in said["topics"]:
            replicas: dict[int, tuple[int, ...]] = {}
            _check(topic["error_code"], str(topic["name"]))
            for each in topic["partitions"]:
                replicas[each["partition_index"]] = tuple(each["replica_nodes"])
            topics[topic["name"]] = RunningTopic(topic_id_text(topic["topic_id"]), replicas)
        return RunningView(str(said["cluster_id"]), {each["node_id"]: each["rack"] for each in said["brokers"]}, topics)

    def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, str]:
        created: dict[str, str] = {}
        for some in _batches_of(topics):
            wanted = [
                {
                    "name": topic.topic,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": number, "broker_ids": [node]} for number, node in enumerate(topic.replicas)],
                    "configs": [{"name": name, "value": value} for name, value in sorted(topic.configs.items())],
                }
                for topic in some
            ]
            said = self._first.ask(BrokerApi.CREATE_TOPICS, {"topics": wanted, "timeout": _PATIENCE_MS, "validate_only": False})
            for each in said["topics"]:
                code = each["error_code"]
                if not code:
                    created[each["name"]] = topic_id_text(each["topic_id"])
                elif code not in (_EXISTS, _TIMED_OUT, _NOT_CONTROLLER):
                    _check(code, f"topic {each['name']} cannot be created", each["error_message"])
        return created

    def pass_producer_ids(self, newest: int, most: int) -> bool:
        """See RunningAdmin. A broker hands out ids of a block that is its own, and holds the next one ready."""
        for connection in self._brokers():
            taken = _producer_id(connection, self._sleep)
            if newest - taken > most:
                return False
            while taken <= newest:
                taken = _producer_id(connection, self._sleep)
        return True

    def acls(self) -> set[Acl]:
        said = self._first.ask(
            BrokerApi.DESCRIBE_ACLS,
            {
                "resource_type_filter": _ANY,
                "resource_name_filter": None,
                "pattern_type_filter": _ANY,
                "principal_filter": None,
                "host_filter": None,
                "operation": _ANY,
                "permission_type": _ANY,
            },
        )
        _check(said["error_code"], "ACLs cannot be read", said["error_message"])
        return {
            Acl(
                of["resource_type"],
                of["resource_name"],
                of["pattern_type"],
                each["principal"],
                each["host"],
                each["operation"],
                each["permission_type"],
            )
            for of in said["resources"]
            for each in of["acls"]
        }

    def create_acls(self, acls: Sequence[Acl]) -> list[str]:
        done: list[str] = []
        for first in range(0, len(acls), ACLS_MAX):
            creations = [
                {
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                    "resource_pattern_type": each.pattern_type,
                    "principal": each.principal,
                    "host": each.host,
                    "operation": each.operation,
                    "permission_type": each.permission,
                }
                for each in acls[first : first + ACLS_MAX]
            ]
            said = self._first.ask(BrokerApi.CREATE_ACLS, {"creations": creations})
            done += [_text(each["error_code"], each["error_message"]) for each in said["results"]]
        return done

    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        said = self._first.ask(BrokerApi.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
        _check(said["error_code"], "quotas cannot be read", said["error_message"])
        return {
            tuple(sorted((part["entity_type"], part["entity_name"]) for part in each["entity"])): {
                one["key"]: one["value"] for one in each["values"]
            }
            for each in said["entries"] or ()
        }

    def set_quotas(self, quotas: Sequence[tuple[QuotaEntity, Mapping[str, float]]]) -> list[str]:
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "ops": [{"key": key, "value": value, "remove": False} for key, value in values.items()],
            }
            for entity, values in quotas
        ]
        said = self._first.ask(BrokerApi.ALTER_CLIENT_QUOTAS, {"entries": entries, "validate_only": False})
        found = {
            tuple(sorted((part["entity_type"], part["entity_name"]) for part in each["entity"])): _text(
                each["error_code"], each["error_message"]
            )
            for each in said["entries"]
        }
        return [found.get(entity, "no answer") for entity, _ in quotas]

    def dynamic_settings(self, resources: Collection[Resource]) -> Mapping[Resource, Mapping[str, str | None]]:
        wanted = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources]
        said = self._first.ask(BrokerApi.DESCRIBE_CONFIGS, {"resources": wanted, "include_synonyms": False, "include_documentation": False})
        found: dict[Resource, dict[str, str | None]] = {}
        for each in said["results"]:
            kind, name = each["resource_type"], each["resource_name"]
            _check(each["error_code"], f"settings of {name or 'all brokers'} cannot be read", each["error_message"])
            found[kind, name] = {
                config["name"]: config["value"] for config in each["configs"] if config["config_source"] == _DYNAMIC.get(kind)
            }
        return found

    def set_dynamic(self, resource: Resource, values: Mapping[str, str]) -> str:
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in sorted(values.items())]
        wanted = {"resource_type": resource[0], "resource_name": resource[1], "configs": configs}
        said = self._first.ask(BrokerApi.INCREMENTAL_ALTER_CONFIGS, {"resources": [wanted], "validate_only": False})
        return next((_text(each["error_code"], each["error_message"]) for each in said["responses"]), "no answer")

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        held: dict[CommittedPlace, int] = {}
        for address, mine in self._coordinators(groups).items():
            for some in _slices(mine, GROUPS_MAX):
                fields = {"groups": [{"group_id": each, "topics": None} for each in some], "require_stable": False}
                for group in self._loaded(self._connection(address), BrokerApi.OFFSET_FETCH, fields, "groups"):
                    _check(
                        0 if group["error_code"] == _NO_GROUP else group["error_code"],
                        f"what group {group['group_id']} has committed cannot be read",
                    )
                    for topic in group["topics"]:
                        for each in topic["partitions"]:
                            if each["committed_offset"] >= 0:
                                place = CommittedPlace(group["group_id"], topic["name"], each["partition_index"])
                                held[place] = each["committed_offset"]
        return held

    def commit(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        [address] = self._coordinators([group])
        connection = self._connection(address)
        done: dict[Place, str] = {}
        for some in _slices(commits, COMMITS_MAX):
            topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for each in some:
                topics[each.topic].append(
                    {
                        "partition_index": each.partition,
                        "committed_offset": each.offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": each.metadata,
                    }
                )
            fields = {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            }
            for topic in connection.ask(BrokerApi.OFFSET_COMMIT, fields)["topics"]:
                done |= {(topic["name"], each["partition_index"]): _text(each["error_code"], None) for each in topic["partitions"]}
        return done

    def shared(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        held: dict[CommittedPlace, int] = {}
        for address, mine in self._coordinators(groups).items():
            for some in _slices(mine, GROUPS_MAX):
                fields = {"groups": [{"group_id": each, "topics": None} for each in some]}
                for group in self._loaded(self._connection(address), BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS, fields, "groups"):
                    code = 0 if group["error_code"] == _NO_GROUP else group["error_code"]
                    _check(code, f"where share group {group['group_id']} is cannot be read", group["error_message"])
                    for topic in group["topics"]:
                        for each in topic["partitions"]:
                            what = f"where share group {group['group_id']} is in {topic['topic_name']}:{each['partition_index']}"
                            _check(each["error_code"], f"{what} cannot be read", each["error_message"])
                            if each["start_offset"] >= 0:
                                place = CommittedPlace(group["group_id"], topic["topic_name"], each["partition_index"])
                                held[place] = each["start_offset"]
        return held

    def share(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        [address] = self._coordinators([group])
        done: dict[Place, str] = {}
        for some in _slices(commits, COMMITS_MAX):
            topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for each in some:
                topics[each.topic].append({"partition_index": each.partition, "start_offset": each.offset})
            named = [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]
            said = self._connection(address).ask(BrokerApi.ALTER_SHARE_GROUP_OFFSETS, {"group_id": group, "topics": named})
            _check(said["error_code"], f"share group {group} cannot be given its offsets", said["error_message"])
            for topic in said["responses"]:
                for each in topic["partitions"]:
                    done[topic["topic_name"], each["partition_index"]] = _text(each["error_code"], each["error_message"])
        return done

    def pass_expiry_check(self, groups: Collection[str], topic: str) -> None:
        for address, mine in self._coordinators(groups).items():
            for group in mine:
                partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
                fields = {
                    "group_id": group,
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                    "retention_time": 1,
                    "topics": [{"name": topic, "partitions": [partition]}],
                }
                for _ in range(_PAUSES):
                    answer = self._connection(address).ask(BrokerApi.OFFSET_COMMIT, fields, _RETENTION_VERSION)
                    code = answer["topics"][0]["partitions"][0]["error_code"]
                    if code not in _AWAY:
                        break
                    self._sleep(_PAUSE_S)
                _check(code, f"group {group} cannot commit an offset that expires")
        for _ in range(_PAUSES):
            found = self.committed(groups)
            if not found:
                return
            self._sleep(_PAUSE_S)
        raise TransientError(f"no check of expiry has removed the commit of group {min(found).group} within {_PAUSES * _PAUSE_S:g} s")

    def initialize(self, transactional_ids: Collection[str]) -> dict[str, str]:
        done: dict[str, str] = {}
        for address, mine in self._coordinators(transactional_ids, _OF_TRANSACTIONS).items():
            connection, waiting = self._connection(address), dict.fromkeys(mine, _LOADING)
            for attempt in range(_PAUSES):
                for name in waiting:
                    fields = {
                        "transactional_id": name,
                        "transaction_timeout": _PATIENCE_MS,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    }
                    waiting[name] = connection.ask(BrokerApi.INIT_PRODUCER_ID, fields)["error_code"]
                passing = (*_AWAY, _CONCURRENT) if attempt < _ENDING_PAUSES else _AWAY
                done |= {name: _text(code, None) for name, code in waiting.items() if code not in passing}
                waiting = {name: code for name, code in waiting.items() if name not in done}
                if not waiting:
                    break
                self._sleep(_PAUSE_S)
            for name, code in waiting.items():
                _check(code, f"transactional id {name} has no coordinator")
        return done

    def _coordinators(self, keys: Collection[str], of: int = _OF_GROUPS) -> Mapping[BrokerAddress, list[str]]:
        found: dict[BrokerAddress, list[str]] = defaultdict(list)
        what = "group" if of == _OF_GROUPS else "transactional id"
        for some in _slices(sorted(keys), GROUPS_MAX):
            for each in self._loaded(self._first, BrokerApi.FIND_COORDINATOR, {"key_type": of, "coordinator_keys": some}, "coordinators"):
                _check(each["error_code"], f"{what} {each['key']} has no coordinator", each["error_message"])
                found[BrokerAddress(each["host"], each["port"])].append(each["key"])
        return found

    def _loaded(self, connection: BrokerConnection, api: BrokerApi, fields: Mapping[str, Any], answers: str) -> list[dict[str, Any]]:
        """The answers, once none of them says that a coordinator is not there yet: a cluster that never had a group makes one then."""
        for _ in range(_PAUSES):
            found: list[dict[str, Any]] = connection.ask(api, fields)[answers]
            if not any(each["error_code"] in _AWAY for each in found):
                break
            self._sleep(_PAUSE_S)
        return found

    def _brokers(self) -> Iterator[BrokerConnection]:
        for each in self._metadata(())["brokers"]:
            yield self._connection(BrokerAddress(each["host"], each["port"]))


def _producer_id(connection: BrokerConnection, sleep: Callable[[float], None]) -> int:
    """Raises TransientError when the broker gets no further block from its controller."""
    fields = {"transactional_id": None, "transaction_timeout": _PATIENCE_MS, "producer_id": -1, "producer_epoch": -1}
    said = connection.ask(BrokerApi.INIT_PRODUCER_ID, fields)
    for _ in range(_PAUSES):
        if said["error_code"] != _LOADING:
            break
        sleep(_PAUSE_S)
        said = connection.ask(BrokerApi.INIT_PRODUCER_ID, fields)
    _check(said["error_code"], f"broker {connection.address} gives no producer id")
    return int(said["producer_id"])


def _batches_of(topics: Iterable[NewTopic]) -> Iterator[list[NewTopic]]:
    some: list[NewTopic] = []
    partitions = 0
    for topic in topics:
        if some and (len(some) == TOPICS_MAX or partitions + len(topic.replicas) > PARTITIONS_MAX):
            yield some
            some, partitions = [], 0
        some.append(topic)
        partitions += len(topic.replicas)
    if some:
        yield some


def _slices(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]


def _text(code: int, message: str | None) -> str:
    """Why it failed; "" where it did not."""
    if not code:
        return ""
    return _NAMES.get(code, f"code {code}") + (f": {message[:200]}" if message else "")


def _check(code: int, what: str, message: str | None = None) -> None:
    """Raises what an answer says."""
    if not code:
        return
    kind: type[HeadwaterError] = UsageError
    if code in _REFUSED:
        kind = Unauthorised
    elif code in _PASSES:
        kind = TransientError
    elif code == 35:  # UNSUPPORTED_VERSION
        kind = UnsupportedFormat
    raise kind(f"{what}: {_text(code, message)}")
