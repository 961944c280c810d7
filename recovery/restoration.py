"""Carrying out a plan: fetch, verify, place, and only then make it a log directory."""

import shutil
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from headwater_core import milestones
from headwater_core.clock import Clock, SystemClock
from headwater_core.control.control_log import ControlLog
from headwater_core.control.control_records import Record, RecoveryFinished, RecoveryStarted
from headwater_core.errors import CorruptData, DiskFull, NotFound, TransientError, UsageError, VerificationFailed
from headwater_core.files import disk_errors, sync_path
from headwater_core.objectstore.store import ObjectStore
from manifests.head import Entry
from recovery import layout, once
from recovery.endings import with_endings
from recovery.identity import new_kafka_id
from recovery.indexes import most_index_bytes
from recovery.layout import Files, partition_directory, partitions
from recovery.plan import Hole, PartitionPlan, RecoveryPlan, TopicPlan, check_plan
from recovery.planner import without
from recovery.runs import Restored, restore, segment_name
from recovery.target import LOCK, MARK, Mark, broker_started, check_same, check_unused, locked, plan_name, read_mark, write_mark
from recovery.target_files import publish, read_if_there

MILESTONES = (
    "recover.locked",
    "recover.recorded",
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
"""Those on the way, in order."""

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
    source_cluster_id: str
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
    """problem: why the directory is not what a finished recovery left, or cannot become it."""

    recovery_id: str
    cluster_id: str
    topics: tuple[str, ...]
    started_ms: int
    finished_ms: int | None
    files: int
    files_placed: int
    size_bytes: int
    bytes_placed: int
    problem: str = ""


def apply(
    plan: RecoveryPlan,
    into: Path,
    store: ObjectStore,
    *,
    clock: Clock | None = None,
    control: ControlLog | None = None,
    progress: Progress | None = None,
    workers: int = WORKERS,
    skip_damaged: bool = False,
    recorded: bool = True,
) -> RecoveryReport:
    """Make `into` a log directory with everything in `plan`, on which a broker can be started.

    May be repeated after any interruption: what is in place is verified and kept, and the plan that was begun there is
    the one that is finished. A finished directory is not touched again.

    skip_damaged  what is missing or damaged in the bucket is left out, and the plan in the directory says so from then on
    recorded      the bucket says that this plan is applied here, and to no other directory

    Raises UsageError when the plan has problems, was applied elsewhere, or the directory holds something; ForeignOwner when
    it holds another recovery; DiskFull and TransientError when the same call may succeed later; VerificationFailed when
    objects are not what the archive says, all of which it names, or the directory is not, in the end, what was planned.
    """
    clock = clock or SystemClock()
    with locked(into):
        milestones.reached("recover.locked")
        mark = read_mark(into)
        resumed = mark is not None
        if mark is None:
            mark = _begin(plan, into, store, clock, control, skip_damaged=skip_damaged, recorded=recorded)
        check_same(into, mark, plan)
        milestones.reached("recover.marked")
        again = _is_finished(into, mark)
        if not again and recorded and resumed:
            once.record(store, mark.plan, into, mark.directory_id, host=socket.gethostname(), started_ms=mark.started_ms)
        recovery_id = mark.plan.recovery_id
        _tell(control, RecoveryStarted(recovery_id=recovery_id, at_ms=mark.started_ms, summary=_summary(mark.plan, into)))
        if not again:
            _log.info("recovery_started", recovery_id=recovery_id, into=str(into), size_bytes=mark.plan.size_bytes, resumed=resumed)
            mark = _Recovery(mark, into, store, progress or (lambda size_bytes: None), workers).run(skip_damaged=skip_damaged)
        if mark.finished_ms is None:
            mark = write_mark(into, replace(mark, finished_ms=clock.now_ms()))
            milestones.reached("recover.finished")
            _log.info("recovery_finished", recovery_id=recovery_id, into=str(into), records=mark.plan.records)
        _tell(control, RecoveryFinished(recovery_id=recovery_id, at_ms=mark.finished_ms or 0, outcome=f"finished in {into}"[:1000]))
        return _report(into, mark, resumed=resumed and not again, again=again)


def status(into: Path) -> RecoveryStatus | None:
    """How far the recovery in `into` is; None when none was begun there."""
    mark = read_mark(into)
    if mark is None:
        return None
    sizes = [(entry.live_bytes, path.exists()) for _, _, entry, path in _segment_files(mark.plan, into)]
    problem = ""
    try:
        _is_finished(into, mark)
    except VerificationFailed as error:
        problem = str(error)
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
        problem=problem,
    )


