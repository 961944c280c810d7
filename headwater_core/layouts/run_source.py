"""A run as it is read to be framed: batch by batch, a window at a time, from many threads."""

import io
import os
import threading
from array import array
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from headwater_core.errors import SourceChanged
from headwater_core.objectstore.paced_file import PacedFile, PacedStream
from headwater_core.segments.batch_frames import lengths_of
from headwater_core.segments.batches import LENGTH_FROM, LENGTH_MIN

WINDOW_BYTES = 256 << 10  # what is copied and summed up is still in the cache of the processor
_LENGTH_BYTES = array("i").itemsize


class RunSource:
    """The run's bytes at any position, from many threads: by the file's descriptor where it has one."""

    def __init__(self, source: BinaryIO) -> None:
        self.pace: Callable[[int], object] = source.pace if isinstance(source, PacedFile | PacedStream) else lambda size_bytes: None
        self._source = source.source if isinstance(source, PacedStream) else source
        self._lock = threading.Lock()
        try:
            self._fd: int | None = source.fileno()
        except io.UnsupportedOperation:
            self._fd = None

    def fill(self, window: memoryview, position: int) -> int:
        """As many bytes from `position` on as there are, or fit; how many."""
        filled = 0
        while filled < len(window) and (count := self.read_at(window[filled:], position + filled)):
            filled += count
        return filled

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes from `start` to `end`, as far as there are any; each piece is valid until the next."""
        window = memoryview(bytearray(min(WINDOW_BYTES, end - start)))
        while start < end and (count := self.read_at(window[: end - start], start)):
            yield window[:count]
            start += count

    def read_at(self, window: memoryview, position: int) -> int:
        if self._fd is not None:
            return os.preadv(self._fd, [window], position)
        with self._lock:
            self._source.seek(position)
            return int(self._source.readinto(window))  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it


class Window(NamedTuple):
    """Some of the run's bytes, valid until the next. lead: how many continue the batch before; lengths: of the batches that begin in it."""

    content: memoryview
    lead: int
    lengths: "array[int]"


def windows(source: RunSource, start: int, end: int, where: str) -> Iterator[Window]:
    """All of source[start:end]. Raises SourceChanged where there are no batches: a scan has found them."""
    view = memoryview(bytearray(min(WINDOW_BYTES, end - start)))
    space = space_for(len(view))
    position, kept, left = start, 0, 0  # what is read next; the beginning of a header from the window before; of a batch
    while position < end:
        count = source.read_at(view[kept : kept + end - position], position)
        if not count:
            raise SourceChanged(f"{where} ends at byte {position}, {end} were there")
        position, filled = position + count, kept + count
        lead = min(left, filled)
        at, found = lengths_of(view, lead, filled, space)
        if at + LENGTH_FROM <= filled or at - filled > end - position:
            raise SourceChanged(f"{where}, byte {position - filled + min(at, filled)}: a batch that was not there when it was scanned")
        left = left - lead + max(0, at - filled)
        used = min(at, filled)
        yield Window(view[:used], lead, space[:found])
        kept = filled - used
        view[:kept] = bytes(view[used:filled])
    if kept:
        raise SourceChanged(f"{where} ends inside a batch")


def space_for(size_bytes: int) -> "array[int]":
    """Room for the lengths of all batches that so many bytes can hold."""
    return array("i", bytes(_LENGTH_BYTES * (size_bytes // (LENGTH_FROM + LENGTH_MIN) + 1)))
