"""What is known of block objects, so that a second read of one needs no request for its index."""

import threading
from collections import OrderedDict

from headwater_core.layouts.blocks.block_format import BlockMap

MAPS_BYTES_MAX = 64 << 20
_POINT_BYTES = 32  # three columns of its index, and the frame
_ROW_BYTES = 150  # of anything else, as Python holds it


class BlockMaps:
    """The most recently used maps, by key and digest of the object's index, bounded by their size. For many threads."""

    def __init__(self, bytes_max: int = MAPS_BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[BlockMap, int]] = OrderedDict()

    def get(self, key: str, digest: str) -> BlockMap | None:
        with self._lock:
            kept = self._kept.get((key, digest))
            if kept is None:
                return None
            self._kept.move_to_end((key, digest))
            return kept[0]

    def keep(self, key: str, digest: str, found: BlockMap) -> None:
        size_bytes = _size_of(found)
        with self._lock:
            self._bytes += size_bytes - self._kept.pop((key, digest), (None, 0))[1]
            self._kept[key, digest] = found, size_bytes
            while self._bytes > self._bytes_max and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


def _size_of(found: BlockMap) -> int:
    index = found.run_index
    rows = len(index.epochs) + len(index.aborted) + len(index.open_transactions) + len(index.producers) + len(found.blocks)
    return _POINT_BYTES * len(found.frames) + _ROW_BYTES * (rows + 10)
