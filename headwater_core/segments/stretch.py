"""Stretches of plain batches, and whole segments, passed by compiled code where it was built; without it all is done by the reference in
`batch_walk`.

A batch is plain when it is sound, no control batch, and in the leader epoch of the batch before it.
"""

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import headwater_core.segments.compiled_walk as compiled
except ModuleNotFoundError:  # no compiler at installation; one that is there and cannot be loaded is an error
    _IS_COMPILED = False
else:
    _IS_COMPILED = getattr(compiled, "VERSION", 1) == 5  # else it was built from an older source

__all__ = [
    "NO_END_OFFSET",
    "PassedSegment",
    "SegmentPass",
    "Stretch",
    "batch_lengths",
    "pass_batches",
    "put_frames",
    "put_id_frames",
    "take_frames",
    "take_id_frames",
]

NO_END_OFFSET = 2**63 - 1  # after every offset


class Stretch(NamedTuple):
    """What was passed: whole batches of a buffer, one after the other, up to `at`.

    at           where in the buffer the first batch begins that was not passed
    last_offset  of the last that was passed; as it was given when there was none, `epoch` likewise
    records      of users, as batch headers count them; 0 without `collect`, and what follows is empty then, but for `batches`
    offsets      how many offsets hold a record of any kind
    earliest_ms, latest_ms  smallest and largest time of user data; 2**63 - 1 and -2**63 for none
    first_gap    first offset that no batch covers; -1 for none
    producers    (producer id, where its last batch begins, base offset of its first transactional batch or -1)
    batches      how many were passed
    """

    at: int
    last_offset: int
    epoch: int
    records: int
    offsets: int
    earliest_ms: int
    latest_ms: int
    first_gap: int
    producers: tuple[tuple[int, int, int], ...]
    batches: int


class PassedSegment(NamedTuple):
    """What has passed of a segment: whole, sound batches up to `position`, and Kafka's indexes of them.

    first_offset, last_offset  -1 when no batch has
    last_position  where the last batch begins
    records        of users, as batch headers count them
    epochs         leader epochs in order, each once
    offset_index, time_index  the last entry of the time index included; see recovery.indexes, the reference
    """

    position: int
    first_offset: int
    last_offset: int
    last_position: int
    records: int
    epochs: tuple[int, ...]
    offset_index: bytes
    time_index: bytes


SegmentPass = compiled.SegmentPass if _IS_COMPILED else None
"""(base offset, index.interval.bytes) -> a pass over all batches of one segment, of which the bytes come in pieces: `update` takes the
next one, and returns False when something in it is not sound, lies below the base offset or has one leader epoch more than 256: then the
reference finds out what. `finish` returns the fields of a PassedSegment, or None after that. `update` does not hold the interpreter; one
thread at a time.
"""
pass_batches: Callable[..., tuple[Any, ...]] | None = compiled.pass_batches if _IS_COMPILED else None
"""(buffer, at, end, point, end offset, last offset and leader epoch before, collect) -> the fields of a Stretch: the batches of
buffer[at:end] that begin before `point` and end before the end offset. With `collect` plain ones only; without, all sound ones.
The interpreter is not held meanwhile.
"""

take_frames: Callable[[memoryview, int, int, memoryview], tuple[int, int, int]] | None = compiled.take_frames if _IS_COMPILED else None
"""(frames, at, end, run) -> (where the first frame begins that was not taken, bytes of `run` that were filled, how many batches these
are): whole batches out of frames[at:end], as far as they fit and each frame is as long as its batch says. The interpreter is not held
meanwhile.
"""
batch_lengths: "Callable[[memoryview, int, int, array[int]], tuple[int, int]] | None" = compiled.batch_lengths if _IS_COMPILED else None
"""(run, at, end, lengths) -> (where it ended, how many lengths): of the batches that begin in run[at:end] with their length there. It ends
after the last of them, which may reach further, or before what is too short for a batch.
"""
put_frames: "Callable[[memoryview, int, array[int], memoryview], int] | None" = compiled.put_frames if _IS_COMPILED else None
"""(run, lead, lengths, frames) -> how many bytes of `frames` were filled: all of `run`, of which `lead` bytes continue a batch, with a
frame before each batch. Raises ValueError for lengths that are not of these bytes.
"""
put_id_frames: "Callable[[memoryview, int, array[int], memoryview, int], int] | None" = compiled.put_id_frames if _IS_COMPILED else None
"""As put_frames, with ids in the frames that count up from the last argument."""
take_id_frames: Callable[[memoryview, int, int, memoryview, int], tuple[int, int, int]] | None = (
    compiled.take_id_frames if _IS_COMPILED else None
)
"""As take_frames, for frames with ids that count up from the last argument: it ends before another id."""
