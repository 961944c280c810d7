"""A segment that is addressed by position: bytes are added by `commit0` and read by `read0`, whatever objects hold them.

Nothing of it is kept but the objects: `open` finds out from a listing what there is. A chunk's key is created and never overwritten
with other bytes; the last chunk of the fixed variant is replaced, under its tag, by one that continues it (docs/decisions/0017). One
writer; reads from many threads.
"""

import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    HeadwaterError,
    NotFound,
    SourceChanged,
    TruncatedData,
    UnknownOutcome,
    UsageError,
)
from headwater_core.layouts.chunks.chunk_finder import find_map
from headwater_core.layouts.chunks.chunk_map import SegmentMap, SegmentState, Tile, tiles_between
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant
from headwater_core.objectstore.digest import checksum, digest_of
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectStore
from headwater_core.threads import ContextThreads

CHUNK_BYTES = 4 << 20  # of the fixed variant, as the proposal has it
_WINDOW_BYTES = 1 << 20
_GROWING = (SegmentState.NEW, SegmentState.OPEN, SegmentState.LOST)

Before = Callable[[int, int], bytes | memoryview]
"""What was committed from one position of a segment to another, read again from where it came from."""


class ChunkPiece(NamedTuple):
    """What is to be written to one chunk of the fixed variant, from byte `start` of the segment on: `data` behind what it holds."""

    start: int
    held: bytes
    tag: str
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return len(self.held) + len(self.data)


class WrittenChunk(NamedTuple):
    """A chunk as the store has it. sent: so much of a piece's data is in it for sure; the rest is to be compared."""

    content: bytes
    tag: str
    sent: int


Write = Callable[[ChunkPiece], WrittenChunk | HeadwaterError]
Apply = Callable[[Write, Sequence[ChunkPiece]], Iterable[WrittenChunk | HeadwaterError]]
"""Does something to several pieces, as `map` does: in any order, or at the same time."""


def in_threads(count: int) -> Apply:
    """So many at the same time."""

    def apply(write: Write, pieces: Sequence[ChunkPiece]) -> Iterable[WrittenChunk | HeadwaterError]:
        if count == 1 or len(pieces) == 1:
            return map(write, pieces)
        with ContextThreads(min(count, len(pieces)), thread_name_prefix="chunks-commit") as pool:
            return list(pool.map(write, pieces))

    return apply


