"""A file without a name for what does not have to be in memory: pieces are appended, and read again as long as anyone has them."""

import os
import threading
import weakref
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from headwater_core.errors import TransientError, UsageError
from headwater_core.files import disk_errors

FILE_BYTES_MAX = 64 << 20  # then another one is begun: its room is given back with its last piece
_WHERE = Path("a temporary file")


class SpilledPiece(NamedTuple):
    """So many bytes at a place in a file."""

    file: "SpillFile"
    position: int
    size_bytes: int

    def read(self) -> bytes:
        """Raises TransientError when the disk does not give them back."""
        with disk_errors(_WHERE):
            raw = os.pread(self.file.fd, self.size_bytes, self.position)
        if len(raw) != self.size_bytes:
            raise TransientError(f"{_WHERE}: {len(raw)} bytes at {self.position}, {self.size_bytes} were written")
        return raw


class SpillFile:
    """Safe to use from many threads. It is closed, and its room is free, when nobody has it or a piece of it. Raises UsageError where there
    is no directory for it."""

    def __init__(self) -> None:
        with disk_errors(_WHERE):
            try:
                file = TemporaryFile(buffering=0)  # noqa: SIM115  it lives as long as this
            except FileNotFoundError as error:
                raise UsageError("no directory for temporary files; set TMPDIR to one on a disk, for what a recovery plans") from error
        self.fd = file.fileno()
        self.size_bytes = 0
        self._lock = threading.Lock()
        weakref.finalize(self, file.close)

    def append(self, raw: bytes) -> SpilledPiece:
        """Raises DiskFull, and what disk_errors makes of other errors."""
        with self._lock:
            position = self.size_bytes
            self.size_bytes += len(raw)
        with disk_errors(_WHERE):
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
