"""Cutting a run into chunks, the pieces that are fetched at once. Pure."""

from bisect import bisect_right
from dataclasses import dataclass

from headwater_core.segments.runindex import RunIndex
from hydration.ranges import Boundary


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches: `size_bytes` of the run from byte `position` on. The first batch's base offset is `first_offset`."""

    number: int
    position: int
    size_bytes: int
    first_offset: int

    def __post_init__(self) -> None:
        if min(self.number, self.position, self.first_offset) < 0 or self.size_bytes <= 0:
            raise ValueError(f"impossible chunk: {self}")

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How one run's live bytes are cut. Depends on the index, the live end and the chunk size alone, so it is the same every time."""

    index: RunIndex
    chunks: tuple[Chunk, ...]

    def chunk_for(self, offset: int) -> Chunk:
        """The chunk whose offsets `offset` falls into; the first for an offset before the run."""
        return self.chunks[max(bisect_right(self.chunks, offset, key=_first_offset) - 1, 0)]

    def after(self, chunk: Chunk) -> Chunk | None:
        return self.chunks[chunk.number + 1] if chunk.number + 1 < len(self.chunks) else None

    def start_for(self, chunk: Chunk, offset: int) -> Boundary:
        """Where in the chunk to start looking for `offset`: the last point at or before it, as a position in the chunk."""
        offsets, positions = self.index.points.offsets, self.index.points.positions
        at = max(bisect_right(offsets, offset) - 1, 0)
        if positions[at] <= chunk.position:
            return Boundary(0, chunk.first_offset)
        return Boundary(positions[at] - chunk.position, offsets[at])

    def boundary(self, chunk: Chunk, start: int, most: int) -> Boundary | None:
        """The last point at most `most` bytes after `start`, both positions in the chunk; None when there is none after `start`."""
        offsets, positions = self.index.points.offsets, self.index.points.positions
        at = bisect_right(positions, chunk.position + start + most) - 1
        place = Boundary(positions[at] - chunk.position, offsets[at])
        return place if place.position > start else None


def plan_chunks(index: RunIndex, live_bytes: int, chunk_bytes: int) -> ChunkPlan:
    """Cut index's run, as far as it is live, at points of the index: each chunk about `chunk_bytes`, larger only for a batch
    that is.

    live_bytes  where the run's live part ends, a batch boundary; what a dead branch cut off is in no chunk
    """
    positions, offsets = index.points.positions, index.points.offsets
    end = min(live_bytes, index.size_bytes)
    chunks: list[Chunk] = []
    at = 0
    while at < len(positions) and positions[at] < end:
        start = positions[at]
        following = max(bisect_right(positions, start + chunk_bytes) - 1, at + 1)
        if start + chunk_bytes >= end:
            following = len(positions)
        chunk_end = min(positions[following], end) if following < len(positions) else end
        chunks.append(Chunk(len(chunks), start, chunk_end - start, offsets[at]))
        at = following
    return ChunkPlan(index, tuple(chunks))


def _first_offset(chunk: Chunk) -> int:
    return chunk.first_offset
