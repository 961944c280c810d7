"""Carrying out a plan: fetch, verify, place, and only then make it a log directory."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from control.log import ControlLog
from control.records import Record, RecoveryFinished, RecoveryStarted
from manifests.head import Entry
from model import steps
from model.clock import Clock, SystemClock
from model.errors import DiskFull, TransientError, UsageError, VerificationFailed
from objectstore.store import ObjectStore
from recovery import layout
from recovery.files import disk_errors, publish, sync_directory
from recovery.identity import new_kafka_id
from recovery.layout import Files, partition_directory, partitions
from recovery.plan import PartitionPlan, RecoveryPlan, TopicPlan, check_plan
from recovery.runs import Restored, restore, segment_name
from recovery.target import MARK, Mark, check_same, check_unused, locked, read_mark, write_mark
from segments.checkpoints import META_PROPERTIES

STEPS = (
    "recover.locked",
    "recover.marked",
    "recover.directories",
    "recover.fetched",
    "recover.placed",
    "recover.indexed",
    "recover.segments",
    "recover.partitions",
    "recover.checkpoints",
    "recover.bootstrap",
    "recover.verified",
    "recover.identity",
    "recover.finished",
)
"""Every step that `model.steps` is told of on the way, in order."""

WORKERS = 4  # downloads at a time; each holds runs.PIECE_BYTES

Progress = Callable[[int], None]
"""Told of bytes as they are in place and verified, from several threads but one at a time."""

_log = structlog.get_logger()


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: int
    segments: int
    records: int
    size_bytes: int


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the directory now, and what the plan `left_out`. again: it had been finished before, and nothing was done."""

    recovery_id: str
    into: str
    cluster_id: str
    node_id: int
    topics: tuple[TopicReport, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...]
    started_ms: int
    finished_ms: int
    resumed: bool = False
    again: bool = False

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    recovery_id: str
    cluster_id: str
    topics: tuple[str, ...]
    started_ms: int
    finished_ms: int | None
    files: int
    files_placed: int
    size_bytes: int
    bytes_placed: int


def apply(
    plan: RecoveryPlan,
    into: Path,
    store: ObjectStore,
    *,
    clock: Clock | None = None,
    control: ControlLog | None = None,
    progress: Progress | None = None,
    workers: int = WORKERS,
) -> RecoveryReport:
    """Make `into` a log directory with everything in `plan`, on which a broker can be started.

    May be repeated after any interruption: what is in place is verified and kept, and the plan that was begun there is
    the one that is finished. A finished directory is not touched again.

    Raises UsageError when the plan has problems, was applied elsewhere, or the directory holds something; ForeignOwner when
    it holds another recovery; DiskFull and TransientError when the same call may succeed later; CorruptData when an object is not
    what the archive says, and VerificationFailed when the directory is not, in the end, what was planned.
    """
    clock = clock or SystemClock()
    with locked(into):
        steps.reached("recover.locked")
        mark = read_mark(into)
        resumed = mark is not None
        if mark is None:
            mark = _begin(plan, into, clock, control)
        check_same(into, mark, plan)
        steps.reached("recover.marked")
        recovery_id, again = mark.plan.recovery_id, mark.finished_ms is not None
        _tell(control, RecoveryStarted(recovery_id=recovery_id, at_ms=mark.started_ms, summary=_summary(mark.plan, into)))
        if mark.finished_ms is None:
            if not (into / META_PROPERTIES).exists():  # else all was verified, and a broker may be at work in there
                _log.info("recovery_started", recovery_id=recovery_id, into=str(into), size_bytes=mark.plan.size_bytes, resumed=resumed)
                _Recovery(mark, into, store, progress or (lambda size_bytes: None), workers).run()
            mark = msgspec.structs.replace(mark, finished_ms=clock.now_ms())
            write_mark(into, mark)
            steps.reached("recover.finished")
            _log.info("recovery_finished", recovery_id=recovery_id, into=str(into), records=mark.plan.records)
        _tell(control, RecoveryFinished(recovery_id=recovery_id, at_ms=mark.finished_ms or 0, outcome=f"finished in {into}"[:1000]))
        return _report(into, mark, resumed=resumed and not again, again=again)


def status(into: Path) -> RecoveryStatus | None:
    """How far the recovery in `into` is; None when none was begun there."""
    mark = read_mark(into)
    if mark is None:
        return None
    sizes = [(entry.live_bytes, path.exists()) for _, entry, path in _segment_files(mark.plan, into)]
    return RecoveryStatus(
        recovery_id=mark.plan.recovery_id,
        cluster_id=mark.plan.cluster_id,
        topics=tuple(topic.topic for topic in mark.plan.topics),
        started_ms=mark.started_ms,
        finished_ms=mark.finished_ms,
        files=len(sizes),
        files_placed=sum(placed for _, placed in sizes),
        size_bytes=mark.plan.size_bytes,
        bytes_placed=sum(size for size, placed in sizes if placed),
    )


def _begin(plan: RecoveryPlan, into: Path, clock: Clock, control: ControlLog | None) -> Mark:
    check_unused(into)
    check_plan(plan)
    if plan.problems:
        raise UsageError("the plan cannot be applied: " + "; ".join(plan.problems))
    known = control.state().recoveries.get(plan.recovery_id) if control else None
    if known is not None and known.finished_ms is not None:
        raise UsageError(f"this plan has been applied ({known.outcome}); make a new one to recover once more")
    mark = Mark(plan=plan, directory_id=new_kafka_id(), started_ms=clock.now_ms())
    write_mark(into, mark)
    return mark


