"""Whatever the pieces in which bytes arrive, they leave as they came."""

import asyncio
import errno
import fcntl
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.connection import PeerGone
from headwater.gateway.proxy import byte_stream
from headwater.gateway.proxy.byte_stream import PIPE_BYTES, SPLICED_BYTES_MIN, ByteStream

ROOM = 4096
LONG = SPLICED_BYTES_MIN + ROOM


def between(use: Callable[[ByteStream, ByteStream, socket.socket, socket.socket], Awaitable[Any]], times: int = 1) -> Any:
    """`use` gets two streams, and the other ends of them. times: the next ones have the descriptors of those that are closed"""

    async def run() -> Any:
        return [await use_new() for _ in range(times)][-1]

    async def use_new() -> Any:
        pairs = [socket.socketpair() for _ in range(2)]
        for pair in pairs:
            for each in pair:
                each.setblocking(False)
        (one, sender), (other, receiver) = pairs
        streams = ByteStream(one, ROOM), ByteStream(other, ROOM)
        try:
            return await use(*streams, sender, receiver)
        finally:
            for stream in streams:
                stream.close()
            for pair in pairs:
                for each in pair:
                    each.close()

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_any_length_pass_whole(seed: int) -> None:
    random_ = random.Random(seed)
    frames = [random_.randbytes(random_.choice((1, 100, ROOM - 1, ROOM, 3 * ROOM, LONG))) for _ in range(12)]

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


async def passed(
    frames: Sequence[bytes], piece_bytes: int, stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket
) -> bytes:
    """What arrives when all frames are passed on, sent and received in pieces."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        for at in range(0, len(raw), piece_bytes):
            await loop.sock_sendall(sender, raw[at : at + piece_bytes])
            await asyncio.sleep(0)

    async def receive() -> bytes:
        found = b""
        while len(found) < len(raw):
            found += await loop.sock_recv(receiver, piece_bytes)
            await asyncio.sleep(0)
        return found

    raw = b"".join(frames)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        receiving = tasks.create_task(receive())
        for frame in frames:
            assert (await stream.begin(1))[0] == frame[0]
            await stream.pass_on(len(frame), to)
    return receiving.result()


@given(
    sizes=st.lists(st.one_of(st.integers(1, 100), st.sampled_from((ROOM, LONG - 1, LONG, 3 * PIPE_BYTES))), min_size=1, max_size=4),
    piece_bytes=st.sampled_from((1000, ROOM, 60_000, PIPE_BYTES)),
    buffer_bytes=st.sampled_from((2 * ROOM, 1 << 18)),
)
def test_what_is_passed_on_arrives_byte_by_byte(sizes: list[int], piece_bytes: int, buffer_bytes: int) -> None:
    """Partial writes too: the system takes no more than a small buffer at once."""
    frames = [random.Random(size).randbytes(size) for size in sizes]

    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> bytes:
        for sock in (sender, receiver):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        return await passed(frames, piece_bytes, stream, to, sender, receiver)

    assert between(use) == b"".join(frames)


@pytest.mark.parametrize("limit", ["descriptors", "pages"])
def test_where_there_may_be_no_pipe_more_a_long_frame_passes_all_the_same(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE if limit == "descriptors" else errno.EPERM, "refused")

    monkeypatch.setattr(*((os, "pipe2") if limit == "descriptors" else (fcntl, "fcntl")), refuse)
    frame = random.Random(1).randbytes(LONG)
    before = descriptors()
    assert between(lambda *ends: passed([frame], ROOM, *ends)) == frame
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_long_frame_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_bytes = 0

    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> bytes:
        async def send(*parts: bytes) -> None:
            nonlocal copied_bytes
            copied_bytes += sum(map(len, parts))
            await plain(*parts)

        plain = to.send
        monkeypatch.setattr(to, "send", send)
        return await passed([bytes([1]) * LONG], PIPE_BYTES, stream, to, sender, receiver)

    assert between(use) == bytes([1]) * LONG
    assert copied_bytes <= ROOM


@pytest.mark.parametrize("size_bytes", [ROOM, LONG, 4 * LONG])
def test_a_peer_that_leaves_within_a_frame_ends_it(size_bytes: int) -> None:
    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        sender.send(bytes(100))
        sender.close()
        with pytest.raises(PeerGone):
            await stream.pass_on(size_bytes, to)

    before = descriptors()
    between(use)
    assert descriptors() == before


@pytest.mark.parametrize("size_bytes", [ROOM, LONG, 4 * LONG])
def test_a_receiver_that_leaves_within_a_frame_is_an_error_of_the_connection(size_bytes: int) -> None:
    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sender, bytes(size_bytes)))
        receiver.close()
        with pytest.raises(BrokenPipeError):
            await stream.pass_on(size_bytes, to)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending

    before = descriptors()
    between(use)
    assert descriptors() == before


@pytest.mark.parametrize("waits_for", ["sender", "receiver"])
def test_passing_on_can_be_cancelled_and_leaves_nothing_open_or_watched(waits_for: str) -> None:
    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        passing = asyncio.ensure_future(stream.pass_on(64 * PIPE_BYTES, to))
        if waits_for == "receiver":
            with pytest.raises(TimeoutError):  # nothing is taken, and buffers are full
                async with asyncio.timeout(0.1):
                    await loop.sock_sendall(sender, bytes(64 * PIPE_BYTES))
        else:
            await loop.sock_sendall(sender, bytes(LONG))
            await asyncio.sleep(0.01)
        passing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await passing

    before = descriptors()
    between(use, times=3)
    assert descriptors() == before


def test_what_arrives_while_nobody_reads_is_there_later() -> None:
    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        for number in range(3):
            reading = asyncio.ensure_future(stream.read(1))
            await asyncio.sleep(0)
            sender.send(bytes([number, number]))
            assert await reading == bytes([number])
            for _ in range(3):  # turns of the event loop, which is told once that nobody reads, and not again
                await asyncio.sleep(0)
            assert await stream.read(1) == bytes([number])

    between(use)


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


def test_the_pages_of_a_long_frame_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "TRIM_S", 0.0)
    monkeypatch.setattr(byte_stream, "KEPT_BYTES", ROOM // 4)

    async def use(stream: ByteStream, to: ByteStream, sender: socket.socket, receiver: socket.socket) -> None:
        long = b"x" * (ROOM // 2)
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sender, long + b"next"))
        assert bytes(await stream.read(len(long))) == long
        await sending
        while stream._trimming is not None:
            await asyncio.sleep(0)
        assert bytes((await stream.need(4))[:4]) == b"next"

    between(use)
