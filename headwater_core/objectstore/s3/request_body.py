"""The bytes of a put on their way into requests: read through a small window, checked before and while they are sent."""

import io
import os
import stat as modes
from collections.abc import Callable
from typing import Any, BinaryIO

from headwater_core.errors import HeadwaterError, SourceChanged
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.paced_file import PacedFile
from headwater_core.objectstore.store import PartSource

_WINDOW_BYTES = 256 << 10  # what goes to the socket at once; urllib3's own 16 KiB cost as much CPU as the copying

_HELD_BYTES = 1 << 20  # a connection takes about so many while nobody reads at its other end


class PutEnded(BaseException):
    """`error` is why the put has to end. No Exception: botocore would send the request again, and again, for some seconds."""

    def __init__(self, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.error = error


class RequestBody:
    """The bytes of one request, read through a window as the socket takes them.

    The checksum goes into a header, so it is computed before, and a second time over what is sent.

    read_at     fills a window from a position in the body; returns how many bytes it had
    progressed  called while bytes move
    pace        called before a window goes to the socket, with its length; what it raises ends the request as PutEnded

    Raises SourceChanged when fewer than `size_bytes` bytes are there.
    """

    def __init__(
        self,
        read_at: Callable[[memoryview, int], int],
        size_bytes: int,
        key: str,
        progressed: Callable[[], object],
        pace: Callable[[int], object],
    ) -> None:
        self._read_at, self.size_bytes, self._progressed, self._pace = read_at, size_bytes, progressed, pace
        self._window = memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
        self._passed = Digest()
        self._ended_early = False
        self._furthest = _HELD_BYTES  # that a window was asked for, which is when all before it has gone
        while self._next_window():
            pass
        if self._ended_early:
            raise SourceChanged(f"{key}: {self.difference()}")
        self.checksum = self._passed.value
        self.seek(0)

    @property
    def content(self) -> Any:
        """What botocore takes for a body: read(), seek(0), tell() and len() are all it uses of a file."""
        return self if self.size_bytes else b""

    def __len__(self) -> int:
        return self.size_bytes

    def tell(self) -> int:
        return self._passed.size_bytes

    def seek(self, position: int) -> int:
        """Only back to the beginning, which is where another attempt starts."""
        assert position == 0
        self._passed = Digest()
        return 0

    def read(self, _size: int = -1) -> memoryview:
        """The next window, whatever size was requested: the caller hands it to the socket before it reads again. Valid until then."""
        if self._passed.size_bytes > self._furthest:  # what an earlier attempt has sent is no progress
            self._furthest = self._passed.size_bytes
            self._progressed()
        piece = self._next_window()
        if self._ended_early:
            raise SourceChanged(self.difference())  # or the server would wait for the rest
        if piece:
            try:
                self._pace(len(piece))
            except HeadwaterError as error:
                raise PutEnded(error) from error
        return piece

    def _next_window(self) -> memoryview:
        at = self._passed.size_bytes
        piece = self._window[: self.size_bytes - at]
        piece = piece[: self._read_at(piece, at)]
        self._passed.update(piece)
        self._ended_early = not piece and at < self.size_bytes
        return piece

    def difference(self) -> str:
        """How what was sent differs from what was announced; "" when it does not, or not all was sent."""
        if self._ended_early:
            return f"{self.size_bytes} bytes promised, {self._passed.size_bytes} there"
        if self._passed.size_bytes == self.size_bytes and self._passed.value != self.checksum:
            return "the bytes changed while they were sent"
        return ""


class PutSource:
    """Where a put's bytes come from, one request at a time: a file's descriptor, a PartSource, else pieces held in memory."""

    def __init__(self, key: str, data: BinaryIO, progressed: Callable[[], object]) -> None:
        raw = data.raw if isinstance(data, io.BufferedReader) else data
        self._key, self._data, self._progressed = key, data, progressed
        self._parts = raw if isinstance(raw, PartSource) else None
        self._pace: Callable[[int], object] = raw.pace if isinstance(raw, PacedFile | PartSource) else lambda size_bytes: None
        self.is_file = isinstance(raw, io.FileIO) and modes.S_ISREG(os.fstat(raw.fileno()).st_mode)
        self._position = data.tell() if self.is_file else 0

    def take(self, size_bytes: int) -> RequestBody:
        """The next `size_bytes`. Raises SourceChanged when they are not there."""
        if self._parts is not None:
            reader = self._parts.part_reader(self._position)
            self._position += size_bytes
            return self._body(reader, size_bytes)
        if self.is_file:
            fd, position = self._data.fileno(), self._position
            self._position += size_bytes
            return self._body(lambda window, at: os.preadv(fd, [window], position + at) if window else 0, size_bytes)
        pieces = bytearray()
        while len(pieces) < size_bytes and (piece := self._data.read(size_bytes - len(pieces))):
            pieces += piece
        held = memoryview(pieces)

        def read_at(window: memoryview, at: int) -> int:
            piece = held[at : at + len(window)]
            window[: len(piece)] = piece
            return len(piece)

        return self._body(read_at, size_bytes)

    def _body(self, read_at: Callable[[memoryview, int], int], size_bytes: int) -> RequestBody:
        return RequestBody(read_at, size_bytes, self._key, self._progressed, self._pace)
