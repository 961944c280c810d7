"""How far ahead of a reader to download. Pure."""

from collections import OrderedDict

_STREAMS_MAX = 64  # sequential readers of one partition told apart


class Streams:
    """Recognises sequential readers by the offset they come back with: whoever asks where an answer ended reads on.

    The first read of a stream gets nothing ahead, the next one chunk, then twice as many each time up to the limit: a
    reader that jumps about costs nothing extra.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._depths: OrderedDict[int, int] = OrderedDict()

    def depth(self, offset: int) -> int:
        """Chunks to get ready beyond what a read at `offset` needs."""
        return self._depths.get(offset, 0)

    def moved(self, offset: int, next_offset: int) -> None:
        """A read at `offset` was answered up to `next_offset`."""
        if not self._limit or next_offset <= offset:
            return
        depth = self.depth(offset)
        self._depths[next_offset] = min(self._limit, max(2 * depth, 1))
        self._depths.move_to_end(next_offset)
        while len(self._depths) > _STREAMS_MAX:
            self._depths.popitem(last=False)
