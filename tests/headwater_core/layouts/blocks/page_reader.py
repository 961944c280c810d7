"""A reader of block objects written from docs/formats/blocks.md alone: it shares no code with what it checks, and checks every byte."""

import struct
from dataclasses import dataclass, field
from typing import Any

PAD = bytes.fromhex("DEAD1234")


def varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
        if raw[at - 1] < 0x80:
            return value, at


def message(raw: bytes) -> dict[int, list[Any]]:
    """Field number to values."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(raw):
        tag, at = varint(raw, at)
        if tag & 7 == 0:
            value, at = varint(raw, at)
            found.setdefault(tag >> 3, []).append(value - (1 << 64) if value >> 63 else value)
        else:
            assert tag & 7 == 2
            size, at = varint(raw, at)
            found.setdefault(tag >> 3, []).append(raw[at : at + size])
            at += size
    assert at == len(raw)
    return found


def is_padding(raw: bytes) -> bool:
    return raw == (PAD * (len(raw) // 4 + 1))[: len(raw)]


@dataclass
class Seen:
    """What the object says. entries: (position of the frame, bytes)."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    last_offset: int
    length: int
    open_from: int | None
    index_bytes: int
    padded_index_bytes: int
    points: list[tuple[int, int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)  # first entry id, position, length
    entries: list[tuple[int, bytes]] = field(default_factory=list)


def read_object(raw: bytes) -> Seen:
    magic, index_len, count, metadata_len = struct.unpack_from(">IIII", raw)
    assert magic == 0x48574931
    said = message(raw[16 : 16 + metadata_len])

    def one(number: int) -> int:
        values = said.get(number, [0])
        assert len(values) == 1
        return int(values[0])

    def triple(part: bytes) -> tuple[int, int, int]:
        fields = message(part)
        assert set(fields) <= {1, 2, 3}
        return tuple(fields.get(number, [0])[0] for number in (1, 2, 3))

    table_end = 16 + metadata_len + 20 * count
    assert is_padding(raw[table_end:index_len])
    seen = Seen(
        topic=said[1][0].decode(),
        topic_id=said[2][0].decode(),
        partition=one(3),
        base_offset=one(4),
        last_offset=one(5),
        length=one(6),
        open_from=said[10][0] if 10 in said else None,
        index_bytes=table_end,
        padded_index_bytes=index_len,
        points=[triple(part) for part in said.get(7, [])],
        epochs=[triple(part)[:2] for part in said.get(8, [])],
        aborted=[triple(part) for part in said.get(9, [])],
    )
    at = index_len
    for number in range(count):
        first_entry_id, part, offset = struct.unpack_from(">QIQ", raw, 16 + metadata_len + 20 * number)
        assert (part, offset) == (2 + number, at), "blocks lie one after the other"
        magic, block_len, entries, header_first = struct.unpack_from(">IIIQ", raw, at)
        assert magic == 0x48574231
        assert (header_first, first_entry_id) == (len(seen.entries), len(seen.entries))
        seen.blocks.append((first_entry_id, at, block_len))
        position = at + 20
        for _ in range(entries):
            (size,) = struct.unpack_from(">I", raw, position)
            seen.entries.append((position, raw[position + 4 : position + 4 + size]))
            position += 4 + size
        assert position <= at + block_len
        assert is_padding(raw[position : at + block_len])
        at += block_len
    assert at == len(raw)
    return seen
