"""What our layouts say of a run beside its bytes: a protobuf `SegmentMetadata` (docs/formats/blocks.md). Pure."""

import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData
from headwater_core.layouts.protobuf import bytes_field, content, fields, signed, varint_field
from headwater_core.partition import PartitionId
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index

POINT_BYTES = 1 << 20  # about so far apart are the points that everybody can read

_RUN_INDEX, _POSITIONS, _ENTRY_IDS = 1000, 1001, 1002  # fields of ours, which other readers pass over


class Point(NamedTuple):
    """A batch: its base offset, its entry id, and the position of its frame in the object."""

    offset: int
    entry_id: int
    position: int


class RunFacts(NamedTuple):
    """What the metadata says of the run. Both offsets are inclusive, and the manifest's: the first batch may begin later."""

    partition: PartitionId
    base_offset: int
    last_offset: int
    run_index: RunIndex


class RunFrames(NamedTuple):
    """The run's index, and of each of its points the position of its frame, from where blocks begin on, and its entry id where ids
    are not the ordinals in the run."""

    run_index: RunIndex
    positions: "array[int]"
    entry_ids: "array[int]"


def shown_points(positions: Sequence[int], end: int) -> list[int]:
    """Which of the run index's points the metadata shows: about POINT_BYTES apart, further only for a larger batch."""
    shown = [0]
    for at, following in enumerate((*positions[1:], end)):
        if at and following - positions[shown[-1]] > POINT_BYTES:
            shown.append(at)
    return shown


def encode_segment_metadata(facts: RunFacts, points: Sequence[Point], positions: Sequence[int], entry_ids: Sequence[int] = ()) -> bytes:
    """positions, entry_ids  as RunFrames has them"""
    partition, base_offset, last_offset, index = facts
    epochs = list(index.epochs)
    if not epochs or epochs[0].first_offset > index.base_offset:
        epochs.insert(0, EpochStart(-1, index.base_offset))  # batches from before leader epochs
    parts = [
        bytes_field(1, partition.topic.encode()),
        bytes_field(2, partition.topic_id.encode()),
        _number(3, partition.partition),
        _number(4, base_offset),
        _number(5, last_offset),
        _number(6, index.size_bytes),
        *(bytes_field(7, _numbers(*point)) for point in points),
        *(bytes_field(8, _numbers(*epoch)) for epoch in epochs),
        *(bytes_field(9, _numbers(each.producer_id, each.first_offset, each.last_offset)) for each in index.aborted),
    ]
    if index.open_from is not None:
        parts.append(varint_field(10, index.open_from))
    parts.append(bytes_field(_RUN_INDEX, encode_index(index)))
    parts.append(bytes_field(_POSITIONS, _column_bytes(positions)))
    if entry_ids:
        parts.append(bytes_field(_ENTRY_IDS, _column_bytes(entry_ids)))
    return b"".join(parts)


def decode_segment_metadata(metadata: memoryview, where: str) -> RunFrames:
    """Raises CorruptData for what describes no run."""
    index: RunIndex | None = None
    positions, entry_ids = array("q"), array("q")
    length = 0
    for number, value in fields(metadata, where):
        if number == 6:
            length = signed(value, where)
        elif number == _RUN_INDEX:
            index = decode_index(content(value, where), where=where)
        elif number == _POSITIONS:
            positions = _column(content(value, where))
        elif number == _ENTRY_IDS:
            entry_ids = _column(content(value, where))
    if index is None or len(positions) != len(index.points.offsets) or length != index.size_bytes:
        raise CorruptData(where, 0, f"metadata without the run's index, or of another run of {length} bytes")
    if entry_ids and len(entry_ids) != len(positions):
        raise CorruptData(where, 0, f"{len(entry_ids)} entry ids of {len(positions)} points")
    return RunFrames(index, positions, entry_ids)


def _numbers(*values: int) -> bytes:
    return b"".join(_number(number, value) for number, value in enumerate(values, 1))


def _number(number: int, value: int) -> bytes:
    return varint_field(number, value) if value else b""  # as proto3 leaves it out


def _column_bytes(values: Sequence[int]) -> bytes:
    column = array("q", values)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def _column(raw: memoryview) -> "array[int]":
    column = array("q")
    column.frombytes(raw[: len(raw) // column.itemsize * column.itemsize])
    if sys.byteorder == "little":
        column.byteswap()
    return column