class _Recovery:
    """One run over one marked directory."""

    def __init__(self, mark: Mark, into: Path, store: ObjectStore, progress: Progress, workers: int) -> None:
        self._mark, self._plan, self._into, self._store, self._workers = mark, mark.plan, into, store, workers
        self._progress, self._progress_lock = progress, threading.Lock()
        self._restored: dict[Path, Restored] = {}

    def run(self) -> None:
        self._make_directories()
        steps.reached("recover.directories")
        self._check_space()
        with _pool(self._workers) as pool:
            for _ in pool.map(self._restore, list(_segment_files(self._plan, self._into))):
                pass
            steps.reached("recover.segments")
            for _ in pool.map(
                self._publish, [(directory / name, content) for directory, files in self._beside() for name, content in files.items()]
            ):
                pass
        steps.reached("recover.partitions")
        self._publish_all(layout.checkpoint_files(self._plan))
        steps.reached("recover.checkpoints")
        self._publish_all(layout.bootstrap_files(self._plan, self._mark.started_ms))
        steps.reached("recover.bootstrap")
        self._verify()
        steps.reached("recover.verified")
        self._publish_all(layout.identity_files(self._plan, self._mark.directory_id))
        steps.reached("recover.identity")

    def _make_directories(self) -> None:
        with disk_errors(self._into):
            for topic, partition in partitions(self._plan):
                (self._into / partition_directory(topic, partition)).mkdir(exist_ok=True)
            sync_directory(self._into)

    def _check_space(self) -> None:
        missing = sum(entry.live_bytes for _, entry, path in _segment_files(self._plan, self._into) if not path.exists())
        free = shutil.disk_usage(self._into).free
        if missing > free:
            raise DiskFull(
                f"{self._into} needs {missing} more bytes and has {free}; nothing is lost: make room and run the same command again"
            )

    def _restore(self, segment: "_Segment") -> None:
        topic, entry, path = segment
        self._restored[path] = restore(self._store, entry, path, layout.index_interval_bytes(topic))
        with self._progress_lock:
            self._progress(entry.live_bytes)

    def _beside(self) -> Iterator[tuple[Path, Files]]:
        """Each partition's directory and the files beside its segments."""
        for topic, partition in partitions(self._plan):
            directory = self._into / partition_directory(topic, partition)
            last = directory / segment_name(partition.files[-1].base_offset) if partition.files else None
            yield directory, layout.partition_files(topic, partition, self._restored[last].next_offset if last else None)

    def _publish(self, file: tuple[Path, bytes]) -> None:
        publish(*file)

    def _publish_all(self, files: Files) -> None:
        for name, content in files.items():
            publish(self._into / name, content)

    def _verify(self) -> None:
        """Raises VerificationFailed unless the directory holds what was planned and not one file more.

        What is in the segments was verified when each was placed, and their indexes were made from it.
        """
        expected = {self._into / MARK: -1}
        expected |= {path: entry.live_bytes for _, entry, path in _segment_files(self._plan, self._into)}
        for restored in self._restored.values():
            expected |= restored.index_bytes
        small = {directory / name: content for directory, files in self._beside() for name, content in files.items()}
        for files in (layout.checkpoint_files(self._plan), layout.bootstrap_files(self._plan, self._mark.started_ms)):
            small |= {self._into / name: content for name, content in files.items()}
        found = {path: path.stat().st_size for path in self._into.rglob("*") if path.is_file()}
        expected |= {path: len(content) for path, content in small.items()}
        for path in sorted(expected.keys() | found.keys()):
            size, wanted = found.get(path), expected.get(path)
            if wanted is None:
                raise VerificationFailed(f"{path} does not belong there")
            if size is None or wanted not in (-1, size):
                raise VerificationFailed(f"{path} has {'no' if size is None else size} bytes, {wanted} were planned")
        for path, content in small.items():
            if path.read_bytes() != content:
                raise VerificationFailed(f"{path} is not what was written")


@contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that stop at the first error: what has not begun then is not begun."""
    pool = ThreadPoolExecutor(workers, "recover")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Segment(NamedTuple):
    topic: TopicPlan
    entry: Entry
    path: Path


def _segment_files(plan: RecoveryPlan, into: Path) -> Iterator[_Segment]:
    for topic, partition in partitions(plan):
        directory = into / partition_directory(topic, partition)
        for entry in partition.files:
            yield _Segment(topic, entry, directory / segment_name(entry.base_offset))


def _tell(control: ControlLog | None, record: Record) -> None:
    """The control log is for others to know; a recovery from nothing but the bucket does not wait for it."""
    if control is None:
        return
    try:
        control.publish(record)
    except TransientError as error:
        _log.warning("recovery_not_announced", reason=str(error))


def _summary(plan: RecoveryPlan, into: Path) -> str:
    return f"{len(plan.topics)} topics of cluster {plan.source_cluster_id} into {into}"[:1000]


def _report(into: Path, mark: Mark, *, resumed: bool, again: bool) -> RecoveryReport:
    plan = mark.plan
    return RecoveryReport(
        recovery_id=plan.recovery_id,
        into=str(into),
        cluster_id=plan.cluster_id,
        node_id=plan.node_id,
        topics=tuple(_topic_report(topic) for topic in plan.topics),
        left_out=plan.left_out,
        notes=plan.notes,
        started_ms=mark.started_ms,
        finished_ms=mark.finished_ms or 0,
        resumed=resumed,
        again=again,
    )


def _topic_report(topic: TopicPlan) -> TopicReport:
    def segments(partition: PartitionPlan) -> int:
        return len(partition.files)

    return TopicReport(
        topic=topic.topic,
        partitions=len(topic.partitions),
        segments=sum(map(segments, topic.partitions)),
        records=topic.records,
        size_bytes=topic.size_bytes,
    )
