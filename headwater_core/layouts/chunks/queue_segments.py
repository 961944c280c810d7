"""The segments of a queue, out of a store alone: which of them are full, and how far each is to reach (docs/formats/chunks.md, "Without a
manifest"). Nothing is written."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant, find_bases
from headwater_core.layouts.chunks.chunk_segment import ChunkSegment
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.runindex import decode_index

_TRAILER = struct.Struct(">i4sq")  # of a sealed commit log of RocketMQ 5.1 and 5.2: its length, a magic number, the last timestamp
_TRAILER_MAGIC = bytes.fromhex("cbd43194")
_INDEX = ".index"


def open_queue(store: ObjectStore, queue: str, file_type: str, variant: Variant) -> Iterator[ChunkSegment]:
    """RocketMQ's segments of a queue, in order. Their bases count bytes: each ends where the next begins. The last one is full where it
    ends with a trailer; else nobody knows. Raises what the store raises."""
    bases = find_bases(store, queue, file_type, variant)
    for base, following in pairwise([*bases, None]):
        assert base is not None
        place = SegmentPlace(queue, file_type, base, variant)
        if following is not None:
            yield ChunkSegment.open(store, place, is_full=True, end=following - base)
            continue
        segment = ChunkSegment.open(store, place)
        if file_type == "commitLog" and _has_trailer(segment):
            segment = ChunkSegment.open(store, place, is_full=True, end=segment.end)
        yield segment


def _has_trailer(segment: ChunkSegment) -> bool:
    if segment.end < _TRAILER.size:
        return False
    size_bytes, magic, _ = _TRAILER.unpack(segment.read0(segment.end - _TRAILER.size, _TRAILER.size))
    return (size_bytes, magic) == (_TRAILER.size, _TRAILER_MAGIC)


def open_own(store: ObjectStore, place: SegmentPlace, *, is_full: bool) -> ChunkSegment:
    """A segment of Headwater's, whose base counts records. The index of a run is written after its bytes: so it says how far these reach.

    is_full  another one follows it, of its writer or of a later one; of the fixed variant one with an index is full, too

    Raises what the store raises.
    """
    end = _indexed_end(store, place)
    is_closed = is_full or (end is not None and place.variant is Variant.FIXED)
    return ChunkSegment.open(store, place, is_full=is_closed, end=end)


def _indexed_end(store: ObjectStore, place: SegmentPlace) -> int | None:
    """What the last index says of the segment's end; None where there is none that can be read."""
    ends: list[int] = []
    for key, position in _indexes(store, place):
        with suppress(NotFound, CorruptData, UnsupportedFormat):
            ends.append(position + decode_index(store.get(key)[0]).size_bytes)
    return max(ends, default=None)


def _indexes(store: ObjectStore, place: SegmentPlace) -> Iterator[tuple[str, int]]:
    """The key of the index of all of it, and of that of the last run; each with where that begins."""
    yield f"{place.segment_key}{_INDEX}", 0
    if place.variant is Variant.FIXED:
        yield f"{place.chunk_key(0)}{_INDEX}", 0
        return
    listed = (place.position_of(info.key.removesuffix(_INDEX)) for info in store.list(place.prefix) if info.key.endswith(_INDEX))
    last = max((position for position in listed if position is not None), default=None)
    if last is not None:
        yield f"{place.chunk_key(last)}{_INDEX}", last
