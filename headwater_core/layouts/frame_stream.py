"""A run's bytes out of an object's: frames, block headers and padding are taken away, and looked at on the way."""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.layouts.run_maps import Block, RunMap
from headwater_core.segments.batch_frames import FRAME, ID_FRAME
from headwater_core.segments.batches import LENGTH_FROM
from headwater_core.segments.stretch import take_frames, take_id_frames

WINDOW_BYTES = 256 << 10  # of the object, held at once: what is copied out of it is still in the cache of the processor
_LEAD = 192  # bytes before a window, for what is left of the one before it: less than a header
_BEYOND_BYTES_MAX = 8 << 31  # of an object, beyond three times what is wanted: a batch, and so the way to a point, is less than 2 GiB
_FRAME_AND_LENGTH = struct.Struct(">I8xi")  # an entry's length, and the length that the batch in it has by itself
_ID_FRAME_AND_LENGTH = struct.Struct(">I16xi")
_ID = struct.Struct(">4xQ")

Fetch = Callable[[Sequence[memoryview], int], Generator[None, None, None]]
"""Fills buffers from a position in the object on; yields as each is full."""


class FrameForm(NamedTuple):
    """How blocks are made.

    header_bytes  of each
    has_ids       frames are ID_FRAMEs, whose ids count up within a block; else FRAMEs, and what no entry takes is padding
    pad           so many bytes of padding, after so many before
    entries_of    how many entries a header says that its block has; -1 when it does not say, None when it is not that block's
    """

    header_bytes: int
    has_ids: bool
    pad: Callable[[int, int], bytes]
    entries_of: Callable[[memoryview, Block], int | None]


def stream_run(
    form: FrameForm, found: RunMap, size_bytes: int, fetch: Fetch, buffers: Sequence[memoryview], start: int, where: str
) -> Generator[None, None, None]:
    """Fill `buffers` with the run's bytes from position `start` on, by one request. Yields as each is full.

    size_bytes  of the object

    Raises CorruptData, TruncatedData for what is not as the index says, and what `fetch` raises.
    """
    points, wanted = found.run_index.points.positions, sum(map(len, buffers))
    end = start + wanted
    if start < 0 or end > found.run_index.size_bytes:
        raise TruncatedData(where, found.run_index.size_bytes, f"{wanted} bytes wanted from {start} of the run")
    if not wanted:
        yield from (None for _ in buffers)
        return
    first = bisect_right(points, start) - 1
    last = bisect_left(points, end, first + 1)
    block = bisect_right(found.blocks, found.frames[first], key=lambda each: each.position) - 1
    begin = found.frames[first]
    if begin == found.blocks[block].position + form.header_bytes:
        begin -= form.header_bytes  # it is in front, so it is looked at
    stop = found.frames[last] if last < len(points) else size_bytes
    # Frames, headers and padding take at most twice what the batches beside them do, since padding is less than the batch after it.
    if stop - begin > 3 * wanted + _BEYOND_BYTES_MAX:
        raise CorruptData(where, begin, f"{stop - begin} bytes of the object for {wanted} of the run")
    with closing(_Frames(form, found, block, begin, stop, fetch, where)) as frames:
        if form.has_ids:
            frames.expect_id(found.entry_ids[first])
        skip = start - points[first]
        while skip:
            skip -= frames.skip(skip)
        for number, buffer in enumerate(buffers, 1):
            filled = 0
            while filled < len(buffer):
                filled += frames.fill(buffer[filled:])
            if number == len(buffers) and end in (points[last] if last < len(points) else -1, found.run_index.size_bytes):
                frames.finish(found.entry_ids[last] if form.has_ids and last < len(points) else None)
            yield


def check_last_count(form: FrameForm, found: RunMap, size_bytes: int, fetch: Fetch, where: str) -> None:
    """Hold the count in the last block's header against its entries: no block follows that would say it, and reads of pieces never count
    them all. Reads up to the block's first point; from there on all that is not the run's is frames, since a last block has no padding.

    Raises CorruptData, TruncatedData, and what `fetch` raises.
    """
    index, block = found.run_index, len(found.blocks) - 1
    at = bisect_right(found.frames, found.blocks[block].position)
    stop, run_rest = (found.frames[at], index.size_bytes - index.points.positions[at]) if at < len(found.frames) else (size_bytes, 0)
    with closing(_Frames(form, found, block, found.blocks[block].position, stop, fetch, where)) as frames:
        frames.check_count(size_bytes - stop - run_rest)


