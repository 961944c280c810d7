"""What a client sends, taken in ahead of its answers as far as the limits go, over real sockets."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.gateway.config import GatewayConfig
from headwater.gateway.connection import RECEIVE_BYTES, Connection, LongRequests, PeerGone
from headwater.gateway.frames import MalformedRequest

Sends = Callable[[bytes], Coroutine[Any, Any, None]]


def a_frame(body: bytes) -> bytes:
    return struct.pack(">i", 10 + len(body)) + bytes(10) + body


Check = Callable[[Connection, socket.socket, Sends], Awaitable[None]]


def with_line(check: Check, long_requests: LongRequests | None = None, **config: Any) -> None:
    """Run `check` with a connection, its client's socket and what sends from there; afterwards nothing is left in the loop."""

    async def main() -> None:
        await beside(check, long_requests, **config)
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    asyncio.run(main())


async def beside(check: Check, long_requests: LongRequests | None = None, **config: Any) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        with Connection(ours, GatewayConfig(**config), long_requests) as connection:
            await check(connection, theirs, lambda data: loop.sock_sendall(theirs, data))
        assert not loop.remove_reader(ours), "it was still registered"


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.001)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=40), st.data())
def test_frames_come_as_they_were_sent_however_they_were_cut(bodies: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(a_frame, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        async def sending() -> None:
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                await send(sent[start:end])
                await asyncio.sleep(0)
            client.shutdown(socket.SHUT_WR)

        task = asyncio.create_task(sending())
        for body in bodies:
            assert await connection.next_frame() == a_frame(body)[4:]
        assert await connection.next_frame() is None
        await task

    with_line(check)


def test_a_client_that_sends_on_and_on_is_taken_in_no_further_than_the_limit() -> None:
    many = [a_frame(b"%06d" % at + bytes(1000)) for at in range(2000)]

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        sending = asyncio.create_task(send(b"".join(many)))
        await until(lambda: len(connection.received) >= RECEIVE_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(connection.received) < 2 * RECEIVE_BYTES
        for each in many:
            assert await connection.next_frame() == each[4:]
            assert len(connection.received) < 2 * RECEIVE_BYTES
        await sending

    with_line(check)


def test_a_long_request_is_taken_in_when_it_is_its_turn() -> None:
    long = a_frame(bytes(1_000_000))

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        sending = asyncio.create_task(send(a_frame(b"first") + long + a_frame(b"last")))
        assert await connection.next_frame() == a_frame(b"first")[4:]
        await until(lambda: len(connection.received) >= RECEIVE_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(connection.received) < 2 * RECEIVE_BYTES
        assert await connection.next_frame() == long[4:]
        assert await connection.next_frame() == a_frame(b"last")[4:]
        await sending

    with_line(check)


def test_a_client_that_leaves_is_seen_after_what_it_has_sent() -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(a_frame(b"one") + a_frame(b"two"))
        assert await connection.next_frame() == a_frame(b"one")[4:]
        assert not connection.wakeup.is_set()
        client.close()
        await connection.wait(30.0)
        assert connection.is_gone
        assert await connection.next_frame() == a_frame(b"two")[4:]
        assert await connection.next_frame() is None

    with_line(check)


def test_what_is_sent_meanwhile_does_not_stir_a_wait() -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(a_frame(b"one"))
        await until(lambda: bool(connection.received))
        assert not connection.wakeup.is_set()

    with_line(check)


@pytest.mark.parametrize("begun", [False, True])
def test_a_connection_that_is_reset_is_an_error_after_what_came_before(begun: bool) -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(a_frame(b"one") + (b"\0" if begun else b""))
        await until(lambda: bool(connection.received))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: connection.is_gone)
        assert await connection.next_frame() == a_frame(b"one")[4:]
        with pytest.raises(ConnectionResetError):
            await connection.next_frame()

    with_line(check)


@pytest.mark.parametrize(("sent", "reason"), [(b"", "idle"), (a_frame(b"one")[:-1], "did not end in time")])
def test_a_client_is_let_go_when_its_time_is_over(sent: bytes, reason: str) -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(sent)
        with pytest.raises(PeerGone, match=reason):
            await connection.next_frame()

    with_line(check, idle_timeout_s=0.02, request_timeout_s=0.02)


def test_a_request_that_has_begun_must_end_in_its_own_time_and_not_in_that_of_an_idle_client() -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        waiting = asyncio.create_task(connection.next_frame())
        await asyncio.sleep(0)
        await send(a_frame(b"one")[:5])
        with pytest.raises(PeerGone, match="did not end in time"):
            await waiting

    with_line(check, idle_timeout_s=3600.0, request_timeout_s=0.02)


def test_a_frame_cut_short_is_malformed() -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(a_frame(b"one")[:-1])
        client.close()
        with pytest.raises(MalformedRequest, match="ended 16 bytes into a frame"):
            await connection.next_frame()

    with_line(check)


def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        waiting = asyncio.create_task(connection.next_frame())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    with_line(check)


def test_a_client_with_many_requests_lets_others_have_their_turn() -> None:
    turns = 0

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await send(a_frame(b"") * 1000)
        other = asyncio.create_task(another())
        for _ in range(1000):
            await connection.next_frame()
        other.cancel()
        with suppress(asyncio.CancelledError):
            await other

    with_line(check)
    assert turns > 50


def test_long_requests_share_what_all_connections_may_hold() -> None:
    """The second is taken in no further than any until the first is answered."""
    long_requests = LongRequests(200_000)
    frame = a_frame(bytes(150_000))

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        first = asyncio.create_task(connection.next_frame())
        sending = asyncio.create_task(send(frame))
        assert await first is not None

        async def other(connection: Connection, _: socket.socket, send: Sends) -> None:
            second = asyncio.create_task(connection.next_frame())
            also_sending = asyncio.create_task(send(frame))
            await until(lambda: len(connection.received) >= RECEIVE_BYTES)
            await asyncio.sleep(0.05)
            assert not second.done()
            assert len(connection.received) < 2 * RECEIVE_BYTES
            first_connection.forget_request()
            assert await second == frame[4:]
            await also_sending

        first_connection = connection
        await sending
        await beside(other, long_requests)

    with_line(check, long_requests)
    assert long_requests.left_bytes == 200_000


@pytest.mark.parametrize("arrived", [4, RECEIVE_BYTES + 100])
def test_who_announces_a_long_request_and_does_not_send_it_keeps_no_other_waiting(arrived: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.gateway.connection.PACE_S", 0.1)
    long_requests = LongRequests(300_000)
    frame = a_frame(bytes(200_000))

    async def check(connection: Connection, client: socket.socket, send: Sends) -> None:
        await send(frame[:arrived])
        first = asyncio.create_task(connection.next_frame())
        await until(lambda: len(connection.received) == arrived)

        async def other(connection: Connection, _: socket.socket, send: Sends) -> None:
            sending = asyncio.create_task(send(frame))
            assert await asyncio.wait_for(connection.next_frame(), 20) == frame[4:]
            assert not first.done()
            await sending

        await beside(other, long_requests)
        sending = asyncio.create_task(send(frame[arrived:]))
        assert await asyncio.wait_for(first, 20) == frame[4:], "it is late, and nothing else"
        await sending

    with_line(check, long_requests)
    assert long_requests.left_bytes == 300_000


def test_a_long_request_that_finds_no_room_is_let_go_in_time() -> None:
    long_requests = LongRequests(200_000)
    assert long_requests.take(150_000, asyncio.Event())

    async def check(connection: Connection, _: socket.socket, send: Sends) -> None:
        sending = asyncio.create_task(send(a_frame(bytes(150_000))))
        with pytest.raises(PeerGone):
            await connection.next_frame()
        sending.cancel()
        await asyncio.wait([sending])

    with_line(check, long_requests, request_timeout_s=0.05)
    assert long_requests.left_bytes == 50_000
