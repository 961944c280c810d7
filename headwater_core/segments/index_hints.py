"""Kafka's own .index and .timeindex files: where in a segment to begin to search. Hints, because nothing protects them: the
caller checks what it uses, or has reason to trust it.

Layout: docs/formats/kafka-log.md. Those of an active segment are preallocated and end in zeros.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_BY_OFFSET = struct.Struct(">Ii")  # last offset of the batch, relative to the segment's base; the batch's position
_BY_TIME = struct.Struct(">qI")  # largest timestamp so far; last offset of the batch it is in, relative


class Hint(NamedTuple):
    """An indexed batch."""

    last_offset: int
    position: int


class TimeHint(NamedTuple):
    """The largest timestamp up to a batch, and the last offset of the batch that it is in."""

    last_offset: int
    timestamp_ms: int


def hint_by_offset(path: Path, base_offset: int, offset: int) -> Hint | None:
    """The last indexed batch that ends at or before `offset`; None when the index has none."""
    found = _search(path, _BY_OFFSET, lambda at, last, position: _is_place(at, position) and last <= offset - base_offset)
    return Hint(base_offset + found[0], found[1]) if found is not None else None


def hint_by_position(path: Path, base_offset: int, position: int) -> Hint | None:
    """The last indexed batch that begins at or before byte `position`; None when the index has none."""
    found = _search(path, _BY_OFFSET, lambda at, _, begins: _is_place(at, begins) and begins <= position)
    return Hint(base_offset + found[0], found[1]) if found is not None else None


def hint_by_time(path: Path, base_offset: int, timestamp_ms: int) -> int | None:
    """An offset up to which everything is older than `timestamp_ms`, the last one that a sealed segment's .timeindex names."""
    found = _search(path, _BY_TIME, lambda _, newest, __: newest < timestamp_ms)
    return base_offset + found[1] if found is not None else None


def largest_timestamp(path: Path, base_offset: int) -> TimeHint | None:
    """Of all batches in a sealed segment, by the last entry of its .timeindex."""
    found = _search(path, _BY_TIME, lambda *_: True)
    return TimeHint(base_offset + found[1], found[0]) if found is not None else None


def _is_place(at: int, position: int) -> bool:
    return position > 0 or (position == 0 and at == 0)


def _search(path: Path, entry: struct.Struct, is_before: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
    """The last entry for which `is_before`, called with its number and its fields, holds; None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        low, high = 0, os.fstat(fd).st_size // entry.size
        found = None
        while low < high:
            middle = (low + high) // 2
            raw = os.pread(fd, entry.size, middle * entry.size)
            if len(raw) < entry.size:
                high = middle
                continue
            first, second = entry.unpack(raw)
            if is_before(middle, first, second):
                found = (first, second)
                low = middle + 1
            else:
                high = middle
        return found
    except OSError:
        return None
    finally:
        os.close(fd)
