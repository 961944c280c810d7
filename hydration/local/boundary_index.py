"""Batch boundaries found so far in one segment of the broker's log."""

import threading
from array import array
from bisect import bisect_right
from typing import NamedTuple

from headwater_core.segments.batches import BatchHeader
from hydration.local.file_version import FileVersion
from hydration.ranges import Boundary

POINT_SPACING_BYTES = 64 << 10  # so that a 1 GiB segment takes a quarter of a megabyte of points at most
_ENDS_MAX = 4


class Witness(NamedTuple):
    """A batch that was met: as long as it is there, nothing before it has changed. Its base offset alone does not say so: a log that was
    cut and filled again may have another leader's batch there, and a history that begins later denies none of the two."""

    position: int
    base_offset: int
    leader_epoch: int

    @classmethod
    def of(cls, position: int, header: BatchHeader) -> "Witness":
        return cls(position, header.base_offset, header.leader_epoch)


class End(NamedTuple):
    """Where batches end: a boundary, and the batch before or after it; None when there is no batch."""

    place: Boundary
    witness: Witness | None


class BoundaryIndex:
    """Batch boundaries found so far in one segment; a boundary is checked where it is used. Safe to use from many threads.

    whole  where all of the batches end; its position is the file's size then
    """

    def __init__(self, version: FileVersion) -> None:
        self.version = version
        self.whole: End | None = None
        self._lock = threading.Lock()
        self._offsets, self._positions = array("q"), array("q")
        self._ends: dict[int, End] = {}

    def note(self, place: Boundary) -> None:
        """Remember it, unless another one is near."""
        with self._lock:
            positions = self._positions
            at = bisect_right(positions, place.position)
            if at and place.position - positions[at - 1] < POINT_SPACING_BYTES:
                return
            if at < len(positions) and positions[at] - place.position < POINT_SPACING_BYTES:
                return
            positions.insert(at, place.position)
            self._offsets.insert(at, place.offset)

    def by_offset(self, offset: int) -> Boundary | None:
        """The last one at or before `offset`."""
        with self._lock:
            return self._at(bisect_right(self._offsets, offset) - 1)

    def by_position(self, position: int) -> Boundary | None:
        """The last one at or before byte `position`."""
        with self._lock:
            return self._at(bisect_right(self._positions, position) - 1)

    def end_at(self, end_offset: int) -> End | None:
        """Where the batches below that offset end."""
        return self._ends.get(end_offset)

    def note_end(self, end_offset: int, end: End) -> None:
        with self._lock:
            if len(self._ends) >= _ENDS_MAX:
                self._ends = {}
            self._ends[end_offset] = end

    def forget(self) -> None:
        """All of them: the file was cut."""
        with self._lock:
            self._offsets, self._positions, self._ends, self.whole = array("q"), array("q"), {}, None

    def _at(self, number: int) -> Boundary | None:
        return Boundary(self._positions[number], self._offsets[number]) if number >= 0 else None
