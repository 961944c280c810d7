"""Answers that are partly bytes and partly ranges of files, so that records never pass through Python."""

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
    """What a Fetch answer carries for one partition: slices of runs, to be sent one after the other."""

    slices: Sequence[FileSlice]
    size_bytes: int


NO_RECORDS = Records((), 0)
Part = bytes | FileSlice


class Answer:
    """Collects an answer: bytes are gathered, records are kept as the slices they are."""

    __slots__ = ("_done", "_done_bytes", "gathered")

    def __init__(self) -> None:
        self.gathered = bytearray()  # writers append to it directly
        self._done: list[Part] = []
        self._done_bytes = 0

    def attach(self, records: Records) -> None:
        if not records.slices:
            return
        self._done.append(bytes(self.gathered))
        self._done.extend(records.slices)
        self._done_bytes += len(self.gathered) + records.size_bytes
        self.gathered = bytearray()

    def framed(self) -> "Framed":
        """The finished frame: its size before everything collected."""
        parts: list[Part] = [*self._done, bytes(self.gathered)] if self.gathered or not self._done else self._done
        size_bytes = self._done_bytes + len(self.gathered)
        parts[0] = size_bytes.to_bytes(4, "big") + parts[0]  # type: ignore[operator]  # attach() puts bytes before slices
        return Framed(parts, size_bytes + 4)


@dataclass(frozen=True, slots=True)
class Framed:
    """A whole answer in the order it is sent. `size_bytes` counts everything, the frame's own size field too."""

    parts: Sequence[Part]
    size_bytes: int
