"""What a scan will read."""

from dataclasses import dataclass

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.archive_snapshot import LostDocument, OffsetRange, OpenTransactionAtEnd
from headwater.pipeline.scan.quarantine import read_snapshot
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.splits import Split, entries_left_out, plan_splits
from headwater_core.objectstore.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan will read, and what it cannot read: `lost`, and what is hidden by `open_transactions`."""

    ranges: list[OffsetRange]
    splits: list[Split]
    entries_left_out: int
    lost: tuple[LostDocument, ...] = ()
    open_transactions: tuple[OpenTransactionAtEnd, ...] = ()

    @property
    def size_bytes(self) -> int:
        """About this much of the archive."""
        return sum(split.size_bytes for split in self.splits)


def plan_scan(store: ObjectStore, query: Query, *, workers: int | None = None) -> ScanPlan:
    """The plan, from heads alone, except for bounds that are times. Raises what read_snapshot, ArchiveSnapshot.ranges and plan_splits do.

    workers  that shall all have work; None: one for each processor
    """
    snapshot = read_snapshot(store, query)
    bounds = snapshot.bounds(store, query)
    ranges = [bound for bound in bounds if bound.first < bound.end]
    splits = plan_splits(ranges, query, cores=workers or processors())
    hiding = tuple(transaction for bound in bounds if (transaction := bound.open_transaction(query)))
    return ScanPlan(ranges, splits, entries_left_out(ranges, query), snapshot.lost, hiding)
