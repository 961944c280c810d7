"""Ledgers as Apache Pulsar's offloader writes them: a data object `<uuid>-ledger-<id>` and its `-index` (docs/formats/pulsar-ledger.md).

What its writer gets wrong is survived: an entry that it lost is an error that names it, never padding and never a loop.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.layouts.object_window import WINDOW_BYTES, ObjectWindow
from headwater_core.layouts.protobuf import content, fields, signed
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore

VERSION_NAME, VERSION = "s3managedledgeroffloaderformatversion", "1"
_INDEX_MAGIC, _BLOCK_MAGIC = bytes.fromhex("DE47DE47"), bytes.fromhex("FBDBABCB")
_INDEX_HEADER = struct.Struct(">4sIQQII")  # magic, index bytes, data bytes, block header bytes, blocks, metadata bytes
_INDEX_ENTRY = struct.Struct(">QIQ")
_BLOCK_HEADER = struct.Struct(">4sQQQ")  # magic, header bytes, block bytes, first entry id; zeros follow
_FRAME = struct.Struct(">iQ")  # entry bytes, entry id
_PAD = bytes.fromhex("FEDCDEAD")
_HEADER_BYTES_MAX = 4096
_ENTRY_BYTES_MAX = 256 << 20  # of an entry that is held at once: Pulsar's own limit is 5 MiB, and few raise it
_KEY = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-ledger-([0-9]{1,19})(-index)?")


class LedgerKey(NamedTuple):
    """What the key of one of its objects says."""

    uuid: str
    ledger_id: int
    is_index: bool


def parse_ledger_key(key: str) -> LedgerKey | None:
    """The parts of a key's last component; None for anything else."""
    found = _KEY.fullmatch(key.rpartition("/")[2])
    return LedgerKey(found[1], int(found[2]), bool(found[3])) if found else None


class LedgerBlock(NamedTuple):
    """One block. position: of its header in the data object."""

    first_entry_id: int
    position: int


class LedgerIndex(NamedTuple):
    """What the index object says.

    header_bytes   of each block
    length         of all entries, without frames
    last_entry_id  that the ledger had when it was offloaded: the data may end earlier
    made_ms        when the ledger was made; 0 when that is not said
    custom         metadata that Pulsar gave it
    """

    blocks: tuple[LedgerBlock, ...]
    header_bytes: int
    length: int
    last_entry_id: int
    made_ms: int
    custom: Mapping[str, bytes]


class LedgerEntry(NamedTuple):
    entry_id: int
    content: bytes


def decode_ledger_index(raw: bytes | memoryview, where: str) -> LedgerIndex:
    """Raises UnsupportedFormat for another kind of index, TruncatedData, CorruptData."""
    view = memoryview(raw)
    if len(view) < _INDEX_HEADER.size:
        raise TruncatedData(where, 0, f"{len(view)} bytes, a header takes {_INDEX_HEADER.size}")
    magic, index_bytes, _, header_bytes, count, metadata_bytes = _INDEX_HEADER.unpack_from(view)
    if magic != _INDEX_MAGIC:
        raise UnsupportedFormat(f"{where} is no index of a ledger: magic {magic.hex()}")
    end = _INDEX_HEADER.size + metadata_bytes
    if index_bytes != len(view) or end + count * _INDEX_ENTRY.size != len(view):
        kind = TruncatedData if index_bytes > len(view) else CorruptData
        raise kind(where, 0, f"{len(view)} bytes, its header says {index_bytes} for {count} blocks and {metadata_bytes} of metadata")
    if not _BLOCK_HEADER.size <= header_bytes <= _HEADER_BYTES_MAX:
        raise CorruptData(where, 16, f"block headers of {header_bytes} bytes")
    blocks = tuple(LedgerBlock(first, position) for first, _, position in _INDEX_ENTRY.iter_unpack(view[end:]))
    if blocks and blocks[0] != (0, 0):
        raise CorruptData(where, end, f"the first block has entry {blocks[0].first_entry_id} at byte {blocks[0].position}")
    for before, after in pairwise(blocks):
        if after.first_entry_id < before.first_entry_id or after.position < before.position + header_bytes:
            raise CorruptData(where, end, f"block from entry {after.first_entry_id} at byte {after.position} out of order")
    return _with_metadata(view[_INDEX_HEADER.size : end], blocks, header_bytes, where)


