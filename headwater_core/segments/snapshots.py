"""Producer state files: NNN.snapshot beside a segment says what the broker knew of producers right before offset NNN."""

import struct
from collections.abc import Iterable

from awscrt.checksums import crc32c

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.transactions import OpenTransaction

_HEAD = struct.Struct(">hI")  # version, CRC-32C of everything after it
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1


def decode_snapshot(raw: bytes | bytearray | memoryview, *, where: str) -> tuple[ProducerState, ...]:
    """The producers in one .snapshot file.

    Raises TruncatedData, CorruptData, UnsupportedFormat for a version other than 1.
    Source: Kafka's ProducerStateManager; checked against files of Kafka 4.3.
    """
    view = memoryview(raw)
    if len(view) < _HEAD.size + _COUNT.size:
        raise TruncatedData(where, 0, f"{len(view)} bytes, an empty snapshot takes {_HEAD.size + _COUNT.size}")
    version, crc = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise UnsupportedFormat(f"{where} has version {version}; this version reads {_VERSION}")
    if crc32c(view[_HEAD.size :]) != crc:
        raise CorruptData(where, 0, "CRC mismatch")
    (count,) = _COUNT.unpack_from(view, _HEAD.size)
    entries = view[_HEAD.size + _COUNT.size :]
    if count < 0 or len(entries) != count * _ENTRY.size:
        raise CorruptData(where, _HEAD.size, f"{count} producers in {len(entries)} bytes")
    return tuple(ProducerState(*row) for row in _ENTRY.iter_unpack(entries))


def open_transactions(producers: Iterable[ProducerState]) -> tuple[OpenTransaction, ...]:
    """Those open at the snapshot's offset, oldest first: where a scan starts that has no archive to continue from."""
    found = [OpenTransaction(each.producer_id, each.open_from) for each in producers if each.open_from >= 0]
    return tuple(sorted(found, key=lambda each: each.first_offset))
