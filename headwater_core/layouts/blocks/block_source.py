"""The bytes of a block object as they are sent: made from the run's while they are read, a window at a time."""

import io
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import BinaryIO, NamedTuple, cast

from headwater_core.errors import SourceChanged
from headwater_core.layouts.blocks.block_format import BLOCK_HEADER, BLOCK_MAGIC, Block, pad
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.paced_file import PacedFile, PacedStream
from headwater_core.objectstore.store import Part
from headwater_core.segments.batch_frames import FRAME, framed, lengths_of
from headwater_core.segments.batches import LENGTH_FROM, LENGTH_MIN
from headwater_core.segments.run_scan import RunScan

WINDOW_BYTES = 1 << 20
_LENGTH_BYTES = array("i").itemsize


class PlannedBlock(NamedTuple):
    """A block to be written. start: position in the source of its first batch; run_bytes: of all its batches."""

    block: Block
    entries: int
    start: int
    run_bytes: int
    checksum: int

    @property
    def header(self) -> bytes:
        return BLOCK_HEADER.pack(BLOCK_MAGIC, self.block.size_bytes, self.entries, self.block.first_entry_id)

    @property
    def pad_bytes(self) -> int:
        return self.block.size_bytes - BLOCK_HEADER.size - FRAME.size * self.entries - self.run_bytes


class BlockPlan(NamedTuple):
    """How a run is cut. Positions are counted from the first block's beginning.

    entry_ids, frames  of each point of the run's index
    run_digest         of the bytes that were read for the plan
    """

    blocks: tuple[PlannedBlock, ...]
    entry_ids: "array[int]"
    frames: "array[int]"
    run_digest: str


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

    def frames(self) -> bytes | bytearray:
        """Its bytes with a frame before each batch."""
        return framed(self.content, self.lead, self.lengths)


