"""Writes ledgers in the layout that Pulsar ships, from its format page: Headwater only reads it, so this is for Pulsar's own reader."""

import io
import struct
from collections.abc import Sequence

from headwater_core.layouts.protobuf import bytes_field, varint_field
from headwater_core.objectstore.store import ObjectForm, ObjectStore

_BLOCK_HEADER = struct.Struct(">4sQQQ100x")
_FRAME = struct.Struct(">iQ")
_PAD = bytes.fromhex("FEDCDEAD")


def write_ledger(store: ObjectStore, uuid: str, ledger_id: int, entries: Sequence[bytes], block_bytes: int) -> str:
    """Data first, then its index; returns the data's key. An entry that is too large for a block is not to be offloaded at all."""
    if any(_BLOCK_HEADER.size + _FRAME.size + len(each) > block_bytes for each in entries):
        raise ValueError(f"an entry of {max(map(len, entries))} bytes, blocks of {block_bytes}")
    blocks: list[tuple[int, bytes]] = []
    for entry_id, entry in enumerate(entries):
        frame = _FRAME.pack(len(entry), entry_id) + entry
        if not blocks or _BLOCK_HEADER.size + len(blocks[-1][1]) + len(frame) > block_bytes:
            blocks.append((entry_id, b""))
        blocks[-1] = blocks[-1][0], blocks[-1][1] + frame
    data, table = b"", b""
    for part, (first_entry_id, frames) in enumerate(blocks, 1):
        table += struct.pack(">QIQ", first_entry_id, part, len(data))
        used = _BLOCK_HEADER.size + len(frames)
        size_bytes = used if part == len(blocks) else block_bytes
        data += _BLOCK_HEADER.pack(bytes.fromhex("FBDBABCB"), _BLOCK_HEADER.size, size_bytes, first_entry_id) + frames
        data += (_PAD * (size_bytes - used))[: size_bytes - used]
    metadata = _ledger_metadata(entries)
    head = struct.pack(
        ">4sIQQII",
        bytes.fromhex("DE47DE47"),
        32 + len(metadata) + len(table),
        len(data),
        _BLOCK_HEADER.size,
        len(blocks),
        len(metadata),
    )
    key = f"{uuid}-ledger-{ledger_id}"
    for name, content, role in ((key, data, "data"), (f"{key}-index", head + metadata + table, "index")):
        form = ObjectForm(metadata={"s3managedledgeroffloaderformatversion": "1", "role": role})
        store.put(name, io.BytesIO(content), size_bytes=len(content), form=form)
    return key


def _ledger_metadata(entries: Sequence[bytes]) -> bytes:
    """BookKeeper's LedgerMetadataFormat of a ledger that one bookie held, and that was closed."""
    custom = bytes_field(1, b"application") + bytes_field(2, b"headwater")
    return b"".join(
        (
            varint_field(1, 1),
            varint_field(2, 1),
            varint_field(3, sum(map(len, entries))),
            varint_field(4, len(entries) - 1),
            varint_field(5, 3),
            bytes_field(6, bytes_field(1, b"bookie:3181") + varint_field(2, 0)),
            varint_field(7, 3),
            varint_field(9, 1),
            varint_field(10, 1_700_000_000_000),
            bytes_field(11, custom),
        )
    )
