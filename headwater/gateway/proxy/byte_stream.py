"""A connection's bytes: what has arrived and is not looked at yet, in one buffer, from which it is passed on."""

import asyncio
import mmap
import socket
from collections.abc import Sequence
from contextlib import suppress

from headwater.gateway.connection import PeerGone
from headwater.gateway.response import Frame, Part
from headwater.gateway.server import send
from headwater.gateway.tls_socket import TlsSocket
from hydration.disk_threads import DiskThreads

BUFFER_BYTES = 256 << 10  # pages that were never written to take no memory: an idle connection has a few KiB

END_S = 10.0  # for a peer to take what says that nothing more comes
CHUNKS_PER_TURN = 8  # of a long frame, before other connections have their turn

Buffer = bytes | bytearray | memoryview


class PlainSocket:
    """What TlsSocket is, without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._loop = sock, asyncio.get_running_loop()

    async def recv_into(self, view: memoryview) -> int:
        """As much as has arrived; 0 at the end. Raises OSError."""
        return await self._loop.sock_recv_into(self._socket, view)

    async def sendall(self, *buffers: Buffer) -> None:
        """Returns when the system has taken all of it. Raises OSError."""
        for buffer in buffers:
            await self._loop.sock_sendall(self._socket, buffer)

    async def send_parts(self, parts: Sequence[Part], timeout_s: float, readers: DiskThreads) -> None:
        """Straight from the page cache. Raises PeerGone, OSError."""
        await send(self._socket, Frame(parts, 0), timeout_s, readers)

    async def shutdown_write(self, timeout_s: float) -> None:
        """Nothing more is sent. What the peer still sends arrives."""
        with suppress(OSError):  # the peer was quicker
            self._socket.shutdown(socket.SHUT_WR)


class ByteStream:
    """Not closed here: the socket is its owner's."""

    def __init__(self, sock: socket.socket | TlsSocket, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._wire = sock if isinstance(sock, TlsSocket) else PlainSocket(sock)
        self._view = memoryview(mmap.mmap(-1, buffer_bytes))
        self._start = self._end = 0

    @property
    def room_bytes(self) -> int:
        """The most that `need` can have at hand."""
        return len(self._view)

    async def need(self, size_bytes: int) -> memoryview:
        """What has arrived, `size_bytes` at least. May be written to.

        Raises PeerGone where the peer has closed its end before, OSError when the connection is lost, ValueError for more than fits.
        """
        if not (found := await self.begin(size_bytes)):
            raise PeerGone("the connection ended inside a frame")
        return found

    async def begin(self, size_bytes: int) -> memoryview:
        """As `need`, at the beginning of a frame; nothing, where the peer has closed its end and all is taken."""
        if size_bytes > len(self._view):
            raise ValueError(f"{size_bytes} bytes at once, {len(self._view)} fit")
        while self._end - self._start < size_bytes:
            if self._start + size_bytes > len(self._view):
                self._view[: self._end - self._start] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, self._end - self._start
            received = await self._wire.recv_into(self._view[self._end :])
            if not received:
                if self._start == self._end:
                    return self._view[:0]
                raise PeerGone(f"the connection ended {self._end - self._start} bytes into a frame")
            self._end += received
        return self._view[self._start : self._end]

    def take(self, size_bytes: int) -> None:
        """`size_bytes` of what is at hand are done with."""
        self._start += size_bytes
        if self._start == self._end:
            self._start = self._end = 0

    async def read(self, size_bytes: int) -> bytearray:
        """The next bytes, which take as much memory as has arrived. Raises PeerGone, OSError."""
        found = bytearray()
        while len(found) < size_bytes:
            some = (await self.need(1))[: size_bytes - len(found)]
            found += some
            self.take(len(some))
        return found

    async def pass_on(self, size_bytes: int, to: "ByteStream") -> None:
        """Send the next `size_bytes` to another connection, as they arrive. Raises PeerGone, OSError."""
        turns = 0
        while size_bytes:
            turns += 1
            if turns % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
            some = (await self.need(1))[:size_bytes]
            await to.send(some)
            self.take(len(some))
            size_bytes -= len(some)

    async def send(self, *parts: Buffer) -> None:
        """Returns when the system has taken all of it. Raises OSError."""
        if len(parts) > 1 and sum(map(len, parts)) <= self.room_bytes:
            parts = (b"".join(parts),)
        await self._wire.sendall(*parts)

    async def send_parts(self, parts: Sequence[Part], readers: DiskThreads, patience_s: float) -> None:
        """Bytes, and ranges of files. Raises PeerGone where they are not taken in time, OSError."""
        await self._wire.send_parts(parts, patience_s, readers)

    async def end(self) -> None:
        """Nothing more is sent. What the peer still sends arrives. Raises PeerGone."""
        await self._wire.shutdown_write(END_S)
