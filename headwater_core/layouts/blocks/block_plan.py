"""Where a run is cut into blocks: from what its scan has counted, and from the batches around each cut, which alone are looked at again."""

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from headwater_core.errors import SourceChanged
from headwater_core.layouts.blocks.block_format import BLOCK_HEADER, BLOCK_MAGIC
from headwater_core.layouts.run_maps import Block
from headwater_core.layouts.run_source import RunSource, space_for
from headwater_core.segments.batch_frames import FRAME, lengths_of
from headwater_core.segments.batches import LENGTH_FROM
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import POINT_SPACING_BYTES

_WINDOW_BYTES = POINT_SPACING_BYTES + LENGTH_FROM  # reaches the lengths of all batches that begin between two points


class PlannedBlock(NamedTuple):
    """A block to be written. start: position in the source of its first batch; run_bytes: of all its batches."""

    block: Block
    entries: int
    start: int
    run_bytes: int

    @property
    def header(self) -> bytes:
        return BLOCK_HEADER.pack(BLOCK_MAGIC, self.block.size_bytes, self.entries, self.block.first_entry_id)

    @property
    def pad_bytes(self) -> int:
        return self.block.size_bytes - BLOCK_HEADER.size - FRAME.size * self.entries - self.run_bytes


class BlockPlan(NamedTuple):
    """How a run is cut. Positions are counted from the first block's beginning.

    frames  of each point of the run's index
    """

    blocks: tuple[PlannedBlock, ...]
    frames: "array[int]"


class Cut(NamedTuple):
    """Between two batches: how many come before, and how many bytes of the run."""

    entries: int
    run_bytes: int

    @property
    def framed_bytes(self) -> int:
        """Of what comes before, with its frames."""
        return self.run_bytes + FRAME.size * self.entries


def plan_blocks(source: RunSource, scan: RunScan, block_bytes: int, where: str) -> BlockPlan:
    """A block is full when the next batch does not fit, and padded then, unless it is the last one, or one batch has made it larger.

    Raises SourceChanged where a batch around a cut is not what was scanned.
    """
    cuts, blocks, frames = _Cuts(source, scan, where), [], array("q")
    begin, position = Cut(0, 0), 0
    while begin != cuts.end:
        until = cuts.last_within(begin, block_bytes - BLOCK_HEADER.size)
        used = BLOCK_HEADER.size + until.framed_bytes - begin.framed_bytes
        block = Block(begin.entries, position, used if until == cuts.end else max(used, block_bytes))
        blocks.append(
            PlannedBlock(block, until.entries - begin.entries, scan.start_position + begin.run_bytes, until.run_bytes - begin.run_bytes)
        )
        first, last = (bisect_left(scan.batches_before, each.entries) for each in (begin, until))
        shift = position + BLOCK_HEADER.size - begin.framed_bytes
        frames.extend(shift + cuts.point(at).framed_bytes for at in range(first, last))
        begin, position = until, position + block.size_bytes
    return BlockPlan(tuple(blocks), frames)


class _Cuts:
    """The places between batches: at points of the run's index they are known."""

    def __init__(self, source: RunSource, scan: RunScan, where: str) -> None:
        self._source, self._scan, self._where = source, scan, where
        self.end = Cut(scan.batches, scan.size_bytes)
        self._between: tuple[int, list[Cut]] = -1, []  # a point, and the cuts after it up to the next one

    def point(self, at: int) -> Cut:
        scan = self._scan
        return Cut(scan.batches_before[at], scan.index.points.positions[at]) if at < len(scan.batches_before) else self.end

    def last_within(self, begin: Cut, room: int) -> Cut:
        """The last cut after `begin` with at most `room` framed bytes between them; the first one after it where there is none."""
        limit = begin.framed_bytes + room
        if self.end.framed_bytes <= limit:
            return self.end
        at = (
            bisect_right(range(len(self._scan.batches_before)), max(limit, begin.framed_bytes), key=lambda at: self.point(at).framed_bytes)
            - 1
        )
        between = [self.point(at), *self._after(at)]
        fitting = bisect_right(between, limit, key=lambda cut: cut.framed_bytes) - 1
        return next(cut for cut in between[max(fitting, 0) :] if cut > begin)

    def _after(self, at: int) -> list[Cut]:
        if self._between[0] != at:
            self._between = at, self._read(self.point(at), self.point(at + 1))
        return self._between[1]

    def _read(self, begin: Cut, end: Cut) -> list[Cut]:
        """All cuts after `begin`, a point, up to `end`, the next one."""
        window = memoryview(bytearray(min(_WINDOW_BYTES, end.run_bytes - begin.run_bytes)))
        lengths, found, position = space_for(len(window)), [begin.run_bytes], begin.run_bytes
        while position < end.run_bytes:
            some = window[: end.run_bytes - position]
            reached, count = lengths_of(some, 0, self._source.fill(some, self._scan.start_position + position), lengths)
            if not count:
                break
            found += accumulate(lengths[:count], initial=found.pop())
            position += reached
        if len(found) - 1 != end.entries - begin.entries or found[-1] != end.run_bytes:
            raise SourceChanged(f"{self._where}: its batches are not where they were when it was scanned")
        return [Cut(begin.entries + number, run_bytes) for number, run_bytes in enumerate(found[1:], 1)]
