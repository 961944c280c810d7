"""The bytes of a streaming object and of its index (docs/formats/streaming.md), ours and Pulsar's. Pure."""

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.layouts.protobuf import bytes_field, content, fields, signed, varint_field

VERSION = "1"
HEADER_BYTES = 128
INDEX_MAGIC, BLOCK_MAGIC = bytes.fromhex("3D1FB0BC"), bytes.fromhex("26A66D32")
BLOCK_HEADER = struct.Struct(">4sQQQQ")  # magic, header bytes, block bytes, first entry id, ledger id; zeros follow
INDEX_HEADER = struct.Struct(">4sIQQ")  # magic, index bytes, data bytes, block header bytes
GROUP = struct.Struct(">QII")  # ledger id, blocks, metadata bytes
INDEX_ENTRY = struct.Struct(">QIQ")  # first entry id, block number, position of the block in the object
HEADER_BYTES_MAX = 4096
# At the end of a block that is not padded Pulsar's reader takes the next header for a frame, and finds the header's length where an entry's
# id belongs. It goes to the right place when that is not the id it looks for: so a ledger is not cut before this entry.
ID_OF_HEADER = HEADER_BYTES
PULSAR_VERSION_NAME, PULSAR_VERSION = "s3managedledgeroffloaderformatversion", "1"  # which Pulsar looks for with each request


class StreamBlock(NamedTuple):
    """One block, of one ledger. position: of its header in the object."""

    ledger_id: int
    first_entry_id: int
    position: int


class LedgerInfo(NamedTuple):
    """What the index says of a ledger. size_bytes, closed_ms: None while it was open; `entries` counts to the last in this object then."""

    ledger_id: int
    entries: int
    size_bytes: int | None = None
    closed_ms: int | None = None


class SegmentContext(NamedTuple):
    """What a ledger's metadata says of this object: PIP-76's OffloadSegment. Times in ms since 1970; 0: not said."""

    uuid: UUID
    end_entry_id: int
    assigned_ms: int = 0
    offloaded_ms: int = 0
    driver_name: str = ""
    driver_metadata: Mapping[str, str] = {}


class StreamIndex(NamedTuple):
    """What an index object says.

    blocks        in the order of their positions
    header_bytes  of each block
    """

    data_bytes: int
    header_bytes: int
    ledgers: tuple[LedgerInfo, ...]
    blocks: tuple[StreamBlock, ...]


def block_header(block: StreamBlock, size_bytes: int) -> bytes:
    return BLOCK_HEADER.pack(BLOCK_MAGIC, HEADER_BYTES, size_bytes, block.first_entry_id, block.ledger_id).ljust(HEADER_BYTES, b"\0")


def encode_stream_index(
    ledgers: Sequence[LedgerInfo], contexts: Sequence[SegmentContext], blocks: Sequence[StreamBlock], data_bytes: int
) -> bytes:
    """contexts: of each of `ledgers`."""
    groups = []
    for info, context in zip(ledgers, contexts, strict=True):
        own = [each for each in blocks if each.ledger_id == info.ledger_id]
        metadata = _encode_info(info, context)
        groups.append(GROUP.pack(info.ledger_id, len(own), len(metadata)) + metadata)
        groups += (INDEX_ENTRY.pack(each.first_entry_id, number, each.position) for number, each in enumerate(own, 1))
    body = b"".join(groups)
    return INDEX_HEADER.pack(INDEX_MAGIC, INDEX_HEADER.size + len(body), data_bytes, HEADER_BYTES) + body


