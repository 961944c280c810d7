"""The memory that pieces of objects are fetched into. It is reused: touching fresh pages can cost more than a download."""

from hydration.cache.blocks import Blocks

PIECE_BYTES = 8 << 20  # one ranged GET
KEPT_BYTES_MAX = 128 << 20  # by one process, if it ever needed so much at once
_blocks = Blocks(PIECE_BYTES, KEPT_BYTES_MAX)


class Buffer:
    """`content`: `size_bytes` of memory with undefined content, not to be used after release()."""

    __slots__ = ("_block", "content")

    def __init__(self, size_bytes: int) -> None:
        self._block = _blocks.take() if size_bytes <= PIECE_BYTES else None
        self.content = memoryview(bytearray(size_bytes)) if self._block is None else self._block[:size_bytes]

    def __enter__(self) -> memoryview:
        return self.content

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the memory back. Calling it again does nothing."""
        block, self._block = self._block, None
        self.content = memoryview(b"")
        if block is not None:
            _blocks.give_back(block)
