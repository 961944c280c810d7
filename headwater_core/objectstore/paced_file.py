"""A file on its way into a store, each piece of which waits for leave to go."""

import io
from collections.abc import Callable
from typing import BinaryIO


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
