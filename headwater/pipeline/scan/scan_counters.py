"""What a scan has read, for its statistics."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class ScanCounters:
    """entries_skipped: because none of their records can match; gaps are in gaps_skipped."""

    gets: int = 0
    bytes_fetched: int = 0
    entries_skipped: int = 0
    gaps_skipped: int = 0
    heads_reread: int = 0
    damaged: int = 0
    rows: int = 0

    def add(self, other: "ScanCounters") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
