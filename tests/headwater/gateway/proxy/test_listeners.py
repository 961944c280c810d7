import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from headwater.gateway.config import GatewayConfig
from headwater.gateway.protocol import Api
from headwater.gateway.proxy import listeners
from headwater.gateway.proxy.listeners import ClusterNodes, ProxyServer, Upstream
from headwater_core.segments import flexible
from tests.headwater.gateway.proxy.fake_broker import FakeBroker, bench, metadata, response
from tests.headwater.gateway.proxy.test_proxied_connection import AWAY, ask_commit, ask_metadata, correlation_of, opaque
from tests.s3server import free_ports


def named(*addresses: Any, cluster_id: str = "one") -> FakeBroker:
    """Of a cluster whose brokers are at `addresses`, which may change."""

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[4:6] == flexible.i16(Api.METADATA):
            return [response(correlation_of(frame), metadata(frame[7], *addresses, cluster_id=cluster_id))]
        return opaque(frame)

    return FakeBroker(answer)


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do_and_stops_no_other() -> None:
    async def run() -> None:
        ports = dict(enumerate(free_ports(2), 1))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", ports[1]))
            taken.listen()
            broker = named(AWAY)
            async with bench(broker, ports=ports) as opened:
                client = await opened.connect()
                await client.send(ask_commit(1))
                assert await client.receive() is not None

    with capture_logs() as logs:
        asyncio.run(run())
    events = [each for each in logs if each["event"] == "broker_port_not_opened"]
    assert {each["node_id"] for each in events} == {1}
    assert all("upstream_port_map" in each["reason"] for each in events)


def test_a_port_that_was_taken_is_opened_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "PORT_AGAIN_S", 0.0)

    async def run() -> None:
        [port] = free_ports(1)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            async with bench(named(AWAY), ports={1: port}) as opened:
                client = await opened.connect()
                await client.send(ask_metadata(5, 1))
                await client.receive()
                taken.close()
                await client.send(ask_metadata(5, 2))
                await client.receive()
                assert await opened.connect(1)

    asyncio.run(run())


def test_a_broker_that_has_moved_is_looked_for_when_it_cannot_be_reached() -> None:
    async def run() -> None:
        addresses: list[Any] = [("127.0.0.1", 1)]
        broker = FakeBroker()

        def answer(frame: bytes) -> Iterable[bytes]:
            if frame[4:6] == flexible.i16(Api.METADATA):
                return [response(correlation_of(frame), metadata(frame[7], *addresses))]
            return opaque(frame)

        broker.answers = answer
        async with bench(broker, ports={1: free_ports(1)[0]}) as opened:
            client = await opened.connect()
            await client.send(ask_metadata(5, 1))
            await client.receive()
            addresses[:] = [opened.addresses[0]]
            other = await opened.connect(1)
            await other.send(ask_commit(2))
            assert await other.receive() is not None

    asyncio.run(run())


def test_all_named_brokers_are_tried() -> None:
    async def run() -> None:
        async with bench(named(AWAY), ports={1: free_ports(1)[0]}, away=3) as opened:
            for number in range(8):
                client = await opened.connect()
                await client.send(ask_commit(number))
                assert await client.receive() is not None

    asyncio.run(run())


def test_where_no_broker_answers_the_connection_ends_and_each_is_named() -> None:
    async def run() -> None:
        async with bench(ports={1: free_ports(1)[0]}, away=2) as opened:
            client = await opened.connect()
            assert await client.receive() is None

    with capture_logs() as logs:
        asyncio.run(run())
    assert any(all(f"127.0.0.1:{port}" in each["reason"] for port in (1, 2)) for each in logs if each["event"] == "upstream_failed")


