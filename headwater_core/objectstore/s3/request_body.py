"""The bytes of a put on their way into requests: read through a small window, checked before and while they are sent."""

import io
import os
import stat as modes
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from headwater_core.errors import HeadwaterError, SourceChanged
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.paced_file import PacedFile
from headwater_core.objectstore.store import PartSource

_PIECE_BYTES = 256 << 10  # what goes to the socket at once; urllib3's own 16 KiB cost as much CPU as the copying

_NOTHING = memoryview(b"")
_HELD_BYTES = 1 << 20  # a connection takes about so many while nobody reads at its other end


class PutEnded(BaseException):
    """`error` is why the put has to end. No Exception: botocore would send the request again, and again, for some seconds."""

    def __init__(self, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.error = error


class RequestBody:
    """The bytes of one request, read a piece at a time as the socket takes them.

    The checksum goes into a header, so it is computed before, and a second time over what is sent.

    pieces      the bytes, and maybe more, from their beginning on, each time that it is called; each piece is valid until the next
    progressed  called while bytes move
    pace        called before a piece goes to the socket, with its length; what it raises ends the request as PutEnded

    Raises SourceChanged when fewer than `size_bytes` bytes are there.
    """

    def __init__(
        self,
        pieces: Callable[[], Iterator[memoryview]],
        size_bytes: int,
        key: str,
        progressed: Callable[[], object],
        pace: Callable[[int], object],
    ) -> None:
        self._pieces, self.size_bytes, self._progressed, self._pace = pieces, size_bytes, progressed, pace
        self._passed, self._following = Digest(), pieces()
        self._ended_early = False
        self._furthest = _HELD_BYTES  # that a window was asked for, which is when all before it has gone
        while self._next_piece():
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
        self._passed, self._following = Digest(), self._pieces()
        return 0

    def read(self, _size: int = -1) -> memoryview:
        """The next piece, whatever size was requested: the caller hands it to the socket before it reads again. Valid until then."""
        if self._passed.size_bytes > self._furthest:  # what an earlier attempt has sent is no progress
            self._furthest = self._passed.size_bytes
            self._progressed()
        piece = self._next_piece()
        if self._ended_early:
            raise SourceChanged(self.difference())  # or the server would wait for the rest
        if piece:
            try:
                self._pace(len(piece))
            except HeadwaterError as error:
                raise PutEnded(error) from error
        return piece

    def _next_piece(self) -> memoryview:
        left = self.size_bytes - self._passed.size_bytes
        piece = next(self._following, _NOTHING)[:left] if left else _NOTHING
        self._passed.update(piece)
        self._ended_early = not piece and left > 0
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
            parts, start = self._parts, self._position
            self._position += size_bytes
            return self._body(lambda: parts.part_pieces(start), size_bytes)
        if self.is_file:
            fd, position = self._data.fileno(), self._position
            self._position += size_bytes
            return self._body(lambda: _pieces_of_file(fd, position, size_bytes), size_bytes)
        pieces = bytearray()
        while len(pieces) < size_bytes and (piece := self._data.read(size_bytes - len(pieces))):
            pieces += piece
        return self._body(lambda: pieces_of(pieces), size_bytes)

    def _body(self, pieces: Callable[[], Iterator[memoryview]], size_bytes: int) -> RequestBody:
        return RequestBody(pieces, size_bytes, self._key, self._progressed, self._pace)


def pieces_of(content: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """Of what is held in memory."""
    view = memoryview(content)
    return (view[at : at + _PIECE_BYTES] for at in range(0, len(view), _PIECE_BYTES))


def _pieces_of_file(fd: int, position: int, size_bytes: int) -> Iterator[memoryview]:
    window = memoryview(bytearray(min(_PIECE_BYTES, size_bytes)))
    end = position + size_bytes
    while position < end and (count := os.preadv(fd, [window[: end - position]], position)):
        yield window[:count]
        position += count
