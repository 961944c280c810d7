"""Kafka's .index and .timeindex of one segment, byte for byte as a broker makes them when it recovers the segment.

Layout: docs/formats/kafka-log.md. Which batches get an entry: LogSegment.recover of Kafka 4.3.
"""

import struct

from headwater_core.segments.stretch import PassedSegment

INTERVAL = "index.interval.bytes"
INTERVAL_BYTES = 4096  # its default
_OFFSET_ENTRY = struct.Struct(">Ii")  # last offset of the batch, relative to the segment's base; the batch's position
_TIME_ENTRY = struct.Struct(">qI")  # largest timestamp so far; last offset of the batch it is in, relative
_RELATIVE_MAX = 2**31 - 1


def most_index_bytes(segment_bytes: int, interval_bytes: int = INTERVAL_BYTES) -> int:
    """Most bytes that the index files of such a segment take, the time index's last entry included."""
    return segment_bytes // (interval_bytes + 1) * (_OFFSET_ENTRY.size + _TIME_ENTRY.size) + _TIME_ENTRY.size


class Indexes:
    """Gets every batch in order while a segment is verified, so that it is read once."""

    def __init__(self, base_offset: int, interval_bytes: int = INTERVAL_BYTES) -> None:
        """
        base_offset     the one in the segment's name
        interval_bytes  at least so many bytes lie between the beginnings of two indexed batches
        """
        self.base_offset, self.interval_bytes = base_offset, interval_bytes
        self._offsets, self._times = bytearray(), bytearray()
        self._indexed_to = 0
        self._timestamp_ms = self._indexed_timestamp_ms = -1
        self._timestamp_offset = 0
        self._last_offset = self._position = 0

    def add(self, position: int, last_offset: int, max_timestamp_ms: int) -> None:
        """The next batch: where it begins in the file, in bytes, its last offset and largest timestamp."""
        relative = last_offset - self.base_offset
        self._last_offset, self._position = relative, position
        if max_timestamp_ms > self._timestamp_ms:
            self._timestamp_ms, self._timestamp_offset = max_timestamp_ms, relative
        if position - self._indexed_to > self.interval_bytes and relative <= _RELATIVE_MAX >= position:
            self._offsets += _OFFSET_ENTRY.pack(relative, position)
            self._add_time()
            self._indexed_to = position

    def take(self, passed: PassedSegment) -> None:
        """All batches, and the entries that compiled code has made of them."""
        self._last_offset, self._position = passed.last_offset - self.base_offset, passed.last_position
        self._offsets, self._times = bytearray(passed.offset_index), bytearray(passed.time_index)

    def files(self) -> dict[str, bytes]:
        """Contents by suffix; empty for a segment that is larger than an index can describe, which a broker splits first."""
        if max(self._last_offset, self._position) > _RELATIVE_MAX:
            return {}
        self._add_time()  # the largest timestamp of all comes last
        return {".index": bytes(self._offsets), ".timeindex": bytes(self._times)}

    def _add_time(self) -> None:
        if self._timestamp_ms > self._indexed_timestamp_ms:
            self._times += _TIME_ENTRY.pack(self._timestamp_ms, self._timestamp_offset)
            self._indexed_timestamp_ms = self._timestamp_ms
