"""A whole run as the parts of a streaming object, made in one pass over its batches."""

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from headwater_core.errors import SourceChanged
from headwater_core.files import disk_errors
from headwater_core.layouts.run_source import RunSource, space_for
from headwater_core.layouts.streaming.offload_buffer import WINDOW_BYTES, BatchWindow
from headwater_core.layouts.streaming.stream_format import HEADER_BYTES, ID_OF_HEADER, StreamBlock, block_header
from headwater_core.objectstore.digest import Digest
from headwater_core.segments.batch_frames import ID_FRAME, lengths_of, put_id_framed
from headwater_core.segments.run_scan import RunScan


class RunPart(NamedTuple):
    """One part: space[:size_bytes]. start: where it begins in the object."""

    number: int
    start: int
    size_bytes: int
    space: memoryview

    @property
    def content(self) -> memoryview:
        return self.space[: self.size_bytes]


class RunParts:
    """The parts of one run, in order: each is one block, and all are of one ledger, whose entries count from 0. For one thread.

    blocks      of the parts so far
    size_bytes  of these
    """

    def __init__(self, source: RunSource, scan: RunScan, ledger_id: int, part_bytes: int, where: str) -> None:
        """part_bytes: each part but the last has so many, and a batch more at most."""
        self._scan, self._ledger_id, self._part_bytes, self._where = scan, ledger_id, part_bytes, where
        self._batches = _Batches(source, scan.start_position, scan.end_position, where)
        self._digest = Digest()  # of the batches so far
        self._entries = 0
        self.blocks: list[StreamBlock] = []
        self.size_bytes = 0

    @property
    def left_bytes(self) -> int:
        """Of the run: what is in no part yet."""
        return self._scan.size_bytes - self._digest.size_bytes

    @property
    def has_full_part(self) -> bool:
        """Else what is left, if anything, is the last part."""
        return self.left_bytes >= self._part_bytes

    def new_space(self) -> memoryview:
        """For a part whose batches are not large."""
        return memoryview(bytearray(HEADER_BYTES + min(self._part_bytes, self._scan.size_bytes) * 5 // 4))

    def cut(self, space: memoryview) -> RunPart:
        """The next part, in `space`, or in a larger one where that is too small.

        Raises SourceChanged where there is no batch, and what `disk_errors` makes of the operating system's errors.
        """
        is_full = self.has_full_part
        block, filled = StreamBlock(self._ledger_id, self._entries, self.size_bytes), HEADER_BYTES
        while self.left_bytes:
            space, filled = self._put(space, filled, self._part_bytes - filled if is_full else self.left_bytes)
            if is_full and filled >= self._part_bytes and self._entries != ID_OF_HEADER:
                break
        space[:HEADER_BYTES] = block_header(block, filled)
        self.blocks.append(block)
        self.size_bytes += filled
        return RunPart(len(self.blocks), block.position, filled, space)

    def _put(self, space: memoryview, filled: int, room: int) -> tuple[memoryview, int]:
        """Put batches of about `room` bytes behind what fills `space`."""
        content, lengths = self._batches.take(room)
        end = filled + len(content) + ID_FRAME.size * len(lengths)
        if end > len(space):
            space, small = memoryview(bytearray(end)), space
            space[:filled] = small[:filled]
        put_id_framed(content, lengths, self._entries, space[filled:end])
        self._digest.update(content)
        self._entries += len(lengths)
        return space, end

    def positions(self) -> "array[int]":
        """In the object, of the points of the run's index, when all parts were cut. Raises SourceChanged when it was not the run."""
        scan, firsts = self._scan, [each.first_entry_id for each in self.blocks]
        if self._digest.text() != scan.digest:
            raise SourceChanged(f"{self._where}: {scan.digest} was scanned, {self._digest.text()} is there")
        points = zip(scan.index.points.positions, scan.batches_before, strict=True)
        return array("q", (at + ID_FRAME.size * before + HEADER_BYTES * bisect_right(firsts, before) for at, before in points))


class _Batches:
    """Whole batches of source[start:end], read once: those of a window at a time, or one that is larger."""

    def __init__(self, source: RunSource, start: int, end: int, where: str) -> None:
        self._source, self._position, self._end, self._where = source, start, end, where
        self._window = memoryview(bytearray(min(WINDOW_BYTES, end - start)))
        self._space = space_for(len(self._window))
        self._rest = self._window[:0]  # of the window: the beginning of the batch at `_position`
        self._held = BatchWindow(self._rest, self._space[:0])

    def take(self, room: int) -> BatchWindow:
        """The next ones that `room` bytes have room for, one at least. Valid until the next call."""
        content, lengths = self._held if self._held.lengths else self._read()
        if len(content) > room:
            ends = list(accumulate(lengths))
            count = max(1, bisect_right(ends, room))
            self._held = BatchWindow(content[ends[count - 1] :], lengths[count:])
            return BatchWindow(content[: ends[count - 1]], lengths[:count])
        self._held = BatchWindow(content[:0], lengths[:0])
        return BatchWindow(content, lengths)

    def _read(self) -> BatchWindow:
        window, left = self._window, self._end - self._position
        filled = min(len(window), left)
        kept = min(len(self._rest), filled)
        window[:kept] = bytes(self._rest[:kept])
        self._fill(window[kept:filled], self._position + kept)
        size_bytes, found = lengths_of(window, 0, filled, self._space)
        if size_bytes > filled and found > 1:
            found -= 1
            size_bytes -= self._space[found]
        if not found or size_bytes > left or size_bytes < filled == left:
            raise SourceChanged(f"{self._where}, byte {self._position}: batches were scanned that are not there")
        content = window[:size_bytes] if size_bytes <= filled else self._large(window[:filled], size_bytes)
        self._position += size_bytes
        self._rest = window[size_bytes:filled]
        return BatchWindow(content, self._space[:found])

    def _large(self, beginning: memoryview, size_bytes: int) -> memoryview:
        content = memoryview(bytearray(size_bytes))
        content[: len(beginning)] = beginning
        self._fill(content[len(beginning) :], self._position + len(beginning))
        return content

    def _fill(self, window: memoryview, position: int) -> None:
        with disk_errors(self._where):
            filled = self._source.fill(window, position)
        if filled < len(window):
            raise SourceChanged(f"{self._where} ends at byte {position + filled}, {self._end} were there")
