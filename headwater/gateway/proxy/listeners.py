"""The proxy's ports: one to begin at, and one for each broker."""

import asyncio
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from headwater.gateway.config import split_address
from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.protocol import Api
from headwater.gateway.proxy.address_walk import AddressWalk, MalformedResponse
from headwater.gateway.proxy.archive_side import ArchiveSide
from headwater.gateway.proxy.byte_stream import ByteStream
from headwater.gateway.proxy.endpoint_registry import Address, BrokerPorts, EndpointRegistry
from headwater.gateway.proxy.proxied_connection import ProxiedConnection
from headwater.gateway.server import READERS, CannotListen, listen
from headwater_core.errors import TransientError, UsageError
from headwater_core.segments import flexible
from hydration.disk_threads import DiskThreads

CONNECT_S = 10.0
VANISHED_MS = 60_000  # what was sent is not acknowledged for so long
PORT_AGAIN_S = 10.0  # before a port that could not be opened is tried again
DISCOVER_S, DISCOVER_MAX_S = 1.0, 60.0  # pauses between attempts to find brokers
NO_DESCRIPTORS_S = 0.5  # pause after the process has run out of descriptors; connections wait in the backlog

_METADATA_VERSION = 5  # of no topic, and without creating any; Kafka 4 still speaks it
_METADATA_BODY = b"".join((flexible.i16(Api.METADATA), flexible.i16(_METADATA_VERSION), bytes(4), flexible.i16(9), b"headwater", bytes(5)))
_METADATA_REQUEST = flexible.i32(len(_METADATA_BODY)) + _METADATA_BODY

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """
    listen          of the port to begin at; the brokers' are on the same host
    upstream        brokers that are tried there, each by "host:port"
    passes_unknown  requests of which the proxy knows nothing
    """

    listen: str
    upstream: Sequence[str]
    ports: BrokerPorts
    passes_unknown: bool = False


