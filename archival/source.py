"""The bytes that are archived: a segment of the local log, opened once."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, Protocol

from headwater_core.errors import SourceChanged, TransientError, TruncatedData, Unauthorised
from headwater_core.files import disk_errors
from headwater_core.partition import TopicPartition
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.local_log import LocalLog, LocalSegment


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
    if status.st_ino != segment.generation.inode or status.st_size < segment.size_bytes:
        raise SourceChanged(f"{segment.path} was replaced or cut")
    if segment.is_active:
        return status.st_size
    if (status.st_mtime_ns, status.st_size) != (segment.generation.modified_ns, segment.size_bytes):
        raise SourceChanged(f"{segment.path} was written to after it was sealed")
    return segment.size_bytes


class FoundBatch(NamedTuple):
    """Where in a segment's file a batch begins, and its base offset."""

    position: int
    base_offset: int


def find_batch(segment: LocalSegment, file: BinaryIO, offset: int, start: int, size: int) -> FoundBatch | None:
    """The first batch in file[start:size] that reaches `offset`; None when none does.

    An active segment may end in a batch that is still being written: it reaches nothing yet.
    """
    try:
        for position, header in headers(file, start, size, where=str(segment.path)):
            if header.last_offset >= offset:
                return FoundBatch(position, header.base_offset)
    except TruncatedData:
        if not segment.is_active:
            raise
    return None


@contextmanager
def local_errors(where: object) -> Iterator[None]:
    """What the operating system says of a local file, as our errors. A failing disk concerns its partitions only."""
    with disk_errors(where):
        yield