class _Frames:
    """The entries of object[position:stop], one after the other, through one window. `position` is a frame's, or a block header's."""

    def __init__(self, form: FrameForm, found: RunMap, block: int, position: int, stop: int, fetch: Fetch, where: str) -> None:
        self._form, self._found, self._block, self._stop, self._where = form, found, block, stop, where
        self._frame_bytes = ID_FRAME.size if form.has_ids else FRAME.size
        self._frame_and_length = _ID_FRAME_AND_LENGTH if form.has_ids else _FRAME_AND_LENGTH
        self._next_id = -1
        self._space = memoryview(bytearray(_LEAD + min(WINDOW_BYTES, stop - position)))
        window = self._space[_LEAD:]
        whole, rest = divmod(stop - position, WINDOW_BYTES)
        pieces = [window] * whole + [window[:rest]] * (rest > 0)
        self._sizes = iter(map(len, pieces))
        self._arriving = fetch(pieces, position)
        self._at = self._filled = _LEAD  # in the space
        self._position = position  # in the object, of what is at `_at`
        self._left = 0  # of an entry whose beginning has been passed
        self._entries = -1  # passed in this block since its header; -1: that was not seen
        self._expected = -1
        self._is_at_header = position == found.blocks[block].position

    def close(self) -> None:
        self._arriving.close()

    def expect_id(self, entry_id: int) -> None:
        """Of the first entry."""
        self._next_id = entry_id

    def skip(self, size_bytes: int) -> int:
        """Pass up to `size_bytes` of the run; how many these were."""
        self._enter()
        count = min(size_bytes, self._left, self._filled - self._at)
        self._pass(count)
        return count

    def fill(self, buffer: memoryview) -> int:
        """Copy what there is of the run into `buffer`; how many bytes these were."""
        self._enter()
        space, at, filled, left, position = self._space, self._at, self._filled, self._left, self._position
        count, room = 0, len(buffer)
        end, frame_bytes, has_ids = self._block_end, self._frame_bytes, self._form.has_ids
        frame_and_length, passed_ids = self._frame_and_length, 0
        while True:
            size = min(left, filled - at, room - count)
            buffer[count : count + size] = space[at : at + size]
            at, left, position, count = at + size, left - size, position + size, count + size
            # The next frame, as long as it is wholly in the window and in the block: what is at a border is _enter's.
            if left or count == room or at + frame_and_length.size > filled or position + frame_bytes >= end:
                break
            most = min(filled, at + end - position)
            taken: tuple[int, int, int] | None = None
            if has_ids and take_id_frames is not None:
                taken = take_id_frames(space, at, most, buffer[count:], self._next_id + passed_ids)
            elif not has_ids and take_frames is not None:
                taken = take_frames(space, at, most, buffer[count:])
            if taken is not None:
                at, position, count = taken[0], position + taken[0] - at, count + taken[1]
                passed_ids += taken[2]
                if count == room or at + frame_and_length.size > filled or position + frame_bytes >= end:
                    break
            entry, length = frame_and_length.unpack_from(space, at)
            if entry != length + LENGTH_FROM or position + frame_bytes + entry > end:
                break
            if has_ids and _ID.unpack_from(space, at)[0] != self._next_id + passed_ids:
                break
            at, left, position = at + frame_bytes, entry, position + frame_bytes
            passed_ids += 1
        self._next_id += passed_ids
        if self._entries >= 0:
            self._entries += passed_ids
        self._at, self._left, self._position = at, left, position
        return count

    def finish(self, next_id: int | None = None) -> None:
        """What follows up to the stop must be padding, of the last entry's block, and the id after it `next_id`, where that is known."""
        if self._left:
            raise self._bad(f"{self._left} bytes more in the entry")
        if self._position < self._stop:
            self._pass_padding(min(self._stop, self._block_end))
        if self._position < self._stop:  # the next block's first entry is where the range ends
            self._next_block()
        if self._position != self._stop:
            raise self._bad(f"more than the index says, up to byte {self._stop}")
        if next_id is not None and next_id != self._next_id and self._position != self._block_end:
            raise self._bad(f"entry {self._next_id} follows, the index says {next_id}")
        if self._position == self._block_end:
            self._check_entries()

    def check_count(self, frames_after_bytes: int) -> None:
        """Pass all up to the stop; the entries of the block are those, and as many as take so many bytes of frames."""
        self._open_block()
        while self._position < self._stop:
            self.skip(self._stop - self._position)
        if self._left or (self._expected - self._entries) * FRAME.size != frames_after_bytes:
            raise self._bad(f"{self._entries} entries and {frames_after_bytes} bytes of frames in a block of {self._expected}")

    @property
    def _block_end(self) -> int:
        block = self._found.blocks[self._block]
        return block.position + block.size_bytes

    def _enter(self) -> None:
        """Make sure that bytes of an entry are there."""
        form, frame_bytes = self._form, self._frame_bytes
        if self._left:
            if self._at == self._filled:
                self._receive()
            return
        if self._is_at_header:
            self._open_block()
        while True:
            if self._block_end - self._position >= frame_bytes:
                self._need(frame_bytes)
                (entry,) = FRAME.unpack_from(self._space, self._at)
                if form.has_ids or entry < 1 << 31:  # as padding is not
                    break
            if form.has_ids and self._position != self._block_end:
                raise self._bad(f"{self._block_end - self._position} bytes after the last entry of the block")
            self._pass_padding(self._block_end)
            self._next_block()
        if not 0 < entry <= self._block_end - self._position - frame_bytes:
            raise self._bad(f"an entry of {entry} bytes, {self._block_end - self._position} are left of the block")
        if form.has_ids:
            (entry_id,) = _ID.unpack_from(self._space, self._at)
            if entry_id != self._next_id:
                raise self._bad(f"entry {entry_id} where {self._next_id} belongs")
        if self._position + frame_bytes + LENGTH_FROM <= self._stop:
            self._need(self._frame_and_length.size)
            length = self._frame_and_length.unpack_from(self._space, self._at)[1]
            if entry != length + LENGTH_FROM:
                raise self._bad(f"a batch of {length + LENGTH_FROM} bytes in an entry of {entry}")
        self._pass(frame_bytes)
        self._next_id += 1
        self._left = entry
        if self._entries >= 0:
            self._entries += 1
        if self._at == self._filled:
            self._receive()

    def _pass(self, count: int) -> None:
        self._at, self._position = self._at + count, self._position + count
        self._left = max(0, self._left - count)

    def _need(self, size_bytes: int) -> None:
        """Have so many bytes in the space, in one piece."""
        while self._filled - self._at < size_bytes:
            self._receive()

    def _receive(self) -> None:
        """The next window, after what is left of this one."""
        left = self._filled - self._at
        self._space[_LEAD - left : _LEAD] = bytes(self._space[self._at : self._filled])
        size = next(self._sizes, 0)
        if not size:
            raise self._bad("the frames reach further than the index says")
        next(self._arriving)
        self._at, self._filled = _LEAD - left, _LEAD + size

    def _pass_padding(self, end: int) -> None:
        """Everything up to position `end` is padding."""
        begun = self._position
        while self._position < end:
            if self._at == self._filled:
                self._receive()
            count = min(end - self._position, self._filled - self._at)
            if self._space[self._at : self._at + count] != self._form.pad(count, self._position - begun):
                raise self._bad("neither an entry nor padding")
            self._pass(count)

    def _next_block(self) -> None:
        self._check_entries()
        if self._block + 1 == len(self._found.blocks):
            raise self._bad("the last block has ended")
        before, following = self._found.blocks[self._block : self._block + 2]
        if self._form.has_ids and before.ledger_id == following.ledger_id and following.first_entry_id != self._next_id:
            raise self._bad(f"the next block begins with entry {following.first_entry_id}, not {self._next_id}")
        self._block += 1
        self._open_block()

    def _open_block(self) -> None:
        """Pass a block's header, which must be what the index says."""
        self._need(self._form.header_bytes)
        block, following = self._found.blocks[self._block], self._found.blocks[self._block + 1 : self._block + 2]
        entries = self._form.entries_of(self._space[self._at : self._at + self._form.header_bytes], block)
        if entries is None or (entries >= 0 and following and block.first_entry_id + entries != following[0].first_entry_id):
            raise self._bad(f"no header of the block from entry {block.first_entry_id} on, of {block.size_bytes} bytes")
        self._is_at_header = False
        self._expected, self._entries, self._next_id = entries, 0 if entries >= 0 else -1, block.first_entry_id
        self._pass(self._form.header_bytes)

    def _check_entries(self) -> None:
        if self._entries >= 0 and self._entries != self._expected:
            raise self._bad(f"{self._entries} entries in a block of {self._expected}")

    def _bad(self, reason: str) -> CorruptData:
        return CorruptData(self._where, self._position, reason)
