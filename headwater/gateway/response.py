"""Responses that are partly bytes and partly ranges of files, so that records never pass through Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class OpenFile(Protocol):
    """`memory`: the file's bytes from its beginning on, if they are at hand and stay so until its owner lets go of the slice.
    `device`: the disk that it is on."""

    device: int
    where: str

    @property
    def memory(self) -> memoryview | None: ...
    def fileno(self) -> int: ...
    def doubt(self) -> None:
        """It was found to be shorter than it should be."""
        ...

    def fail(self, reason: str) -> None: ...


class FileSlice(Protocol):
    """`length` bytes of `file` from byte `position` on; the file stays open until its owner says otherwise."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Records:
    """What a Fetch response carries for one partition: slices of runs, to be sent one after the other."""

    slices: Sequence[FileSlice]
    size_bytes: int


NO_RECORDS = Records((), 0)
Part = bytes | FileSlice


class Response:
    """Collects a response: bytes in `buffer`, to which writers append directly; records stay the slices they are."""

    __slots__ = ("_done", "_done_bytes", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._done: list[Part] = []
        self._done_bytes = 0

    def attach(self, records: Records) -> None:
        """Add the slices after what is in `buffer`. They stay their owner's."""
        if not records.slices:
            return
        self._done.append(bytes(self.buffer))
        self._done.extend(records.slices)
        self._done_bytes += len(self.buffer) + records.size_bytes
        self.buffer = bytearray()

    def frame(self, body: bytes = b"") -> "Frame":
        """The finished frame: its size before everything collected, and `body` after it, which is not copied."""
        size_bytes = self._done_bytes + len(self.buffer) + len(body)
        parts: list[Part] = [size_bytes.to_bytes(4, "big"), *self._done, *(part for part in (bytes(self.buffer), body) if part)]
        return Frame(parts, size_bytes + 4)


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole response in the order it is sent. `size_bytes` counts everything, the frame's own size field too."""

    parts: Sequence[Part]
    size_bytes: int