def _begin(
    plan: RecoveryPlan, into: Path, store: ObjectStore, clock: Clock, control: ControlLog | None, *, skip_damaged: bool, recorded: bool
) -> Mark:
    check_unused(into)
    check_plan(plan)
    if plan.problems:
        raise UsageError("the plan cannot be applied: " + "; ".join(plan.problems))
    if plan.holes and not skip_damaged:
        raise VerificationFailed(_told(plan.holes, "nothing was fetched"))
    known = control.state().recoveries.get(plan.recovery_id) if control else None
    if known is not None and known.finished_ms is not None:
        raise UsageError(f"this plan has been applied ({known.outcome}); make a new one to recover once more")
    if plan.holes:
        plan = _skipped(plan, plan.holes, store)
    directory_id, started_ms = new_kafka_id(), clock.now_ms()
    if recorded:
        directory_id = once.record(store, plan, into, directory_id, host=socket.gethostname(), started_ms=started_ms)
    milestones.reached("recover.recorded")
    return write_mark(into, Mark(plan, "", directory_id, started_ms))


def _skipped(plan: RecoveryPlan, holes: Collection[Hole], store: ObjectStore) -> RecoveryPlan:
    """`plan` without `holes`: where a log ends, and in which transactions, is decided anew."""
    return check_plan(with_endings(without(plan, holes), store))


def _told(holes: Collection[Hole], so: str) -> str:
    listed = "".join(f"\n  {hole}" for hole in sorted(holes, key=lambda hole: (hole.topic, hole.partition, hole.base_offset)))
    return (
        f"{len(holes)} archived runs are missing or damaged; {so}. Mend the bucket and run the same command again, or add --skip-damaged "
        f"to recover everything else:{listed}"
    )


def _is_finished(into: Path, mark: Mark) -> bool:
    """Is there nothing left to do? meta.properties says so, which is written when everything is verified; our very bytes, for anybody
    can format a directory. Once a broker has been at work the rest is its own business.

    Raises VerificationFailed when meta.properties is somebody else's, or when files of a finished recovery are gone.
    """
    started, finished = broker_started(into), mark.finished_ms is not None
    if started and finished:
        return True
    [(name, wanted)] = layout.identity_files(mark.plan, mark.directory_id).items()
    found = read_if_there(into / name)
    if found is not None and found != wanted:
        raise VerificationFailed(
            f"{into}: the recovery is {'finished' if finished else 'unfinished'}, and somebody has formatted the directory since: {name} "
            f"is not what recovery wrote. Remove {name} and {layout.BOOTSTRAP}, and run the same command again"
        )
    if started and found is None:
        raise VerificationFailed(f"{into}: a broker has been at work in an unfinished recovery; recover into a new directory")
    if not finished and not started:
        return False  # a run that is killed before its mark is finished says nothing: verify once more
    if found is not None and not started and (gone := _gone(into, mark)):
        raise VerificationFailed(
            f"{into}: the recovery is finished, but {len(gone)} files are gone or changed, {gone[0]} among them, and no broker has started "
            f"there. Remove {name} and run the same command again to fetch them"
        )
    return found is not None


def _gone(into: Path, mark: Mark) -> list[Path]:
    """What a finished recovery had and the directory has not; file sizes alone."""
    sizes = {path: entry.live_bytes for _, _, entry, path in _segment_files(mark.plan, into)}
    for topic, partition in partitions(mark.plan):
        directory = into / partition_directory(topic, partition)
        files = layout.partition_files(topic, partition, partition.log_end, mark.started_ms)
        sizes |= {directory / name: len(content) for name, content in files.items()}
    for files in (layout.checkpoint_files(mark.plan), layout.bootstrap_files(mark.plan, mark.started_ms)):
        sizes |= {into / name: len(content) for name, content in files.items()}
    return [path for path, size in sizes.items() if not path.exists() or path.stat().st_size != size]


