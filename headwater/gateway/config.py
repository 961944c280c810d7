"""What an operator may decide about the gateway. Every limit has a default that keeps one client from hurting the others."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from headwater.gateway.proxy.endpoint_registry import PORT_MAX, BrokerPorts
from headwater_core.errors import UsageError

CONNECTIONS_MOST = 1_000_000  # descriptors end long before
WORKERS_MOST = 1024


def is_loopback(host: str) -> bool:
    """Can it be reached from this machine alone? A name other than localhost may be anybody's."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class UnknownApis(Enum):
    """What becomes of requests, and versions of them, of which the proxy does not know whether they have addresses."""

    HIDE = "hide"
    PASS = "pass"  # it is no password


def split_address(text: str) -> tuple[str, int]:
    """ "host:port" taken apart; brackets around an IPv6 host are taken off. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise UsageError(f"not an address: {text[:200]!r} (host:port)")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Earliest(Enum):
    """Whose first offset a client of the proxy is told as the earliest of a partition."""

    ARCHIVE = "archive"
    BROKER = "broker"


class Gaps(Enum):
    """What a client of the proxy gets at an offset that neither archive nor broker has: what follows, or the broker's error."""

    SKIP = "skip"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The Kafka endpoint: by itself, or with `upstream` as a proxy before brokers.

    listen                  port 0 takes a free one
    advertised              the address clients are to connect to; "" advertises to each client the address that it has connected to. Of a
                            proxy, {node_id} and {port} are replaced by each broker's
    upstream                brokers of the cluster that the proxy stands before, each by host:port; others are found by them
    upstream_base_port      of the proxy's port for a broker: this, plus its node id
    upstream_port_map       of brokers that have another port: each as ID:PORT
    upstream_properties     how to reach them, in the form that Kafka's tools take with --command-config: TLS, and, where brokers want to
                            know, the user by whom the others are found; clients authenticate themselves
    upstream_request_bytes_max  a longer frame of a proxied connection closes it
    earliest                whose first offset is the earliest, of the archive or the broker; also by topic
    gaps                    at an offset that neither has, what follows is read, or the broker's error
    unknown_apis            requests that the proxy does not know, and newer versions, are hidden from clients, or pass
    tls_certificate         a file with the chain, PEM; with it the port speaks TLS alone
    tls_key                 a file with its key, PEM
    tls_client_ca           a file with authorities, PEM, of which one has to have issued each client's certificate; without it clients need
                            none
    allow_plaintext         a port that other machines reach may be without TLS
    connections_max         one more is closed at once, or takes the place of an idle one, of the address that has the most; 0: as many as
                            a third of the descriptors that the process may have
    connections_per_ip_max  of one address; one more takes the place of its own idle one, or is closed at once
    unauthenticated_per_address  of connections whose clients have not said yet who they are, where the brokers want to know
    request_bytes_max       a longer frame closes its connection; readers' requests are far smaller
    response_bytes_max      of records in one Fetch response; only a single batch that is larger may exceed it
    unread_bytes_max        of responses that clients have not taken yet, over all connections; beyond it the address that has the most
                            of them loses the oldest, with its connection. One response alone may exceed it
    idle_timeout_s          a connection without a request for so long is closed
    request_timeout_s       a request that has begun must be complete by then
    send_timeout_s          a response must be taken by then, plus one second for every slowest_bytes_per_s of it
    fetch_wait_max_s        upper bound of a client's max_wait_ms
    hydration_wait_s        how long a Fetch waits for a chunk from the bucket, when its max_wait_ms is shorter
    storage_wait_s          a chunk that is not there after that, over all the requests that waited for it, is an error of the storage
    poll_s                  how often a waiting Fetch looks whether its log has grown
    metadata_ttl_s          how long one look at topics and leader epochs is served to all clients
    drain_s                 how long a stop waits for what is in flight
    workers                 threads for what may block: time look-ups, listings
    """

    listen: str = "127.0.0.1:9292"
    advertised: str = ""
    upstream: tuple[str, ...] = ()
    upstream_base_port: int = 19092
    upstream_port_map: tuple[str, ...] = ()
    upstream_properties: Path | None = None
    upstream_request_bytes_max: int = 100 << 20  # as Kafka's socket.request.max.bytes
    earliest: Earliest = Earliest.ARCHIVE
    gaps: Gaps = Gaps.SKIP
    unknown_apis: UnknownApis = UnknownApis.HIDE
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    allow_plaintext: bool = False
    node_id: int = 1
    connections_max: int = 0
    connections_per_ip_max: int = CONNECTIONS_MOST  # as in Kafka: one address may be a proxy or a whole cluster of clients
    unauthenticated_per_address: int = 500
    request_bytes_max: int = 1 << 20
    response_bytes_max: int = 64 << 20
    unread_bytes_max: int = 64 << 20
    idle_timeout_s: float = 600.0
    request_timeout_s: float = 30.0
    send_timeout_s: float = 30.0
    slowest_bytes_per_s: int = 64 << 10
    fetch_wait_max_s: float = 60.0
    hydration_wait_s: float = 0.5
    storage_wait_s: float = 10.0
    poll_s: float = 0.1
    metadata_ttl_s: float = 1.0
    drain_s: float = 30.0
    workers: int = 16

    def __post_init__(self) -> None:
        host, _ = split_address(self.listen)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("gateway: tls_certificate and tls_key come together")
        if self.tls_client_ca is not None and self.tls_key is None:
            raise UsageError("gateway: tls_client_ca is for a port with TLS: set tls_certificate and tls_key")
        if self.tls_key is None and not self.allow_plaintext and not is_loopback(host):
            raise UsageError(
                f"gateway.listen {self.listen!r} can be reached from other machines, and is without TLS: set gateway.tls_certificate and "
                "gateway.tls_key, or gateway.allow_plaintext = true"
            )
        for address in self.upstream:
            _check_reachable(address, "upstream")
        if self.upstream_properties is not None and not self.upstream:
            raise UsageError("gateway: upstream_properties say how to reach the brokers of upstream, which is not set")
        if self.upstream:
            self._check_ports()
        elif self.advertised:
            split_address(self.advertised)
        for name in ("connections_per_ip_max", "unauthenticated_per_address", "unread_bytes_max", "workers", "slowest_bytes_per_s"):
            if getattr(self, name) < 1:
                raise UsageError(f"gateway: {name} is at least 1")
        if not 1 << 10 <= self.request_bytes_max <= 1 << 30 or not 1 <= self.response_bytes_max <= 1 << 30:
            raise UsageError("gateway: request_bytes_max is 1 KiB to 1 GiB, response_bytes_max at most 1 GiB")
        if not 1 << 10 <= self.upstream_request_bytes_max < 1 << 31:
            raise UsageError("gateway: upstream_request_bytes_max is 1 KiB to 2 GiB")
        for name in ("idle_timeout_s", "request_timeout_s", "send_timeout_s", "storage_wait_s", "poll_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"gateway: {name} is more than 0")
        if not 0 <= self.connections_max <= CONNECTIONS_MOST or self.workers > WORKERS_MOST:
            raise UsageError(f"gateway: connections_max is at most {CONNECTIONS_MOST}, workers at most {WORKERS_MOST}")
        if self.node_id > 2**31 - 1:
            raise UsageError(f"gateway: node_id {self.node_id} is no int32, as the protocol has it")
        if self.node_id < 0 or min(self.fetch_wait_max_s, self.hydration_wait_s, self.metadata_ttl_s, self.drain_s) < 0:
            raise UsageError("gateway: node_id, fetch_wait_max_s, hydration_wait_s, metadata_ttl_s and drain_s are not negative")

    @property
    def broker_ports(self) -> BrokerPorts:
        """The proxy's ports of brokers. Raises UsageError."""
        return BrokerPorts(
            base_port=self.upstream_base_port, ports=_port_map(self.upstream_port_map), advertised=self.advertised or "{host}:{port}"
        )

    def _check_ports(self) -> None:
        ports = self.broker_ports
        if not 0 < ports.base_port <= PORT_MAX:
            raise UsageError(f"gateway: upstream_base_port {ports.base_port} is no port")
        if split_address(self.listen)[1] in ports.ports.values():
            raise UsageError(f"gateway: upstream_port_map has the port of listen, {self.listen}")
        try:
            addresses = [ports.address_of(node_id, "host") for node_id in (0, 1)]
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise UsageError(
                f"gateway: advertised {self.advertised!r} is not host:port, with {{node_id}} and {{port}} for each broker's own"
            ) from error
        for host, port in addresses:
            _check_reachable(f"{host}:{port}", "advertised")
        if addresses[0] == addresses[1]:
            raise UsageError(
                f"gateway: advertised {self.advertised!r} names one address for all brokers: it has to have {{node_id}} or {{port}}"
            )


def _check_reachable(address: str, name: str) -> None:
    """Raises UsageError."""
    host, port = split_address(address)
    if not re.fullmatch(r"[A-Za-z0-9._:-]+", host) or not port:
        raise UsageError(f"gateway: {name}: {address[:200]!r} is no host and port that can be connected to")


def _port_map(texts: tuple[str, ...]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for text in texts:
        if not (match := re.fullmatch(r"([0-9]{1,10}):([0-9]{1,5})", text)) or not 0 < int(match[2]) <= PORT_MAX:
            raise UsageError(f"gateway: upstream_port_map: {text[:80]!r} is not ID:PORT")
        if int(match[1]) in found or int(match[2]) in found.values():
            raise UsageError(f"gateway: upstream_port_map: {text!r} names a broker or a port once more")
        found[int(match[1])] = int(match[2])
    return found
