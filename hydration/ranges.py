"""Finding whole batches in an open file by their headers, without reading what lies between them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from headwater_core.errors import CorruptData
from headwater_core.segments.batches import HEADER_BYTES, BatchHeader, read_batch_header

_WINDOW_BYTES = 32 << 10  # one read finds all headers of small batches in it, and costs little for a large one


class Readable(Protocol):
    """An open file, for reads by position; `where` names it in errors."""

    where: str

    def read(self, position: int, size_bytes: int) -> bytes: ...


class Boundary(NamedTuple):
    """A position where a batch begins or the last one ends; everything from there on has `offset` or a higher one."""

    position: int
    offset: int


class Range(NamedTuple):
    """Whole batches, and the offset to continue with."""

    position: int
    size_bytes: int
    next_offset: int


Headers = Callable[[int, int], Iterator[tuple[int, BatchHeader]]]
"""`headers` of one file."""


def headers(file: Readable, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch in file[start:end]; a torn one at the end is not there yet.

    Raises CorruptData for what cannot be a header or for offsets that do not rise. Checksums are not looked at.
    """
    window, window_start = b"", start
    position, last_offset = start, -1
    while position + HEADER_BYTES <= end:
        at = position - window_start
        if at + HEADER_BYTES > len(window):
            window, window_start, at = file.read(position, min(_WINDOW_BYTES, end - position)), position, 0
            if len(window) < HEADER_BYTES:
                return
        header = read_batch_header(window, at, where=file.where)
        following = position + header.size_bytes
        if following > end:
            return
        if header.base_offset <= last_offset:
            raise CorruptData(file.where, position, f"batch at offset {header.base_offset} follows offset {last_offset}")
        yield position, header
        position, last_offset = following, header.last_offset


def first_at(headers: Headers, offset: int, start: int, end: int) -> tuple[int, BatchHeader] | None:
    """The first batch between the positions `start` and `end` that reaches `offset`."""
    for position, header in headers(start, end):
        if header.last_offset >= offset:
            return position, header
    return None


def cut(
    headers: Headers,
    offset: int,
    *,
    start: Boundary,
    end: Boundary,
    max_bytes: int,
    boundary: Callable[[int, int], Boundary | None],
    walk: bool = True,
) -> Range | None:
    """About `max_bytes` from the batch that holds `offset`, or the next there is; None when there is none before `end`.

    start     a boundary at or before that batch, the nearer the better
    end       where the readable part of the file ends
    boundary  (position, most) -> a boundary after `position`, at most `most` bytes; None when none is known
    walk      find the end by headers where no boundary is known or the known one leaves too little, as for a small answer
              or a large batch; without it the answer is None where none is known

    At least one batch, however large; more than `max_bytes` only in that case.
    """
    position = start.position
    if position >= end.position:
        return None
    if start.offset != offset:
        found = first_at(headers, offset, position, end.position)
        if found is None:
            return None
        position = found[0]
    if end.position - position <= max_bytes:
        return Range(position, end.position - position, end.offset)
    cut_end = boundary(position, max_bytes)
    if cut_end is not None and (cut_end.position >= position + max_bytes // 2 or not walk):
        return Range(position, cut_end.position - position, cut_end.offset)
    if not walk:
        return None
    cut_end = _walked(headers, position, cut_end.position if cut_end is not None else position, end, max_bytes)
    return Range(position, cut_end.position - position, cut_end.offset)


def _walked(headers: Headers, start: int, known: int, end: Boundary, max_bytes: int) -> Boundary:
    """Where an answer from `start` on ends; `known` is a boundary at or after `start` to walk from."""
    for position, header in headers(known, end.position):
        if position + header.size_bytes - start > max_bytes and position > start:
            return Boundary(position, header.base_offset)
    return end
