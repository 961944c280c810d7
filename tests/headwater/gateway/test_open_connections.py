"""An address with many connections makes room for one with few, and never the other way round."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.open_connections import OpenConnection, OpenConnections


class Port:
    """Opens connections at the second that their number says."""

    def __init__(self, stack: ExitStack, limit: int, per_ip_limit: int = 1000) -> None:
        self.meter = GatewayMeter()
        self.opened = OpenConnections(limit, per_ip_limit, self.meter)
        self._stack, self._now_s = stack, 0.0

    def add(self, ip: str) -> OpenConnection | None:
        self._now_s += 1
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        self._stack.enter_context(theirs)
        return self.opened.add(ours, ip, self._now_s)

    def busy(self, ip: str) -> OpenConnection:
        connection = self.add(ip)
        assert connection is not None
        connection.idle_since_s = None
        return connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def is_shut(connection: OpenConnection) -> bool:
    connection.client.setblocking(False)
    try:
        return connection.client.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_longest_idle_of_the_largest_address_goes(stack: ExitStack) -> None:
    port = Port(stack, 6)
    few, busy, oldest, younger = port.add("b"), port.busy("a"), port.add("a"), port.add("a")
    also = [port.add("b"), port.add("c")]
    assert port.add("d") is not None
    assert [each is not None and is_shut(each) for each in (few, busy, oldest, younger, *also)] == [False, False, True, False, False, False]
    assert port.meter.connections == 6
    assert port.meter.idle_closed == 1


def test_an_address_with_more_never_closes_those_of_one_with_fewer(stack: ExitStack) -> None:
    port = Port(stack, 4)
    idle = port.add("b")
    for _ in range(3):
        port.busy("a")
    assert port.add("a") is None
    assert idle is not None
    assert not is_shut(idle)


def test_where_the_largest_is_busy_the_next_one_makes_room(stack: ExitStack) -> None:
    port = Port(stack, 5)
    for _ in range(3):
        port.busy("a")
    idle = [port.add("b"), port.add("b")]
    assert port.add("c") is not None
    assert [each is not None and is_shut(each) for each in idle] == [True, False]


def test_among_equals_an_address_makes_room_by_its_own(stack: ExitStack) -> None:
    port = Port(stack, 2)
    other, own = port.add("b"), port.add("a")
    assert port.add("a") is not None
    assert [connection is not None and is_shut(connection) for connection in (other, own)] == [False, True]


def test_an_evicted_connection_that_ends_is_counted_once(stack: ExitStack) -> None:
    port = Port(stack, 1)
    first = port.add("a")
    assert first is not None
    assert port.add("b") is not None
    port.opened.remove(first)
    assert port.meter.connections == 1


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["open", "end", "request", "respond"])), max_size=60))
def test_counts_keep_their_limits(steps: list[tuple[str, str]]) -> None:
    with ExitStack() as stack:
        port, alive = Port(stack, 5, 3), dict[str, list[OpenConnection]]()
        for ip, step in steps:
            same = alive.setdefault(ip, [])
            if step == "open":
                connection = port.add(ip)
                for others in alive.values():
                    others[:] = [other for other in others if not is_shut(other)]
                if connection is not None:
                    same.append(connection)
            elif same and step == "end":
                port.opened.remove(same.pop())
            elif same:
                same[0].idle_since_s = None if step == "request" else 0.0
            assert port.meter.connections == sum(map(len, alive.values())) <= 5
            assert all(len(connections) <= 3 for connections in alive.values())
