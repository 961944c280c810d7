"""What is known of objects with blocks, so that a second read of one needs no request for its index."""

import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

from headwater_core.segments.runindex import RunIndex

MAPS_BYTES_MAX = 64 << 20
_POINT_BYTES = 32  # three columns of its index, and the frame
_ROW_BYTES = 150  # of anything else, as Python holds it


class Block(NamedTuple):
    """One block. position: of its header in the object; ledger_id: 0 where there are none."""

    first_entry_id: int
    position: int
    size_bytes: int
    ledger_id: int = 0


class RunMap(NamedTuple):
    """What a reader knows of an object before it reads any block.

    frames       position in the object of the frame of each point of `run_index`
    index_bytes  of the object's index where it lies in front, padding included: there the first block begins
    entry_ids    of each point, where frames have ids
    """

    run_index: RunIndex
    frames: "array[int]"
    blocks: tuple[Block, ...]
    index_bytes: int
    entry_ids: "array[int]"


class RunMaps:
    """The most recently used maps, by key and digest of the object's index, bounded by their size. For many threads."""

    def __init__(self, bytes_max: int = MAPS_BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[RunMap, int]] = OrderedDict()

    def get(self, key: str, digest: str) -> RunMap | None:
        with self._lock:
            kept = self._kept.get((key, digest))
            if kept is None:
                return None
            self._kept.move_to_end((key, digest))
            return kept[0]

    def keep(self, key: str, digest: str, found: RunMap) -> None:
        size_bytes = _size_of(found)
        with self._lock:
            self._bytes += size_bytes - self._kept.pop((key, digest), (None, 0))[1]
            self._kept[key, digest] = found, size_bytes
            while self._bytes > self._bytes_max and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


def _size_of(found: RunMap) -> int:
    index = found.run_index
    rows = len(index.epochs) + len(index.aborted) + len(index.open_transactions) + len(index.producers) + len(found.blocks)
    return _POINT_BYTES * len(found.frames) + 8 * len(found.entry_ids) + _ROW_BYTES * (rows + 10)
