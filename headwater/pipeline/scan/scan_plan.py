"""What a scan is going to read, before it reads."""

from dataclasses import dataclass

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.archive_snapshot import LostDocument, OffsetRange
from headwater.pipeline.scan.quarantine import read_snapshot
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.splits import Split, entries_left_out, plan_splits
from headwater_core.objectstore.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan is going to read; `lost` is what it cannot."""

    ranges: list[OffsetRange]
    splits: list[Split]
    entries_left_out: int
    lost: tuple[LostDocument, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the archive, about."""
        return sum(split.size_bytes for split in self.splits)


def plan_scan(store: ObjectStore, query: Query, *, workers: int | None = None) -> ScanPlan:
    """From heads alone, but for bounds that are times; so that all `workers`, or processors, have work. Raises what read_snapshot,
    ArchiveSnapshot.ranges and plan_splits do.
    """
    snapshot = read_snapshot(store, query)
    ranges = snapshot.ranges(store, query)
    splits = plan_splits(ranges, query, cores=workers or processors())
    return ScanPlan(ranges, splits, entries_left_out(ranges, query), snapshot.lost)
