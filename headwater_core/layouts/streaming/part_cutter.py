"""Cuts what was offered into the parts of a streaming object: blocks of whole entries, each of one ledger."""

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from headwater_core.errors import SourceChanged
from headwater_core.layouts.streaming.offload_buffer import WINDOW_BYTES, FileExtent, LedgerEntries, OffloadBuffer, after, read_window
from headwater_core.layouts.streaming.stream_format import HEADER_BYTES, ID_OF_HEADER, StreamBlock, block_header
from headwater_core.objectstore.digest import Digest
from headwater_core.segments.batch_frames import ID_FRAME, put_id_framed
from headwater_core.segments.run_scan import GrowingScan


class PartBlock(NamedTuple):
    """A block of a part. entries: all of its ledger, one after the other."""

    block: StreamBlock
    size_bytes: int
    entries: tuple[LedgerEntries, ...]


class StreamPart(NamedTuple):
    """A part as it was cut; its bytes are read again when they are sent.

    start       where it begins in the object
    checksum    of its entries' bytes, which they must have then
    held_bytes  of the budget, until it was sent
    """

    number: int
    start: int
    size_bytes: int
    blocks: tuple[PartBlock, ...]
    checksum: int
    held_bytes: int


class PartCutter:
    """One caller at a time.

    parts      how many there are so far
    part_bytes  each but the last has so many, and a batch more at most
    is_ended   nothing more will be put into the buffer
    blocks, positions, entry_ids  of all of these; the last two of each point of the run's index
    """

    def __init__(self, buffer: OffloadBuffer, scan: GrowingScan, part_bytes: int, where: str) -> None:
        self._buffer, self._scan, self.part_bytes, self._where = buffer, scan, part_bytes, where
        self.blocks: list[StreamBlock] = []
        self.positions, self.entry_ids = array("q"), array("q")
        self.size_bytes = 0  # of the object
        self._run_bytes = 0
        self.parts = 0
        self.is_ended = False

    @property
    def has_part(self) -> bool:
        """Is there enough for a part, with what must not begin the next one?"""
        last = self._buffer.last
        may_end = self.is_ended or last is None or last.entry_id + 1 != ID_OF_HEADER
        return may_end and self._buffer.size_bytes >= self.part_bytes

    def cut(self, *, is_last: bool = False) -> StreamPart:
        """The next part, of what is there; the last one of all. Raises SourceChanged, and what the scan raises: nothing follows then."""
        start, blocks, digest, held_bytes = self.size_bytes, list[PartBlock](), Digest(), 0
        while (first := self._buffer.first) is not None and (
            is_last or self.size_bytes - start < self.part_bytes or _continues(blocks[-1].block, first)
        ):
            if not blocks or blocks[-1].block.ledger_id != first.ledger_id:
                self.blocks.append(StreamBlock(first.ledger_id, first.entry_id, self.size_bytes))
                blocks.append(PartBlock(self.blocks[-1], HEADER_BYTES, ()))
                self.size_bytes += HEADER_BYTES
            room = first.size_bytes if is_last else self.part_bytes - (self.size_bytes - start)
            window = read_window(first, min(WINDOW_BYTES, room), self._where)
            self._scan.add(window.content)
            self._place(first, window.lengths)
            digest.update(window.content)
            rest = after(first, window)
            held_bytes += self._buffer.replace_first(rest)
            framed_bytes = len(window.content) + ID_FRAME.size * len(window.lengths)
            last = blocks[-1]
            blocks[-1] = PartBlock(last.block, last.size_bytes + framed_bytes, (*last.entries, _before(first, rest)))
            self.size_bytes += framed_bytes
            self._run_bytes += len(window.content)
        self.parts += 1
        return StreamPart(self.parts, start, self.size_bytes - start, tuple(blocks), digest.value, held_bytes)

    def _place(self, first: LedgerEntries, lengths: "array[int]") -> None:
        """Where the batches lie that are points of the run's index."""
        ends = list(accumulate(lengths, initial=0))
        points = self._scan.points
        while len(self.positions) < len(points) and points[len(self.positions)] < self._run_bytes + ends[-1]:
            point = points[len(self.positions)] - self._run_bytes
            at = bisect_left(ends, point)
            if point < 0 or ends[at] != point:
                raise SourceChanged(f"{self._where}: its batches are not where they were when it was scanned")
            self.positions.append(self.size_bytes + point + ID_FRAME.size * at)
            self.entry_ids.append(first.entry_id + at)


def _continues(block: StreamBlock, first: LedgerEntries) -> bool:
    """Does `first` belong into the block before it, whatever that one's length?"""
    return first[:2] == (block.ledger_id, ID_OF_HEADER)


def _before(entries: LedgerEntries, rest: LedgerEntries | None) -> LedgerEntries:
    """`entries` without `rest`."""
    if rest is None:
        return entries
    content, size_bytes = entries.content, entries.size_bytes - rest.size_bytes
    taken = content._replace(size_bytes=size_bytes) if isinstance(content, FileExtent) else content[:size_bytes]
    return LedgerEntries(entries.ledger_id, entries.entry_id, taken, entries.entry_count - rest.entry_count)


def part_content(part: StreamPart, where: str) -> bytearray:
    """The bytes of a part. Raises SourceChanged when the entries are not what they were."""
    made = bytearray(part.size_bytes)
    into, filled, digest = memoryview(made), 0, Digest()
    for block, size_bytes, entries in part.blocks:
        into[filled : filled + HEADER_BYTES] = block_header(block, size_bytes)
        filled += HEADER_BYTES
        for each in entries:
            left: LedgerEntries | None = each
            while left is not None:
                window = read_window(left, WINDOW_BYTES, where)
                digest.update(window.content)
                end = filled + len(window.content) + ID_FRAME.size * len(window.lengths)
                if end > part.size_bytes:
                    raise SourceChanged(f"{where}: other entries are there than before they were sent")
                filled += put_id_framed(window.content, window.lengths, left.entry_id, into[filled:end])
                left = after(left, window)
    if digest.value != part.checksum or filled != part.size_bytes:
        raise SourceChanged(f"{where}: the bytes changed before they were sent")
    return made
