"""The files beside a segment, written as a broker writes them; the product only reads them."""

import struct
from collections.abc import Iterable

from awscrt.checksums import crc32c

from headwater_core.segments.producers import ProducerState
from headwater_core.segments.transactions import AbortedTransaction

_HEAD = struct.Struct(">hI")  # version, CRC-32C of what follows
_PRODUCER = struct.Struct(">qhiqiqiq")
_ABORTED = struct.Struct(">hqqqq")


def encode_snapshot(producers: Iterable[ProducerState]) -> bytes:
    """A .snapshot file."""
    rows = [_PRODUCER.pack(*producer) for producer in producers]
    covered = struct.pack(">i", len(rows)) + b"".join(rows)
    return _HEAD.pack(1, crc32c(covered)) + covered


def encode_txnindex(aborted: tuple[AbortedTransaction, ...]) -> bytes:
    """A .txnindex file."""
    return b"".join(_ABORTED.pack(0, *each) for each in aborted)
