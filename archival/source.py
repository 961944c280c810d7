"""The bytes that are archived: a segment of the local log, opened once, or an object that is already in the store."""

import errno
import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from layouts.offloader import Offloader
from manifests.head import Entry
from model.errors import CorruptData, DiskFull, NotFound, SourceChanged, TransientError, TruncatedData, Unauthorised
from model.partition import TopicPartition
from objectstore.store import ObjectStore
from segments.batches import headers
from segments.log import LocalLog, LocalSegment
from segments.scan import RunScan

_OFFSETS = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta at byte 23
_LENGTH_FROM = 12
_WINDOW_BYTES = 1 << 20


class Logs(Protocol):
    """Where local logs are looked at: a broker's directories."""

    def look(self, partition: TopicPartition) -> LocalLog:
        """One fresh look at the partition's directory."""
        ...


OpenSegment = Callable[[LocalSegment], BinaryIO]


def open_segment(segment: LocalSegment) -> BinaryIO:
    """The segment's file, and no other one under its name. Raises SourceChanged when it is gone or replaced."""
    try:
        file = io.FileIO(segment.path)
    except FileNotFoundError as error:
        raise SourceChanged(f"{segment.path} is gone") from error
    except PermissionError as error:
        raise Unauthorised(f"{segment.path}: {error.strerror}") from error
    except OSError as error:
        raise TransientError(f"{segment.path}: {error.strerror}") from error
    try:
        check_unchanged(segment, file)
    except SourceChanged:
        file.close()
        raise
    return file


def check_unchanged(segment: LocalSegment, file: BinaryIO) -> int:
    """How many bytes of `file` may be read; SourceChanged when it is not what the look saw.

    An active segment grows, so of it only the inode is compared, and what the look saw must still be there.
    """
    status = os.fstat(file.fileno())
    if status.st_ino != segment.generation[0] or status.st_size < segment.size_bytes:
        raise SourceChanged(f"{segment.path} was replaced or cut")
    if segment.is_active:
        return status.st_size
    if (status.st_mtime_ns, status.st_size) != (segment.generation[1], segment.size_bytes):
        raise SourceChanged(f"{segment.path} was written to after it was sealed")
    return segment.size_bytes


def find_batch(segment: LocalSegment, file: BinaryIO, offset: int, start: int, size: int) -> tuple[int, int] | None:
    """(position, base offset) of the first batch in file[start:size] that reaches `offset`; None when none does.

    An active segment may end in a batch that is still being written: it reaches nothing yet.
    """
    try:
        for position, header in headers(file, start, size, where=str(segment.path)):
            if header.last_offset >= offset:
                return position, header.base_offset
    except TruncatedData:
        if not segment.is_active:
            raise
    return None


def first_hole(file: BinaryIO, scan: RunScan) -> tuple[int, int] | None:
    """(offset missing, offset found instead) of the first hole between batches of a run that was just verified.

    Reads three fields per batch: the checksums and lengths stand since the scan.
    """
    buffer = bytearray(_WINDOW_BYTES)
    view, unpack = memoryview(buffer), _OFFSETS.unpack_from
    expected, position, end = scan.base_offset, scan.start_position, scan.end_position
    while position < end:
        file.seek(position)
        filled = _fill(file, view[: min(_WINDOW_BYTES, end - position)])
        if filled < _OFFSETS.size:
            raise SourceChanged(f"the file ends at byte {position + filled}, {end} were scanned")
        at = 0
        while at + _OFFSETS.size <= filled:
            base, length, delta = unpack(view, at)
            if base != expected:
                return expected, base
            expected = base + delta + 1
            at += _LENGTH_FROM + length
        position += at
    return None


def _fill(file: BinaryIO, view: memoryview) -> int:
    filled = 0
    while filled < len(view):
        got = file.readinto(view[filled:])  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
        if not got:
            break
        filled += got
    return filled


@contextmanager
def local_errors(where: object) -> Iterator[None]:
    """What the operating system says of a local file, in the words of model.errors. A failing disk concerns its partitions only."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"{where}: {error.strerror}") from error
        if isinstance(error, PermissionError):
            raise Unauthorised(f"{where}: {error.strerror}") from error
        raise TransientError(f"{where}: {error.strerror or error}") from error


class ArchivedRun(io.RawIOBase):
    """The bytes of one entry, dead ones included, as a file: every read is a ranged GET of what is asked for."""

    def __init__(self, store: ObjectStore, offloader: Offloader, entry: Entry) -> None:
        super().__init__()
        self._store, self._offloader, self._entry = store, offloader, entry
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek from elsewhere than the start")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = max(0, min(len(buffer), self._entry.size_bytes - self._position))
        if size:
            try:
                self._offloader.read_offloaded(self._store, self._entry.key, self._entry.context, memoryview(buffer)[:size], self._position)
            except NotFound as error:
                raise CorruptData(self._entry.key, self._position, "the manifest lists it, the store does not have it") from error
            except TruncatedData as error:
                raise TruncatedData(self._entry.key, self._position, f"{self._entry.size_bytes} bytes are listed") from error
        self._position += size
        return size
