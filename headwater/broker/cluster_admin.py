"""A cluster by its brokers' own protocol: its topics' ids, the bounds of their logs, and their settings."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UsageError
from headwater_core.partition import topic_id_text
from recovery.held_settings import LogBounds
from recovery.recovery_plan import Place

_LATEST, _EARLIEST = -1, -2
_TOPIC, _BROKER = 2, 4  # the types of resources
_OF_TOPIC = 1  # the source of a value: the topic itself
_SET, _DELETE = 0, 1
_UNKNOWN_TOPIC = 3
_RETENTION = "offsets.retention.minutes"
_REFUSED = {29: "TOPIC_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED"}
_INVALID = (40, 42, 44)  # INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION

Connect = Callable[[BrokerAddress, ClientProperties], BrokerConnection]


class KafkaAdmin:
    """See recovery.held_settings.ClusterAdmin. For one thread.

    with KafkaAdmin(bootstrap, properties) as cluster: connects to the first broker that answers
    """

    def __init__(self, bootstrap: Sequence[BrokerAddress], properties: ClientProperties, connect: Connect = BrokerConnection) -> None:
        self._bootstrap, self._properties, self._connect_to = bootstrap, properties, connect
        self._connections: dict[BrokerAddress, BrokerConnection] = {}

    def __enter__(self) -> Self:
        problem: HeadwaterError = UsageError("no broker is given: --bootstrap-servers, or log.bootstrap_servers")
        for address in self._bootstrap:
            try:
                self._first = self._connection(address)
                return self
            except HeadwaterError as error:
                problem = error
        raise problem

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def cluster_id(self) -> str:
        return str(self._metadata(())["cluster_id"])

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        if not topics:
            return {}
        found: dict[str, str] = {}
        for each in self._metadata(topics)["topics"]:
            if each["error_code"] == _UNKNOWN_TOPIC:
                continue
            _check({"resource_name": each["name"], "error_code": each["error_code"], "error_message": None})
            found[each["name"]] = topic_id_text(each["topic_id"])
        return found

    def log_bounds(self, places: Collection[Place]) -> Mapping[Place, LogBounds]:
        if not places:
            return {}
        said = self._metadata({topic for topic, _ in places})
        addresses = {each["node_id"]: BrokerAddress(each["host"], each["port"]) for each in said["brokers"]}
        wanted = set(places)
        led: dict[BrokerAddress, list[Place]] = defaultdict(list)
        for topic in said["topics"]:
            for each in topic["partitions"]:
                place = topic["name"], each["partition_index"]
                if place in wanted and each["leader_id"] in addresses:
                    led[addresses[each["leader_id"]]].append(place)
        found: dict[Place, LogBounds] = {}
        for address, mine in led.items():
            connection = self._connection(address)
            starts, ends = _offsets(connection, mine, _EARLIEST), _offsets(connection, mine, _LATEST)
            found |= {place: LogBounds(starts[place], ends[place]) for place in mine if place in starts and place in ends}
        return found

    def values(self, topics: Mapping[str, Collection[str]]) -> dict[str, dict[str, str | None]]:
        if not topics:
            return {}
        resources = [
            {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": list(names)} for topic, names in topics.items()
        ]
        asked = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        found: dict[str, dict[str, str | None]] = {}
        for each in self._first.ask(BrokerApi.DESCRIBE_CONFIGS, asked)["results"]:
            _check(each)
            found[each["resource_name"]] = {
                config["name"]: config["value"] for config in each["configs"] if config["config_source"] == _OF_TOPIC
            }
        if lacking := sorted(topics.keys() - found.keys()):
            raise TransientError(f"the broker says nothing of the settings of {lacking[0]}")
        return found

    def change(self, wanted: Mapping[str, Mapping[str, str | None]]) -> None:
        resources = [
            {
                "resource_type": _TOPIC,
                "resource_name": topic,
                "configs": [
                    {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value} for name, value in values.items()
                ],
            }
            for topic, values in wanted.items()
        ]
        said = self._first.ask(BrokerApi.INCREMENTAL_ALTER_CONFIGS, {"resources": resources, "validate_only": False})
        for each in said["responses"]:
            _check(each)

    def offsets_retention_ms(self) -> int:
        """Raises Unauthorised without DESCRIBE_CONFIGS on the cluster."""
        found: list[int] = []
        for broker in self._metadata(())["brokers"]:
            resource = {"resource_type": _BROKER, "resource_name": str(broker["node_id"]), "configuration_keys": [_RETENTION]}
            fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
            connection = self._connection(BrokerAddress(broker["host"], broker["port"]))  # a broker answers for itself alone
            what = f"{_RETENTION} of broker {broker['node_id']}"
            for answer in connection.ask(BrokerApi.DESCRIBE_CONFIGS, fields)["results"]:
                _check({**answer, "resource_name": what})
                values = (config["value"] or "" for config in answer["configs"] if config["name"] == _RETENTION)
                found += [int(value) * 60_000 for value in values if value.isdecimal()]
        if not found:
            raise TransientError(f"no broker gives its {_RETENTION}")
        return min(found)

    def _metadata(self, topics: Collection[str]) -> dict[str, Any]:
        named = [{"topic_id": None, "name": topic} for topic in sorted(topics)]
        fields = {"topics": named, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        return self._first.ask(BrokerApi.METADATA, fields)

    def _connection(self, address: BrokerAddress) -> BrokerConnection:
        if address not in self._connections:
            self._connections[address] = self._connect_to(address, self._properties)
        return self._connections[address]


def _offsets(connection: BrokerConnection, places: Collection[Place], timestamp: int) -> dict[Place, int]:
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for topic, partition in places:
        topics[topic].append({"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp})
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": each} for topic, each in topics.items()]}
    return {
        (topic["name"], each["partition_index"]): each["offset"]
        for topic in connection.ask(BrokerApi.LIST_OFFSETS, fields)["topics"]
        for each in topic["partitions"]
        if not each["error_code"] and each["offset"] >= 0
    }


def _check(said: Mapping[str, Any]) -> None:
    """Raises what the answer about one topic says."""
    code, topic = said["error_code"], said["resource_name"]
    text = f"{topic}: the broker answered {_REFUSED.get(code, f'with code {code}')}" + (
        f": {said['error_message'][:200]}" if said["error_message"] else ""
    )
    if code in _REFUSED:
        raise Unauthorised(text)
    if code in _INVALID:
        raise UsageError(text)
    if code:
        raise TransientError(text)
