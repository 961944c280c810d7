"""Whatever the pieces in which bytes arrive, they leave as they came."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.gateway.connection import PeerGone
from headwater.gateway.proxy.byte_stream import ByteStream

ROOM = 4096


def between(use: Callable[[ByteStream, ByteStream, socket.socket, socket.socket], Awaitable[Any]]) -> Any:
    """`use` gets two streams, and the other ends of them."""

    async def run() -> Any:
        pairs = [socket.socketpair() for _ in range(2)]
        for pair in pairs:
            for each in pair:
                each.setblocking(False)
        try:
            (one, sender), (other, receiver) = pairs
            return await use(ByteStream(one, ROOM), ByteStream(other, ROOM), sender, receiver)
        finally:
            for pair in pairs:
                for each in pair:
                    each.close()

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_any_length_pass_whole(seed: int) -> None:
    random_ = random.Random(seed)
    frames = [random_.randbytes(random_.choice((1, 100, ROOM - 1, ROOM, 3 * ROOM))) for _ in range(12)]

    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()

        async def send() -> None:
            raw = b"".join(frames)
            while raw:
                size = random_.randrange(1, ROOM)
                await loop.sock_sendall(sender, raw[:size])
                raw = raw[size:]
                await asyncio.sleep(0)
            sender.shutdown(socket.SHUT_WR)

        async def receive() -> bytes:
            found = b""
            while some := await loop.sock_recv(receiver, ROOM):
                found += some
            return found

        sending, receiving = asyncio.ensure_future(send()), asyncio.ensure_future(receive())
        for frame in frames:
            head = await stream.begin(1)
            assert head[0] == frame[0]
            if len(frame) <= ROOM and random_.random() < 0.5:
                found = await stream.read(len(frame))
                await to.send(bytes(found[:5]), memoryview(found)[5:])
            else:
                await stream.pass_on(len(frame), to)
        assert not await stream.begin(1)
        await to.end()
        await sending
        return await receiving

    assert between(use) == b"".join(frames)


def test_an_end_inside_a_frame_is_no_end() -> None:
    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        sender.send(b"abc")
        sender.close()
        assert bytes((await stream.need(2))[:2]) == b"ab"
        with pytest.raises(PeerGone):
            await stream.need(4)
        with pytest.raises(PeerGone):
            await stream.pass_on(5, to)
        with pytest.raises(PeerGone):
            await stream.read(1)

    between(use)


def test_more_than_there_is_room_for_is_never_at_hand() -> None:
    async def use(stream: ByteStream, *_: Any) -> None:
        with pytest.raises(ValueError, match=str(ROOM)):
            await stream.need(ROOM + 1)

    between(use)
