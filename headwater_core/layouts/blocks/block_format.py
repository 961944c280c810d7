"""The bytes of a block object: its index, block headers, frames and padding (docs/formats/blocks.md). Pure."""

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.layouts.protobuf import bytes_field, content, fields, signed, varint_field
from headwater_core.partition import PartitionId
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index

VERSION = "1"
BLOCK_BYTES = 64 << 20
INDEX_MAGIC = b"HWI1"
BLOCK_MAGIC = b"HWB1"
PAD = b"\xde\xad\x12\x34"  # repeated from the first byte of each padding on
BLOCK_HEADER = struct.Struct(">4sIIQ")  # magic, bytes of the block, entries, id of the first one
INDEX_HEADER = struct.Struct(">4sIII")  # magic, bytes of the index with padding, blocks, bytes of the metadata
INDEX_ENTRY = struct.Struct(">QIQ")  # first entry id, part number, position of the block in the object
FRAME = struct.Struct(">I")  # bytes of the entry that follows
BLOCKS_MAX = 9_999  # a multipart upload has at most 10,000 parts, of which the index is one
FIRST_PART = 2  # part 1 is the index
POINT_BYTES = 1 << 20  # about so far apart are the points of the metadata

_RUN_INDEX, _POSITIONS = 1000, 1001  # fields of ours in the metadata, which other readers pass over


class Block(NamedTuple):
    """One block. position: of its header in the object."""

    first_entry_id: int
    position: int
    size_bytes: int


class Point(NamedTuple):
    """A batch: its base offset, its entry id, and the position of its frame in the object."""

    offset: int
    entry_id: int
    position: int


class RunFacts(NamedTuple):
    """What the metadata says of the run. Both offsets are inclusive, and the manifest's: the first batch may begin later."""

    partition: PartitionId
    base_offset: int
    last_offset: int
    run_index: RunIndex


class BlockMap(NamedTuple):
    """What a reader knows of an object before it reads any block.

    frames       position in the object of the frame of each point of `run_index`
    index_bytes  of the object's index, padding included: there the first block begins
    """

    run_index: RunIndex
    frames: "array[int]"
    blocks: tuple[Block, ...]
    index_bytes: int


def pad(size_bytes: int, phase: int = 0) -> bytes:
    """`size_bytes` of padding, of which `phase` bytes came before."""
    shift = phase % len(PAD)
    return (PAD * (-(-(size_bytes + shift) // len(PAD))))[shift : shift + size_bytes]


def encode_block_index(
    facts: RunFacts, blocks: Sequence[Block], entry_ids: Sequence[int], frames: Sequence[int], index_bytes_min: int
) -> tuple[bytes, int]:
    """The object's index with its padding, and its length without. Positions in `blocks` and `frames` are counted from the first block.

    entry_ids, frames  of each point of the run's index
    index_bytes_min    of an index that is followed by more than one block: the store's least part
    """
    shown = _shown_points(frames, blocks[-1].position + blocks[-1].size_bytes)
    offsets = facts.run_index.points.offsets
    total = index_bytes_min if len(blocks) > 1 else 0
    while True:  # positions count the index itself: it grows with them a few times at most
        points = [Point(offsets[at], entry_ids[at], total + frames[at]) for at in shown]
        metadata = _encode_metadata(facts, points, frames)
        real = INDEX_HEADER.size + len(metadata) + INDEX_ENTRY.size * len(blocks)
        if real <= total and (real == total or len(blocks) > 1):
            break
        total = real
    table = b"".join(INDEX_ENTRY.pack(each.first_entry_id, FIRST_PART + at, total + each.position) for at, each in enumerate(blocks))
    return INDEX_HEADER.pack(INDEX_MAGIC, total, len(blocks), len(metadata)) + metadata + table + pad(total - real), real


def _shown_points(frames: Sequence[int], end: int) -> list[int]:
    """Which of the run index's points the metadata shows: about POINT_BYTES apart, further only for a larger batch."""
    shown = [0]
    for at, following in enumerate((*frames[1:], end)):
        if at and following - frames[shown[-1]] > POINT_BYTES:
            shown.append(at)
    return shown


def _encode_metadata(facts: RunFacts, points: Sequence[Point], frames: Sequence[int]) -> bytes:
    partition, base_offset, last_offset, index = facts
    epochs = list(index.epochs)
    if not epochs or epochs[0].first_offset > index.base_offset:
        epochs.insert(0, EpochStart(-1, index.base_offset))  # batches from before leader epochs
    parts = [
        bytes_field(1, partition.topic.encode()),
        bytes_field(2, partition.topic_id.encode()),
        _number(3, partition.partition),
        _number(4, base_offset),
        _number(5, last_offset),
        _number(6, index.size_bytes),
        *(bytes_field(7, _numbers(*point)) for point in points),
        *(bytes_field(8, _numbers(*epoch)) for epoch in epochs),
        *(bytes_field(9, _numbers(each.producer_id, each.first_offset, each.last_offset)) for each in index.aborted),
    ]
    if index.open_from is not None:
        parts.append(varint_field(10, index.open_from))
    parts.append(bytes_field(_RUN_INDEX, encode_index(index)))
    parts.append(bytes_field(_POSITIONS, _column_bytes(frames)))
    return b"".join(parts)


def _numbers(*values: int) -> bytes:
    return b"".join(_number(number, value) for number, value in enumerate(values, 1))


def _number(number: int, value: int) -> bytes:
    return varint_field(number, value) if value else b""  # as proto3 leaves it out


def _column_bytes(values: Sequence[int]) -> bytes:
    column = array("q", values)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def decode_block_index(raw: memoryview, size_bytes: int, where: str) -> BlockMap:
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
    index, frames = _decode_metadata(raw[INDEX_HEADER.size : end], total, where)
    if frames[0] != total + BLOCK_HEADER.size or frames[-1] >= size_bytes or any(b <= a for a, b in pairwise(frames)):
        raise CorruptData(where, INDEX_HEADER.size, "positions out of order")
    return BlockMap(index, frames, tuple(blocks), total)


def _decode_metadata(metadata: memoryview, total: int, where: str) -> tuple[RunIndex, "array[int]"]:
    """The run's index and the frames of its points."""
    index: RunIndex | None = None
    frames = array("q")
    length = 0
    for number, value in fields(metadata, where):
        if number == 6:
            length = signed(value, where)
        elif number == _RUN_INDEX:
            index = decode_index(content(value, where), where=where)
        elif number == _POSITIONS:
            frames.frombytes(content(value, where)[: len(content(value, where)) // 8 * 8])
    if sys.byteorder == "little":
        frames.byteswap()
    if index is None or len(frames) != len(index.points.offsets) or length != index.size_bytes:
        raise CorruptData(where, INDEX_HEADER.size, f"metadata without the run's index, or of another run of {length} bytes")
    return index, array("q", (total + frame for frame in frames))
