"""Kafka's own .index files: where in a segment to begin looking. Hints, because nothing protects them; whoever uses one checks it.

Layout: docs/formats/kafka-log.md. An active segment's index is preallocated and ends in zeros.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

_ENTRY = struct.Struct(">Ii")  # last offset of the batch, relative to the segment's base; the batch's position


def hint_by_offset(path: Path, base_offset: int, offset: int) -> tuple[int, int] | None:
    """(last offset, position) of the last indexed batch that ends at or before `offset`; None when the index has none."""
    return _search(path, base_offset, lambda last, _: last <= offset - base_offset)


def hint_by_position(path: Path, base_offset: int, position: int) -> tuple[int, int] | None:
    """(last offset, position) of the last indexed batch that begins at or before `position`."""
    return _search(path, base_offset, lambda _, at: at <= position)


def _search(path: Path, base_offset: int, is_before: Callable[[int, int], bool]) -> tuple[int, int] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        low, high = 0, os.fstat(fd).st_size // _ENTRY.size
        found = None
        while low < high:
            middle = (low + high) // 2
            raw = os.pread(fd, _ENTRY.size, middle * _ENTRY.size)
            if len(raw) < _ENTRY.size:
                high = middle
                continue
            last, position = _ENTRY.unpack(raw)
            if (position > 0 or (position == 0 and middle == 0)) and is_before(last, position):
                found = (base_offset + last, position)
                low = middle + 1
            else:
                high = middle
        return found
    except OSError:
        return None
    finally:
        os.close(fd)
