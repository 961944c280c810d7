"""How far a broker has flushed a log: below that offset, segments and the files beside them are whole even after a crash."""

from headwater_core.errors import HeadwaterError
from headwater_core.segments.checkpoints import RECOVERY_POINTS, decode_offsets
from headwater_core.segments.local_log import LocalLog
from hydration.local.scan_budget import ScanBudget


class RecoveryPoint:
    """One partition's, as its log directory's checkpoint last said; read again once for every look at the log that needs more."""

    def __init__(self) -> None:
        self._offset = 0
        self._epoch: int | None = None
        self._read_for: LocalLog | None = None

    def covers(self, log: LocalLog, end: int, budget: ScanBudget) -> bool:
        """Whether everything below offset `end` was flushed. A new leader epoch may have cut the log and its recovery point."""
        known = self._read_for is not None and self._epoch == log.epochs.newest
        if not known or (end > self._offset and self._read_for is not log):
            budget.take(1)
            path = log.directory.parent / RECOVERY_POINTS
            try:
                self._offset = decode_offsets(path.read_bytes(), where=str(path)).get(log.partition.topic_partition, 0)
            except (OSError, HeadwaterError):
                self._offset = 0
            self._epoch, self._read_for = log.epochs.newest, log
        return end <= self._offset
