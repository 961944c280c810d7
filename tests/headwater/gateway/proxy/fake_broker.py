"""A broker that answers as it is told, and a client that sends frames as they are."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from headwater.gateway.config import GatewayConfig, UnknownApis
from headwater.gateway.messages import response_schema
from headwater.gateway.protocol import Api
from headwater.gateway.proxy.endpoint_registry import Address
from headwater.gateway.proxy.listeners import ProxyServer
from headwater.gateway.response import Response
from headwater_core.segments import flexible

CLUSTER = "mPtQxumzSB6UIzXMtmWVUg"


def request(api_key: int, version: int, correlation_id: int, body: bytes = b"", client_id: str = "tester") -> bytes:
    """A frame with its size."""
    header = flexible.i16(api_key) + flexible.i16(version) + flexible.i32(correlation_id)
    raw = header + flexible.i16(len(client_id)) + client_id.encode() + body
    return flexible.i32(len(raw)) + raw


def response(correlation_id: int, body: bytes) -> bytes:
    return flexible.i32(4 + len(body)) + flexible.i32(correlation_id) + body


def encoded(api_key: int, version: int, **values: Any) -> bytes:
    """A body, from behind the correlation id on."""
    schema, out = response_schema(api_key, version), Response()
    schema.write(out, values)
    return (b"\0" if schema.header_version else b"") + bytes(out.buffer)


def decoded(frame: bytes, api_key: int, version: int) -> Any:
    schema = response_schema(api_key, version)
    found, end = schema.read(frame, 8 + schema.header_version)
    assert end == len(frame)
    return found


def brokers(*addresses: Address) -> list[dict[str, Any]]:
    return [{"node_id": number, "host": host, "port": port, "rack": None} for number, (host, port) in enumerate(addresses, 1)]


def metadata(version: int, *addresses: Address, cluster_id: str = CLUSTER, topics: Iterable[Any] = ()) -> bytes:
    return encoded(
        Api.METADATA, version, brokers=brokers(*addresses), cluster_id=cluster_id, controller_id=1, topics=list(topics), error_code=0
    )


@dataclass
class FakeBroker:
    """
    answers   by the frame that was received: frames to send, one after the other; None: the connection is closed
    received  in the order in which they came, with their sizes
    """

    answers: Callable[[bytes], Iterable[bytes] | None] = lambda frame: ()
    received: list[bytes] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (frame := await next_frame(reader)) is not None:
                self.received.append(frame)
                found = self.answers(frame)
                if found is None:
                    break
                for each in found:
                    writer.write(each)
                    await writer.drain()
        self.ended.set()
        writer.close()


async def next_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        size = await reader.readexactly(4)
        return size + await reader.readexactly(int.from_bytes(size, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def receive(self) -> bytes | None:
        """The next frame, with its size; None: the connection has ended."""
        async with asyncio.timeout(30):
            return await next_frame(self.reader)


class Bench:
    """A proxy in front of fake brokers, whose ids are 1, 2 and so on; it stops when `stopping` is set, and `running` ends."""

    def __init__(self, server: ProxyServer, addresses: list[Address]) -> None:
        self.server, self.addresses, self.stopping = server, addresses, asyncio.Event()
        self.running = asyncio.create_task(server.run(self.stopping))
        self._clients: deque[Client] = deque()

    async def connect(self, node_id: int | None = None) -> Client:
        host, port = self.server.address if node_id is None else self.server.registry.ports.address_of(node_id, "127.0.0.1")
        client = Client(*await asyncio.open_connection(host, port))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
            with suppress(OSError):
                await client.writer.wait_closed()


@asynccontextmanager
async def bench(
    *fakes: FakeBroker, ports: Mapping[int, int], away: int = 0, passes_unknown: bool = False, **settings: Any
) -> AsyncIterator[Bench]:
    """ports: of the brokers, by id. away: addresses where nobody listens. settings: of GatewayConfig"""
    servers = [await asyncio.start_server(fake.serve, "127.0.0.1", 0) for fake in fakes]
    addresses = [server.sockets[0].getsockname()[:2] for server in servers]
    upstream = [*(f"127.0.0.1:{number}" for number in range(1, away + 1)), *(f"{host}:{port}" for host, port in addresses)]
    config = GatewayConfig(
        listen="127.0.0.1:0",
        upstream=tuple(upstream),
        upstream_port_map=tuple(f"{node_id}:{port}" for node_id, port in ports.items()),
        unknown_apis=UnknownApis.PASS if passes_unknown else UnknownApis.HIDE,
        **settings,
    )
    proxy = ProxyServer(config)
    opened = Bench(proxy, addresses)
    try:
        yield opened
    finally:
        await opened.close()
        opened.running.cancel()
        with suppress(asyncio.CancelledError):
            await opened.running
        for server in servers:
            server.close()
