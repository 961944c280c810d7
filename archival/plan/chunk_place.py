"""Which chunk a run becomes (docs/formats/chunks.md): the next one of the segment that its writer has begun, or the first of a new one.

Values in, values out: what is committed says where the segment ends, so that nothing has to be remembered."""

from typing import NamedTuple

from headwater_core.layouts.chunks import SegmentPlace, Variant
from manifests import chunk_keys
from manifests.chunk_keys import LAYOUT
from manifests.entry import Entry

CHUNKS_MAX = 1_000  # of one segment: consolidation is one step, and takes a request for each
NUMBER = "chunk"  # of an entry's context: how many chunks of its segment come before


class ChunkLimits(NamedTuple):
    """segment_bytes: no chunk is added that would make a segment larger"""

    variant: Variant
    segment_bytes: int


class ChunkPlace(NamedTuple):
    """Of a chunk, or of the first of those that a run is cut into. number: how many of its segment come before"""

    place: SegmentPlace
    position: int
    number: int = 0

    @property
    def key(self) -> str:
        return self.place.chunk_key(self.position)


def place_after(last: Entry | None, queue: str, base_offset: int, size_bytes: int, limits: ChunkLimits) -> ChunkPlace:
    """Where a run of so many bytes goes.

    last   the live entry before it
    queue  what its writer writes to now: see chunk_keys.queue
    """
    begun = continued(last, queue, limits) if last is not None and last.next_offset == base_offset else None
    if begun is not None and begun.position + size_bytes <= limits.segment_bytes:
        return begun
    return ChunkPlace(SegmentPlace(queue, "commitLog", base_offset, limits.variant), 0)


def continued(last: Entry, queue: str, limits: ChunkLimits) -> ChunkPlace | None:
    """The chunk that follows `last` in its segment; None where nothing is added to that any more: it is full, another writer's, or of an
    earlier fence."""
    if last.layout != LAYOUT or last.is_cut or limits.variant is not Variant.APPEND:
        return None
    name = chunk_keys.parse(last.key)
    if name is None or name.position is None or name.place.queue != queue or name.place.variant is not Variant.APPEND:
        return None
    position, number = name.position + last.size_bytes, number_of(last) + 1
    return ChunkPlace(name.place, position, number) if position < limits.segment_bytes and number < CHUNKS_MAX else None


def number_of(chunk: Entry) -> int:
    """How many chunks of its segment come before it."""
    text = chunk.context.get(NUMBER, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
