"""The bytes of a block object: its index, block headers, frames and padding (docs/formats/blocks.md). Pure."""

import struct
from array import array
from collections.abc import Sequence
from itertools import pairwise

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.layouts.run_maps import Block, RunMap
from headwater_core.layouts.segment_metadata import Point, RunFacts, decode_segment_metadata, encode_segment_metadata, shown_points
from headwater_core.segments.batch_frames import FRAME

VERSION = "1"
BLOCK_BYTES = 64 << 20
INDEX_MAGIC = b"HWI1"
BLOCK_MAGIC = b"HWB1"
PAD = b"\xde\xad\x12\x34"  # repeated from the first byte of each padding on
BLOCK_HEADER = struct.Struct(">4sIIQ")  # magic, bytes of the block, entries, id of the first one
INDEX_HEADER = struct.Struct(">4sIII")  # magic, bytes of the index with padding, blocks, bytes of the metadata
INDEX_ENTRY = struct.Struct(">QIQ")  # first entry id, part number, position of the block in the object
BLOCKS_MAX = 9_999  # a multipart upload has at most 10,000 parts, of which the index is one
FIRST_PART = 2  # part 1 is the index


def pad(size_bytes: int, phase: int = 0) -> bytes:
    """`size_bytes` of padding, of which `phase` bytes came before."""
    shift = phase % len(PAD)
    return (PAD * (-(-(size_bytes + shift) // len(PAD))))[shift : shift + size_bytes]


def entries_of(header: memoryview, block: Block) -> int | None:
    """How many entries a header says that `block` has; None when it is another one's."""
    magic, size_bytes, entries, first_entry_id = BLOCK_HEADER.unpack(header)
    return int(entries) if (magic, size_bytes, first_entry_id) == (BLOCK_MAGIC, block.size_bytes, block.first_entry_id) else None


def encode_block_index(
    facts: RunFacts, blocks: Sequence[Block], entry_ids: Sequence[int], frames: Sequence[int], index_bytes_min: int
) -> tuple[bytes, int]:
    """The object's index with its padding, and its length without. Positions in `blocks` and `frames` are counted from the first block.

    entry_ids, frames  of each point of the run's index
    index_bytes_min    of an index that is followed by more than one block: the store's least part
    """
    shown = shown_points(frames, blocks[-1].position + blocks[-1].size_bytes)
    offsets = facts.run_index.points.offsets
    total = index_bytes_min if len(blocks) > 1 else 0
    while True:  # positions count the index itself: it grows with them a few times at most
        points = [Point(offsets[at], entry_ids[at], total + frames[at]) for at in shown]
        metadata = encode_segment_metadata(facts, points, frames)
        real = INDEX_HEADER.size + len(metadata) + INDEX_ENTRY.size * len(blocks)
        if real <= total and (real == total or len(blocks) > 1):
            break
        total = real
    table = b"".join(INDEX_ENTRY.pack(each.first_entry_id, FIRST_PART + at, total + each.position) for at, each in enumerate(blocks))
    return INDEX_HEADER.pack(INDEX_MAGIC, total, len(blocks), len(metadata)) + metadata + table + pad(total - real), real


def decode_block_index(raw: memoryview, size_bytes: int, where: str) -> RunMap:
    """The index of an object of `size_bytes` bytes; `raw` is it without its padding. Every value is checked against the others.

    Raises UnsupportedFormat for another version, TruncatedData, CorruptData.
    """
    if len(raw) < INDEX_HEADER.size:
        raise TruncatedData(where, 0, f"{len(raw)} bytes, a header takes {INDEX_HEADER.size}")
    magic, total, count, metadata_bytes = INDEX_HEADER.unpack_from(raw)
    if magic != INDEX_MAGIC:
        if magic[:3] == INDEX_MAGIC[:3]:
            raise UnsupportedFormat(f"{where} has index format {magic[3:]!r}; this version reads {VERSION}")
        raise CorruptData(where, 0, f"magic {magic!r}")
    end = INDEX_HEADER.size + metadata_bytes
    if len(raw) != end + INDEX_ENTRY.size * count or not len(raw) <= total < size_bytes or not 0 < count <= BLOCKS_MAX:
        raise CorruptData(where, 0, f"an index of {len(raw)} bytes in {total} for {count} blocks in an object of {size_bytes}")
    blocks: list[Block] = []
    rows = list(INDEX_ENTRY.iter_unpack(raw[end:]))
    for at, (first_entry_id, part, position) in enumerate(rows):
        following = rows[at + 1][2] if at + 1 < count else size_bytes
        before = blocks[-1].first_entry_id if blocks else -1
        if part != FIRST_PART + at or first_entry_id <= before or following - position <= BLOCK_HEADER.size + FRAME.size:
            raise CorruptData(where, end, f"block {part} from entry {first_entry_id} at byte {position}, the next one at {following}")
        blocks.append(Block(first_entry_id, position, following - position))
    if blocks[0][:2] != (0, total):
        raise CorruptData(where, end, f"the first block has entry {blocks[0].first_entry_id} at byte {blocks[0].position}")
    said = decode_segment_metadata(raw[INDEX_HEADER.size : end], where)
    index, frames = said.run_index, [total + position for position in said.positions]
    if frames[0] != total + BLOCK_HEADER.size or frames[-1] >= size_bytes or any(b <= a for a, b in pairwise(frames)):
        raise CorruptData(where, INDEX_HEADER.size, "positions out of order")
    return RunMap(index, array("q", frames), tuple(blocks), total, array("q"))
