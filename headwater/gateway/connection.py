"""The connection to one client: the receiving side of its socket, and requests that are not answered yet."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from headwater.gateway.config import GatewayConfig
from headwater.gateway.deadline import Deadline
from headwater.gateway.frames import MalformedRequest, announced_size, take_frame
from headwater_core.errors import HeadwaterError

RECEIVE_BYTES = 64 << 10  # at once; and of requests that a client sends before it has its responses
LONG_BYTES_MAX = 32 << 20  # of requests longer than that, over all connections, from their beginning to their answer
PACE_S = 2.0  # a long request that arrives slower than slowest_bytes_per_s for so long gives back the room that it does not fill
FRAMES_PER_TURN = 16  # that have arrived already, before other connections get the event loop


class PeerGone(HeadwaterError):
    """The client has left, or is so slow that its connection is closed."""


class LongRequests:
    """What all connections together may hold of long requests. One that finds no room waits for it, until its time is over.

    Room is reserved for a whole request, or two that have arrived by half would wait for each other; but not before a part of it has
    arrived, and only for as long as the rest comes quickly. A client that announces much and sends little delays no other.
    """

    def __init__(self, limit_bytes: int = LONG_BYTES_MAX) -> None:
        self.left_bytes = limit_bytes
        self._waiting: set[asyncio.Event] = set()

    def take(self, size_bytes: int, freed: asyncio.Event) -> bool:
        """Whether there is room; else `freed` is set as soon as it is worth a retry."""
        if size_bytes > self.left_bytes:
            self._waiting.add(freed)
            return False
        self.left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Free room, and wake all that wait for some."""
        self.left_bytes += size_bytes
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            each.set()

    def forget(self, freed: asyncio.Event) -> None:
        """`freed` is not waited for any more."""
        self._waiting.discard(freed)


class ReceivingSocket(Protocol):
    """A plain socket, or TLS over one: does not block."""

    def fileno(self) -> int: ...
    def recv(self, size_bytes: int, /) -> bytes: ...


class Connection:
    """Use as a context: from its beginning to its end the event loop receives what arrives, also while responses are made.

    Once RECEIVE_BYTES have arrived that are not answered, less than twice as many, nothing more is received before it is
    needed. Of a longer request the rest is received, piece by piece, when it is next and there is room for it.

    peer      the client's address, for events
    received  what has arrived and is not answered yet
    is_gone   the client has closed its end, or the connection is lost: seen after what it sent before, as far as that is received
    wakeup    set when that is seen; others may set it too, to end a wait
    """

    def __init__(self, client: ReceivingSocket, config: GatewayConfig, long_requests: LongRequests | None = None, peer: str = "") -> None:
        self.received = bytearray()
        self.is_gone = False
        self.wakeup = asyncio.Event()
        self._client, self._config, self.peer = client, config, peer
        self._long_requests = long_requests or LongRequests()
        self._long_bytes = 0  # room reserved for the request that is received or answered, where it is a long one
        self._pace: asyncio.TimerHandle | None = None  # while there is room for all of it and not all has arrived
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()  # something has arrived, or the deadline has passed
        self._deadline = Deadline(self._loop, self._readable.set)
        self._is_receiving = False
        self._served_in_turn = 0  # requests since the event loop had its turn
        self._lost: OSError | MalformedRequest | None = None

    def __enter__(self) -> "Connection":
        self._resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pause()
        self._deadline.close()
        self._long_requests.forget(self._readable)
        self.forget_request()

    async def next_frame(self) -> bytes | None:
        """The next request; None when the client has closed its end between two.

        Raises PeerGone when it does not arrive in time, MalformedRequest when it is none, OSError when the connection is lost.
        """
        self._served_in_turn += 1
        if self._served_in_turn > FRAMES_PER_TURN:
            self._served_in_turn = 0
            await asyncio.sleep(0)
        frame = self._take()
        if frame is None:
            self._receive()  # a quick client has sent it by now: no turn of the loop is needed
            frame = self._take() or await self._awaited()
        if len(self.received) < RECEIVE_BYTES:
            self._resume()
        return frame

    async def _awaited(self) -> bytes | None:
        self._served_in_turn = 0
        has_begun: bool | None = None
        while (frame := self._take()) is None:
            if self.is_gone:
                self._check_end()
                return None
            if has_begun is not bool(self.received):
                has_begun = bool(self.received)
                self._deadline.move(self._config.request_timeout_s if has_begun else self._config.idle_timeout_s)
            elif self._deadline.has_passed:
                raise PeerGone("a request did not end in time" if has_begun else "idle")
            self._readable.clear()
            if self._has_room():
                self._resume()
            await self._readable.wait()
        self._stop_pace()
        return frame

    def forget_request(self) -> None:
        """The last request needs no memory any more: it is answered, or what is left of it is small."""
        self._stop_pace()
        if self._long_bytes:
            self._long_requests.give_back(self._long_bytes)
            self._long_bytes = 0

    def _has_room(self) -> bool:
        size_bytes = announced_size(self.received)
        if size_bytes <= RECEIVE_BYTES or len(self.received) < RECEIVE_BYTES or self._pace is not None:
            return True
        if not self._long_requests.take(size_bytes - self._long_bytes, self._readable):
            return False
        self._long_bytes = size_bytes
        self._pace = self._loop.call_later(PACE_S, self._keep_pace, len(self.received))
        return True

    def _keep_pace(self, before_bytes: int) -> None:
        """Give back room where the rest does not arrive in time."""
        arrived_bytes = len(self.received)
        if arrived_bytes - before_bytes >= self._config.slowest_bytes_per_s * PACE_S:
            self._pace = self._loop.call_later(PACE_S, self._keep_pace, arrived_bytes)
            return
        self._pace = None
        self._pause()
        held_bytes = min(arrived_bytes, self._long_bytes)
        self._long_requests.give_back(self._long_bytes - held_bytes)
        self._long_bytes = held_bytes
        self._readable.set()

    def _stop_pace(self) -> None:
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None

    def _take(self) -> bytes | None:
        return take_frame(self.received, self._config.request_bytes_max)

    async def wait(self, timeout_s: float) -> None:
        """Until `wakeup` is set, `timeout_s` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wakeup.wait()

    def _check_end(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self.received:
            raise MalformedRequest(f"the connection ended {len(self.received)} bytes into a frame")

    def _receive(self) -> None:
        try:
            some = self._client.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MalformedRequest) as error:  # the second: of TLS
            self._lost, some = error, b""
        self.received += some
        if not some:
            self.is_gone = True
            self.wakeup.set()
        if self.is_gone or len(self.received) >= RECEIVE_BYTES:
            self._pause()
        self._readable.set()

    def _resume(self) -> None:
        if not self._is_receiving and not self.is_gone:
            self._loop.add_reader(self._client, self._receive)
            self._is_receiving = True

    def _pause(self) -> None:
        if self._is_receiving:
            self._loop.remove_reader(self._client)
            self._is_receiving = False
