"""A connection's bytes: what has arrived and is not looked at yet, in one buffer, from which it is passed on."""

import asyncio
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from headwater.gateway.connection import PeerGone
from headwater.gateway.response import Frame, Part
from headwater.gateway.server import send
from headwater.gateway.tls_socket import TlsSocket
from hydration.disk_threads import DiskThreads

BUFFER_BYTES = 256 << 10  # pages that were never written to take no memory: an idle connection has a few KiB

END_S = 10.0  # for a peer to take what says that nothing more comes
CHUNKS_PER_TURN = 8  # of a long frame, before other connections have their turn
AHEAD_BYTES = 32 << 10  # that are received before it is known what they are: records need not come here
KEPT_BYTES, TRIM_S = 64 << 10, 1.0  # more than so many are given back to the system after so long
PIPE_BYTES = 1 << 20  # the most that a process without privileges may ask for
SPLICED_BYTES_MIN = 128 << 10  # fewer are copied in less time than a pipe takes to be made

Buffer = bytes | bytearray | memoryview


class Pipe(NamedTuple):
    """What the system moves from one socket to another without copying it: there are its pages meanwhile."""

    source: int
    sink: int

    @classmethod
    def opened(cls) -> "Pipe | None":
        """None at a limit: of descriptors, or of the pages that one user's pipes may have."""
        try:
            pipe = cls(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return None
        try:
            fcntl.fcntl(pipe.sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pipe.close()
            return None
        return pipe

    def close(self) -> None:
        os.close(self.source)
        os.close(self.sink)


class PlainSocket:
    """What TlsSocket is, without TLS.

    The event loop watches the socket between reads too, until something arrives that nobody waits for: telling it each time takes as long
    as passing a small frame. So `close` comes before the owner closes the socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._descriptor, self._loop = sock, sock.fileno(), asyncio.get_running_loop()
        self._receive: Callable[[], int] = lambda: 0
        self._received: asyncio.Future[int] | None = None
        self._is_watched = False

    async def recv_into(self, view: memoryview) -> int:
        """As much as has arrived; 0 at the end. Raises OSError."""
        return await self._read(partial(self._socket.recv_into, view))

    async def sendall(self, *buffers: Buffer) -> None:
        """Returns when the system has taken all of it. Raises OSError."""
        for buffer in buffers:
            await self._loop.sock_sendall(self._socket, buffer)

    async def send_parts(self, parts: Sequence[Part], timeout_s: float, readers: DiskThreads) -> None:
        """Straight from the page cache. Raises PeerGone, OSError."""
        await send(self._socket, Frame(parts, 0), timeout_s, readers)

    async def splice(self, size_bytes: int, to: "PlainSocket", pipe: Pipe) -> None:
        """Send the next bytes to another socket, by an empty pipe: none is copied. Raises PeerGone, OSError."""
        turns = 0
        while size_bytes:
            turns += 1
            if turns % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
            count = await self._read(partial(os.splice, self._descriptor, pipe.sink, min(size_bytes, PIPE_BYTES)))
            if not count:
                raise PeerGone("the connection ended inside a frame")
            size_bytes -= count
            while count:
                try:
                    count -= os.splice(pipe.source, to._descriptor, count)
                except (BlockingIOError, InterruptedError):
                    await to._writable()

    async def shutdown_write(self, timeout_s: float) -> None:
        """Nothing more is sent. What the peer still sends arrives."""
        with suppress(OSError):  # the peer was quicker
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Have the event loop forget the socket, which stays open."""
        if self._is_watched:
            self._loop.remove_reader(self._descriptor)
            self._is_watched = False

    async def _read(self, receive: Callable[[], int]) -> int:
        """Return what `receive` does, once it does not block."""
        try:
            return receive()
        except (BlockingIOError, InterruptedError):
            pass
        self._receive, self._received = receive, self._loop.create_future()
        if not self._is_watched:
            self._loop.add_reader(self._descriptor, self._readable)
            self._is_watched = True
        try:
            return await self._received
        finally:
            self._received = None

    def _readable(self) -> None:
        if self._received is None or self._received.done():
            self.close()
            return
        try:
            self._received.set_result(self._receive())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._received.set_exception(error)

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(self._descriptor, _wake, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._descriptor)


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class ByteStream:
    """Not closed here: the socket is its owner's."""

    def __init__(self, sock: socket.socket | TlsSocket, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._wire = sock if isinstance(sock, TlsSocket) else PlainSocket(sock)
        self._pages = mmap.mmap(-1, buffer_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._pages)
        self._start = self._end = self._used = 0
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def room_bytes(self) -> int:
        """The most that `need` can have at hand."""
        return len(self._view)

    async def need(self, size_bytes: int, ahead_bytes: int = AHEAD_BYTES) -> memoryview:
        """What has arrived, `size_bytes` at least. May be written to.

        Raises PeerGone where the peer has closed its end before, OSError when the connection is lost, ValueError for more than fits.
        """
        if not (found := await self.begin(size_bytes, ahead_bytes)):
            raise PeerGone("the connection ended inside a frame")
        return found

    async def begin(self, size_bytes: int, ahead_bytes: int = AHEAD_BYTES) -> memoryview:
        """As `need`, at the beginning of a frame; nothing, where the peer has closed its end and all is taken."""
        if size_bytes > len(self._view):
            raise ValueError(f"{size_bytes} bytes at once, {len(self._view)} fit")
        while self._end - self._start < size_bytes:
            if self._start + size_bytes > len(self._view):
                self._view[: self._end - self._start] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, self._end - self._start
            received = await self._wire.recv_into(self._view[self._end : self._end + ahead_bytes])
            if not received:
                if self._start == self._end:
                    return self._view[:0]
                raise PeerGone(f"the connection ended {self._end - self._start} bytes into a frame")
            self._end += received
            self._used = max(self._used, self._end)
        return self._view[self._start : self._end]

    def take(self, size_bytes: int) -> None:
        """`size_bytes` of what is at hand are done with."""
        self._start += size_bytes
        if self._start == self._end:
            self._start = self._end = 0
            if self._used > KEPT_BYTES and self._trimming is None:
                self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        """Give back the pages of a long frame, unless another one is there."""
        self._trimming = None
        if self._start == self._end:
            self._pages.madvise(mmap.MADV_DONTNEED)
            self._used = 0

    async def read(self, size_bytes: int) -> bytearray:
        """The next bytes, which take as much memory as has arrived. Raises PeerGone, OSError."""
        found = bytearray()
        while len(found) < size_bytes:
            some = (await self.need(1, len(self._view)))[: size_bytes - len(found)]
            found += some
            self.take(len(some))
        return found

    async def pass_on(self, size_bytes: int, to: "ByteStream") -> None:
        """Send the next `size_bytes` to another connection, as they arrive. Raises PeerGone, OSError.

        One that is cancelled has passed a part: neither connection is of use any more.
        """
        turns = 0
        while size_bytes:
            turns += 1
            if turns % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
            if self._start == self._end and size_bytes >= SPLICED_BYTES_MIN and await self._splice(size_bytes, to):
                return
            some = (await self.need(1, len(self._view)))[:size_bytes]
            await to.send(some)
            self.take(len(some))
            size_bytes -= len(some)

    async def _splice(self, size_bytes: int, to: "ByteStream") -> bool:
        """False: the bytes have to come here."""
        if not isinstance(self._wire, PlainSocket) or not isinstance(to._wire, PlainSocket) or (pipe := Pipe.opened()) is None:
            return False
        try:
            await self._wire.splice(size_bytes, to._wire, pipe)
        finally:
            pipe.close()
        return True

    async def send(self, *parts: Buffer) -> None:
        """Returns when the system has taken all of it. Raises OSError."""
        if len(parts) > 1 and sum(map(len, parts)) <= self.room_bytes:
            parts = (b"".join(parts),)
        await self._wire.sendall(*parts)

    async def send_parts(self, parts: Sequence[Part], readers: DiskThreads, patience_s: float) -> None:
        """Bytes, and ranges of files. Raises PeerGone where they are not taken in time, OSError."""
        await self._wire.send_parts(parts, patience_s, readers)

    def close(self) -> None:
        """Have the event loop forget the socket. Its owner closes it after that."""
        if self._trimming is not None:
            self._trimming.cancel()
        if isinstance(self._wire, PlainSocket):
            self._wire.close()

    async def end(self) -> None:
        """Nothing more is sent. What the peer still sends arrives. Raises PeerGone."""
        await self._wire.shutdown_write(END_S)
