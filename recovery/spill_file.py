"""A file without a name for what does not have to be in memory: pieces are appended, and read again as long as anyone has them."""

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headwater_core.errors import DiskFull, TransientError
from headwater_core.files import error_kind

FILE_BYTES_MAX = 64 << 20  # then another one is begun: its room is given back with its last piece


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Whatever is wrong with that disk is wrong with none of the topics that are planned, and with no plan that is read."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if error_kind(error) is DiskFull else TransientError
        where = tempfile.tempdir or "no directory for them"
        raise kind(f"temporary files ({where}): {error.strerror or error}; set TMPDIR to a directory with room, on a disk") from error


class SpilledPiece(NamedTuple):
    """So many bytes at a place in a file."""

    file: "SpillFile"
    position: int
    size_bytes: int

    def read(self) -> bytes:
        """Raises TransientError when the disk does not give them back."""
        with _disk_errors():
            raw = os.pread(self.file.fd, self.size_bytes, self.position)
        if len(raw) != self.size_bytes:
            raise TransientError(f"a temporary file has {len(raw)} bytes at {self.position}, {self.size_bytes} were written")
        return raw


class SpillFile:
    """Safe to use from many threads. It is closed, and its room is free, when nobody has it or a piece of it. Raises DiskFull or
    TransientError where there can be none."""

    def __init__(self) -> None:
        with _disk_errors():
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  it lives as long as this
        self.fd = file.fileno()
        self.size_bytes = 0
        self._lock = threading.Lock()
        weakref.finalize(self, file.close)

    def append(self, raw: bytes) -> SpilledPiece:
        """Raises DiskFull, TransientError."""
        with self._lock:
            position = self.size_bytes
            self.size_bytes += len(raw)
        with _disk_errors():
            written = 0
            while written < len(raw):
                written += os.pwrite(self.fd, raw[written:], position + written)
        return SpilledPiece(self, position, len(raw))


class Spill:
    """Where pieces go: into one file after another. Safe to use from many threads."""

    def __init__(self, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        self._newest: weakref.ref[SpillFile] | None = None

    def append(self, raw: bytes) -> SpilledPiece:
        """Raises as SpillFile.append."""
        with self._lock:
            file = self._newest() if self._newest is not None else None
            if file is None or file.size_bytes >= self._file_bytes_max:
                file = SpillFile()
                self._newest = weakref.ref(file)
        return file.append(raw)
