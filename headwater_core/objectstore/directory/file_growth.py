"""One object that is written in parts over a long time: a private file, held open, by which it is known that its writer lives."""

import contextlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from headwater_core.errors import NotFound
from headwater_core.objectstore.digest import Digest

Content = bytes | bytearray | memoryview
_PIECE_BYTES = 256 << 10


class FileGrowth:
    """A GrowingObject.

    private_file  opens one: its descriptor and its path
    publish       makes a file durable and gives it the key for a name
    check         raises TransientError as long as nothing can be made durable
    translated    around what raises OSError, with the key
    progressed    called as bytes are written
    """

    def __init__(
        self,
        key: str,
        private_file: Callable[[], AbstractContextManager[tuple[int, str]]],
        publish: Callable[[int, str], object],
        check: Callable[[], object],
        translated: Callable[[str], AbstractContextManager[None]],
        progressed: Callable[[], object],
    ) -> None:
        self.key = key
        self._private_file, self._publish, self._check = private_file, publish, check
        self._translated, self._progressed = translated, progressed
        self._lock = threading.Lock()  # one part of it at a time: the disk is not faster with several
        self._files = contextlib.ExitStack()
        self._file: tuple[int, str] | None = None
        self._ended = False
        self._parts: dict[int, tuple[int, Digest]] = {}  # with the byte each begins at

    def send(self, number: int, content: Content, *, start: int) -> int:
        digest = Digest()
        with self._lock, self._translated(self.key):
            fd, _ = self._opened()
            _write_at(fd, content, start, digest)
            self._parts[number] = start, digest
        self._progressed()
        return digest.value

    def complete(self, rest: Content) -> str:
        self._check()
        digest = Digest()
        with self._lock, self._translated(self.key):
            fd, partial = self._opened()
            for number in sorted(self._parts):
                start, part = self._parts[number]
                assert start == digest.size_bytes, f"{self.key}: a part begins at {start}, {digest.size_bytes} bytes come before it"
                digest.append(part.value, part.size_bytes)
            _write_at(fd, rest, digest.size_bytes, digest)
            try:
                self._publish(fd, partial)
            except OSError:  # its pages may count as clean from now on: a second sync would prove nothing
                self._end()
                raise
            self._end()
        self._progressed()
        return digest.text()

    def abort(self) -> None:
        with self._lock, self._translated(self.key):
            self._end()

    def _opened(self) -> tuple[int, str]:
        if self._file is None and not self._ended:
            self._file = self._files.enter_context(self._private_file())
        if self._file is None or self._ended or not os.path.exists(self._file[1]):
            self._end()
            raise NotFound(f"{self.key}: what was written of it is gone")
        return self._file

    def _end(self) -> None:
        self._ended = True
        self._files.close()


def _write_at(fd: int, content: Content, position: int, digest: Digest) -> None:
    """A piece at a time, which `digest` learns while it is in the cache of the processor."""
    view = memoryview(content)
    for at in range(0, len(view), _PIECE_BYTES):
        piece = view[at : at + _PIECE_BYTES]
        digest.update(piece)
        while piece:
            count = os.pwrite(fd, piece, position)
            piece, position = piece[count:], position + count
