"""How what is written while it fills becomes entries: one of an object (PIP-76), or those of a segment of chunks."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from archival.partition.run_names import RunName
from archival.partition.uploads import named_entry, new_entry, with_offloaded
from archival.plan.chunk_place import NUMBER
from archival.plan.policy import ChunkCommits
from archival.plan.stream_plan import LAYOUT
from headwater_core.layouts.chunks import SegmentPlace
from headwater_core.layouts.chunks.chunk_handle import ChunkHandle
from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import EntryPosition, LedgerEntries, OfferResult, OffloadBudget, StreamingOffloader
from headwater_core.layouts.streaming.stream_names import driver_metadata
from headwater_core.layouts.streaming.stream_objects import PART_BYTES
from headwater_core.objectstore.store import ObjectForm, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.transactions import OpenTransaction
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.pending_list import PendingObject


class StreamHandle(Protocol):
    """What both kinds have in common: see OffloadHandle and ChunkHandle."""

    @property
    def offered_bytes(self) -> int: ...
    @property
    def run_bytes_max(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def unsent_from(self) -> EntryPosition | None: ...
    def offer(self, entries: LedgerEntries) -> OfferResult: ...
    def seal_ledger(self, ledger_id: int, *, entries: int, size_bytes: int, closed_ms: int) -> None: ...
    def send_part(self) -> bool: ...
    def close(self, *, last_offset: int | None = None, offloaded_ms: int = 0) -> None: ...
    def abort(self) -> None: ...


class ClosedRun(NamedTuple):
    """Its objects are confirmed."""

    entry: Entry
    scan: RunScan


class StreamWriter(Protocol):
    """What is written under one name that was assigned.

    stored_bytes  the commit position; None where nothing counts before the end
    failed        see OpenStream
    """

    pending: PendingObject

    @property
    def handle(self) -> StreamHandle: ...
    @property
    def stored_bytes(self) -> int | None: ...
    @property
    def failed(self) -> str: ...

    def finish(self, last_offset: int) -> tuple[ClosedRun, ...]:
        """Send the rest, which has been closed; what there is to list, in order. Raises what the handle does; may be repeated."""
        ...


class ObjectWriter:
    """One object of the layout `streaming`."""

    stored_bytes = None
    failed = ""

    def __init__(
        self,
        partition: PartitionId,
        store: ObjectStore,
        pending: PendingObject,
        *,
        budget: OffloadBudget,
        open_before: tuple[OpenTransaction, ...],
        metadata: Mapping[str, str],
        pace: Callable[[int], object],
    ) -> None:
        self.pending, self._partition = pending, partition
        prefix, fence = keys.stream_folder(partition, pending.fence), pending.fence
        offloader = StreamingOffloader(store, partition, prefix=prefix, fence=fence, budget=budget, part_bytes=PART_BYTES, pace=pace)
        self.handle = offloader.streaming_offload(
            UUID(pending.uid),
            driver_metadata(store.url),
            base_offset=pending.base_offset,
            open_before=open_before,
            assigned_ms=pending.assigned_ms,
            extra_metadata=metadata,
        )

    def finish(self, last_offset: int) -> tuple[ClosedRun, ...]:
        done, scan = self.handle.offloaded(), self.handle.scan()
        pending = self.pending
        entry = new_entry(self._partition, pending.base_offset, last_offset, scan, pending.fence, pending.uid, LAYOUT)
        return (ClosedRun(with_offloaded(entry, done), scan),)


class ChunkWriter:
    """One segment of chunks: an entry for each in the append variant, one for all of it in the fixed one."""

    def __init__(
        self,
        place: SegmentPlace,
        store: ObjectStore,
        pending: PendingObject,
        commits: ChunkCommits,
        *,
        budget: OffloadBudget,
        pool: UploadPool,
        now_ms: Callable[[], int],
        open_before: tuple[OpenTransaction, ...],
        form: ObjectForm,
        pace: Callable[[int], object],
    ) -> None:
        self.pending = pending
        share = pool.share(FlushLimits(commits.limits.commit_bytes, commits.age_ms), now_ms)
        self.handle = ChunkHandle(store, place, budget, share, limits=commits.limits, open_before=open_before, form=form, pace=pace)

    @property
    def stored_bytes(self) -> int | None:
        return self.handle.committed_bytes

    @property
    def failed(self) -> str:
        return self.handle.failed

    def finish(self, last_offset: int) -> tuple[ClosedRun, ...]:
        closed: list[ClosedRun] = []
        first = self.pending.base_offset
        for number, (key, scan, done) in enumerate(self.handle.finish()):
            name = RunName(key, chunk_keys.named(key).uid, {NUMBER: str(number)} if number else {})
            entry = named_entry(name, first, scan.last_offset, scan, self.pending.fence, chunk_keys.LAYOUT)
            closed.append(ClosedRun(with_offloaded(entry, done), scan))
            first = scan.last_offset + 1
        return tuple(closed)


def chunk_place(partition: PartitionId, writer: str, fence: int, base_offset: int, commits: ChunkCommits) -> SegmentPlace:
    """Of the segment that begins there. writer: a node's id and a random word, as heads have it"""
    queue = chunk_keys.queue(partition.cluster_id, writer.rpartition("-")[0] or writer, fence, partition.topic_partition)
    return SegmentPlace(queue, "commitLog", base_offset, commits.variant)
