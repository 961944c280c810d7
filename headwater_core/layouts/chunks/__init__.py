"""RocketMQ's tiered segments: bytes addressed by position, in chunk objects that become one (docs/formats/chunks.md)."""

from headwater_core.layouts.chunks.chunk_map import SegmentMap, SegmentState
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant, find_bases
from headwater_core.layouts.chunks.chunk_segment import CHUNK_BYTES, ChunkSegment
from headwater_core.layouts.chunks.consolidation import consolidate, delete_chunks
from headwater_core.layouts.chunks.queue_segments import open_own, open_queue

__all__ = [
    "CHUNK_BYTES",
    "ChunkSegment",
    "SegmentMap",
    "SegmentPlace",
    "SegmentState",
    "Variant",
    "consolidate",
    "delete_chunks",
    "find_bases",
    "open_own",
    "open_queue",
]
