"""The proxy's ports: one to begin at, and one for each broker."""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from headwater.gateway.acceptor import Acceptor, CannotListen, listen, port_certificate, set_options
from headwater.gateway.config import Earliest, GatewayConfig, split_address
from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.open_connections import OpenConnection
from headwater.gateway.process import prepare_process, settle_process
from headwater.gateway.protocol import Api
from headwater.gateway.proxy.address_walk import AddressWalk, MalformedResponse
from headwater.gateway.proxy.archive_side import ArchiveSide
from headwater.gateway.proxy.byte_stream import ByteStream
from headwater.gateway.proxy.endpoint_registry import Address, EndpointRegistry
from headwater.gateway.proxy.proxied_connection import ProxiedConnection
from headwater.gateway.server import READERS
from headwater.gateway.tls_socket import BrokerTlsFailure, TlsSocket
from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import HeadwaterError, TransientError, UsageError
from headwater_core.segments import flexible
from hydration.disk_threads import DiskThreads
from hydration.logs import Logs

CONNECT_S = 10.0
PORT_AGAIN_S = 10.0  # before a port that could not be opened is tried again
DISCOVER_S, DISCOVER_MAX_S = 1.0, 60.0  # pauses between attempts to find brokers

_METADATA_VERSION = 5  # of no topic, and without creating any; Kafka 4 still speaks it
_METADATA_BODY = b"".join((flexible.i16(Api.METADATA), flexible.i16(_METADATA_VERSION), bytes(4), flexible.i16(9), b"headwater", bytes(5)))
_METADATA_REQUEST = flexible.i32(len(_METADATA_BODY)) + _METADATA_BODY

log = structlog.get_logger()


class NotReached(TransientError):
    """No connection to a broker."""


