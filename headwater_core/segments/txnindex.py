"""Aborted transactions as brokers list them: NNN.txnindex beside a segment names those whose ABORT marker lies in it."""

import struct

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.transactions import AbortedTransaction

_ENTRY = struct.Struct(">hqqqq")  # version, producer id, first offset, the marker's offset, last stable offset right after it
_VERSION = 0


def decode_txnindex(raw: bytes | memoryview, base_offset: int, next_offset: int, *, where: str) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions in one .txnindex file, in marker order.

    base_offset, next_offset   of the segment: its markers lie in there

    The file has no checksum. What the places and the order of markers imply is checked: each lies in the segment and after
    the one before, a last stable offset never falls and is not past its marker, and no transaction begins before the last stable
    offset of the entry before it, when it was open already. Raises TruncatedData, CorruptData, UnsupportedFormat.
    """
    if len(raw) % _ENTRY.size:
        raise TruncatedData(where, len(raw) - len(raw) % _ENTRY.size, f"an entry takes {_ENTRY.size} bytes")
    found: list[AbortedTransaction] = []
    last, stable = base_offset - 1, 0
    for at, (version, *fields) in enumerate(_ENTRY.iter_unpack(raw)):
        if version != _VERSION:
            raise UnsupportedFormat(f"{where} has version {version}; this version reads {_VERSION}")
        each = AbortedTransaction(*fields)
        if not (
            each.producer_id >= 0
            and last < each.last_offset < next_offset
            and stable <= each.first_offset < each.last_offset
            and stable <= each.last_stable_offset <= each.last_offset + 1
        ):
            raise CorruptData(where, at * _ENTRY.size, f"{each} cannot follow marker {last} and last stable offset {stable}")
        last, stable = each.last_offset, each.last_stable_offset
        found.append(each)
    return tuple(found)
