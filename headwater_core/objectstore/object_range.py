"""Ranges of objects, one after the other: how they are cut into the parts of a copy, and how they are read where a store cannot copy."""

import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, cast

from headwater_core.errors import CorruptData
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectRange, ObjectStore, Pace, at_once

_WINDOW_BYTES = 1 << 20


class CopyPart(NamedTuple):
    """One part of a copy. Of several ranges, or of less than a part may have: its bytes have to be sent."""

    ranges: tuple[ObjectRange, ...]
    is_sent: bool

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.ranges)


def plan_copy(ranges: Sequence[ObjectRange], *, part_bytes_min: int, part_bytes_max: int, parts_max: int) -> list[CopyPart]:
    """Parts that have all bytes of `ranges`, in their order: none but the last below the least size, and not more than `parts_max`.

    As much as can be is copied; what is too small for that is joined, with the beginning of what follows where it must be, and sent.
    """
    total = sum(each.size_bytes for each in ranges)
    least = max(part_bytes_min, -(-total // max(parts_max - 1, 1)))
    most = max(part_bytes_max, 2 * least)
    parts: list[CopyPart] = []
    small: list[ObjectRange] = []  # together less than the least size
    for each in ranges:
        lacking = least - sum(one.size_bytes for one in small) if small else 0
        if small and each.size_bytes < lacking + least:
            small.append(each)  # what would be left of it could not be copied
        else:
            if small:
                small.append(each._replace(size_bytes=lacking))
                parts.append(CopyPart(tuple(small), True))
                small, each = [], ObjectRange(each.key, each.start + lacking, each.size_bytes - lacking)
            if each.size_bytes >= least:
                parts += (CopyPart((piece,), False) for piece in _split(each, most))
            elif each.size_bytes:
                small.append(each)
        if sum(one.size_bytes for one in small) >= least:
            parts.append(CopyPart(tuple(small), True))
            small = []
    return [*parts, CopyPart(tuple(small), True)] if small else parts


def _split(one: ObjectRange, part_bytes_max: int) -> Iterator[ObjectRange]:
    """Pieces of about one size."""
    piece_bytes = -(-one.size_bytes // -(-one.size_bytes // part_bytes_max))
    for at in range(0, one.size_bytes, piece_bytes):
        yield ObjectRange(one.key, one.start + at, min(piece_bytes, one.size_bytes - at))


class RangeSource(io.RawIOBase):
    """The bytes of ranges as a file to be read once, from the start on.

    digest  what all of them must have; CorruptData instead of the last bytes where they have another; "" where nothing is known
    pace    is called with the length of each piece that was read
    """

    def __init__(self, store: ObjectStore, ranges: Sequence[ObjectRange], digest: str = "", pace: Pace = at_once) -> None:
        super().__init__()
        self._pace = pace
        self._store, self._wanted, self._found = store, digest, Digest()
        self._left = [each for each in ranges if each.size_bytes]
        self.size_bytes = sum(each.size_bytes for each in self._left)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """What comes next of one range, at most a MiB."""
        if not self._left or not size:
            return b""
        first = self._left[0]
        piece = bytearray(min(first.size_bytes, _WINDOW_BYTES if size < 0 else min(size, _WINDOW_BYTES)))
        self._store.read_into(first.key, memoryview(piece), start=first.start)
        self._pace(len(piece))
        if len(piece) == first.size_bytes:
            del self._left[0]
        else:
            self._left[0] = ObjectRange(first.key, first.start + len(piece), first.size_bytes - len(piece))
        self._found.update(piece)
        if self._wanted and not self._left and self._found.text() != self._wanted:
            raise CorruptData(first.key, 0, f"ranges that end in it have digest {self._found.text()}, {self._wanted} is wanted")
        return bytes(piece)

    def as_file(self) -> BinaryIO:
        return cast(BinaryIO, self)
