"""Where brokers are, and which port of the proxy is whose.

A broker's port is a fixed one, by its id: identical proxies have identical ports, and a proxy that starts again has the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from headwater_core.errors import UsageError

Address = tuple[str, int]
PORT_MAX = 65535

log = structlog.get_logger()


class OtherCluster(UsageError):
    """A broker answers that is not of the cluster that this proxy stands before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The ports of brokers, and the addresses that clients are told.

    base_port   of a broker: this, plus its id
    ports       of those that have another one, by id
    advertised  host and port for clients, in which {node_id} and {port} are replaced; "{host}:{port}" has the host that the client has
                connected to
    """

    base_port: int
    ports: Mapping[int, int] = field(default_factory=dict)
    advertised: str = "{host}:{port}"

    def port_of(self, node_id: int) -> int:
        """Raises UsageError."""
        port = self.ports.get(node_id, self.base_port + node_id)
        if not 0 < port <= PORT_MAX:
            raise UsageError(f"broker {node_id} has no port here: {self.base_port} + {node_id} is {port}; name one in upstream_port_map")
        return port

    def address_of(self, node_id: int, host: str) -> Address:
        """As clients are told it. host: that they have connected to"""
        port = self.port_of(node_id)
        name, _, number = self.advertised.rpartition(":")
        shown = {"node_id": node_id, "port": port, "host": host}
        return name.format(**shown), int(number.format(**shown))


class EndpointRegistry:
    """
    learned      is called with the id of each broker that is named
    listen_port  of the port to begin at, which is no broker's; 0: none is
    is_open      brokers answer whoever does not say who he is
    """

    def __init__(self, ports: BrokerPorts, learned: Callable[[int], None] = lambda node_id: None, listen_port: int = 0) -> None:
        self.ports, self._learned = ports, learned
        self.cluster_id: str | None = None
        self.is_open = False
        self._upstream: dict[int, Address] = {}
        self._owners = {port: node_id for node_id, port in ports.ports.items()}
        self._listen_port = listen_port

    @property
    def brokers(self) -> Mapping[int, Address]:
        """Where each is, as the brokers themselves say."""
        return self._upstream

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Raises UsageError where no port of ours is left for it."""
        ours = self.ports.port_of(node_id)
        if ours == self._listen_port or self._owners.setdefault(ours, node_id) != node_id:
            owner = "the port to begin at" if ours == self._listen_port else f"that of broker {self._owners[ours]}"
            raise UsageError(f"broker {node_id} would have port {ours}, which is {owner}; name another one in upstream_port_map")
        before = self._upstream.get(node_id)
        self._upstream[node_id] = host, port
        if before == (host, port):
            pass
        elif before is None:
            log.info("broker_found", node_id=node_id, upstream=f"{host}:{port}")
        else:
            log.info("broker_moved", node_id=node_id, upstream=f"{host}:{port}")
        self._learned(node_id)

    def learn_all(self, cluster_id: str | None, nodes: Iterable[tuple[int, str, int]]) -> None:
        """Raises UsageError, of another cluster as well."""
        self.check(cluster_id)
        for node in nodes:
            self.learn(*node)

    def check(self, cluster_id: str | None) -> None:
        """Raises OtherCluster."""
        if not cluster_id:  # a DescribeCluster that fails has ""
            return
        self.cluster_id = self.cluster_id or cluster_id
        if cluster_id != self.cluster_id:
            raise OtherCluster(
                f"brokers of cluster {cluster_id} answer where those of {self.cluster_id} were: correct upstream, or start the proxy anew"
            )
