"""Accepts the connections of all ports of the gateway, within limits that they share, and ends them in good order."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from headwater.gateway.certificates import PortCertificate
from headwater.gateway.config import GatewayConfig, split_address
from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.open_connections import OpenConnection, OpenConnections
from headwater.gateway.tls_socket import TlsSocket
from headwater_core.clock import Clock
from headwater_core.errors import UsageError

BACKLOG = 512
NO_DESCRIPTORS_S = 0.5  # pause after the process has run out of descriptors; connections wait in the backlog
HANDSHAKE_S = 10.0  # for that of TLS
ALIVE_AFTER_S, ALIVE_EVERY_S, ALIVE_TRIES = 60, 15, 4  # when a peer that says nothing is asked whether it is there
UNREAD_MS = 600_000  # a peer that is there and reads nothing for so long; Kafka's connections.max.idle.ms

Serve = Callable[[OpenConnection], Awaitable[None]]

log = structlog.get_logger()


class CannotListen(UsageError):
    """The address is taken, or not one of this machine."""


class Acceptor:
    """
    tasks            end with what they are in, and so do all connections
    connections_max  of all ports together
    certificate      of all ports; None: they are plain
    is_open          clients need not say who they are
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        config: GatewayConfig,
        connections_max: int,
        meter: GatewayMeter,
        clock: Clock,
        certificate: PortCertificate | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tasks, self._meter, self._clock, self._connections_max, self._is_open = tasks, meter, clock, connections_max, is_open
        self._opened = OpenConnections(connections_max, config.connections_per_ip_max, meter, config.unauthenticated_per_address)
        self._certificate = certificate
        self._loop, self._listeners = asyncio.get_running_loop(), dict[socket.socket, Serve]()
        self._following = tasks.create_task(certificate.follow()) if certificate is not None else None
        self._serving: dict[asyncio.Task[None], OpenConnection] = {}
        self._is_draining = False

    def open(self, listener: socket.socket, serve: Serve) -> None:
        """Accept connections there from now on. serve: answers one until it ends; whatever happens to it concerns no other"""
        if self._is_draining:
            listener.close()
            return
        self._listeners[listener] = serve
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept nothing more. May be called again."""
        self._is_draining = True
        while self._listeners:
            listener, _ = self._listeners.popitem()
            self._loop.remove_reader(listener)
            listener.close()
        if self._following is not None:
            self._following.cancel()

    async def drain(self, patience_s: float) -> None:
        """Accept nothing more, let connections end once what is in flight there is answered, and end those that take longer."""
        self.close()
        self._opened.end()
        for task, opened in self._serving.items():
            if not opened.is_served:  # a handshake, or a broker that does not answer
                task.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=patience_s)
        for task in self._serving:
            task.cancel()

    def _accept(self, listener: socket.socket) -> None:
        """One, before other tasks have their turn: where another one was evicted, its descriptor is closed then."""
        try:
            client, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors, or the peer has left already
            log.warning("accept_failed", reason=str(error))
            self._loop.remove_reader(listener)
            self._loop.call_later(NO_DESCRIPTORS_S, self._resume, listener)
            return
        opened = self._opened.add(client, address[0], self._clock.monotonic_s(), is_authenticated=self._is_open())
        if opened is None:
            client.close()
            self._meter.refused += 1
            limiting = self._opened.limiting
            log.warning("connection_refused", ip=address[0], connections_max=self._connections_max, limiting=limiting)
            return
        task = self._tasks.create_task(self._served(opened, self._listeners[listener]))
        self._serving[task] = opened
        task.add_done_callback(partial(self._ended, opened))

    def _resume(self, listener: socket.socket) -> None:
        if not self._is_draining:
            self._loop.add_reader(listener, self._accept, listener)

    async def _served(self, opened: OpenConnection, serve: Serve) -> None:
        """One connection, whatever happens to it."""
        peer = "?"
        try:
            peer = opened.facts.peer = "{}:{}".format(*opened.client.getpeername()[:2])
            opened.facts.listener = "{}:{}".format(*opened.client.getsockname()[:2])
            opened.client.setblocking(False)
            set_options(opened.client)
            if self._certificate is not None:
                opened.tls = TlsSocket(opened.client, self._certificate.context)
                await opened.tls.handshake(HANDSHAKE_S)
            await serve(opened)
        except MalformedRequest as error:
            self._meter.malformed += 1
            log.warning("malformed_request", peer=peer, reason=str(error))
        except PeerGone as error:
            log.info("connection_closed", peer=peer, reason=str(error))
        except OSError as error:
            log.debug("connection_lost", peer=peer, reason=str(error))
        except Exception:
            log.exception("connection_failed", peer=peer)

    def _ended(self, opened: OpenConnection, task: "asyncio.Task[None]") -> None:
        del self._serving[task]
        self._opened.remove(opened)
        opened.client.close()


def set_options(sock: socket.socket) -> None:
    """Small frames leave at once, and a peer that has vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)


def port_certificate(config: GatewayConfig) -> PortCertificate | None:
    """The port's; None: it is plain. Raises UsageError."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    return PortCertificate(config.tls_certificate, config.tls_key, config.tls_client_ca)


def listen(address: str, name: str = "gateway") -> socket.socket:
    """A listening socket at "host:port". Raises CannotListen, which names who cannot listen there."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise CannotListen(f"{name} cannot listen on {address}: {error.strerror or error}") from error
    return listener
