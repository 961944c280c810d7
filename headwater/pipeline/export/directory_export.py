"""Topics to Parquet files in a directory, by topic and day. Each run continues where the last one ended.

The unit is a range of offsets of one partition. Its files, with their names, depend only on its offsets and on the archive, so a
range can be written again without harm. A checkpoint in the directory (headwater/pipeline/export/checkpoint.py) says which offsets
have been planned and which ranges of them are not written yet. It is saved before the first range is written. So each offset is
exported once, even if a run is killed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from headwater.pipeline.export.backlog import ADVICE, Failure, find_backlog
from headwater.pipeline.export.checkpoint import Checkpoint, FileLayout, PlannedRange, pending_of
from headwater.pipeline.export.parquet import MILESTONES as FILE_STEPS
from headwater.pipeline.export.parquet import Files, files_of, write_range
from headwater.pipeline.runner import Runner
from headwater.pipeline.scan.archive_snapshot import OffsetRange
from headwater.pipeline.scan.progress import TopicIdentity
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.splits import Split, plan_splits
from headwater_core import milestones
from headwater_core.errors import DataLoss, DiskFull, HeadwaterError, Partial, Unauthorised, UsageError
from headwater_core.objectstore.store import ObjectStore
from manifests.head import Head

MILESTONES = ("export.planned", "export.counted", "export.saved", *FILE_STEPS)
NEEDED = ("partition", "offset", "timestamp")  # they identify a row and give its day
_SAVE_EVERY = 16  # ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One range to write: as it was planned, and the split that reads it now."""

    pending: PlannedRange
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a task. `error`: why it is not done."""

    task: Task
    files: Files
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class DirectoryExportResult:
    """The result of a run."""

    ranges: int = 0
    files: Files = field(default_factory=Files)
    failed: list[Failure] = field(default_factory=list)

    def verdict(self) -> HeadwaterError | None:
        return verdict(self.failed)


def verdict(failed: Sequence[Failure]) -> HeadwaterError | None:
    """The error to end with; None when everything is exported."""
    if not failed:
        return None
    return Partial(f"{len(failed)} topics, partitions or ranges are not exported; run it again when the reasons are gone")


class DirectoryExport:
    """One run. The constructor decides what is to be done and changes nothing; `run` does it.

    query       which topics and columns; its bounds apply to partitions that no run has exported yet
    checkpoint  of the directory to fill
    start_anew  whether topics that were deleted and created again are exported from their start

    Raises what find_backlog does. Errors of one partition are in `failures`: the archive has other records than were exported, or
    retention removed offsets before they were exported and the query does not allow that.
    """

    def __init__(self, store: ObjectStore, query: Query, checkpoint: Checkpoint, *, start_anew: bool = True) -> None:
        check_columns(query)
        self._query, self._checkpoint = replace(query, advice=ADVICE), checkpoint
        backlog = find_backlog(store, self._query, checkpoint.places, start_anew=start_anew)
        self.failures, self.open_transactions = list(backlog.failures), backlog.open_transactions
        self._others: list[PlannedRange] = []  # of earlier runs: what this run does not select, or cannot do
        self.tasks: list[Task] = []
        for each in checkpoint.pending:
            if each.partition_id in backlog.given_up:
                continue
            head = backlog.heads.get(each.partition_id)
            try:
                if head is None:
                    self._others.append(each)
                else:
                    self.tasks += self._again(each, head)
            except DataLoss as error:
                self._others.append(each)
                self.failures.append(Failure(topic=each.topic, partition=each.partition, first=each.first, end=each.end, error=str(error)))
        self.tasks += [Task(pending=pending_of(each.partition_id, each.first, each.end), split=each) for each in backlog.splits]
        self._planned = {each: at for each, at in checkpoint.places.items() if each not in backlog.given_up} | dict(backlog.reached)
        self._current = {
            each.topic: TopicIdentity(each.cluster_id, each.topic_id)
            for each in backlog.heads
            if each.topic not in query.selection.topic_ids and each not in checkpoint.places
        }

    @property
    def size_bytes(self) -> int:
        """About this much of the archive."""
        return sum(task.split.size_bytes for task in self.tasks)

    def run(self, runner: Runner, progressed: Callable[[int, str], None] = lambda size_bytes, note: None) -> DirectoryExportResult:
        """Write everything. After a kill at any point and another run, the directory is as after one run.

        progressed  called with bytes of `size_bytes` that are done, and their partition

        Raises DiskFull and UsageError for the directory, and Unauthorised.
        """
        summary, left = DirectoryExportResult(failed=list(self.failures)), {task.pending for task in self.tasks}
        if not left:
            if self._planned != self._checkpoint.places:  # some partitions are given up
                self._save(left)
            return summary
        self._save(left)
        milestones.reached("export.planned")
        work = partial(_write, query=self._query, directory=self._checkpoint.directory, layout=self._checkpoint.file_layout)
        try:
            for done in runner.each(work, self.tasks):
                progressed(done.task.split.size_bytes, str(done.task.split.partition_id))
                if done.error is not None:
                    split = done.task.split
                    summary.failed.append(
                        Failure(topic=split.topic, partition=split.partition, first=split.first, end=split.end, error=done.error)
                    )
                    continue
                summary.ranges += 1
                summary.files += done.files
                left.discard(done.task.pending)
                milestones.reached("export.counted")
                if summary.ranges % _SAVE_EVERY == 0:
                    self._save(left)
                    milestones.reached("export.saved")
        finally:
            self._save(left)
        milestones.reached("export.saved")
        return summary

    def _save(self, left: Iterable[PlannedRange]) -> None:
        self._checkpoint.save(self._planned, self._current, [*self._others, *left])

    def _again(self, pending: PlannedRange, head: Head) -> Iterator[Task]:
        """A range of an earlier run, undivided: the names of its files follow from it, and some may be there."""
        if pending.first < head.start_offset and self._query.fail_on_data_loss:
            raise DataLoss(
                f"{pending.partition_id}: offsets {pending.first} to {head.start_offset - 1} were to be exported, the archive begins at"
                f" {head.start_offset} now ({self._query.advice.skip_loss})"
            )
        if pending.first < head.start_offset and (there := files_of(self._checkpoint.directory, pending, self._checkpoint.file_layout)):
            raise DataLoss(
                f"{pending.partition_id}: an earlier run was interrupted while it exported offsets {pending.first} to {pending.end - 1};"
                f" the archive begins at {head.start_offset} now. {len(there)} files such as {there[0]} may hold records that cannot be"
                " written again. Move these files away to export the rest"
            )
        undivided = replace(self._query, split_bytes=1 << 62, min_partitions=1)
        for split in plan_splits([OffsetRange(head, max(pending.first, head.start_offset), pending.end)], undivided):
            yield Task(pending=pending, split=split)


def check_columns(query: Query) -> None:
    if missing := [name for name in NEEDED if name not in query.columns]:
        raise UsageError(f"an export needs the columns {' and '.join(missing)}")


def _write(store: ObjectStore, task: Task, *, query: Query, directory: Path, layout: FileLayout) -> Done:
    try:
        return Done(task=task, files=write_range(store, task.split, query, task.pending, directory, layout))
    except (DiskFull, Unauthorised):
        raise  # every other range would fail, too
    except HeadwaterError as error:  # of this range alone
        return Done(task=task, files=Files(), error=str(error))
