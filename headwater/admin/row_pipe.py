"""Lines on their way from the thread that makes them to the event loop that sends them. Who makes them waits for a slow client."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from headwater_core.errors import TransientError

LINES_MAX = 256  # on their way; after that the maker waits


class RowPipe:
    """To the event loop `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._ended = self._hurried = self._abandoned = False
        self._news = asyncio.Event()

    def put(self, line: bytes) -> None:
        """From the thread that makes them. Raises TransientError when nobody takes them any more, or they should not be waited for."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < LINES_MAX or self._hurried or self._abandoned)
            if self._abandoned or len(self._lines) >= LINES_MAX:
                raise TransientError("it was cancelled" if not self._abandoned else "the client that waited for it has gone")
            self._lines.append(line)
        self._tell()

    def end(self) -> None:
        """After the last line."""
        with self._changed:
            self._ended = True
        self._tell()

    def hurry(self) -> None:
        """Whoever puts does not wait any more."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Nobody takes any more."""
        with self._changed:
            self._abandoned = True
            self._lines.clear()
            self._changed.notify_all()

    async def take(self, timeout_s: float) -> AsyncIterator[bytes]:
        """Several lines together, as they come; b"" when none has come for `timeout_s`."""
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                yield b""
                continue
            self._news.clear()
            with self._changed:
                lines, ended = b"".join(self._lines), self._ended
                self._lines.clear()
                self._changed.notify_all()
            if lines:
                yield lines
            if ended:
                return

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the client with it
            self._loop.call_soon_threadsafe(self._news.set)
