"""Streaming objects as Apache Pulsar's own code writes them (docs/formats/streaming.md): `<uuid>` and `<uuid>-index`.

Its writer counts wrong, so nothing but frames is believed: a block is where the index says, if its header is there; else where the frames
or the padding of the one before it end. Every step goes forward in the object, whatever it holds.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.layouts.object_window import ObjectWindow
from headwater_core.layouts.pulsar_ledger import LedgerEntry
from headwater_core.layouts.streaming.stream_format import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    PULSAR_VERSION,
    PULSAR_VERSION_NAME,
    StreamBlock,
    decode_stream_index,
)
from headwater_core.objectstore.store import ObjectStore

_FRAME = struct.Struct(">iQ")
_PADDING = bytes.fromhex("FEDCDEAD") * 1024
_ENTRY_BYTES_MAX = 256 << 20  # of an entry that is held at once


class Repair(NamedTuple):
    """A block that was not where the index has it."""

    block: StreamBlock
    found_position: int


class MissingEntries(NamedTuple):
    """Both are missing, and all between them."""

    first_entry_id: int
    last_entry_id: int


class PulsarStream:
    """One streaming object of a store.

    index     as it is; it may be wrong
    blocks    where they are
    repairs   of those that are not where the index has them
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        """key: of the data object. Reads its index, and as much of the data as it takes to find each block. Raises NotFound, CorruptData;
        UnsupportedFormat for another version."""
        self._store, self._key = store, key
        raw, _ = store.get(f"{key}-index")
        version = store.read_into(f"{key}-index", memoryview(bytearray(1)), start=0).get(PULSAR_VERSION_NAME, PULSAR_VERSION)
        if version != PULSAR_VERSION:
            raise UnsupportedFormat(f"{key} is of version {version[:40]!r} of Pulsar's offload format; this version reads {PULSAR_VERSION}")
        self.index = decode_stream_index(raw, f"{key}-index")
        self._size_bytes = store.stat(key).size_bytes  # the index may say less
        self.repairs: list[Repair] = []
        self.blocks = self._find_blocks()

    def entries(self, ledger_id: int) -> Iterator[LedgerEntry]:
        """What there is of a ledger, in order. Raises CorruptData for frames that are none."""
        for at, block in enumerate(self.blocks):
            if block.ledger_id == ledger_id:
                end = self.blocks[at + 1].position if at + 1 < len(self.blocks) else self._size_bytes
                yield from self._walk(block, end)

    def missing(self, ledger_id: int) -> list[MissingEntries]:
        """What lies between entries that are there, and, of a ledger that was open, after the last one: the writer has lost it."""
        found, expected = list[MissingEntries](), -1
        for entry in self.entries(ledger_id):
            if 0 <= expected < entry.entry_id:
                found.append(MissingEntries(expected, entry.entry_id - 1))
            expected = entry.entry_id + 1
        counted = next((info.entries for info in self.index.ledgers if info.ledger_id == ledger_id and info.size_bytes is None), 0)
        if 0 <= expected < counted:
            found.append(MissingEntries(expected, counted - 1))
        return found

    def _find_blocks(self) -> tuple[StreamBlock, ...]:
        found: list[StreamBlock] = []
        for block in self.index.blocks:
            position = block.position
            if not self._is_header(block, position):
                position = self._end_of(found[-1]) if found else 0
                if not self._is_header(block, position):
                    raise CorruptData(self._key, position, f"no block from entry {block.first_entry_id} of ledger {block.ledger_id} on")
                self.repairs.append(Repair(block, position))
            if found and position <= found[-1].position:
                raise CorruptData(self._key, position, "blocks out of order")
            found.append(block._replace(position=position))
        return tuple(found)

    def _is_header(self, block: StreamBlock, position: int) -> bool:
        if position + self.index.header_bytes > self._size_bytes:
            return False
        header = memoryview(bytearray(BLOCK_HEADER.size))
        self._store.read_into(self._key, header, start=position)
        magic, header_bytes, _, first_entry_id, ledger_id = BLOCK_HEADER.unpack(header)
        wanted = (BLOCK_MAGIC, self.index.header_bytes, block.first_entry_id, block.ledger_id)
        return bool((magic, header_bytes, first_entry_id, ledger_id) == wanted)

    def _end_of(self, block: StreamBlock) -> int:
        """Where its frames, and its padding, end."""
        window = self._window(block, self._size_bytes)
        for _ in self._frames(block, window, self._size_bytes):
            pass
        return window.position

    def _walk(self, block: StreamBlock, end: int) -> Iterator[LedgerEntry]:
        window = self._window(block, end)
        yield from self._frames(block, window, end)
        if window.position != end:
            raise CorruptData(self._key, window.position, "neither an entry nor padding")

    def _window(self, block: StreamBlock, end: int) -> ObjectWindow:
        return ObjectWindow(self._store, self._key, block.position + self.index.header_bytes, end)

    def _frames(self, block: StreamBlock, window: ObjectWindow, end: int) -> Iterator[LedgerEntry]:
        """Entries, and what padding follows them, up to `end` or the next block's header, where the window is then."""
        expected = block.first_entry_id
        while window.position < end:
            left = end - window.position
            begins = bytes(window.peek(min(left, 4)))
            if begins[:1] == _PADDING[:1]:
                self._pass_padding(window, end)
                return
            if begins == BLOCK_MAGIC:
                return
            entry_bytes, entry_id = _FRAME.unpack(window.peek(_FRAME.size)) if left >= _FRAME.size else (-1, -1)
            if entry_id != expected or not 0 <= entry_bytes <= min(left - _FRAME.size, _ENTRY_BYTES_MAX):
                raise CorruptData(self._key, window.position, f"entry {entry_id} of {entry_bytes} bytes where {expected} belongs")
            window.take(_FRAME.size)
            yield LedgerEntry(entry_id, window.take(entry_bytes))
            expected += 1

    def _pass_padding(self, window: ObjectWindow, end: int) -> None:
        while window.position < end:
            piece = bytes(window.peek(min(len(_PADDING), end - window.position)))
            if piece != _PADDING[: len(piece)]:
                window.take(next(at for at, byte in enumerate(piece) if byte != _PADDING[at]))
                return
            window.take(len(piece))


def entries_of(streams: Sequence[PulsarStream], ledger_id: int) -> Iterator[LedgerEntry]:
    """The entries of a ledger that lies in several objects, in order. Raises CorruptData as their walks do."""
    parts = [
        (block.first_entry_id, stream)
        for stream in streams
        if (block := next((each for each in stream.blocks if each.ledger_id == ledger_id), None)) is not None
    ]
    for _, stream in sorted(parts, key=lambda part: part[0]):
        yield from stream.entries(ledger_id)
