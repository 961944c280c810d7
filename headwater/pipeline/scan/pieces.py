"""Pieces of archived runs: which bytes of an object a reader needs, and how they are fetched."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from headwater.pipeline.scan.buffers import Buffer
from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.runindex import RunIndex
from manifests.entry import Entry

DIGEST = "crc64nvme:"
BATCH_BYTES_MAX = 512 << 20  # a piece exceeds PIECE_BYTES only for one large batch, which is held in memory


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches: `size_bytes` of the entry's run from byte `position` on, fetched at once.

    first_offset  none of its batches begins below it; its first one begins there when the piece was cut by an index
    next_offset   all of its batches end below it
    last_point    position of the last batch that the index knows, or of the piece itself
    by_index      whether the piece was cut by an index
    """

    entry: Entry
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int
    last_point: int
    by_index: bool = True

    def check(self, buffer: memoryview) -> None:
        """Raises CorruptData when `buffer` cannot be this piece, by its first and last batch, or by the digest of a whole run.

        A batch's checksum does not cover the offsets in its header, so decoding alone does not notice a misplaced batch.
        """
        key = self.entry.key
        if not self.by_index and self.size_bytes == self.entry.run_bytes and self.entry.run_digest.startswith(DIGEST):
            found = digest_of(buffer)
            if found != self.entry.run_digest:
                raise CorruptData(key, 0, f"digest {found}, the manifest says {self.entry.run_digest}")
            return
        first = read_batch_header(buffer, 0, where=key).base_offset
        at = self.last_point - self.position
        while at < len(buffer):
            header = read_batch_header(buffer, at, where=key)
            at += header.size_bytes
        if header.last_offset >= self.next_offset or (first != self.first_offset if self.by_index else first < self.first_offset):
            raise CorruptData(
                key, self.position, f"offsets {first} to {header.last_offset} where {self.first_offset} to {self.next_offset - 1} belong"
            )


def whole(entry: Entry) -> Piece:
    """All of the entry's live bytes, without its index."""
    return Piece(entry, 0, entry.live_bytes, entry.base_offset, entry.next_offset, 0, by_index=False)


def cut(entry: Entry, index: RunIndex, first: int, end: int, first_timestamp_ms: int | None, piece_bytes: int) -> list[Piece]:
    """The pieces that may hold offsets in [first, end), about `piece_bytes` each, larger only for a larger batch.

    first_timestamp_ms  leave out leading pieces whose records are all older; None: none
    """
    offsets, positions, timestamps = index.points
    begin = max(bisect_right(offsets, first) - 1, 0)
    if first_timestamp_ms is not None and first_timestamp_ms >= 0:  # an index knows no times before 1970
        begin = max(begin, bisect_left(timestamps, first_timestamp_ms) - 1)
    live = bisect_left(positions, entry.live_bytes)  # points from here on are on a dead branch
    end_point = min(bisect_left(offsets, end), live)
    end_position = positions[end_point] if end_point < live else entry.live_bytes
    pieces: list[Piece] = []
    while begin < end_point:
        start = positions[begin]
        following = end_point
        if start + piece_bytes < end_position:
            following = max(bisect_right(positions, start + piece_bytes, begin + 1, end_point) - 1, begin + 1)
        piece_end, next_offset = entry.live_bytes, entry.next_offset
        if following < live:
            piece_end, next_offset = positions[following], min(offsets[following], entry.next_offset)
        pieces.append(Piece(entry, start, piece_end - start, offsets[begin], next_offset, positions[following - 1]))
        begin = following
    return pieces


def fetch(store: ObjectStore, piece: Piece) -> Buffer:
    """The piece's bytes, in one ranged GET, for the caller to release.

    Raises NotFound, TruncatedData, and UnsupportedFormat for a batch beyond BATCH_BYTES_MAX.
    """
    if piece.size_bytes > BATCH_BYTES_MAX:
        raise UnsupportedFormat(
            f"{piece.entry.key}, byte {piece.position}: the batch from offset {piece.first_offset} on may have {piece.size_bytes} bytes, "
            f"limit {BATCH_BYTES_MAX}"
        )
    buffer = Buffer(piece.size_bytes)
    try:
        open_layout(piece.entry.layout).read_offloaded(store, piece.entry).read_into(buffer.content, piece.position)
    except BaseException:
        buffer.release()
        raise
    return buffer


def read_index(store: ObjectStore, entry: Entry) -> RunIndex:
    """The entry's index. Raises NotFound, CorruptData."""
    index = open_layout(entry.layout).read_offloaded(store, entry).read_index()
    if index.size_bytes != entry.run_bytes:
        raise CorruptData(entry.index_place, 0, f"an index of {index.size_bytes} bytes for a run of {entry.run_bytes}")
    return index
