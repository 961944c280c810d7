"""A walk over many record batches: verified, or by their headers alone."""

from collections.abc import Callable, Iterator
from typing import BinaryIO

from awscrt.checksums import crc32c, crc64nvme

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData
from headwater_core.segments.batches import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    LENGTH_MIN,
    OFFSET_MAX,
    BatchHeader,
    check_fields,
    too_short,
)
from headwater_core.segments.stretch import NO_END_OFFSET, Stretch, pass_batches

WINDOW_BYTES = 1 << 20
Ahead = Callable[[memoryview, int, int, int, int, int], Stretch]
"""What passes batches ahead of a BatchWalk: (bytes, where in them the next batch begins, where they end, its position in the source,
last offset and leader epoch before it)."""


def walk(file: BinaryIO, start: int, end: int, *, where: str, end_offset: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in file[start:end], CRC, offset order and epoch order verified; see BatchWalk."""
    for position, fields in BatchWalk(file, start, end, where=where, end_offset=end_offset):
        yield position, BatchHeader(*fields)


def headers(file: BinaryIO, start: int, end: int, *, where: str) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in file[start:end] from headers alone: bodies are skipped, no CRC is verified.

    To find a place, never to trust one. Raises as walk does. A batch that runs past `end` is still yielded; the
    walk ends with TruncatedData after it, when the next is requested.
    """
    window = _Window(file, start, end, where)
    view, unpack = window.view, HEADER.unpack_from
    position, last_offset = start, -1
    while position < end:
        at = position - window.start
        if not 0 <= at <= window.filled - HEADER_BYTES:
            at = window.header(position)
        header = BatchHeader(*unpack(view, at))
        base, length, _, magic, _, _, delta, _, _, _, _, _, records = header
        if magic != 2 or length < LENGTH_MIN or base <= last_offset or not 0 <= delta <= OFFSET_MAX - base or not 0 <= records <= delta + 1:
            check_fields(header, where, position, last_offset)
        yield position, header
        if position + LENGTH_FROM + length > end:
            raise TruncatedData(where, position, f"batch of {LENGTH_FROM + length} bytes, {end - position} are there")
        position, last_offset = position + LENGTH_FROM + length, base + delta


def locate(file: BinaryIO, offset: int, start: int, end: int, *, where: str, progressed: Callable[[], object] = lambda: None) -> int:
    """The position of the first batch in file[start:end] that reaches `offset`; `end` when none does. Headers only.

    progressed  is called with each
    """
    for position, header in headers(file, start, end, where=where):
        if header.last_offset >= offset:
            return position
        progressed()
    return end


def check_batches(content: memoryview, *, where: str) -> tuple[int, int]:
    """(first offset, last offset) of the whole batches that `content` consists of; (-1, -1) for none. What BatchWalk verifies
    is verified, by compiled code where there is some, and raised as it does.
    """
    end = len(content)
    if pass_batches is not None and end >= HEADER_BYTES:
        passed = Stretch(*pass_batches(content, 0, end, end, NO_END_OFFSET, -1, -1, False))
        if passed.at == end:
            return HEADER.unpack_from(content)[0], passed.last_offset
    first = last_offset = -1
    for _, fields in BatchWalk(content, 0, end, where=where):
        if first < 0:
            first = fields[0]
        last_offset = fields[0] + fields[6]
    return first, last_offset


class BatchWalk:
    """One verifying pass over the batches in source[start:end]. A file is read through one window of 1 MiB: a larger
    batch is checksummed in pieces, never held whole.

    where       names the source in errors
    end_offset  only batches wholly below this offset are yielded. What follows the batch that ends right below it is not
                read: the tail of an active segment may be torn.
    ahead       may verify and pass the next batches itself; they are not yielded
    after       last offset and leader epoch of what comes before, where this continues another walk; -1 each for none

    Bytes in memory are source[start:end] as they are: the first of them is at position `start`.

    Yields (position, header fields in BatchHeader's order); plain tuples, because this loop meets every 200 bytes of
    some logs. Raises TruncatedData when the last batch runs past `end` or zeros begin there (preallocated or torn),
    CorruptData for a wrong CRC, impossible fields, offsets that do not rise or leader epochs that fall, SourceChanged
    when the file ends before `end`.
    """

    def __init__(
        self,
        source: BinaryIO | memoryview,
        start: int,
        end: int,
        *,
        where: str,
        end_offset: int | None = None,
        ahead: Ahead | None = None,
        after: tuple[int, int] = (-1, -1),
    ) -> None:
        self._ahead, self._after = ahead, after
        self._window = _Whole(source, start, end, where) if isinstance(source, memoryview) else _Window(source, start, end, where)
        self._start, self._end, self._where = start, end, where
        self._end_offset = OFFSET_MAX + 2 if end_offset is None else end_offset  # beyond any offset that fits its field
        self._digest = 0
        self._digested_to = start

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        window, where, position, end, end_offset = self._window, self._where, self._start, self._end, self._end_offset
        view, unpack, ahead = window.view, HEADER.unpack_from, self._ahead
        last_offset, last_epoch = self._after
        while position < end and last_offset + 1 < self._end_offset:
            at = position - window.start
            if at + HEADER_BYTES > window.filled:
                self._digest_to(position)
                at = window.header(position)
            if ahead is not None:
                passed = ahead(view, at, window.filled, position, last_offset, last_epoch)
                if passed.at > at:
                    position, last_offset, last_epoch = position + passed.at - at, passed.last_offset, passed.epoch
                    continue
            fields = unpack(view, at)
            base, length, epoch, magic, crc, _, delta, _, _, _, _, _, records = fields
            if base >= end_offset:
                return
            if (
                magic != 2
                or length < LENGTH_MIN
                or base <= last_offset
                or not 0 <= delta <= OFFSET_MAX - base
                or epoch < last_epoch
                or not 0 <= records <= delta + 1
            ):
                check_fields(fields, where, position, last_offset, last_epoch)
            batch_end = at + LENGTH_FROM + length
            if batch_end <= window.filled:
                if crc32c(view[at + CRC_FROM : batch_end]) != crc:
                    raise CorruptData(where, position, f"CRC mismatch in the batch at offset {base}")
            else:
                self._check_far_batch(position, LENGTH_FROM + length, crc, base, counts=base + delta < end_offset)
            if base + delta >= end_offset:
                return
            last_offset, last_epoch = base + delta, epoch
            yield position, fields
            position += LENGTH_FROM + length

    def finish(self) -> None:
        """Let the batch just yielded be the last."""
        self._end_offset = 0

    def batch(self, position: int, size_bytes: int) -> memoryview:
        """The bytes of the batch just yielded, valid until the next; only for batches that fit the window, such as markers."""
        at = position - self._window.start
        if at < 0 or at + size_bytes > self._window.filled:
            raise CorruptData(self._where, position, f"control batch of {size_bytes} bytes")
        return self._window.view[at : at + size_bytes]

    def digest_to(self, position: int) -> str:
        """The digest of file[start:position], the very bytes that were verified; `position` is the end of the batch just yielded."""
        self._digest_to(position)
        return f"crc64nvme:{self._digest:016x}"

    def _digest_to(self, position: int) -> None:
        if position > self._digested_to:
            window = self._window
            self._digest = crc64nvme(window.view[self._digested_to - window.start : position - window.start], self._digest)
            self._digested_to = position

    def _check_far_batch(self, position: int, size_bytes: int, crc: int, base: int, *, counts: bool) -> None:
        """Verify a batch that reaches past the window: move the window, and when it is larger than that, go piece by piece."""
        window, end = self._window, position + size_bytes
        if end > self._end:
            raise TruncatedData(self._where, position, f"batch of {size_bytes} bytes, {self._end - position} are there")
        self._digest_to(position)
        window.fill(position)
        found, at = 0, position + CRC_FROM
        while True:
            piece_end = min(end, window.start + window.filled)
            found = crc32c(window.view[at - window.start : piece_end - window.start], found)
            if piece_end == end:
                break
            if counts:
                self._digest_to(piece_end)
            window.fill(piece_end)
            at = piece_end
        if found != crc:
            raise CorruptData(self._where, position, f"CRC mismatch in the batch at offset {base}")


class _Window:
    """The bytes of `file` from `start` on, as many as `filled` says, in one buffer that is used again and again."""

    def __init__(self, file: BinaryIO, start: int, end: int, where: str) -> None:
        self._file, self._end, self._where = file, end, where
        self.view = memoryview(bytearray(max(HEADER_BYTES, min(WINDOW_BYTES, end - start))))  # many segments are small
        self.start = self.filled = 0

    def fill(self, position: int) -> None:
        self.start, self.filled = position, 0
        wanted = min(WINDOW_BYTES, self._end - position)
        self._file.seek(position)
        while self.filled < wanted:
            got = self._file.readinto(self.view[self.filled : wanted])  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
            if not got:
                raise SourceChanged(f"{self._where} ends at byte {position + self.filled}, {self._end} were there")
            self.filled += got

    def header(self, position: int) -> int:
        """Where in `view` the header at `position` of the file lies, read if needed."""
        if not self.start <= position <= self.start + self.filled - HEADER_BYTES:
            self.fill(position)
            if self.filled < HEADER_BYTES:
                raise too_short(self.view[: self.filled], self._where, position)
        return position - self.start


class _Whole(_Window):
    """The same for bytes that are all in memory: nothing is ever read."""

    def __init__(self, content: memoryview, start: int, end: int, where: str) -> None:
        self._where = where
        self.view = content[: end - start]
        self.start, self.filled = start, len(self.view)
        if self.filled < end - start:
            raise SourceChanged(f"{where} ends at byte {start + self.filled}, {end} were there")

    def fill(self, position: int) -> None:
        raise too_short(self.view[position - self.start :], self._where, position)
