"""The bytes of a block object as they are sent: made from the run's while they are read, a window at a time."""

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, cast

from headwater_core.errors import SourceChanged
from headwater_core.layouts.blocks.block_format import pad
from headwater_core.layouts.blocks.block_plan import BlockPlan, PlannedBlock
from headwater_core.layouts.run_source import WINDOW_BYTES, RunSource, windows
from headwater_core.objectstore.digest import Digest
from headwater_core.segments.batch_frames import framed_bytes_max, put_framed

_NOTHING = memoryview(b"")


class _BlockDigests(NamedTuple):
    """Checksums of a block's batches, and of all of it."""

    run: int
    framed: int


class BlockSource(io.RawIOBase):
    """A block object, index and blocks, as a file to be read from the start on; or its parts, each on its own.

    run_digest  which the run had when it was scanned
    """

    def __init__(self, index: bytes, plan: BlockPlan, source: RunSource, run_digest: str, where: str) -> None:
        super().__init__()
        self._index, self._blocks, self._source, self._run_digest, self._where = index, plan.blocks, source, run_digest, where
        self._read: dict[int, _BlockDigests] = {}  # of the blocks that were read to their end
        self._position = 0
        self._pieces_to_read = self.part_pieces(0)
        self._rest = _NOTHING

    @property
    def size_bytes(self) -> int:
        last = self._blocks[-1].block
        return len(self._index) + last.position + last.size_bytes

    @property
    def parts(self) -> tuple[int, ...]:
        """The lengths of index and blocks; all of it as one where there is one block."""
        return (len(self._index), *(each.block.size_bytes for each in self._blocks)) if len(self._blocks) > 1 else (self.size_bytes,)

    def digest(self) -> str:
        """Of the object as it was read last, which is how it was sent; what nobody has read yet is read now.

        Raises SourceChanged when that was not the run.
        """
        run, whole = Digest(), Digest()
        whole.update(self._index)
        for number, each in enumerate(self._blocks):
            if number not in self._read:
                for _ in self._block(number):
                    pass
            run.append(self._read[number].run, each.run_bytes)
            whole.append(self._read[number].framed, each.block.size_bytes)
        if run.text() != self._run_digest:
            raise SourceChanged(f"{self._where}: {self._run_digest} was scanned, {run.text()} is there")
        return whole.text()

    @property
    def pace(self) -> Callable[[int], object]:
        return self._source.pace

    def part_pieces(self, start: int) -> Iterator[memoryview]:
        """As PartSource's. `start` is 0, or where a block begins."""
        if start == 0:
            index = memoryview(self._index)
            yield from (index[at : at + WINDOW_BYTES] for at in range(0, len(index), WINDOW_BYTES))
        first = bisect_right(self._blocks, start - len(self._index) - 1, key=lambda each: each.block.position)
        for number in range(max(first, 0), len(self._blocks)):
            yield from self._block(number)

    def _block(self, number: int) -> Iterator[memoryview]:
        planned, run, framed = self._blocks[number], Digest(), Digest()
        for piece in self._framed(planned, run):
            framed.update(piece)
            if framed.size_bytes == planned.block.size_bytes:  # its reader does not come back after the last piece
                self._read[number] = _BlockDigests(run.value, framed.value)
            yield piece

    def _framed(self, planned: PlannedBlock, run: Digest) -> Iterator[memoryview]:
        """The block's pieces; `run` becomes the digest of its batches."""
        yield memoryview(planned.header)
        space = memoryview(bytearray(framed_bytes_max(min(WINDOW_BYTES, planned.run_bytes))))
        for window in windows(self._source, planned.start, planned.start + planned.run_bytes, self._where):
            run.update(window.content)
            yield space[: put_framed(window.content, window.lead, window.lengths, space)]
        for start in range(0, planned.pad_bytes, WINDOW_BYTES):  # which PAD's length divides
            yield memoryview(pad(min(WINDOW_BYTES, planned.pad_bytes - start)))

    # As a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Only back to the beginning, where another attempt starts."""
        if position or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a block object is read from its beginning on")
        self._position, self._pieces_to_read, self._rest = 0, self.part_pieces(0), _NOTHING
        return 0

    def read(self, size: int = -1) -> bytes:
        """What comes next, without a copy, and so valid until the next call: fewer bytes than `size` before the end, too."""
        if not self._rest:
            self._rest = next(self._pieces_to_read, _NOTHING)
        piece = self._rest[: len(self._rest) if size < 0 else size]
        self._rest = self._rest[len(piece) :]
        self._position += len(piece)
        if piece:
            self.pace(len(piece))
        return cast(bytes, piece)

    def as_file(self) -> BinaryIO:
        return cast(BinaryIO, self)
