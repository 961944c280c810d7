"""Whose word a partition's high watermark is, and how old: its broker's own, or that of the checkpoint which it writes now and then."""

from enum import StrEnum
from typing import NamedTuple


class WatermarkSource(StrEnum):
    BROKER = "broker"
    CHECKPOINT = "checkpoint"


class WatermarkOrigin(NamedTuple):
    """age_s: since the broker was asked, or since its checkpoint was written; None: that is not known."""

    source: WatermarkSource
    age_s: float | None

    def __str__(self) -> str:
        what = "the broker's answer" if self.source is WatermarkSource.BROKER else "the broker's checkpoint"
        return what if self.age_s is None else f"{what} of {self.age_s:.1f} s ago"

    @classmethod
    def of_checkpoint(cls, written_ms: int | None, now_ms: int) -> "WatermarkOrigin":
        return cls(WatermarkSource.CHECKPOINT, None if written_ms is None else max(0.0, (now_ms - written_ms) / 1000))
