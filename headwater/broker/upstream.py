"""How a proxy reaches its brokers, as the file says that Kafka's own tools take."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties, load_client_properties
from headwater.gateway.proxy.listeners import ClusterNodes, Upstream
from headwater_core.errors import HeadwaterError, TransientError


def open_upstream(addresses: Sequence[str], path: Path | None) -> Upstream:
    """path: None: plain connections. Raises UsageError, which names keys of the file, never values."""
    properties = load_client_properties(path, "gateway.upstream_properties")
    found = [BrokerAddress.parse(address) for address in addresses]
    nodes = (lambda: find_nodes(found, properties)) if properties.uses_sasl else None
    return Upstream(lambda: properties.current().tls, nodes)


def find_nodes(addresses: Sequence[BrokerAddress], properties: ClientProperties) -> ClusterNodes:
    """Of the first broker that answers. Raises HeadwaterError where none does."""
    failure: HeadwaterError = TransientError("upstream is empty")
    for address in addresses:
        try:
            with closing(BrokerConnection(address, properties)) as connection:
                metadata = connection.ask(
                    BrokerApi.METADATA, {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
                )
        except HeadwaterError as error:
            failure = error
        else:
            return ClusterNodes(
                metadata["cluster_id"], [(broker["node_id"], broker["host"], broker["port"]) for broker in metadata["brokers"]]
            )
    raise failure