def _encode_info(info: LedgerInfo, context: SegmentContext) -> bytes:
    """A LedgerInfo of MLDataFormats, with the offload context of this object."""
    parts = [varint_field(1, info.ledger_id), varint_field(2, info.entries)]
    if info.size_bytes is not None:
        parts.append(varint_field(3, info.size_bytes))
    if info.closed_ms is not None:
        parts.append(varint_field(4, info.closed_ms))
    driver = bytes_field(1, context.driver_name.encode()) + b"".join(
        bytes_field(2, bytes_field(1, name.encode()) + bytes_field(2, value.encode())) for name, value in context.driver_metadata.items()
    )
    segment = [varint_field(1, context.uuid.int >> 64), varint_field(2, context.uuid.int & (1 << 64) - 1), varint_field(3, 1)]
    if context.assigned_ms:
        segment.append(varint_field(4, context.assigned_ms))
    if context.offloaded_ms:
        segment.append(varint_field(5, context.offloaded_ms))
    segment += (varint_field(6, context.end_entry_id), bytes_field(7, driver))
    parts.append(bytes_field(5, bytes_field(7, b"".join(segment))))
    return b"".join(parts)


def decode_stream_index(raw: bytes | memoryview, where: str) -> StreamIndex:
    """Groups may come in any order; blocks are only held against each other where they are read.

    Raises UnsupportedFormat for another kind of index, TruncatedData, CorruptData.
    """
    view = memoryview(raw)
    if len(view) < INDEX_HEADER.size:
        raise TruncatedData(where, 0, f"{len(view)} bytes, a header takes {INDEX_HEADER.size}")
    magic, index_bytes, data_bytes, header_bytes = INDEX_HEADER.unpack_from(view)
    if magic != INDEX_MAGIC:
        raise UnsupportedFormat(f"{where} is no index of a streaming object: magic {magic.hex()}")
    if index_bytes != len(view):
        raise (TruncatedData if index_bytes > len(view) else CorruptData)(where, 4, f"{len(view)} bytes, its header says {index_bytes}")
    if not BLOCK_HEADER.size <= header_bytes <= HEADER_BYTES_MAX:
        raise CorruptData(where, 16, f"block headers of {header_bytes} bytes")
    ledgers: dict[int, LedgerInfo] = {}
    blocks: list[StreamBlock] = []
    at = INDEX_HEADER.size
    while at < len(view):
        if len(view) - at < GROUP.size:
            raise TruncatedData(where, at, f"{len(view) - at} bytes, the header of a ledger takes {GROUP.size}")
        ledger_id, count, metadata_bytes = GROUP.unpack_from(view, at)
        table = at + GROUP.size + metadata_bytes
        end = table + count * INDEX_ENTRY.size
        if end > len(view):
            raise TruncatedData(where, at, f"{count} blocks and {metadata_bytes} bytes of metadata, {len(view) - at} bytes are there")
        info = _decode_info(view[at + GROUP.size : table], where)
        if info.ledger_id != ledger_id or ledger_id in ledgers:
            raise CorruptData(where, at, f"ledger {ledger_id}, its metadata is of {info.ledger_id}, or it is there twice")
        ledgers[ledger_id] = info
        own = [StreamBlock(ledger_id, first, position) for first, _, position in INDEX_ENTRY.iter_unpack(view[table:end])]
        if any(b.first_entry_id <= a.first_entry_id or b.position <= a.position for a, b in pairwise(own)):
            raise CorruptData(where, table, f"blocks of ledger {ledger_id} out of order")
        blocks += own
        at = end
    blocks.sort(key=lambda block: block.position)
    return StreamIndex(data_bytes, header_bytes, tuple(ledgers.values()), tuple(blocks))


def _decode_info(metadata: memoryview, where: str) -> LedgerInfo:
    ledger_id = -1
    entries = 0
    size_bytes = closed_ms = None
    for number, value in fields(metadata, where):
        if number == 1:
            ledger_id = signed(value, where)
        elif number == 2:
            entries = signed(value, where)
        elif number == 3:
            size_bytes = signed(value, where)
        elif number == 4:
            closed_ms = signed(value, where)
        elif number == 5:
            content(value, where)
    return LedgerInfo(ledger_id, entries, size_bytes, closed_ms)
