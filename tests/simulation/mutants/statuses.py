"""Mistakes about what an agent says of itself."""

from contextlib import ExitStack
from typing import Any

import archival.partition_status
import headwater.admin.status_board
from archival.partition_status import ArchiveLag
from headwater.admin.status_board import ArchiveExtent, ArchiveSize, StatusBoard
from headwater_core.control.state import PartitionState
from headwater_core.objectstore.store_meter import OperationCount, StoreMeter
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a status believes the control log though a head says more", noted=20)
def status_by_control_log(stack: ExitStack) -> None:
    def newest(known: PartitionState | None, size: ArchiveSize | None) -> ArchiveExtent | None:
        if known is not None:
            return ArchiveExtent(known.manifest_version, known.start_offset, known.last_offset)
        return size.extent if size is not None else None

    patch_in(stack, headwater.admin.status_board, "_newest", newest)


@mutant("a status does not hear of steps")
def status_without_steps(stack: ExitStack) -> None:
    def forgets(self: StatusBoard, *_: Any) -> None:
        pass

    patch_in(stack, StatusBoard, "stepped", forgets)
    patch_in(stack, StatusBoard, "committed", forgets)


@mutant("a status counts what is not committed as what waits")
def status_of_uncommitted(stack: ExitStack) -> None:
    real = archival.partition_status.backlog

    def backlog(log: LocalLog, archive_end: int, *rest: Any) -> ArchiveLag | None:
        found = real(log, archive_end, *rest)
        active = log.segments[-1].size_bytes if log.segments else 0
        return found and ArchiveLag(size_bytes=found.size_bytes or active, oldest_ms=found.oldest_ms)

    patch_in(stack, archival.partition_status, "backlog", backlog)
    patch_in(stack, headwater.admin.status_board, "backlog", backlog)


@mutant("a status takes the last offset for the next one")
def status_off_by_one(stack: ExitStack) -> None:
    real = archival.partition_status.backlog

    def backlog(log: LocalLog, archive_end: int, *rest: Any) -> ArchiveLag | None:
        return real(log, max(0, archive_end - 1), *rest)

    patch_in(stack, headwater.admin.status_board, "backlog", backlog)


@mutant("a status counts what is superseded as archived", theme="lineage")
def status_of_superseded(stack: ExitStack) -> None:
    def of(head: Head, at_s: float) -> ArchiveSize:
        extent = ArchiveExtent(head.version, head.start_offset, head.last_offset)
        dead_bytes = sum(each.live_bytes for each in head.superseded)
        return ArchiveSize(extent, head.entries.live_bytes + dead_bytes, head.entries.objects, at_s)

    patch_in(stack, ArchiveSize, "of", of)


@mutant("a status takes an archive that had not begun for one that never begins", theme="incarnations", rare=True, noted=910039)
def status_without_first_commit(stack: ExitStack) -> None:
    real = StatusBoard._is_unsized

    def is_unsized(self: StatusBoard, partition: PartitionId, state: str, old_s: float) -> bool:
        size = self._sizes.get(partition)
        return (size is None or size.is_known) and real(self, partition, state, old_s)

    patch_in(stack, StatusBoard, "_is_unsized", is_unsized)


@mutant("a counter begins anew when it is read")
def counter_that_is_read_once(stack: ExitStack) -> None:
    real = StoreMeter.counts

    def counts(self: StoreMeter) -> dict[str, OperationCount]:
        found = real(self)
        self._counts = {operation: OperationCount() for operation in self._counts}
        return found

    patch_in(stack, StoreMeter, "counts", counts)
