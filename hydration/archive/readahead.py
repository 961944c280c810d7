"""How far ahead of a reader to download. Pure but for the clock it is given."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from headwater_core.clock import Clock

_STREAMS_MAX = 64  # sequential readers of one partition that are followed
_CHUNKS_PER_GET_MAX = 4  # a request costs as much as moving a MiB; more of them at once only make bursts
_PROBE_CHUNKS = 2  # for each chunk that is got ready: so much is read before a depth is judged
_BACKOFF_CHUNKS = 16  # read at the depth that proved best before the next one is tried again
_BACKOFF_CHUNKS_MAX = 64  # each failed probe makes the back-off before the next one twice as long
_WORTH_IT = 1.25  # so many times faster a reader must get for twice the downloads at once


class Ahead(NamedTuple):
    """`gets` requests beyond what a read needs, each for so many neighbouring `chunks`."""

    gets: int
    chunks: int

    def ranges(self, number: int, count: int) -> list[range]:
        """Chunk numbers to get ready, for each request: those of one entry that has `count` and is read at `number`, -1 for right
        before it.

        Groups lie at fixed places, so that a reader meets whole ones; of the reader's own group the rest is needed, too.
        """
        if not self.gets:
            return []
        own = number // self.chunks
        groups = (range(group * self.chunks, min((group + 1) * self.chunks, count)) for group in range(own, own + 1 + self.gets))
        ahead = (group[max(0, number + 1 - group.start) :] for group in groups)
        return [each for each in ahead if each]


NOTHING_AHEAD = Ahead(0, 1)


@dataclass(slots=True)
class _Stream:
    """One sequential reader, and a probe of `depth`, which is GETs at once: `left_bytes` of it are still to be read.

    proven      the depth to go back to
    proven_rate bytes/s that it gave
    """

    began_s: float
    left_bytes: int
    requested: int  # the offset of the last read, which may be retried
    read_bytes: int = 0
    backoff_chunks: int = _BACKOFF_CHUNKS
    depth: int = 1
    size_bytes: int = 0
    proven: int = 0
    proven_rate: float = 0.0
    got_ready: object = None  # the chunk in which it reads, once what lies ahead of it was requested


class Streams:
    """Recognises sequential readers by their offsets: a read that begins where an answer ended continues it.

    The first read of a stream gets nothing ahead, so a reader that jumps about costs nothing extra. Then one chunk, and twice
    as many at once for as long as that makes the reader faster: far from the store many downloads at once hide its latency,
    near it they only take each other's processor, and a slow reader needs none of them. Where few suffice each brings more
    chunks, up to half as many as the reader has read so far: every request has its price.
    """

    def __init__(self, chunks_max: int, chunk_bytes: int, clock: Clock) -> None:
        self._chunks_max, self._chunk_bytes, self._clock = chunks_max, chunk_bytes, clock
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._lock = threading.Lock()

    def ahead(self, offset: int, chunk: object = None) -> Ahead:
        """What to get ready beyond what a read at `offset`, in `chunk`, needs: up to `limit` chunks, and the rest of the group it
        is in. Nothing when that was got ready.
        """
        stream = self._streams.get(offset)
        if stream is None or (chunk is not None and stream.got_ready is chunk):
            return NOTHING_AHEAD
        return self._ahead(stream)

    def got_ready(self, offset: int, chunk: object) -> None:
        """What a reader at `offset` needs ahead as long as it is in `chunk` is there or in flight."""
        stream = self._streams.get(offset)
        if stream is not None:
            stream.got_ready = chunk

    def _ahead(self, stream: _Stream) -> Ahead:
        chunks = _CHUNKS_PER_GET_MAX
        while chunks > 1 and (stream.depth * chunks > self._chunks_max or 2 * chunks * self._chunk_bytes > stream.read_bytes):
            chunks //= 2
        return Ahead(stream.depth, chunks)

    def moved(self, offset: int, next_offset: int, size_bytes: int) -> None:
        """A read at `offset` was answered with `size_bytes`, to `next_offset`."""
        if not self._chunks_max or next_offset <= offset:
            return
        with self._lock:
            stream = self._streams.get(offset)
            if stream is None:
                stream = _Stream(self._clock.monotonic_s(), _PROBE_CHUNKS * self._chunk_bytes, offset)
            else:
                self._count(stream, size_bytes)
            stream.read_bytes += size_bytes
            if stream.requested != offset and self._streams.get(stream.requested) is stream:
                del self._streams[stream.requested]
            stream.requested = offset
            self._streams[next_offset] = stream
            self._streams.move_to_end(next_offset)
            while len(self._streams) > 2 * _STREAMS_MAX:  # two offsets each
                self._streams.popitem(last=False)

    def _count(self, stream: _Stream, size_bytes: int) -> None:
        stream.size_bytes += size_bytes
        if stream.size_bytes < stream.left_bytes:
            return
        now_s = self._clock.monotonic_s()
        rate = stream.size_bytes / max(now_s - stream.began_s, 1e-6)
        if stream.depth == stream.proven or rate >= _WORTH_IT * stream.proven_rate:
            if stream.depth != stream.proven:
                stream.backoff_chunks = _BACKOFF_CHUNKS
            stream.proven, stream.proven_rate = stream.depth, rate
            stream.depth = min(2 * stream.depth, self._chunks_max)
        else:
            stream.depth = stream.proven
            stream.backoff_chunks = min(2 * stream.backoff_chunks, _BACKOFF_CHUNKS_MAX)
        ahead = self._ahead(stream)
        chunks = stream.backoff_chunks if stream.depth == stream.proven else _PROBE_CHUNKS * ahead.gets * ahead.chunks
        stream.began_s, stream.size_bytes, stream.left_bytes = now_s, 0, chunks * self._chunk_bytes
