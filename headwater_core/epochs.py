"""A broker's leader epoch history: which leadership wrote which offsets."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class EpochStart(NamedTuple):
    """A leader epoch, and the first offset that was written under it."""

    epoch: int
    first_offset: int


def leader_epoch_at(starts: Sequence[EpochStart], offset: int) -> int | None:
    """The leader epoch that wrote `offset`, by where each begins, in offset order; None below the first."""
    at = bisect_right(starts, offset, key=lambda start: start.first_offset)
    return starts[at - 1].epoch if at else None


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Where each leader epoch begins, as Kafka's leader-epoch-checkpoint lists them.

    Epochs rise strictly; first offsets never fall (an epoch without data may share its offset with the next).
    """

    starts: tuple[EpochStart, ...] = ()

    def __post_init__(self) -> None:
        for (epoch, first), (next_epoch, next_first) in zip(self.starts, self.starts[1:], strict=False):
            if epoch >= next_epoch or first > next_first:
                raise ValueError(f"leader epochs out of order: {self.starts}")
        if self.starts and min(self.starts[0]) < 0:
            raise ValueError(f"negative leader epoch or offset: {self.starts}")

    @classmethod
    def of(cls, starts: Iterable[tuple[int, int]]) -> "EpochHistory":
        """From (epoch, first offset) pairs. Raises ValueError when they are out of order."""
        return cls(tuple(EpochStart(*each) for each in starts))

    @property
    def newest(self) -> int | None:
        return self.starts[-1].epoch if self.starts else None

    @property
    def oldest(self) -> int | None:
        return self.starts[0].epoch if self.starts else None

    @property
    def first_offset(self) -> int | None:
        """The first offset of which this history says anything."""
        return self.starts[0].first_offset if self.starts else None

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch that wrote `offset`; None below the history's first offset."""
        return leader_epoch_at(self.starts, offset)

    def began_late(self, epoch: int, offset: int) -> bool:
        """Does it put the beginning of `epoch` after `offset`? Too late, where a record of both is known.

        A follower learns of an epoch by the first batch that it fetches of it, and of a compacted log the ones before that may be gone. But
        a log that has a batch of an epoch has all that its one leader had before that batch.
        """
        ends = (*(start.first_offset for start in self.starts[1:]), None)
        return any(each.epoch == epoch and offset < each.first_offset != end for each, end in zip(self.starts, ends, strict=True))

    def denies(self, epoch: int, offset: int) -> bool:
        """Whether another epoch than that wrote `offset`; of what lies below the history's first offset it says nothing."""
        known = self.epoch_at(offset)
        return known is not None and known != epoch

    def parts_at(self, other: "EpochHistory") -> int | None:
        """The first offset that the two ascribe to different leaderships, from where both have begun; None when there is none."""
        if self.first_offset is None or other.first_offset is None:
            return None
        begin = max(self.first_offset, other.first_offset)
        offsets = sorted({begin, *(first for _, first in (*self.starts, *other.starts) if first > begin)})
        return next((offset for offset in offsets if self.epoch_at(offset) != other.epoch_at(offset)), None)