def windows(source: RunSource, start: int, end: int, where: str) -> Iterator[Window]:
    """All of source[start:end]. Raises SourceChanged where there are no batches: a scan has found them."""
    view = memoryview(bytearray(min(WINDOW_BYTES, end - start)))
    space = array("i", bytes(_LENGTH_BYTES * (len(view) // (LENGTH_FROM + LENGTH_MIN) + 1)))
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


class _Planner:
    """Cuts batches into blocks as they come."""

    def __init__(self, scan: RunScan, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self.blocks: list[PlannedBlock] = []
        self.entry_ids, self.frames = array("q"), array("q")
        self._points = iter(scan.index.points.positions)
        self._next_point = next(self._points)
        self._start = scan.start_position  # of the block, in the source
        self._position = 0  # of the block, from the first one's beginning
        self._first_entry_id = self._entries = 0
        self._run_bytes = self._closed_bytes = 0  # of the block's batches; of those in the blocks before
        self._digest = Digest()  # of the block's frames

    def add(self, window: Window) -> None:
        framed, digested = memoryview(window.frames()), 0
        ends = list(accumulate(window.lengths, initial=0))  # batch n of the window is window.content[lead:][ends[n] : ends[n + 1]]
        first, count = 0, len(window.lengths)
        while first < count:
            last = self._fitting(ends, first, count)
            if last > first:
                self._place(ends, first, last)
                first = last
            if first < count:
                end = window.lead + ends[first] + FRAME.size * first
                self._digest.update(framed[digested:end])
                digested = end
                self.close(is_last=False)
        self._digest.update(framed[digested:])

    def _fitting(self, ends: list[int], first: int, count: int) -> int:
        """Up to which batch of the window the block has room: for one at least, where it has none yet."""
        room = self._block_bytes - BLOCK_HEADER.size - FRAME.size * self._entries - self._run_bytes
        room += ends[first] + FRAME.size * first
        fitting = bisect_right(range(count), room, lo=first, key=lambda number: ends[number + 1] + FRAME.size * (number + 1))
        return max(fitting, first + 1) if not self._entries else fitting

    def _place(self, ends: list[int], first: int, last: int) -> None:
        """Batches `first` to `last` of the window go into the block."""
        before = self._closed_bytes + self._run_bytes - ends[first]  # of the run, before the window's first batch
        while 0 <= self._next_point - before < ends[last]:
            at = bisect_left(ends, self._next_point - before, first, last)
            if ends[at] != self._next_point - before:
                break  # where no batch begins: plan_blocks notices
            self.entry_ids.append(self._first_entry_id + self._entries + at - first)
            frames_before = BLOCK_HEADER.size + FRAME.size * (self._entries + at - first)
            self.frames.append(self._position + frames_before + self._run_bytes + ends[at] - ends[first])
            self._next_point = next(self._points, -1)
        self._entries += last - first
        self._run_bytes += ends[last] - ends[first]

    def close(self, *, is_last: bool) -> None:
        """The block is full: padded, unless it is the last one, or one batch has made it larger than others."""
        used = BLOCK_HEADER.size + FRAME.size * self._entries + self._run_bytes
        size_bytes = used if is_last else max(used, self._block_bytes)
        block = Block(self._first_entry_id, self._position, size_bytes)
        planned = PlannedBlock(block, self._entries, self._start, self._run_bytes, 0)
        digest = Digest()
        digest.update(planned.header)
        digest.append(self._digest.value, self._digest.size_bytes)
        for piece in _padding(size_bytes - used):
            digest.update(piece)
        self.blocks.append(planned._replace(checksum=digest.value))
        self._start, self._position = self._start + self._run_bytes, self._position + size_bytes
        self._first_entry_id, self._closed_bytes = self._first_entry_id + self._entries, self._closed_bytes + self._run_bytes
        self._entries = self._run_bytes = 0
        self._digest = Digest()


def plan_blocks(source: RunSource, scan: RunScan, block_bytes: int, where: str) -> BlockPlan:
    """Read the run once: where blocks begin, where the batches of its index's points lie, and what is to be sent. Raises SourceChanged."""
    planner, run = _Planner(scan, block_bytes), Digest()
    for window in windows(source, scan.start_position, scan.end_position, where):
        planner.add(window)
        run.update(window.content)
    planner.close(is_last=True)
    if len(planner.frames) != len(scan.index.points.positions):
        raise SourceChanged(f"{where}: its batches are not where they were when it was scanned")
    return BlockPlan(tuple(planner.blocks), planner.entry_ids, planner.frames, run.text())


class BlockSource(io.RawIOBase):
    """A block object, index and blocks, as a file to be read from the start on; or its parts, each on its own."""

    def __init__(self, index: bytes, plan: BlockPlan, source: RunSource, where: str) -> None:
        super().__init__()
        self._index, self._blocks, self._source, self._where = index, plan.blocks, source, where
        self._position = 0
        self._pieces_to_read = self._pieces(0)
        self._rest = memoryview(b"")

    @property
    def size_bytes(self) -> int:
        last = self._blocks[-1].block
        return len(self._index) + last.position + last.size_bytes

    @property
    def parts(self) -> tuple[Part, ...]:
        """Index and blocks; all of it as one where there is one block."""
        index = Digest()
        index.update(self._index)
        parts = (Part(len(self._index), index.value), *(Part(each.block.size_bytes, each.checksum) for each in self._blocks))
        return parts if len(parts) > 2 else (Part(self.size_bytes, _joined(parts).value),)

    @property
    def digest(self) -> str:
        """What the object will have."""
        return _joined(self.parts).text()

    @property
    def pace(self) -> Callable[[int], object]:
        return self._source.pace

    def part_reader(self, start: int) -> Callable[[memoryview, int], int]:
        """As PartSource's. `start` is 0, or where a block begins."""
        pieces: Iterator[bytes | bytearray] = iter(())
        rest = memoryview(b"")
        reached = -1

        def read_at(window: memoryview, at: int) -> int:
            nonlocal pieces, rest, reached
            if at != reached:
                if at:
                    raise io.UnsupportedOperation("a part is read from its beginning on")
                pieces, rest, reached = self._pieces(start), memoryview(b""), 0
            filled = 0
            while filled < len(window):
                if not rest:
                    rest = memoryview(next(pieces, b""))
                    if not rest:
                        break
                size = min(len(rest), len(window) - filled)
                window[filled : filled + size] = rest[:size]
                rest, filled = rest[size:], filled + size
            reached += filled
            return filled

        return read_at

    def _pieces(self, start: int) -> Iterator[bytes | bytearray]:
        """Everything from byte `start` on."""
        if start == 0:
            yield self._index
        first = bisect_right(self._blocks, start - len(self._index) - 1, key=lambda each: each.block.position)
        for each in self._blocks[max(first, 0) :]:
            yield each.header
            for window in windows(self._source, each.start, each.start + each.run_bytes, self._where):
                yield window.frames()
            yield from _padding(each.pad_bytes)

    # As a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Only back to the beginning, where another attempt starts."""
        if position or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a block object is read from its beginning on")
        self._position, self._pieces_to_read, self._rest = 0, self._pieces(0), memoryview(b"")
        return 0

    def read(self, size: int = -1) -> bytes:
        """What comes next, without a copy: fewer bytes than `size` before the end, too."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces_to_read, b""))
        piece = self._rest[: len(self._rest) if size < 0 else size]
        self._rest = self._rest[len(piece) :]
        self._position += len(piece)
        if piece:
            self.pace(len(piece))
        return cast(bytes, piece)

    def as_file(self) -> BinaryIO:
        return cast(BinaryIO, self)


def _joined(parts: tuple[Part, ...]) -> Digest:
    digest = Digest()
    for size_bytes, checksum in parts:
        digest.append(checksum, size_bytes)
    return digest


def _padding(size_bytes: int) -> Iterator[bytes]:
    for start in range(0, size_bytes, WINDOW_BYTES):  # which PAD's length divides
        yield pad(min(WINDOW_BYTES, size_bytes - start))
