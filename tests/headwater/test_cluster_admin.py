"""A cluster by its brokers' own protocol, from a broker of the tests' own."""

from collections.abc import Mapping
from typing import Any

import pytest

from headwater.broker.broker_connection import BrokerApi
from headwater.broker.client_properties import load_client_properties
from headwater.broker.cluster_admin import KafkaAdmin
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UsageError
from recovery.held_settings import LogBounds
from tests.headwater.socket_broker import SocketBroker

PROPERTIES = load_client_properties(None)
ID = bytes(range(16))


def metadata(broker: SocketBroker, leader: int = 1) -> Mapping[str, Any]:
    partitions = [
        {
            "error_code": 0,
            "partition_index": number,
            "leader_id": leader,
            "leader_epoch": 5,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        for number in range(2)
    ]
    topic = {"error_code": 0, "name": "orders", "topic_id": ID, "is_internal": False, "partitions": partitions}
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": broker.address.host, "port": broker.address.port, "rack": None}],
        "cluster_id": "kitchen",
        "controller_id": 1,
        "topics": [{**topic, "topic_authorized_operations": 0}],
    }


def offsets(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    def answer(each: Mapping[str, Any]) -> Mapping[str, Any]:
        offset = 7 if each["timestamp"] == -2 else 42
        code = 0 if each["partition_index"] == 0 else 6
        return {"partition_index": each["partition_index"], "error_code": code, "timestamp": -1, "offset": offset, "leader_epoch": 5}

    return {
        "throttle_time": 0,
        "topics": [{"name": topic["name"], "partitions": [answer(each) for each in topic["partitions"]]} for topic in fields["topics"]],
    }


def described(code: int = 0) -> Mapping[str, Any]:
    def config(name: str, value: str, source: int) -> Mapping[str, Any]:
        rest = {"read_only": False, "is_sensitive": False, "synonyms": [], "config_type": 5, "documentation": None}
        return {"name": name, "value": value, "config_source": source, **rest}

    configs = [config("retention.ms", "-1", 1), config("retention.bytes", "-1", 5)]
    said = {"error_code": code, "error_message": None, "resource_type": 2, "resource_name": "orders", "configs": [] if code else configs}
    return {"throttle_time": 0, "results": [said]}


def altered(code: int) -> Mapping[str, Any]:
    return {
        "throttle_time": 0,
        "responses": [{"error_code": code, "error_message": "no" if code else None, "resource_type": 2, "resource_name": "orders"}],
    }


def test_ids_bounds_and_settings_are_what_the_brokers_say() -> None:
    with SocketBroker({}) as broker:
        broker.answers |= {
            BrokerApi.METADATA: lambda _: metadata(broker),
            BrokerApi.LIST_OFFSETS: offsets,
            BrokerApi.DESCRIBE_CONFIGS: lambda _: described(),
            BrokerApi.INCREMENTAL_ALTER_CONFIGS: lambda _: altered(0),
        }
        with KafkaAdmin([broker.address], PROPERTIES) as cluster:
            assert cluster.cluster_id() == "kitchen"
            assert cluster.topic_ids(["orders"]) == {"orders": "AAECAwQFBgcICQoLDA0ODw"}
            assert cluster.log_bounds([("orders", 0), ("orders", 1)]) == {("orders", 0): LogBounds(7, 42)}
            assert cluster.values({"orders": ["retention.ms", "retention.bytes"]}) == {"orders": {"retention.ms": "-1"}}
            cluster.change({"orders": {"retention.ms": "600", "retention.bytes": None}})
    [change] = [fields for api, fields in broker.asked if api is BrokerApi.INCREMENTAL_ALTER_CONFIGS]
    [resource] = change["resources"]
    assert [(each["name"], each["config_operation"], each["value"]) for each in resource["configs"]] == [
        ("retention.ms", 0, "600"),
        ("retention.bytes", 1, None),
    ]


@pytest.mark.parametrize(("code", "error"), [(29, Unauthorised), (40, UsageError), (7, TransientError)])
def test_a_refusal_names_the_topic(code: int, error: type[HeadwaterError]) -> None:
    with (
        SocketBroker(
            {BrokerApi.INCREMENTAL_ALTER_CONFIGS: lambda _: altered(code), BrokerApi.DESCRIBE_CONFIGS: lambda _: described(code)}
        ) as broker,
        KafkaAdmin([broker.address], PROPERTIES) as cluster,
    ):
        with pytest.raises(error, match="orders"):
            cluster.change({"orders": {"retention.ms": "600"}})
        with pytest.raises(error, match="orders"):
            cluster.values({"orders": ["retention.ms"]})


def test_the_shortest_retention_of_offsets_counts() -> None:
    values = {"1": "10080", "2": "1440", "3": None}

    def settings(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        [resource] = fields["resources"]
        assert (resource["resource_type"], resource["configuration_keys"]) == (4, ["offsets.retention.minutes"])
        config: dict[str, Any] = {"name": "offsets.retention.minutes", "value": values[resource["resource_name"]], "config_source": 5}
        config |= {"read_only": True, "is_sensitive": False, "synonyms": [], "config_type": 3, "documentation": None}
        answer = {"error_code": code, "error_message": None, "configs": [config]}
        return {"throttle_time": 0, "results": [answer | {key: resource[key] for key in ("resource_type", "resource_name")}]}

    def brokers(_: object) -> Mapping[str, Any]:
        whole = metadata(broker)
        return {**whole, "brokers": [{**whole["brokers"][0], "node_id": int(name)} for name in values]}

    code = 0
    with (
        SocketBroker({BrokerApi.DESCRIBE_CONFIGS: settings, BrokerApi.METADATA: brokers}) as broker,
        KafkaAdmin([broker.address], PROPERTIES) as cluster,
    ):
        assert cluster.offsets_retention_ms() == 86_400_000
        code = 31
        with pytest.raises(Unauthorised, match=r"offsets\.retention\.minutes of broker 1.*CLUSTER_AUTHORIZATION_FAILED"):
            cluster.offsets_retention_ms()
        code, values = 0, {"3": None}
        with pytest.raises(TransientError, match="no broker gives"):
            cluster.offsets_retention_ms()


def test_an_error_is_not_an_absence() -> None:
    """A topic of which the broker may not or cannot speak is not one that was deleted."""
    code = 3
    with SocketBroker({}) as broker:

        def said(_: object) -> Mapping[str, Any]:
            whole = metadata(broker)
            return {**whole, "topics": [{**whole["topics"][0], "error_code": code, "topic_id": bytes(16), "partitions": []}]}

        broker.answers[BrokerApi.METADATA] = said
        with KafkaAdmin([broker.address], PROPERTIES) as cluster:
            assert cluster.topic_ids(["orders"]) == {}
            code = 29
            with pytest.raises(Unauthorised, match="orders"):
                cluster.topic_ids(["orders"])
            code = 5
            with pytest.raises(TransientError, match="orders"):
                cluster.topic_ids(["orders"])


def test_a_partition_without_a_leader_has_no_bounds() -> None:
    with SocketBroker({BrokerApi.LIST_OFFSETS: offsets}) as broker:
        broker.answers[BrokerApi.METADATA] = lambda _: metadata(broker, leader=-1)
        with KafkaAdmin([broker.address], PROPERTIES) as cluster:
            assert cluster.log_bounds([("orders", 0)]) == {}


def test_without_a_broker_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="bootstrap"), KafkaAdmin([], PROPERTIES):
        pass
    with SocketBroker({}) as broker:
        pass
    with pytest.raises(TransientError), KafkaAdmin([broker.address], PROPERTIES):
        pass