def test_a_broker_that_has_moved_is_followed() -> None:
    async def run() -> None:
        one, two = named(), named()
        addresses: list[Any] = []
        one.answers = two.answers = named_answers(addresses)
        async with bench(one, two, ports=dict(enumerate(free_ports(2), 1))) as opened:
            for at, fake in ((0, one), (1, two)):
                addresses[:] = [opened.addresses[at], AWAY]
                client = await opened.connect()
                await client.send(ask_metadata(5, 1))
                await client.receive()
                other = await opened.connect(1)
                await other.send(ask_commit(2, f"at {at}"))
                assert await other.receive() is not None
                assert any(f"at {at}".encode() in frame for frame in fake.received)

    def named_answers(addresses: list[Any]) -> Any:
        def answer(frame: bytes) -> Iterable[bytes]:
            if frame[4:6] == flexible.i16(Api.METADATA):
                return [response(correlation_of(frame), metadata(frame[7], *addresses))]
            return opaque(frame)

        return answer

    asyncio.run(run())


def test_a_broker_of_another_cluster_is_refused() -> None:
    async def run() -> None:
        fakes = [named(AWAY, cluster_id="one"), named(AWAY, cluster_id="two")]
        async with bench(*fakes, ports=dict(enumerate(free_ports(2), 1))) as opened:
            found: set[bool | None] = set()
            for number in range(40):
                client = await opened.connect()
                await client.send(ask_metadata(5, number))
                frame = await client.receive()
                found |= {b"one" in frame, b"two" in frame} if frame is not None else {None}
                if None in found and True in found:
                    break
            assert len(opened.server.registry.brokers) == 1
            assert None in found

    with capture_logs() as logs:
        asyncio.run(run())
    assert any("correct upstream" in each["reason"] for each in logs if each["event"] == "upstream_failed")


def test_a_broker_that_wants_to_know_who_asks_is_found_by_its_clients() -> None:
    async def run() -> None:
        addresses: list[Any] = []

        def answer(frame: bytes) -> Iterable[bytes] | None:
            if frame[4:6] == flexible.i16(Api.METADATA):
                return None if b"headwater" in frame else [response(correlation_of(frame), metadata(frame[7], *addresses))]
            return opaque(frame)

        async with bench(FakeBroker(answer), ports={1: free_ports(1)[0]}) as opened:
            addresses.append(opened.addresses[0])
            await opened.connect()
            early = await opened.connect(1)
            assert await early.receive() is None
            client = await opened.connect()
            await client.send(ask_metadata(5, 1))
            assert await client.receive() is not None
            other = await opened.connect(1)
            await other.send(ask_commit(2))
            assert await other.receive() is not None

    asyncio.run(run())


def test_a_broker_that_advertises_the_proxy_is_no_loop() -> None:
    async def run() -> None:
        addresses: list[Any] = []
        async with bench(
            FakeBroker(lambda frame: [response(correlation_of(frame), metadata(frame[7], *addresses))]), ports={1: free_ports(1)[0]}
        ) as opened:
            addresses.append(("127.0.0.1", opened.server.registry.ports.port_of(1)))
            client = await opened.connect()
            await client.send(ask_metadata(5, 1))
            await client.receive()
            other = await opened.connect(1)
            assert await other.receive() is None

    with capture_logs() as logs:
        asyncio.run(run())
    assert any("own port" in str(each["reason"]) for each in logs if each["event"] == "upstream_failed")


def test_two_brokers_have_not_one_port() -> None:
    async def run() -> None:
        [port] = free_ports(1)
        addresses = [AWAY, AWAY]
        async with bench(named(*addresses), ports={2: port}, upstream_base_port=port - 1) as opened:
            client = await opened.connect()
            await client.send(ask_metadata(5, 1))
            assert await client.receive() is None

    with capture_logs() as logs:
        asyncio.run(run())
    assert any("that of broker 2" in str(each["reason"]) for each in logs if each["event"] == "upstream_failed")


def test_many_clients_of_a_broker_that_is_away_ask_once_where_it_is() -> None:
    async def run() -> None:
        asked = 0

        def nodes() -> ClusterNodes:
            nonlocal asked
            asked += 1
            return ClusterNodes("one", [(1, *AWAY)])

        server = ProxyServer(GatewayConfig(listen="127.0.0.1:0", upstream=("127.0.0.1:1",)), upstream=Upstream(nodes=nodes))
        await asyncio.gather(*(server._discover() for _ in range(40)))
        assert asked == 1
        assert server.registry.brokers == {1: AWAY}
        server._listener.close()

    asyncio.run(run())