class ChunkSegment:
    """One segment and its commit position. Made by `open`.

    place  where it lies
    found  what `open` found; the tiles are those of that time
    form   of what is added in the append variant; the fixed one's chunks are replaced, and have none
    """

    def __init__(self, store: ObjectStore, place: SegmentPlace, found: SegmentMap, chunk_bytes: int, *, form: ObjectForm = PLAIN) -> None:
        self._store, self._chunk_bytes, self._form = store, chunk_bytes, form
        self.place, self.found = place, found
        self._tiles = list(found.tiles)
        self._tail, self._tag = b"", ""  # of the fixed variant: what the last chunk holds while it is not full, and its tag
        self._tail_crc: int | None = None  # of what is read again instead: then _tail is empty
        self._ahead: dict[int, tuple[int, int, str]] = {}  # chunks beyond one that failed, by their start: length, CRC-64/NVME and tag

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        place: SegmentPlace,
        *,
        chunk_bytes: int | None = None,
        is_full: bool = False,
        end: int | None = None,
    ) -> "ChunkSegment":
        """The segment as the store has it.

        chunk_bytes  of the fixed variant; None: as its chunks are, and CHUNK_BYTES for what is added
        is_full      nothing will be added to it; end: so many bytes it has at least, where that is known: see build_map

        Raises what the store raises: a listing that was cut is none.
        """
        found = find_map(store, place, is_full=is_full, end=end, chunk_bytes=chunk_bytes)
        return cls(store, place, found, chunk_bytes or CHUNK_BYTES)

    @property
    def end(self) -> int:
        """The commit position: so many bytes, from the first on, has the store confirmed."""
        return self._tiles[-1].end if self._tiles else 0

    def tile_at(self, position: int) -> Tile | None:
        """The object that begins at `position`."""
        at = bisect_left(self._tiles, position, key=lambda tile: tile.position)
        return self._tiles[at] if at < len(self._tiles) and self._tiles[at].position == position else None

    # Reading

    def read0(self, position: int, length: int) -> bytes:
        """`length` bytes from `position` on. Raises TruncatedData where the segment ends, and CorruptData that names the chunk to blame
        where it is damaged."""
        content = bytearray(length)
        self.read_into(memoryview(content), position)
        return bytes(content)

    def read_into(self, buffer: memoryview, position: int) -> None:
        """As `read0`, into `buffer`."""
        end, reached = position + len(buffer), self.end
        if position < 0 or end > reached:
            self._refuse_read(position, end, reached)
        for tile in tiles_between(self._tiles, position, end):
            self._store.read_into(tile.key, buffer[tile.position - position : tile.end - position], start=tile.start)

    def _refuse_read(self, position: int, end: int, reached: int) -> NoReturn:
        damage = self.found.damage
        if damage is not None and damage.position == reached:
            raise CorruptData(damage.key, 0, f"bytes {position} to {end} of the segment are wanted: {damage.reason}")
        raise TruncatedData(self.place.prefix, reached, f"{end - position} bytes wanted from {position}")

    # Writing

    def commit0(
        self, position: int, data: bytes | bytearray | memoryview, *, before: Before | None = None, apply: Apply | None = None
    ) -> int:
        """Add `data` at `position`; return where it ends, when the store has confirmed all of it.

        `position` is the commit position, or lies before it: what is there already, from a commit that was not confirmed to its caller,
        is compared and not sent again. A commit that fails may be repeated, with more bytes or fewer; what was confirmed of it counts.

        before   of the fixed variant: where the bytes of a chunk that is not full are read again, so that they are not kept in memory
                 from one commit to the next; they are compared with what was sent
        apply    several chunks of the fixed variant are written by it; None: one after the other, up to the first that fails. Those
                 that came through though one before them failed are not sent again by the next commit of the same bytes, and count once
                 that one is there

        Raises SourceChanged when other bytes are there, or `before` gives others: this segment cannot be continued, another one can;
        UnknownOutcome when nobody knows whether the store has the bytes; UsageError for a position beyond the end, and for a segment to
        which nothing is added; CorruptData for one that is damaged; and what `before` raises.
        """
        self._check_growing(position)
        content, end = memoryview(data), position + len(data)
        reached = position
        try:
            while reached < end:
                missing = content[reached - end :]
                if self.end > reached:
                    reached = self._compare(reached, missing)
                    continue
                if self.place.variant is Variant.FIXED:
                    reached += self._extend_chunks(missing, before, apply)
                else:
                    reached += self._append_chunk(missing)
                self._close_hole()
        finally:
            if before is not None and self._tail:
                self._tail, self._tail_crc = b"", checksum(self._tail)
        return end

    def _check_growing(self, position: int) -> None:
        found = self.found
        if found.damage is not None and not found.damage.is_hole:
            raise CorruptData(found.damage.key, found.damage.position, found.damage.reason)
        if found.state not in _GROWING or found.is_foreign:
            raise UsageError(f"{self.place.prefix}: nothing is added to this segment ({found.state.value})")
        if not 0 <= position <= self.end:
            raise UsageError(f"{self.place.prefix}: bytes from {position} on, where the segment ends at {self.end}")

    def _compare(self, position: int, data: memoryview) -> int:
        """Up to where `data`, which begins at `position`, is there. Raises SourceChanged when other bytes are."""
        end = min(self.end, position + len(data))
        window = memoryview(bytearray(min(_WINDOW_BYTES, max(end - position, 0))))
        for at in range(position, end, _WINDOW_BYTES):
            there = window[: end - at]
            self.read_into(there, at)
            if there != data[at - position : at - position + len(there)]:
                raise SourceChanged(f"{self.place.prefix}: other bytes are there already, from {at} to {at + len(there)}")
        return max(end, position)

    def _append_chunk(self, data: memoryview) -> int:
        """A new chunk of `data`, or of its beginning; how much. 0: there is a chunk already, and its bytes are to be compared."""
        if self.found.beyond:
            data = data[: self.found.beyond[0] - self.end]
        key, sent = self.place.chunk_key(self.end), len(data)
        size_bytes = sent
        try:
            self._store.put(key, io.BytesIO(data), size_bytes=size_bytes, form=self._form)
        except (AlreadyExists, UnknownOutcome) as error:
            try:
                info = self._store.stat(key)
            except NotFound:
                raise UnknownOutcome(f"{key} may yet appear: {error}") from error
            size_bytes = info.size_bytes
            if not size_bytes:
                raise SourceChanged(f"{key}: an empty object is there already") from error
            sent = sent if (size_bytes, info.digest) == (sent, digest_of(data)) else 0
        self._tiles.append(Tile(self.end, size_bytes, key))
        return sent

    def _extend_chunks(self, data: memoryview, before: Before | None, apply: Apply | None) -> int:
        """The last chunk, and those after it, until all of `data` is in them; how much is confirmed without a hole. Less than all: a chunk
        holds more already, which is to be compared."""
        at = self.end % self._chunk_bytes
        start = self.end - at
        if at and not self._tag:
            self._load_tail(start, at)
            if self.end != start + at:
                return 0
        room = self._chunk_bytes - at
        pieces = [ChunkPiece(start, self._held(start, before) if at else b"", self._tag if at else "", data[:room])]
        for begin in range(room, len(data), self._chunk_bytes):
            pieces.append(ChunkPiece(start + at + begin, b"", "", data[begin : begin + self._chunk_bytes]))
        if apply is not None:
            return self._adopt(pieces, list(apply(self._written, pieces)))
        written: list[WrittenChunk | HeadwaterError] = []
        for piece in pieces:
            written.append(found := self._written(piece))
            if isinstance(found, HeadwaterError) or len(found.content) < piece.size_bytes:
                break
        return self._adopt(pieces, written)

    def _held(self, start: int, before: Before | None) -> bytes:
        """What the last chunk, from `start` on, holds."""
        if self._tail_crc is None or before is None:
            return self._tail
        held = bytes(before(start, self.end))
        if len(held) != self.end - start or checksum(held) != self._tail_crc:
            raise SourceChanged(f"{self.place.chunk_key(start)}: what was committed of it is not what its source holds now")
        return held

    def _adopt(self, pieces: Sequence[ChunkPiece], written: Sequence[WrittenChunk | HeadwaterError]) -> int:
        """Count what is there up to the first that failed; how much of the data that is. Raises what that one did."""
        sent, failed, is_joined = 0, None, True
        for piece, found in zip(pieces, written, strict=False):
            if isinstance(found, HeadwaterError):
                failed, is_joined = failed or found, False
                continue
            if not is_joined:
                self._ahead[piece.start] = len(found.content), checksum(found.content), found.tag
                continue
            tile = Tile(piece.start, len(found.content), self.place.chunk_key(piece.start))
            if piece.held:
                self._tiles[-1] = tile
            else:
                self._tiles.append(tile)
            self._ahead.pop(piece.start, None)
            self._tail, self._tag = (found.content, found.tag) if tile.size_bytes < self._chunk_bytes else (b"", "")
            self._tail_crc = None
            sent += found.sent
            is_joined = len(found.content) == piece.size_bytes
        if failed is not None:
            raise failed
        return sent

    def _written(self, piece: ChunkPiece) -> WrittenChunk | HeadwaterError:
        try:
            return self._write_chunk(piece)
        except HeadwaterError as error:
            return error

    def _write_chunk(self, piece: ChunkPiece) -> WrittenChunk:
        start, held, tag, data = piece
        key = self.place.chunk_key(start)
        if not held and start in self._ahead:
            size_bytes, crc, known = self._ahead[start]
            if size_bytes <= len(data) and checksum(data[:size_bytes]) == crc:
                held, tag = bytes(data[:size_bytes]), known
                if size_bytes == len(data):
                    return WrittenChunk(held, tag, len(data))
        content = held + bytes(data[len(held) - len(piece.held) :])
        try:
            tag = self._store.replace(key, content, expected_tag=tag) if held else self._store.create(key, content)
        except (AlreadyExists, Conflict, UnknownOutcome) as error:
            try:
                found, tag = self._store.get(key, max_bytes=self._chunk_bytes)
            except NotFound:
                raise UnknownOutcome(f"{key} may yet appear: {error}") from error
            if not found:
                raise SourceChanged(f"{key}: an empty object is there already") from error
            if found == held:
                self._note_tag(piece, tag)
                raise UnknownOutcome(f"{key} may yet be continued: {error}") from error
            if not found.startswith(held):
                raise SourceChanged(f"{key}: it is not continued by what replaced it") from error
            return WrittenChunk(found, tag, len(data) if found == content else 0)
        return WrittenChunk(content, tag, len(data))

    def _note_tag(self, piece: ChunkPiece, tag: str) -> None:
        """What a chunk holds was replaced by the same bytes."""
        if piece.held:
            self._tag = tag
        elif piece.start in self._ahead:
            self._ahead[piece.start] = (*self._ahead[piece.start][:2], tag)

    def _load_tail(self, start: int, size_bytes: int) -> None:
        """The chunk that was begun before the segment was opened, of this size then. Raises UsageError when chunks are of another size."""
        if self._tiles[-1][:2] != (start, size_bytes) or self._tiles[-1].start:
            raise UsageError(f"{self.place.prefix}: its last chunk does not begin at {start}; was it written with another chunk size?")
        key = self._tiles[-1].key
        self._tail, self._tag = self._store.get(key, max_bytes=self._chunk_bytes)
        if len(self._tail) < size_bytes:
            raise CorruptData(key, len(self._tail), f"{size_bytes} bytes were there")
        self._tiles[-1] = Tile(start, len(self._tail), key)
        self._tail_crc = None
        if len(self._tail) == self._chunk_bytes:
            self._tail, self._tag = b"", ""

    def _close_hole(self) -> None:
        """Once the bytes are there that lay between others."""
        if self.found.beyond and self.end >= self.found.beyond[0]:
            self.found = find_map(self._store, self.place, is_full=False, chunk_bytes=self._chunk_bytes)
            self._forget(self.found.tiles)
            self._check_growing(self.end)

    # Removing

    def delete(self) -> None:
        """Remove all of it, what comes last first, so that what an interruption leaves can be read; silent about what is not there."""
        chunks = [info.key for info in self._store.list(self.place.prefix) if self.place.position_of(info.key) is not None]
        for key in sorted(chunks, key=lambda key: self.place.position_of(key) or 0, reverse=True):
            self._store.delete(key)
        self._store.delete(self.place.segment_key)
        self.found = SegmentMap(SegmentState.NEW, ())
        self._forget(())

    def _forget(self, tiles: Sequence[Tile]) -> None:
        """All but these tiles."""
        self._tiles, self._tail, self._tag, self._tail_crc = list(tiles), b"", "", None
        self._ahead.clear()
