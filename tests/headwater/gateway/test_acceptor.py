"""Connections that are accepted, and how they end: each by itself."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from headwater.gateway.acceptor import Acceptor, CannotListen, Serve, listen
from headwater.gateway.config import GatewayConfig
from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.open_connections import OpenConnection
from headwater_core.clock import SystemClock

Use = Callable[[Acceptor, tuple[str, int]], Awaitable[None]]


def accepted(serve: Serve, use: Use, connections_max: int = 10) -> GatewayMeter:
    """What was counted, while `use` had an acceptor that was listening."""
    meter = GatewayMeter()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            acceptor = Acceptor(tasks, GatewayConfig(), connections_max, meter, SystemClock())
            listener = listen("127.0.0.1:0")
            address = listener.getsockname()
            acceptor.open(listener, serve)
            await use(acceptor, address)
            await acceptor.drain(0.0)

    asyncio.run(run())
    return meter


async def until_gone(opened: OpenConnection) -> None:
    await asyncio.get_running_loop().sock_recv(opened.client, 1)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (MalformedRequest("nonsense"), "malformed_request"),
        (PeerGone("it left"), "connection_closed"),
        (ConnectionResetError("reset"), "connection_lost"),
        (ZeroDivisionError(), "connection_failed"),
    ],
)
def test_whatever_happens_to_one_connection_concerns_no_other(error: Exception, event: str) -> None:
    served = []

    async def serve(opened: OpenConnection) -> None:
        served.append(opened.facts.peer)
        if len(served) == 1:
            raise error
        opened.client.send(b"x")

    async def use(acceptor: Acceptor, address: tuple[str, int]) -> None:
        for answer in (b"", b"x"):
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read(1) == answer
            writer.close()

    with capture_logs() as logs:
        accepted(serve, use)
    assert [each["event"] for each in logs] == [event]
    assert logs[0]["peer"] == served[0]


def test_one_connection_too_many_is_closed_at_once() -> None:
    async def serve(opened: OpenConnection) -> None:
        opened.idle_since_s = None
        opened.client.send(b"x")
        await until_gone(opened)

    async def use(acceptor: Acceptor, address: tuple[str, int]) -> None:
        first, writer = await asyncio.open_connection(*address)
        assert await first.read(1) == b"x"
        other, another = await asyncio.open_connection(*address)
        assert await other.read(1) == b""
        writer.close()
        another.close()

    assert accepted(serve, use, connections_max=1).refused == 1


def test_while_it_drains_idle_connections_end_and_others_have_their_time() -> None:
    ended = []

    async def serve(opened: OpenConnection) -> None:
        opened.is_served = True
        opened.client.send(b"x")
        try:
            await until_gone(opened)
        finally:
            ended.append((opened.ends, asyncio.current_task().cancelling()))  # type: ignore[union-attr]

    async def use(acceptor: Acceptor, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read(1) == b"x"
        await acceptor.drain(30.0)
        assert ended == [(True, 0)]
        writer.close()

    assert accepted(serve, use).connections == 0


def test_what_is_not_answered_in_time_is_ended() -> None:
    async def serve(opened: OpenConnection) -> None:
        opened.idle_since_s, opened.is_receiving, opened.is_served = None, False, True
        opened.client.send(b"x")
        await asyncio.Event().wait()

    async def use(acceptor: Acceptor, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read(1) == b"x"
        await acceptor.drain(0.0)
        assert await reader.read(1) == b""
        writer.close()

    accepted(serve, use)


def test_while_it_drains_no_port_is_opened() -> None:
    async def use(acceptor: Acceptor, address: tuple[str, int]) -> None:
        await acceptor.drain(0.0)
        late = listen("127.0.0.1:0")
        port = late.getsockname()
        acceptor.open(late, until_gone)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*port)

    accepted(until_gone, use)


def test_an_address_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"proxy cannot listen on 127.0.0.1:{port}"):
            listen(f"127.0.0.1:{port}", "proxy")
