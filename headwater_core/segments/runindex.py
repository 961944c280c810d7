"""The index of one run: what a reader must know before it fetches bytes (docs/formats/run-index.md)."""

import operator
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from awscrt.checksums import crc32c

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.batches import OFFSET_MAX
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction

POINT_SPACING_BYTES = 64 << 10
# What one index may hold, so that neither writing nor reading it can take more than some 50 MiB. A scan ends the run
# early where its index is full; only open transactions cannot be cut, and no broker holds that many.
POINTS_MAX = 1 << 20
ABORTED_MAX = 1 << 17
EPOCHS_MAX = 1 << 16
OPEN_MAX = 1 << 17
PRODUCERS_MAX = 1 << 16

MAGIC = b"HWRI"
MAJOR = 1
_HEAD = struct.Struct(">4sHHqqqIIIII")
_EPOCH = struct.Struct(">iq")
_ABORTED = struct.Struct(">qqqq")
_OPEN = struct.Struct(">qq")
_PRODUCER = struct.Struct(">qhiqiqiq")
_POINT_BYTES = 24
_CRC = struct.Struct(">I")
_WHERE = "run index"
NO_TIMESTAMP = -(2**63)


class Points(NamedTuple):
    """Three columns of equal length, one row per point: a batch that begins 64 KiB or more after the previous point.

    offsets         the batch's base offset, rising
    positions       where it begins, from the run's own start; the first is 0
    max_timestamps_ms  largest timestamp of user data in all batches before the point; -2**63 while there is none
    """

    offsets: "array[int]"
    positions: "array[int]"
    max_timestamps_ms: "array[int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """All that a run's .index object holds. Offsets are inclusive.

    epochs             where each leader epoch begins in this run; batches older than leader epochs have none
    aborted            transactions whose abort marker lies in this run, in marker order
    open_transactions  still open after the run's last batch, oldest first, no matter in which run they began
    producers          state of the producers seen in this run, as of its end; by producer id
    """

    base_offset: int
    last_offset: int
    size_bytes: int
    points: Points
    epochs: tuple[EpochStart, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()
    producers: tuple[ProducerState, ...] = ()

    @property
    def open_from(self) -> int | None:
        """First offset of the oldest transaction still open at the run's end."""
        return self.open_transactions[0].first_offset if self.open_transactions else None

    def open_at(self, offset: int) -> tuple[OpenTransaction, ...]:
        """Transactions begun before `offset`, which lies in the run or right after it, and not ended by then; oldest first.

        One that commits later in the run is missing: an index does not list it. It changes no answer, as its marker is
        after `offset` and no abort.
        """
        ended_later = (each for each in self.aborted if each.first_offset < offset <= each.last_offset)
        still = [OpenTransaction(each.producer_id, each.first_offset) for each in ended_later]
        still.extend(each for each in self.open_transactions if each.first_offset < offset)
        return tuple(sorted(still, key=lambda each: each.first_offset))

    def position_for_time(self, timestamp_ms: int) -> int:
        """Where to start looking for the first record at or after `timestamp_ms`: everything before it is older."""
        return self.points.positions[max(bisect_left(self.points.max_timestamps_ms, timestamp_ms) - 1, 0)]


def new_points() -> Points:
    """Columns without rows."""
    return Points(array("q"), array("q"), array("q"))


def encode_index(index: RunIndex) -> bytes:
    """The bytes of an .index object, its checksum at the end. Raises CorruptData for what decode_index would refuse."""
    counts = [len(each) for each in (index.points.offsets, index.epochs, index.aborted, index.open_transactions, index.producers)]
    _check_counts(counts, _WHERE)
    _check(index, _WHERE)
    parts = [
        _HEAD.pack(
            MAGIC,
            MAJOR,
            0,
            index.base_offset,
            index.last_offset,
            index.size_bytes,
            *counts,
        ),
        *(_column_bytes(column) for column in index.points),
        *(_EPOCH.pack(*each) for each in index.epochs),
        *(_ABORTED.pack(*each) for each in index.aborted),
        *(_OPEN.pack(*each) for each in index.open_transactions),
        *(_PRODUCER.pack(*each) for each in index.producers),
    ]
    body = b"".join(parts)
    return body + _CRC.pack(crc32c(body))


