"""Which segments of a partition are in place and verified, and how long their index files are: 24 bytes for each."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from recovery.entry_list import EntryList
from recovery.runs import Restored

_NONE = -1


class PlacedSegments:
    """By their places among the partition's runs. One thread at a time per segment."""

    def __init__(self, runs: EntryList) -> None:
        self._next_offsets, self._index_bytes, self._timeindex_bytes = (array("q", [_NONE]) * len(runs) for _ in range(3))

    def __contains__(self, at: int) -> bool:
        return self._next_offsets[at] != _NONE

    def __getitem__(self, at: int) -> Restored:
        """Of one that is in place."""
        index_bytes, timeindex_bytes = self._index_bytes[at], self._timeindex_bytes[at]
        return Restored(
            self._next_offsets[at], None if index_bytes == _NONE else index_bytes, None if timeindex_bytes == _NONE else timeindex_bytes
        )

    def add(self, at: int, restored: Restored) -> None:
        self._next_offsets[at] = restored.next_offset
        self._index_bytes[at] = _NONE if restored.index_bytes is None else restored.index_bytes
        self._timeindex_bytes[at] = _NONE if restored.timeindex_bytes is None else restored.timeindex_bytes


class CommonRun(NamedTuple):
    """Its places in both lists."""

    before: int
    now: int
    base_offset: int


def common_runs(before: EntryList, now: EntryList) -> Iterator[CommonRun]:
    """The runs that are in both, exactly alike, in offset order."""
    old = iter(enumerate(before))
    at, entry = next(old, (0, None))
    for place, wanted in enumerate(now):
        while entry is not None and entry.base_offset < wanted.base_offset:
            at, entry = next(old, (0, None))
        if entry == wanted:
            yield CommonRun(at, place, wanted.base_offset)