class _Recovery:
    """One run over one marked directory."""

    def __init__(self, mark: Mark, into: Path, store: ObjectStore, progress: Progress, workers: int) -> None:
        self._mark, self._plan, self._into, self._store, self._workers = mark, mark.plan, into, store, workers
        self._progress, self._lock = progress, threading.Lock()
        self._restored: dict[Path, Restored] = {}
        self._holes: list[Hole] = []

    def run(self, *, skip_damaged: bool) -> Mark:
        """The mark, with the plan that was carried out in the end."""
        self._make_directories()
        milestones.reached("recover.directories")
        self._check_space()
        self._restore_all()
        while self._holes:
            if not skip_damaged:
                raise VerificationFailed(_told(self._holes, "everything else is in place, and no broker can start on it yet"))
            self._skip()
            self._restore_all()
        milestones.reached("recover.segments")
        with _pool(self._workers) as pool:
            for _ in pool.map(
                self._publish, [(directory / name, content) for directory, files in self._beside() for name, content in files.items()]
            ):
                pass
        milestones.reached("recover.partitions")
        self._publish_all(layout.checkpoint_files(self._plan))
        milestones.reached("recover.checkpoints")
        self._publish_all(layout.bootstrap_files(self._plan, self._mark.started_ms))
        milestones.reached("recover.bootstrap")
        self._verify()
        milestones.reached("recover.verified")
        self._publish_all(layout.identity_files(self._plan, self._mark.directory_id))
        milestones.reached("recover.identity")
        return replace(self._mark, finished_ms=None)

    def _skip(self) -> None:
        """Plan again without what turned out to be missing or damaged, and let the mark say so."""
        plan = _skipped(self._plan, self._holes, self._store)
        self._mark = write_mark(self._into, replace(self._mark, plan=plan, plan_digest=""))
        self._plan, self._holes = plan, []

    def _restore_all(self) -> None:
        """What is missing or damaged stops nothing else."""
        with _pool(self._workers) as pool:
            for _ in pool.map(self._restore, list(_segment_files(self._plan, self._into))):
                pass

    def _make_directories(self) -> None:
        with disk_errors(self._into):
            for topic, partition in partitions(self._plan):
                (self._into / partition_directory(topic, partition)).mkdir(exist_ok=True)
            sync_path(self._into)

    def _check_space(self) -> None:
        missing = sum(
            entry.live_bytes + most_index_bytes(entry.live_bytes, layout.index_interval_bytes(topic))
            for topic, _, entry, path in _segment_files(self._plan, self._into)
            if not path.exists()
        )
        free = shutil.disk_usage(self._into).free
        if missing > free:
            raise DiskFull(
                f"{self._into} needs {missing} more bytes and has {free}; nothing is lost: make room and run the same command again"
            )

    def _restore(self, segment: "_Segment") -> None:
        topic, partition, entry, path = segment
        held = self._restored.get(path)
        if held is not None and held.entry == entry:
            return
        try:
            restored = restore(self._store, entry, path, layout.index_interval_bytes(topic))
        except (CorruptData, NotFound) as error:
            for suffix in (".log", ".index", ".timeindex"):
                path.with_suffix(suffix).unlink(missing_ok=True)
            hole = Hole(
                topic=topic.topic,
                partition=partition.partition,
                base_offset=entry.base_offset,
                last_offset=entry.last_offset,
                reason=str(error),
            )
            with self._lock:
                self._holes.append(hole)
            return
        with self._lock:
            self._restored[path] = restored
            self._progress(entry.live_bytes)

    def _beside(self) -> Iterator[tuple[Path, Files]]:
        """Each partition's directory and the files beside its segments."""
        for topic, partition in partitions(self._plan):
            directory = self._into / partition_directory(topic, partition)
            last = directory / segment_name(partition.files[-1].base_offset) if partition.files else None
            end = self._restored[last].next_offset if last else None
            yield directory, layout.partition_files(topic, partition, end, self._mark.started_ms)

    def _publish(self, file: tuple[Path, bytes]) -> None:
        publish(*file)

    def _publish_all(self, files: Files) -> None:
        for name, content in files.items():
            publish(self._into / name, content)

    def _verify(self) -> None:
        """Raises VerificationFailed unless the directory holds what was planned and not one file more.

        What is in the segments was verified when each was placed, and their indexes were made from it.
        """
        expected = {self._into / name: -1 for name in (MARK, LOCK, plan_name(self._mark.plan_digest))}
        [(identity, content)] = layout.identity_files(self._plan, self._mark.directory_id).items()
        if read_if_there(self._into / identity) == content:  # of a run that ended right behind it
            expected[self._into / identity] = -1
        expected |= {path: entry.live_bytes for _, _, entry, path in _segment_files(self._plan, self._into)}
        for _, _, _, path in _segment_files(self._plan, self._into):
            expected |= self._restored[path].index_bytes
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
    """Threads that stop at the first error that flies: what has not begun then is not begun."""
    pool = ThreadPoolExecutor(workers, "recover")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Segment(NamedTuple):
    topic: TopicPlan
    partition: PartitionPlan
    entry: Entry
    path: Path


def _segment_files(plan: RecoveryPlan, into: Path) -> Iterator[_Segment]:
    for topic, partition in partitions(plan):
        directory = into / partition_directory(topic, partition)
        for entry in partition.files:
            yield _Segment(topic, partition, entry, directory / segment_name(entry.base_offset))


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
        source_cluster_id=plan.source_cluster_id,
        cluster_id=plan.cluster_id,
        node_id=plan.node_id,
        topics=tuple(_topic_report(topic) for topic in plan.topics),
        left_out=plan.left_out,
        notes=(*plan.notes, *plan.endings),
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