class ProxyServer:
    """`run()` serves until it is cancelled; its connections end with it.

    archive  None: everything is the brokers'
    """

    def __init__(self, config: ProxyConfig, archive: ArchiveSide | None = None) -> None:
        self._config, self._archive = config, archive
        self._readers = DiskThreads(READERS, "proxy-read")
        self.registry = EndpointRegistry(config.ports, self._learned)
        self._listener = listen(config.listen, "proxy")
        self._bound = split_address(config.listen)[0]
        self._tasks: asyncio.TaskGroup | None = None
        self._opened: set[int] = set()
        self._again_s: dict[int, float] = {}

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def run(self) -> None:
        """Serve until it is cancelled, then end all connections."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for node_id in self._config.ports.ports:
                    self._learned(node_id)
                self._tasks.create_task(self._discover_first())
                if self._archive is not None:
                    self._tasks.create_task(self._archive.keep_listed())
                await self._accept(self._listener, None)
        finally:
            self._tasks = None
            self._listener.close()
            self._readers.close(wait=False)

    def _learned(self, node_id: int) -> None:
        """Open the port of a broker, or try again to."""
        now_s = asyncio.get_running_loop().time()
        if self._tasks is None or node_id in self._opened or now_s < self._again_s.get(node_id, 0.0):
            return
        port = self._config.ports.port_of(node_id)
        try:
            listener = listen(f"{self._bound}:{port}", f"port of broker {node_id}")
        except CannotListen as error:
            log.error("broker_port_not_opened", node_id=node_id, reason=f"{error}; upstream_port_map may name another port for it")
            self._again_s[node_id] = now_s + PORT_AGAIN_S
            return
        self._opened.add(node_id)
        log.info("broker_port_opened", node_id=node_id, listen=f"{self._bound}:{port}")
        self._tasks.create_task(self._accept(listener, node_id))

    async def _accept(self, listener: socket.socket, node_id: int | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, or the peer has left already
                    log.warning("accept_failed", reason=str(error))
                    await asyncio.sleep(NO_DESCRIPTORS_S)
                    continue
                assert self._tasks is not None
                self._tasks.create_task(self._serve(client, node_id))
                await asyncio.sleep(0)
        finally:
            listener.close()

    async def _serve(self, client: socket.socket, node_id: int | None) -> None:
        """One connection from accept to close. Whatever happens to it concerns no other."""
        peer, upstream = "?", None
        try:
            peer = "{}:{}".format(*client.getpeername()[:2])
            client.setblocking(False)
            set_options(client)
            upstream = await self._connect(node_id)
            host = client.getsockname()[0]
            connection = ProxiedConnection(
                ByteStream(client),
                ByteStream(upstream),
                self.registry,
                host,
                archive=self._archive,
                readers=self._readers,
                passes_unknown=self._config.passes_unknown,
                hidden_seen=lambda api_key, version: log.warning("hidden_request", peer=peer, api=f"{api_key} version {version}"),
            )
            await connection.run()
        except MalformedRequest as error:
            log.warning("malformed_request", peer=peer, reason=str(error))
        except PeerGone as error:
            log.info("connection_closed", peer=peer, reason=str(error))
        except (TransientError, UsageError) as error:
            log.warning("upstream_failed", peer=peer, node_id=node_id, reason=str(error))
        except OSError as error:
            log.debug("connection_lost", peer=peer, reason=str(error))
        except Exception:
            log.exception("connection_failed", peer=peer)
        finally:
            client.close()
            if upstream is not None:
                upstream.close()

    async def _connect(self, node_id: int | None) -> socket.socket:
        """A connection to one broker, or to any. One that cannot be reached may have moved: the others are asked where it is.

        Raises TransientError, and OtherCluster.
        """
        reasons = []
        tried: Sequence[Address] = []
        for is_last in (False, True):
            candidates = self._candidates(node_id)
            for host, port in candidates if candidates != tried else ():
                try:
                    async with asyncio.timeout(CONNECT_S):
                        return await connect(host, port)
                except (OSError, TimeoutError) as error:
                    reasons.append(f"{host}:{port}: {error or 'no answer in time'}")
            if node_id is None or is_last:
                break
            tried = candidates
            await self._discover()
        raise TransientError("; ".join(reasons) or f"nobody knows where broker {node_id} is")

    async def _discover(self) -> None:
        """Raises TransientError, and OtherCluster."""
        sock = await self._connect(None)
        try:
            async with asyncio.timeout(CONNECT_S):
                await discover(ByteStream(sock), self.registry)
        except (OSError, TimeoutError, PeerGone, MalformedRequest) as error:
            raise TransientError(f"no broker says where the others are: {error or 'no answer in time'}") from error
        finally:
            sock.close()

    async def _discover_first(self) -> None:
        """Until brokers are known, by whom ever. Where they tell nobody who does not say who he is, a client finds them."""
        pause_s = DISCOVER_S
        while not self.registry.brokers:
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


async def discover(upstream: ByteStream, registry: EndpointRegistry) -> None:
    """Learn from one broker where all are. Raises PeerGone where it wants to know first who asks, MalformedResponse, OSError."""
    await upstream.send(_METADATA_REQUEST)
    size_bytes = int.from_bytes((await upstream.need(4))[:4], "big", signed=True)
    if not 4 <= size_bytes <= upstream.room_bytes - 4:
        raise MalformedResponse(f"a Metadata response of {size_bytes} bytes")
    frame = await upstream.need(4 + size_bytes)

    walk = AddressWalk(Api.METADATA, _METADATA_VERSION, lambda node_id, host, port: (host, port), size_bytes - 4)
    walk.advance(frame[8 : 4 + size_bytes])
    registry.check(walk.cluster_id)
    for node in walk.nodes:
        registry.learn(*node)


def set_options(sock: socket.socket) -> None:
    """Small frames leave at once, and a peer that has vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_MS)


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
            await loop.sock_connect(upstream, where)
        except OSError as error:
            failure = error
            upstream.close()
        except BaseException:
            upstream.close()
            raise
        else:
            return upstream
    raise failure or OSError(f"{host} has no address")
