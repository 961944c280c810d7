"""What clients do not take is bounded over all of them, and what is shared counts once."""

import socket
from collections.abc import Callable, Iterator

import pytest

from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.response import Frame
from headwater.gateway.unread_responses import UnreadResponse, UnreadResponses

Make = Callable[..., UnreadResponse]


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[socket.socket] = []

    def a_response(ip: str, size_bytes: int, body: bytes | None = None) -> UnreadResponse:
        ours, theirs = socket.socketpair()
        opened.extend((ours, theirs))
        return UnreadResponse(ours, ip, Frame([bytearray(size_bytes).hex().encode()[:size_bytes] if body is None else body], size_bytes))

    yield a_response
    for each in opened:
        each.close()


def is_shut(response: UnreadResponse) -> bool:
    response.client.setblocking(False)
    try:
        return response.client.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_oldest_of_the_address_with_the_most_goes(make: Make) -> None:
    unread = UnreadResponses(1000, meter := GatewayMeter())
    responses = [make("slow", 300), make("bad", 300), make("bad", 300), make("new", 300)]
    for response in responses:
        unread.add(response)
    assert [is_shut(response) for response in responses] == [False, True, False, False]
    assert (meter.unread_bytes, meter.unread_dropped) == (900, 1)
    for response in responses:
        unread.remove(response)
    assert meter.unread_bytes == 0


def test_one_response_alone_may_be_longer(make: Make) -> None:
    unread = UnreadResponses(1000, meter := GatewayMeter())
    unread.add(long := make("a", 5000))
    assert not is_shut(long)
    unread.add(short := make("b", 10))
    assert is_shut(long)
    assert not is_shut(short)
    assert meter.unread_bytes == 10


def test_bytes_that_responses_share_count_once(make: Make) -> None:
    unread, body = UnreadResponses(1000, meter := GatewayMeter()), b"x" * 900
    responses = [make("a", 900, body) for _ in range(50)]
    for response in responses:
        unread.add(response)
    assert (meter.unread_bytes, meter.unread_dropped) == (900, 0)
    for response in responses:
        unread.remove(response)
    assert meter.unread_bytes == 0
