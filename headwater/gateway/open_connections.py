"""Connections that are open, by client address: when there are as many as may be, an address with many makes room for one with few."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from headwater.gateway.client_facts import ClientFacts
from headwater.gateway.config import CONNECTIONS_MOST
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.tls_socket import TlsSocket

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class OpenConnection:
    """
    idle_since_s  since when no request is answered; None while one is
    is_authenticated  its client is known, or need not be
    tls           over `client`; None: it is plain
    is_served     it has come so far that requests are answered
    is_receiving  nothing of a next request has arrived, and if none comes that is the end
    ends          with the responses that its client waits for
    stop_receiving  ends the wait for a request; None: the socket's end does
    """

    client: socket.socket
    ip: str
    idle_since_s: float | None
    is_authenticated: bool = True
    tls: TlsSocket | None = None
    is_served: bool = False
    is_receiving: bool = True
    ends: bool = False
    stop_receiving: Callable[[], object] | None = None
    facts: ClientFacts = field(default_factory=ClientFacts)

    def receive_no_more(self) -> None:
        """Its task sees the end."""
        if self.stop_receiving is not None:
            self.stop_receiving()
        else:
            shut_down(self.client, socket.SHUT_RD)


class OpenConnections:
    """The connections of all ports, at most `limit` of them, and at most `per_ip_limit` of one address.

    unauthenticated_limit  of one address, of which the client is not known yet
    limiting               the setting for which the last one was refused
    """

    def __init__(self, limit: int, per_ip_limit: int, meter: GatewayMeter, unauthenticated_limit: int = CONNECTIONS_MOST) -> None:
        self._limit, self._per_ip_limit, self._meter, self._unauthenticated_limit = limit, per_ip_limit, meter, unauthenticated_limit
        self._by_ip: dict[str, set[OpenConnection]] = {}
        self.limiting = ""

    def add(self, client: socket.socket, ip: str, now_s: float, *, is_authenticated: bool = True) -> OpenConnection | None:
        """Count one more, idle since now; None where there is no room for it.

        When the port is full, the connection that is idle for longest makes room, of the address that has the most, if that has more than
        `ip` or is `ip`. So addresses come to equal shares, and none of them evicts those of another that has fewer. At the limit of an
        address its own do.
        """
        same = self._by_ip.get(ip, set())
        if not is_authenticated and sum(not connection.is_authenticated for connection in same) >= self._unauthenticated_limit:
            self.limiting = "unauthenticated_per_address"
            return None
        if len(same) >= self._per_ip_limit:
            if not self._evict(same):
                self.limiting = "connections_per_ip_max"
                return None
        elif self._meter.connections >= self._limit:
            larger = [connections for connections in self._by_ip.values() if connections is same or len(connections) > len(same)]
            if not any(self._evict(connections) for connections in sorted(larger, key=len, reverse=True)):
                self.limiting = "connections_max"
                return None
        connection = OpenConnection(client, ip, now_s, is_authenticated)
        self._by_ip.setdefault(ip, set()).add(connection)
        self._meter.clients.add(connection.facts)
        self._meter.connections += 1
        return connection

    def remove(self, connection: OpenConnection) -> None:
        """It has ended. May be called again."""
        same = self._by_ip.get(connection.ip, set())
        if connection in same:
            same.remove(connection)
            self._meter.clients.discard(connection.facts)
            self._meter.connections -= 1
            if not same:
                del self._by_ip[connection.ip]

    def end(self) -> None:
        """Receive nothing more: connections end with the responses that their clients wait for."""
        for connections in self._by_ip.values():
            for connection in connections:
                connection.ends = True
                if connection.is_receiving:
                    connection.receive_no_more()

    def _evict(self, connections: set[OpenConnection]) -> bool:
        """Close the one that is idle for longest, if any is: its task sees the end, and takes it from there."""
        idle = [(connection.idle_since_s, connection) for connection in connections if connection.idle_since_s is not None]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda item: item[0])
        log.warning("idle_connection_closed", ip=oldest.ip, connections=len(connections), connections_max=self._limit)
        self.remove(oldest)
        self._meter.idle_closed += 1
        shut_down(oldest.client)
        return True


def shut_down(client: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End both directions, or one: whoever waits for the socket sees it. Its descriptor stays its owner's."""
    try:
        client.shutdown(how)
    except OSError:  # the peer was quicker
        return
