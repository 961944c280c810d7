"""What a partition answers: plain values, and slices of open files ready to be sent."""

from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import NamedTuple

from hydration.runfile import RunFile


class Isolation(Enum):
    """Values are the Kafka protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a partition begins and ends, over the tiers its read priority names.

    log_start            first offset a client may read
    local_start          first offset on local disk; None without a local log
    last_offset          of the archive, inclusive; None when there is none
    high_watermark       first offset that is not yet readable
    last_stable_offset   the same for read_committed; None when that was not requested
    leader_epoch         at least that of every batch below the high watermark, -1 when none is known
    """

    log_start: int
    local_start: int | None
    last_offset: int | None
    high_watermark: int
    last_stable_offset: int | None = None
    leader_epoch: int = -1

    def __post_init__(self) -> None:
        stable = self.high_watermark if self.last_stable_offset is None else self.last_stable_offset
        if not 0 <= self.log_start <= stable <= self.high_watermark or self.leader_epoch < -1:
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` bytes of `file` from byte `position` on: whole record batches. For os.sendfile or file.read.

    Unchecked: one is made for each piece of each fetch.
    """

    file: RunFile
    position: int
    length: int

    def read(self) -> bytes:
        """Raises TransientError when the disk fails."""
        return self.file.read(self.position, self.length)


class AbortedFrom(NamedTuple):
    """An aborted transaction: to be dropped are its producer's transactional batches from `first_offset` to its abort marker."""

    producer_id: int
    first_offset: int


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """One read's answer. Its files stay open until close(), whatever is evicted or deleted meanwhile.

    slices        in offset order; none when nothing is readable at the offset yet. The first batch is the one that
                  holds the offset, or the next there is.
    aborted       for read_committed: those that batches of the slices may belong to, sorted by first offset
    next_offset   the offset to read next
    """

    slices: list[Slice] = field(default_factory=list)
    aborted: list[AbortedFrom] = field(default_factory=list)
    high_watermark: int
    last_stable_offset: int | None
    log_start: int
    next_offset: int

    @property
    def size_bytes(self) -> int:
        slices = self.slices
        return slices[0].length if len(slices) == 1 else sum(each.length for each in slices)

    def close(self) -> None:
        """Release the files. May be called again."""
        slices, self.slices = self.slices, []
        for each in slices:
            each.file.release()

    def __enter__(self) -> "ReadResult":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
