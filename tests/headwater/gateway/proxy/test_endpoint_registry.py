import pytest

from headwater.gateway.proxy.endpoint_registry import BrokerPorts, EndpointRegistry, OtherCluster
from headwater_core.errors import UsageError


@pytest.mark.parametrize(
    ("node_id", "advertised", "expected"),
    [
        (0, "{host}:{port}", ("here", 19092)),
        (3, "kafka-{node_id}.example:{port}", ("kafka-3.example", 19095)),
        (7, "kafka.example:{port}", ("kafka.example", 443)),
    ],
)
def test_a_broker_has_the_port_of_its_id_or_the_one_that_was_named(node_id: int, advertised: str, expected: tuple[str, int]) -> None:
    ports = BrokerPorts(base_port=19092, ports={7: 443}, advertised=advertised)
    assert ports.address_of(node_id, "here") == expected


@pytest.mark.parametrize("node_id", [65535 - 19092 + 1, 2**31 - 1])
def test_a_broker_without_a_port_names_the_way_out(node_id: int) -> None:
    registry = EndpointRegistry(BrokerPorts(base_port=19092))
    with pytest.raises(UsageError, match="upstream_port_map"):
        registry.learn(node_id, "a", 9092)
    EndpointRegistry(BrokerPorts(base_port=19092, ports={node_id: 20000})).learn(node_id, "a", 9092)


def test_each_broker_that_is_named_is_told() -> None:
    told: list[int] = []
    registry = EndpointRegistry(BrokerPorts(base_port=19092), told.append)
    for port in (9092, 9092, 9093):
        registry.learn(1, "a", port)
    registry.learn(2, "b", 9092)
    assert told == [1, 1, 1, 2]
    assert registry.brokers == {1: ("a", 9093), 2: ("b", 9092)}


def test_brokers_of_another_cluster_are_refused() -> None:
    registry = EndpointRegistry(BrokerPorts(base_port=19092))
    for cluster_id in (None, "one", "one", None):
        registry.check(cluster_id)
    with pytest.raises(OtherCluster, match="cluster two"):
        registry.check("two")
