"""A reader of streaming objects written from docs/formats/streaming.md alone: it shares no code with what it checks. All bytes count."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


@dataclass
class Group:
    """A ledger. blocks: (first entry id, number, position)."""

    entries: int
    size_bytes: int | None
    closed_ms: int | None
    end_entry_id: int
    uuid_bytes: bytes
    driver: dict[str, str]
    assigned_ms: int
    offloaded_ms: int
    blocks: list[tuple[int, int, int]]


@dataclass
class Seen:
    """What the objects say. entries: (ledger, entry, position of the frame, bytes)."""

    fence: int | None
    segment: dict[int, list[Any]]
    groups: dict[int, Group] = field(default_factory=dict)
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)  # ledger, first entry, position, length
    entries: list[tuple[int, int, int, bytes]] = field(default_factory=list)

    @property
    def points(self) -> list[tuple[int, int, int]]:
        return [tuple(message(part).get(number, [0])[0] for number in (1, 2, 3)) for part in self.segment.get(7, [])]


def read_objects(data: bytes, index: bytes, index_metadata: Mapping[str, str], meta: bytes | None) -> Seen:
    """meta: the object `<uuid>-meta`, when there is one."""
    assert index_metadata["headwater-streaming-version"] == "1"
    said = index_metadata.get("headwater-segment")
    raw_segment = base64.b64decode(said) if said is not None else meta
    assert raw_segment is not None
    assert meta in (None, raw_segment)
    fence = index_metadata.get("headwater-fence")
    seen = Seen(None if fence is None else int(fence), message(raw_segment))

    magic, index_len, data_len, header_len = struct.unpack_from(">4sIQQ", index)
    assert (magic, index_len, data_len, header_len) == (bytes.fromhex("3D1FB0BC"), len(index), len(data), 128)
    at = 24
    while at < index_len:
        ledger_id, count, metadata_len = struct.unpack_from(">QII", index, at)
        info = message(index[at + 16 : at + 16 + metadata_len])
        assert info[1] == [ledger_id]
        [context] = info[5]
        [segment] = message(context)[7]
        said_of_it = message(segment)
        assert said_of_it[3] == [1]
        driver = message(said_of_it[7][0])
        pairs = [message(pair) for pair in driver.get(2, [])]
        at += 16 + metadata_len
        seen.groups[ledger_id] = Group(
            info[2][0],
            info.get(3, [None])[0],
            info.get(4, [None])[0],
            said_of_it[6][0],
            struct.pack(">qq", said_of_it[1][0], said_of_it[2][0]),
            {pair[1][0].decode(): pair[2][0].decode() for pair in pairs},
            said_of_it.get(4, [0])[0],
            said_of_it.get(5, [0])[0],
            [struct.unpack_from(">QIQ", index, at + 20 * number) for number in range(count)],
        )
        at += 20 * count
    assert at == index_len

    listed = {(ledger_id, first): position for ledger_id, group in seen.groups.items() for first, _, position in group.blocks}
    assert all([number for _, number, _ in group.blocks] == list(range(1, len(group.blocks) + 1)) for group in seen.groups.values())
    at = 0
    expected: dict[int, int] = {}
    while at < data_len:
        magic, header, block_len, first, ledger_id = struct.unpack_from(">4sQQQQ", data, at)
        assert (magic, header) == (bytes.fromhex("26A66D32"), 128)
        assert data[at + 36 : at + 128] == bytes(92)
        assert listed.pop((ledger_id, first)) == at
        assert expected.setdefault(ledger_id, first) == first
        seen.blocks.append((ledger_id, first, at, block_len))
        position, end = at + 128, at + block_len
        while position < end:
            size, entry_id = struct.unpack_from(">iQ", data, position)
            assert entry_id == expected[ledger_id]
            seen.entries.append((ledger_id, entry_id, position, data[position + 12 : position + 12 + size]))
            expected[ledger_id] += 1
            position += 12 + size
        assert position == end
        at = end
    assert at == data_len
    assert listed == {}
    for ledger_id, group in seen.groups.items():
        assert expected[ledger_id] == group.end_entry_id + 1
        assert group.entries == group.end_entry_id + 1 if group.size_bytes is None else group.entries > group.end_entry_id
    return seen
