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
VANISHED_MS = 60_000  # what was sent is not acknowledged for so long

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
        self._accepting: list[asyncio.Task[None]] = []
        if certificate is not None:
            self._accepting.append(tasks.create_task(certificate.follow()))
        self._serving: set[asyncio.Task[None]] = set()
        self._is_draining = False

    def open(self, listener: socket.socket, serve: Serve) -> None:
        """Accept connections there from now on. serve: answers one until it ends; whatever happens to it concerns no other"""
        if self._is_draining:
            listener.close()
            return
        task = self._tasks.create_task(self._accept(listener, serve))
        task.add_done_callback(lambda _: listener.close())  # also of one that was cancelled before it began
        self._accepting.append(task)

    async def drain(self, patience_s: float) -> None:
        """Accept nothing more, let connections end once what is in flight there is answered, and end those that take longer."""
        self._is_draining = True
        for task in self._accepting:
            task.cancel()
        self._opened.end()
        if self._serving:
            await asyncio.wait(self._serving, timeout=patience_s)
        for task in self._serving:
            task.cancel()

    async def _accept(self, listener: socket.socket, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, or the peer has left already
                log.warning("accept_failed", reason=str(error))
                await asyncio.sleep(NO_DESCRIPTORS_S)
                continue
            opened = self._opened.add(client, address[0], self._clock.monotonic_s(), is_authenticated=self._is_open())
            if opened is None:
                client.close()
                self._meter.refused += 1
                log.warning("connection_refused", ip=address[0], connections_max=self._connections_max)
                continue
            task = self._tasks.create_task(self._served(opened, serve))
            self._serving.add(task)
            task.add_done_callback(partial(self._ended, opened))
            await asyncio.sleep(0)  # where one was evicted its descriptor is closed, before the next is accepted

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
        self._serving.discard(task)
        self._opened.remove(opened)
        opened.client.close()


def set_options(sock: socket.socket) -> None:
    """Small frames leave at once, and a peer that has vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_MS)


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