def decode_index(raw: bytes | bytearray | memoryview, *, where: str = _WHERE) -> RunIndex:
    """The index in `raw`, every value checked against the others.

    Raises UnsupportedFormat for an unknown major version, TruncatedData when bytes are missing, CorruptData otherwise.
    """
    view = memoryview(raw)
    if len(view) < _HEAD.size:
        raise TruncatedData(where, 0, f"{len(view)} bytes, a head takes {_HEAD.size}")
    magic, major, _, base, last, size_bytes, *counts = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise CorruptData(where, 0, f"magic {magic!r}")
    if major != MAJOR:
        raise UnsupportedFormat(f"{where} has format {major}; this version reads {MAJOR}")
    _check_counts(counts, where)
    points, epochs, aborted, opened, producers = counts
    sections = (points * _POINT_BYTES, epochs * _EPOCH.size, aborted * _ABORTED.size, opened * _OPEN.size, producers * _PRODUCER.size)
    expected = _HEAD.size + sum(sections) + _CRC.size
    if len(view) != expected:
        kind = TruncatedData if len(view) < expected else CorruptData
        raise kind(where, 0, f"{len(view)} bytes, its head says {expected}")
    body = view[: -_CRC.size]
    if crc32c(body) != _CRC.unpack_from(view, len(body))[0]:
        raise CorruptData(where, 0, "CRC mismatch")
    at = _HEAD.size
    columns = []
    for _ in range(3):
        columns.append(_column(body[at : at + points * 8]))
        at += points * 8
    tables = []
    for size in sections[1:]:
        tables.append(body[at : at + size])
        at += size
    index = RunIndex(
        base_offset=base,
        last_offset=last,
        size_bytes=size_bytes,
        points=Points(*columns),
        epochs=tuple(EpochStart(*row) for row in _EPOCH.iter_unpack(tables[0])),
        aborted=tuple(AbortedTransaction(*row) for row in _ABORTED.iter_unpack(tables[1])),
        open_transactions=tuple(OpenTransaction(*row) for row in _OPEN.iter_unpack(tables[2])),
        producers=tuple(ProducerState(*row) for row in _PRODUCER.iter_unpack(tables[3])),
    )
    return _check(index, where)


def _check_counts(counts: Sequence[int], where: str) -> None:
    for count, most in zip(counts, (POINTS_MAX, EPOCHS_MAX, ABORTED_MAX, OPEN_MAX, PRODUCERS_MAX), strict=True):
        if count > most:
            raise CorruptData(where, 0, f"{count} rows in a section of at most {most}")


def _check(index: RunIndex, where: str) -> RunIndex:
    """The checksum says the bytes are as written; this checks that they describe a run."""

    def bad(reason: str) -> CorruptData:
        return CorruptData(where, 0, reason)

    base, last, points = index.base_offset, index.last_offset, index.points
    if not 0 <= base <= last <= OFFSET_MAX or index.size_bytes <= 0:
        raise bad(f"offsets {base} to {last} in {index.size_bytes} bytes")
    if not points.offsets or points.offsets[0] != base or points.positions[0] != 0:
        raise bad("the first point is not the run's start")
    if not _rises(points.offsets) or not _rises(points.positions) or points.offsets[-1] > last or points.positions[-1] >= index.size_bytes:
        raise bad("points out of order")
    if not all(map(operator.le, points.max_timestamps_ms, points.max_timestamps_ms[1:])):
        raise bad("timestamps of points fall")
    if not _rises([epoch for epoch, _ in index.epochs]) or not _rises([first for _, first in index.epochs]):
        raise bad("leader epochs out of order")
    if any(epoch < 0 or not base <= first <= last for epoch, first in index.epochs):
        raise bad("leader epoch outside the run")
    if not _rises([each.last_offset for each in index.aborted]):
        raise bad("abort markers out of order")
    if any(not 0 <= each.first_offset < each.last_offset or not base <= each.last_offset <= last for each in index.aborted):
        raise bad("aborted transaction outside the run")
    if any(not 0 <= each.first_offset <= last for each in index.open_transactions) or not _rises(
        [each.first_offset for each in index.open_transactions]
    ):
        raise bad("open transactions out of order")
    return index


def _rises(values: Sequence[int]) -> bool:
    return all(map(operator.lt, values, values[1:]))


def _column_bytes(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        return column.tobytes()
    swapped = array("q", column)
    swapped.byteswap()
    return swapped.tobytes()


def _column(raw: memoryview) -> "array[int]":
    column = array("q")
    column.frombytes(raw)
    if sys.byteorder == "little":
        column.byteswap()
    return column