def _with_metadata(metadata: memoryview, blocks: tuple[LedgerBlock, ...], header_bytes: int, where: str) -> LedgerIndex:
    """BookKeeper's LedgerMetadataFormat, as far as it says something of the entries."""
    length, last_entry_id, made_ms = 0, -1, 0
    custom: dict[str, bytes] = {}
    for number, value in fields(metadata, where):
        if number == 3:
            length = signed(value, where)
        elif number == 4:
            last_entry_id = signed(value, where)
        elif number == 10:
            made_ms = signed(value, where)
        elif number == 11:
            pair = dict(fields(content(value, where), where))
            custom[bytes(content(pair.get(1, memoryview(b"")), where)).decode(errors="replace")] = bytes(
                content(pair.get(2, memoryview(b"")), where)
            )
    return LedgerIndex(blocks, header_bytes, length, last_entry_id, made_ms, custom)


class PulsarLedger:
    """One offloaded ledger of a store. Entry ids count from 0."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        """key: of the data object. Reads its index. Raises NotFound, CorruptData; UnsupportedFormat for another version."""
        self._store, self._key = store, key
        raw, _ = store.get(f"{key}-index", max_bytes=DOCUMENT_BYTES_MAX)
        self._check_version(f"{key}-index")
        self.index = decode_ledger_index(raw, f"{key}-index")

    def entries(self, first: int = 0) -> Iterator[LedgerEntry]:
        """The entries from id `first` on, in order, at most one window and one entry in memory.

        Raises CorruptData for one that the ledger had and the object has not, after what is there; NotFound, and what the store raises.
        """
        index, expected = self.index, max(first, 0)
        if expected > index.last_entry_id:
            return
        at = bisect_right(index.blocks, expected, key=lambda block: block.first_entry_id) - 1
        for number in range(max(at, 0), len(index.blocks)):
            if index.blocks[number].first_entry_id > expected:
                break
            for entry in self._block(number):
                if entry.entry_id == expected:
                    yield entry
                    expected += 1
                if expected > index.last_entry_id:
                    return
        raise CorruptData(
            self._key, 0, f"entry {expected} is missing from the offloaded data, of a ledger that had entries up to {index.last_entry_id}"
        )

    def read(self, entry_id: int) -> bytes:
        """One entry. Raises CorruptData when it is not there."""
        found = next(self.entries(entry_id), None)
        if entry_id < 0 or found is None:
            raise CorruptData(self._key, 0, f"entry {entry_id} of a ledger with entries up to {self.index.last_entry_id}")
        return found.content

    def _block(self, number: int) -> Iterator[LedgerEntry]:
        """All entries of one block, whose header and padding are held against the format."""
        block = self.index.blocks[number]
        header = memoryview(bytearray(self.index.header_bytes))
        self._store.read_into(self._key, header, start=block.position)
        magic, header_bytes, size_bytes, first_entry_id = _BLOCK_HEADER.unpack_from(header)
        said = (magic, header_bytes, first_entry_id)
        if said != (_BLOCK_MAGIC, self.index.header_bytes, block.first_entry_id) or size_bytes < header_bytes:
            raise CorruptData(self._key, block.position, f"no header of a block from entry {block.first_entry_id} on")
        if number + 1 < len(self.index.blocks) and block.position + size_bytes != self.index.blocks[number + 1].position:
            raise CorruptData(self._key, block.position, f"a block of {size_bytes} bytes; the index has the next one elsewhere")
        end = block.position + size_bytes
        window = ObjectWindow(self._store, self._key, block.position + header_bytes, end)
        expected = first_entry_id
        while window.position < end:
            left = end - window.position
            entry_bytes, entry_id = _FRAME.unpack(window.peek(_FRAME.size)) if left >= _FRAME.size else (-1, -1)
            if entry_bytes < 0:
                self._check_padding(window, left)
                return
            if entry_id != expected or entry_bytes > min(left - _FRAME.size, _ENTRY_BYTES_MAX):
                raise CorruptData(self._key, window.position, f"entry {entry_id} of {entry_bytes} bytes where {expected} belongs")
            window.take(_FRAME.size)
            yield LedgerEntry(entry_id, window.take(entry_bytes))
            expected += 1

    def _check_padding(self, window: ObjectWindow, size_bytes: int) -> None:
        begun = window.position
        while window.position < begun + size_bytes:
            at = window.position
            piece = window.take(min(WINDOW_BYTES, begun + size_bytes - at))
            if piece != (_PAD * (len(piece) // 4 + 1))[: len(piece)]:  # a window is a multiple of it
                raise CorruptData(self._key, at, "neither an entry nor padding")

    def _check_version(self, key: str) -> None:
        """As Pulsar does with each GET; a copy that has lost its user metadata is judged by its magic words alone."""
        version = self._store.read_into(key, memoryview(bytearray(1)), start=0).get(VERSION_NAME, VERSION)
        if version != VERSION:
            raise UnsupportedFormat(f"{key} is of version {version[:40]!r} of Pulsar's offload format; this version reads {VERSION}")
