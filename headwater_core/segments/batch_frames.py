"""Batches in a row: how long each is, and each behind a frame, as layouts store them. Compiled code where it was built."""

import struct
from array import array

from headwater_core.segments import stretch
from headwater_core.segments.batches import LENGTH_FROM, LENGTH_MIN

FRAME = struct.Struct(">I")  # bytes of the batch that follows
ID_FRAME = struct.Struct(">iQ")  # the same, and its id
_LENGTH_MAX = 2**31 - 1
_LENGTH = struct.Struct(">8xi")  # of a batch, what follows it


def lengths_of(run: memoryview, at: int, end: int, lengths: "array[int]") -> tuple[int, int]:
    """As stretch.batch_lengths."""
    if stretch.batch_lengths is not None:
        return stretch.batch_lengths(run, at, end, lengths)
    found = 0
    while at + LENGTH_FROM <= end and found < len(lengths):
        length = LENGTH_FROM + _LENGTH.unpack_from(run, at)[0]
        if not LENGTH_FROM + LENGTH_MIN <= length <= _LENGTH_MAX:
            break
        lengths[found] = length
        found, at = found + 1, at + length
    return at, found


def framed_bytes_max(run_bytes: int) -> int:
    """How long so many bytes of a run can become with frames."""
    return run_bytes + FRAME.size * (run_bytes // (LENGTH_FROM + LENGTH_MIN) + 1)


def put_framed(run: memoryview, lead: int, lengths: "array[int]", into: memoryview) -> int:
    """Put `run`, of which `lead` bytes continue a batch, into `into`, with a FRAME before each batch; how many bytes these are."""
    if stretch.put_frames is not None:
        return stretch.put_frames(run, lead, lengths, into)
    into[:lead] = run[:lead]
    at = filled = lead
    for length in lengths:
        here = min(length, len(run) - at)  # the last one may reach further
        into[filled : filled + FRAME.size] = FRAME.pack(length)
        into[filled + FRAME.size : filled + FRAME.size + here] = run[at : at + here]
        at, filled = at + here, filled + FRAME.size + here
    return filled


def put_id_framed(run: memoryview, lengths: "array[int]", first_id: int, into: memoryview) -> int:
    """Fill `into` with the batches of `run`, each behind an ID_FRAME; how many bytes these are. Ids count up from `first_id`."""
    if stretch.put_id_frames is not None:
        return stretch.put_id_frames(run, 0, lengths, into, first_id)
    at = filled = 0
    for number, length in enumerate(lengths):
        into[filled : filled + ID_FRAME.size] = ID_FRAME.pack(length, first_id + number)
        into[filled + ID_FRAME.size : filled + ID_FRAME.size + length] = run[at : at + length]
        at, filled = at + length, filled + ID_FRAME.size + length
    return filled