class ClusterNodes(NamedTuple):
    """nodes: id, host and port"""

    cluster_id: str | None
    nodes: Sequence[tuple[int, str, int]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """
    tls    for connections from now on; None: they are plain
    nodes  what brokers tell a client that says who it is; blocks, raises HeadwaterError. None: they tell whoever asks
    """

    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    nodes: Callable[[], ClusterNodes] | None = None


class ProxyServer:
    """`run()` serves until it is cancelled; its connections end with it.

    archive   None: everything is the brokers'
    upstream  how brokers are reached
    """

    def __init__(
        self,
        config: GatewayConfig,
        archive: ArchiveSide | None = None,
        clock: Clock | None = None,
        meter: GatewayMeter | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self._upstream = upstream or Upstream()
        self._config, self._archive, self._clock, self._meter = config, archive, clock or SystemClock(), meter or GatewayMeter()
        self._readers = DiskThreads(READERS, "proxy-read")
        self.registry = EndpointRegistry(config.broker_ports, self._learned, split_address(config.listen)[1])
        self._asking = ThreadPoolExecutor(1, "proxy-upstream")  # for what brokers tell a client that says who it is
        self._discovery: asyncio.Task[None] | None = None
        self._certificate = port_certificate(config)
        self._listener = listen(config.listen, "proxy")
        self._address: Address = self._listener.getsockname()[:2]
        self._bound = config.listen.rpartition(":")[0]
        self._acceptor: Acceptor | None = None
        self._opened: set[int] = set()
        self._again_s: dict[int, float] = {}

    @property
    def address(self) -> Address:
        return self._address

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Serve until it is cancelled, then end all connections; or until `stopping` is set: then what is in flight is answered before."""
        stopping = stopping or asyncio.Event()
        connections_max = prepare_process(self._config.connections_max, sockets=2)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._acceptor = Acceptor(tasks, self._config, connections_max, self._meter, self._clock, self._certificate, self._is_open)
                with closing(self._acceptor):
                    for node_id in self.registry.ports.ports:
                        self._learned(node_id)
                    background = [tasks.create_task(self._discover_first())]
                    if self._archive is not None:
                        background.append(tasks.create_task(self._archive.keep_listed()))
                    self._acceptor.open(self._listener, partial(self._serve, None))
                    await stopping.wait()
                    await self._acceptor.drain(self._config.drain_s)
                    for task in background:
                        task.cancel()
        finally:
            self._acceptor = None
            self._listener.close()
            if self._discovery is not None:
                self._discovery.cancel()
                await asyncio.gather(self._discovery, return_exceptions=True)
            self._readers.close(wait=False)
            self._asking.shutdown(wait=False, cancel_futures=True)

    def _is_open(self) -> bool:
        return self.registry.is_open

    def _learned(self, node_id: int) -> None:
        """Open the port of a broker, or try again to."""
        now_s = asyncio.get_running_loop().time()
        if self._acceptor is None or node_id in self._opened or now_s < self._again_s.get(node_id, 0.0):
            return
        address = f"{self._bound}:{self.registry.ports.port_of(node_id)}"
        try:
            listener = listen(address, f"port of broker {node_id}")
        except CannotListen as error:
            log.error("broker_port_not_opened", node_id=node_id, reason=f"{error}; upstream_port_map may name another port for it")
            self._again_s[node_id] = now_s + PORT_AGAIN_S
            return
        self._opened.add(node_id)
        log.info("broker_port_opened", node_id=node_id, listen=address)
        self._acceptor.open(listener, partial(self._serve, node_id))

    async def _serve(self, node_id: int | None, opened: OpenConnection) -> None:
        """One connection to one broker, or to any."""
        upstream: _BrokerSocket | None = None
        try:
            upstream = await self._connect(node_id)
            opened.is_served = True
            connection = ProxiedConnection(
                opened,
                ByteStream(opened.tls or opened.client),
                ByteStream(upstream.tls or upstream.plain),
                self.registry,
                self._config,
                self._meter,
                archive=self._archive,
                readers=self._readers,
            )
            await connection.run()
        except (TransientError, UsageError, MalformedResponse) as error:
            if not isinstance(error, NotReached):
                self._meter.reached(node_id, failure=str(error))
            log.warning("upstream_failed", peer=opened.facts.peer, node_id=node_id, reason=str(error))
        finally:
            if upstream is not None:
                upstream.plain.close()

    async def _connect(self, node_id: int | None) -> "_BrokerSocket":
        """A connection to one broker, or to any. One that cannot be reached may have moved: the others are asked where it is.

        Raises NotReached, TransientError where nobody says where it is, and OtherCluster.
        """
        reasons = []
        tried: Sequence[Address] = []
        for is_last in (False, True):
            candidates = self._candidates(node_id)
            for host, port in candidates if candidates != tried else ():
                try:
                    async with asyncio.timeout(CONNECT_S):
                        found = await self._secured(self._not_ours(await connect(host, port)), host)
                except (OSError, TimeoutError, PeerGone, BrokerTlsFailure) as error:
                    reasons.append(f"{host}:{port}: {error or 'no answer in time'}")
                else:
                    self._meter.reached(node_id)
                    return found
            if node_id is None or is_last:
                break
            tried = candidates
            await self._discover()
        failure = "; ".join(reasons) or f"nobody knows where broker {node_id} is"
        self._meter.reached(node_id, failure=failure)
        raise NotReached(failure)

    def _not_ours(self, sock: socket.socket) -> socket.socket:
        """Raises OSError for a connection to this proxy, which would connect to itself without end."""
        (host, _, *_), (peer, port, *_) = sock.getsockname(), sock.getpeername()
        if host == peer and (port == self.address[1] or port in map(self.registry.ports.port_of, self._opened)):
            sock.close()
            raise OSError("that is this proxy's own port: upstream, or what the broker advertises, has to be the broker's address")
        return sock

    async def _secured(self, sock: socket.socket, host: str) -> "_BrokerSocket":
        """Raises PeerGone, BrokerTlsFailure, OSError."""
        context = self._upstream.tls()
        if context is None:
            return _BrokerSocket(sock, None)
        try:
            tls = TlsSocket(sock, context, host)
            await tls.handshake(CONNECT_S)
        except BaseException:
            sock.close()
            raise
        return _BrokerSocket(sock, tls)

    async def _discover(self) -> None:
        """For all who want it at that time. Raises TransientError, and OtherCluster."""
        if self._discovery is None or self._discovery.done():
            self._discovery = asyncio.create_task(self._discover_once())
        await asyncio.shield(self._discovery)

    async def _discover_once(self) -> None:
        if self._upstream.nodes is not None:
            try:
                self.registry.learn_all(*await asyncio.get_running_loop().run_in_executor(self._asking, self._upstream.nodes))
            except HeadwaterError as error:
                raise error if isinstance(error, UsageError) else TransientError(f"no broker says where the others are: {error}") from error
            return
        sock = await self._connect(None)
        stream = ByteStream(sock.tls or sock.plain)
        try:
            async with asyncio.timeout(CONNECT_S):
                await discover(stream, self.registry)
        except (OSError, TimeoutError, PeerGone, MalformedRequest, BrokerTlsFailure) as error:
            raise TransientError(f"no broker says where the others are: {error or 'no answer in time'}") from error
        finally:
            stream.close()
            sock.plain.close()

    async def _discover_first(self) -> None:
        """Until brokers are known, by whom ever. Where they tell nobody who does not say who he is, a client finds them."""
        pause_s = DISCOVER_S
        while not (self.registry.brokers if self._upstream.nodes is not None else self.registry.is_open):
            try:
                await self._discover()
            except (TransientError, UsageError) as error:
                log.warning("brokers_not_found", reason=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, DISCOVER_MAX_S)

    def _candidates(self, node_id: int | None) -> Sequence[Address]:
        if node_id is not None:
            found = self.registry.brokers.get(node_id)
            return [found] if found else []
        named = list(map(split_address, self._config.upstream))
        random.shuffle(named)
        return [*named, *(broker for broker in self.registry.brokers.values() if broker not in named)]


class _BrokerSocket(NamedTuple):
    """tls: over the plain one, None: it is as it is"""

    plain: socket.socket
    tls: TlsSocket | None


async def serve_proxy(
    logs: Logs,
    config: GatewayConfig,
    *,
    started: Callable[[Address], None] = lambda _: None,
    clock: Clock | None = None,
    meter: GatewayMeter | None = None,
    stopping: asyncio.Event | None = None,
    earliest_for: Callable[[str], Earliest] | None = None,
    upstream: Upstream | None = None,
) -> None:
    """As server.serve, in front of brokers. earliest_for: by topic, in place of what `config` says of all"""
    clock = clock or SystemClock()
    executor = ThreadPoolExecutor(config.workers, thread_name_prefix="proxy")
    archive = ArchiveSide(logs, config, executor, clock, earliest_for)
    try:
        proxy = ProxyServer(config, archive, clock, meter, upstream)
        settle_process()
        log.info("proxy_started", listen="{}:{}".format(*proxy.address), upstream=", ".join(config.upstream))
        started(proxy.address)
        with logs.kept_fresh():
            await proxy.run(stopping)
    finally:
        await archive.close()
        executor.shutdown(wait=False, cancel_futures=True)


async def discover(upstream: ByteStream, registry: EndpointRegistry) -> None:
    """Learn from one broker where all are. Raises PeerGone where it wants to know first who asks, MalformedResponse, OSError."""
    await upstream.send(_METADATA_REQUEST)
    size_bytes = int.from_bytes((await upstream.need(4))[:4], "big", signed=True)
    if not 4 <= size_bytes <= upstream.room_bytes - 4:
        raise MalformedResponse(f"a Metadata response of {size_bytes} bytes")
    frame = await upstream.need(4 + size_bytes)

    walk = AddressWalk(Api.METADATA, _METADATA_VERSION, lambda node_id, host, port: (host, port), size_bytes - 4)
    walk.advance(frame[8 : 4 + size_bytes])
    registry.learn_all(walk.cluster_id, walk.nodes)
    registry.is_open = True


async def connect(host: str, port: int) -> socket.socket:
    """A connection; the name is resolved anew. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no host name") from error
    for family, kind, protocol, _, where in addresses:
        upstream = socket.socket(family, kind, protocol)
        try:
            upstream.setblocking(False)
            set_options(upstream)
            async with asyncio.timeout(CONNECT_S / len(addresses)):
                await loop.sock_connect(upstream, where)
        except (OSError, TimeoutError) as error:
            failure = error if isinstance(error, OSError) else OSError("no answer in time")
            upstream.close()
        except BaseException:
            upstream.close()
            raise
        else:
            return upstream
    raise failure or OSError(f"{host} has no address")
