"""The line to one client: its socket, and what it has sent ahead of the answers."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RECEIVE_BYTES = 64 << 10


class Line:
    """`received` is what has come and is not answered yet. `is_gone` once the client was seen to have closed its end."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = bytearray()
        self.is_gone = False
        self.stirred = asyncio.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Meanwhile `stirred` is set when the client hangs up. For waits: nobody else may receive then.

        What it sends is taken in, because its end can only be seen behind it; that of a client that sends more than
        RECEIVE_BYTES ahead is seen when its answer is sent.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self.client, self._look)
        try:
            yield
        finally:
            loop.remove_reader(self.client)

    async def wait(self, timeout_s: float) -> None:
        """Until somebody stirs, `timeout_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.stirred.wait()

    def _look(self) -> None:
        try:
            some = self.client.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            some = b""
        self.received += some
        self.is_gone = not some
        if self.is_gone or len(self.received) >= RECEIVE_BYTES:
            asyncio.get_running_loop().remove_reader(self.client)
        if self.is_gone:
            self.stirred.set()
