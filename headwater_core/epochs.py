"""A broker's leader epoch history: which leadership wrote which offsets."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """(leader epoch, first offset) pairs, both rising, as Kafka's leader-epoch-checkpoint lists them.

    Epochs rise strictly; first offsets never fall (an epoch without data may share its offset with the next).
    """

    steps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for (epoch, first), (next_epoch, next_first) in zip(self.steps, self.steps[1:], strict=False):
            if epoch >= next_epoch or first > next_first:
                raise ValueError(f"leader epochs out of order: {self.steps}")
        if self.steps and (self.steps[0][0] < 0 or self.steps[0][1] < 0):
            raise ValueError(f"negative leader epoch or offset: {self.steps}")

    @classmethod
    def of(cls, steps: Iterable[tuple[int, int]]) -> "EpochHistory":
        return cls(tuple(steps))

    @property
    def newest(self) -> int | None:
        return self.steps[-1][0] if self.steps else None

    @property
    def oldest(self) -> int | None:
        return self.steps[0][0] if self.steps else None

    @property
    def first_offset(self) -> int | None:
        """Where this history begins to say anything."""
        return self.steps[0][1] if self.steps else None

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch that wrote `offset`; None below the history's first offset."""
        at = bisect_right(self.steps, offset, key=lambda step: step[1])
        return self.steps[at - 1][0] if at else None

    def denies(self, epoch: int, offset: int) -> bool:
        """Whether another epoch than that wrote `offset`; what lies below the history's first offset it cannot tell."""
        known = self.epoch_at(offset)
        return known is not None and known != epoch

    def end_of(self, epoch: int, log_end: int) -> int | None:
        """The offset just past `epoch`'s records, `log_end` for the newest; None when the epoch is not on the history."""
        for at, (candidate, _) in enumerate(self.steps):
            if candidate == epoch:
                return self.steps[at + 1][1] if at + 1 < len(self.steps) else log_end
        return None
