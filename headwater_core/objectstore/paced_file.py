"""A file on its way into a store, each piece of which waits for leave to go."""

import io
from collections.abc import Callable
from typing import BinaryIO, cast


class PacedFile(io.FileIO):
    """`file`, over the same descriptor and at the same position.

    pace  is called before each piece goes, with its length, from any thread. It may wait, but no longer than a server waits for a body;
          what it raises, a HeadwaterError, ends the put, and nothing was created then

    A store that does not read through `read` calls `pace` itself.
    """

    def __init__(self, file: BinaryIO, pace: Callable[[int], object]) -> None:
        super().__init__(file.fileno(), closefd=False)
        self.pace = pace

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(-1 if size is None else size)
        if piece:
            self.pace(len(piece))
        return piece


class PacedStream(io.RawIOBase):
    """The same for a source without a descriptor, such as an object of the archive."""

    def __init__(self, source: BinaryIO, pace: Callable[[int], object]) -> None:
        super().__init__()
        self.source, self.pace = source, pace

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        return self.source.seek(position, whence)

    def tell(self) -> int:
        return self.source.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count: int = self.source.readinto(buffer)  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
        if count:
            self.pace(count)
        return count


def paced(source: BinaryIO, pace: Callable[[int], object]) -> BinaryIO:
    """`source` at `pace`, by its descriptor where it has one."""
    try:
        source.fileno()
    except io.UnsupportedOperation:
        return cast(BinaryIO, PacedStream(source, pace))
    return cast(BinaryIO, PacedFile(source, pace))
