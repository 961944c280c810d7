"""Fetches, verifies and places what a plan names; only then does the target become a log directory."""

import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath

from headwater_core import milestones
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, DiskFull, NotFound, TransientError, UnsupportedFormat, VerificationFailed
from headwater_core.files import PARTIAL, disk_errors, sync_path
from headwater_core.objectstore.store import ObjectStore
from headwater_core.threads import ContextThreads
from manifests.repository import ManifestRepository
from recovery import layout
from recovery.cluster_state import copied_state, copy_snapshot
from recovery.coordinator_tail import tail_rows
from recovery.indexes import most_index_bytes
from recovery.layout import Files, Segment, partition_directory, partitions, segment_files
from recovery.placed_segments import PlacedSegments, common_runs
from recovery.planner import without
from recovery.recovery_plan import LostRun, PartitionPlan, RecoveryPlan, TopicPlan
from recovery.revision import REVISIONS_MAX, settled
from recovery.runs import SEGMENT_SUFFIXES, restore, segment_name
from recovery.take_over import TakeOver
from recovery.target import LOCK, MARK, Mark, copy_name, plan_name, write_mark
from recovery.target_files import SECRET_MODE, publish, read_if_there
from recovery.target_room import free_bytes

Progress = Callable[[int], None]
"""Called with bytes as they are in place and verified, from several threads but one at a time."""


class Placement:
    """The work on one directory that has a mark."""

    def __init__(self, mark: Mark, into: Path, store: ObjectStore, progress: Progress, workers: int) -> None:
        self._mark, self._plan, self._into, self._store, self._workers = mark, mark.plan, into, store, workers
        self._progress, self._lock = progress, threading.Lock()
        self._manifests = ManifestRepository(store)
        self._placed = {(topic.topic, each.partition): PlacedSegments(each.files) for topic, each in partitions(mark.plan)}
        self._lost: dict[str, LostRun] = {}  # by key
        self._missing_bytes = 0  # the room of segments that are not there, and are not begun

    def run(self, *, skip_damaged: bool, claim: Callable[[], None]) -> Mark:
        """Do what is left to do; return the mark, with the plan that was carried out in the end.

        claim  called when everything is verified, before a broker can start on it

        Raises what restoration.apply does, and what `claim` raises.
        """
        if self._plan.cluster is not None:
            copy_snapshot(self._plan.cluster, self._into, self._store)
        self._remove_partials()
        self._make_directories()
        milestones.reached("recover.directories")
        self._check_space()
        self._restore_all()
        revisions = 0
        while self._lost:
            if revisions == REVISIONS_MAX:
                raise TransientError(f"the archive has replaced runs {revisions} times while they were fetched: run the same command again")
            revisions += 1
            self._revise(skip_damaged=skip_damaged)
            self._restore_all()
        milestones.reached("recover.segments")
        with _pool(self._workers) as pool:
            pool.run_each(self._publish_beside, partitions(self._plan))
        milestones.reached("recover.partitions")
        self._publish_all(layout.checkpoint_files(self._plan))
        milestones.reached("recover.checkpoints")
        for name, content in self._bootstrap().items():
            publish(self._into / name, content, mode=SECRET_MODE)
        milestones.reached("recover.bootstrap")
        self._verify()
        milestones.reached("recover.verified")
        claim()
        milestones.reached("recover.claimed")
        if self._plan.request.options.take_over:  # before a broker can start on it
            TakeOver(self._plan, self._manifests, self._mark.started_ms).run()
        self._publish_all(layout.identity_files(self._plan, self._mark.directory_id))
        milestones.reached("recover.identity")
        return replace(self._mark, finished_ms=None)

    def _revise(self, *, skip_damaged: bool) -> None:
        """Plan again what the archive has replaced since, and without what is missing or damaged all the same; the mark says so then."""
        plan = settled(self._plan, self._manifests, self._lost_of, self._mark.started_ms)
        if plan.holes and not skip_damaged:
            raise VerificationFailed(damage_text(plan.holes, "everything else is in place, and no broker can start on it yet"))
        if plan.holes:
            plan = settled(without(plan, plan.holes), self._manifests, lambda _: (), self._mark.started_ms)
        self._remove_outdated(plan)
        self._mark = write_mark(self._into, replace(self._mark, plan=plan, plan_digest=""))
        self._plan, self._lost = plan, {}
        self._check_space()

    def _lost_of(self, plan: RecoveryPlan) -> list[LostRun]:
        return [lost for each in segment_files(plan, self._into) if (lost := self._lost.get(each.entry.key))]

    def _remove_outdated(self, plan: RecoveryPlan) -> None:
        """Of partitions that `plan` has otherwise, remove every segment that is not of the same run: another one may take its name."""
        for (topic, now), (_, before) in zip(partitions(plan), partitions(self._plan), strict=True):
            if now == before:
                continue
            place, placed, kept = (topic.topic, now.partition), PlacedSegments(now.files), array("q")
            held = self._placed[place]
            for run in common_runs(before.files, now.files):
                kept.append(run.base_offset)
                if run.before in held:
                    placed.add(run.now, held[run.before])
            self._placed[place] = placed
            _remove_segments(self._into / partition_directory(topic, now), kept)

    def _restore_all(self) -> None:
        """What is missing or damaged stops nothing else."""
        with _pool(self._workers) as pool:
            pool.run_each(self._restore, segment_files(self._plan, self._into))

    def _remove_partials(self) -> None:
        """What a run left that ended while it wrote. Not every file is written again: another plan may not have it, and `meta.properties`
        comes after all else was compared."""
        with disk_errors(self._into):
            for path in self._into.rglob(f"*{PARTIAL}"):
                path.unlink()

    def _make_directories(self) -> None:
        homes = [self._into / broker.directory for broker in self._plan.targets]
        with disk_errors(self._into):
            for home in homes:
                home.mkdir(exist_ok=True)
            for topic, partition in partitions(self._plan):
                (self._into / partition_directory(topic, partition)).mkdir(exist_ok=True)
            for each in {self._into, *homes}:
                sync_path(each)

    def _check_space(self) -> None:
        """Before anything is fetched, and before each segment: somebody else may write there too, and a disk that is full is worse for a
        broker than a recovery that stops."""
        with self._lock:
            self._missing_bytes = sum(_room_of(each) for each in segment_files(self._plan, self._into) if not each.path.exists())
        self._check_free()

    def _check_free(self) -> None:
        free = free_bytes(self._into)
        if self._missing_bytes > free:
            raise DiskFull(
                f"{self._into} needs {self._missing_bytes} more bytes and has {free}, less what is left free; nothing is lost: make room "
                "and run the same command again"
            )

    def _restore(self, segment: Segment) -> None:
        topic, partition, at, entry, path = segment
        placed = self._placed[topic.topic, partition.partition]
        if at in placed:
            return
        if not path.exists():
            self._check_free()
            with self._lock:
                self._missing_bytes -= _room_of(segment)
        try:
            restored = restore(self._store, entry, path, layout.index_interval_bytes(topic))
        except (CorruptData, NotFound, UnsupportedFormat) as error:
            for suffix in SEGMENT_SUFFIXES:
                path.with_suffix(suffix).unlink(missing_ok=True)
            lost = LostRun(
                topic=topic.topic,
                partition=partition.partition,
                base_offset=entry.base_offset,
                last_offset=entry.last_offset,
                reason=str(error),
            )
            with self._lock:
                self._lost[entry.key] = lost
            return
        with self._lock:
            placed.add(at, restored)
            self._progress(entry.live_bytes)

    def _beside(self, topic: TopicPlan, partition: PartitionPlan) -> Files:
        """The files beside the segments of a partition."""
        count = len(partition.files)
        end = self._placed[topic.topic, partition.partition][count - 1].next_offset if count else None
        rows = tail_rows(self._plan, topic, partition, self._into / partition_directory(topic, partition), self._mark.started_ms)
        return layout.partition_files(topic, partition, end, self._mark.started_ms, rows)

    def _publish_beside(self, place: tuple[TopicPlan, PartitionPlan]) -> None:
        directory = self._into / partition_directory(*place)
        for name, content in self._beside(*place).items():
            publish(directory / name, content)

    def _publish_all(self, files: Files) -> None:
        for name, content in files.items():
            publish(self._into / name, content)

    def _bootstrap(self) -> Files:
        return layout.bootstrap_files(self._plan, self._mark.started_ms, copied_state(self._plan, self._into))

    def _verify(self) -> None:
        """Raises VerificationFailed unless the directory holds what was planned and not one file more.

        What is in the segments was verified when each was placed, and their indexes were made from it.
        """
        expected: dict[PurePath, bytes | int | None] = {PurePath(name): None for name in (MARK, LOCK, plan_name(self._mark.plan_digest))}
        if self._plan.cluster is not None:
            expected[PurePath(copy_name(self._plan.cluster))] = self._plan.cluster.size_bytes
        for identity, content in layout.identity_files(self._plan, self._mark.directory_id).items():
            if read_if_there(self._into / identity) == content:  # of a run that ended right after it
                expected[identity] = content
        expected |= layout.checkpoint_files(self._plan) | self._bootstrap()
        for name, wanted in expected.items():
            _check_file(self._into / name, wanted)
        verified = {self._into / partition_directory(*place) for place in partitions(self._plan)}
        for path in _files_below(self._into, but=verified):
            if path.relative_to(self._into) not in expected:
                raise VerificationFailed(f"{path} does not belong there")
        for place in partitions(self._plan):
            self._verify_partition(*place)

    def _verify_partition(self, topic: TopicPlan, partition: PartitionPlan) -> None:
        """As `_verify`, of one partition's directory. Names are compared only where there are too many."""
        directory, placed = self._into / partition_directory(topic, partition), self._placed[topic.topic, partition.partition]

        def files() -> Iterator[tuple[Path, bytes | int]]:
            for at, entry in enumerate(partition.files):
                path, restored = directory / segment_name(entry.base_offset), placed[at]
                sizes = zip(SEGMENT_SUFFIXES, (entry.live_bytes, restored.index_bytes, restored.timeindex_bytes), strict=True)
                yield from ((path.with_suffix(suffix), size) for suffix, size in sizes if size is not None)
            yield from ((directory / name, content) for name, content in self._beside(topic, partition).items())

        count = 0
        for path, wanted in files():
            _check_file(path, wanted)
            count += 1
        with disk_errors(directory), os.scandir(directory) as found:
            if sum(1 for _ in found) == count:
                return
            names = {path.name for path, _ in files()}
            foreign = min((name for name in os.listdir(directory) if name not in names), default="a file that has gone meanwhile")
        raise VerificationFailed(f"{directory / foreign} does not belong there")


def _remove_segments(directory: Path, kept: Sequence[int]) -> None:
    """All but those that begin at these offsets, which are in order."""
    with disk_errors(directory), os.scandir(directory) as found:
        for each in found:
            base, suffix = os.path.splitext(each.name)
            if suffix in SEGMENT_SUFFIXES:
                at = bisect_left(kept, int(base)) if base.isdecimal() else len(kept)
                if at == len(kept) or segment_name(kept[at]) != f"{base}.log":
                    os.unlink(each.path)


def _check_file(path: Path, wanted: bytes | int | None) -> None:
    """Raises VerificationFailed unless the file is there, and is what was `wanted`, or so long. None: anything"""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = None
    wanted_bytes = len(wanted) if isinstance(wanted, bytes) else wanted
    if size is None or wanted_bytes not in (None, size):
        raise VerificationFailed(f"{path} has {'no' if size is None else size} bytes, {wanted_bytes} were planned")
    if isinstance(wanted, bytes) and path.read_bytes() != wanted:
        raise VerificationFailed(f"{path} is not what was written")


def _files_below(into: Path, but: Collection[Path]) -> Iterator[Path]:
    """Every file, but those that lie in one of these directories."""
    for directory, _, names in os.walk(into):
        if (path := Path(directory)) not in but:
            yield from (path / name for name in sorted(names))


def _room_of(segment: Segment) -> int:
    size_bytes = segment.entry.live_bytes
    return size_bytes + most_index_bytes(size_bytes, layout.index_interval_bytes(segment.topic))


@contextmanager
def _pool(workers: int) -> Iterator[ContextThreads]:
    """Threads that stop at the first error that flies: what has not begun then is not begun."""
    pool = ContextThreads(workers, "recover")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def damage_text(lost_runs: Collection[LostRun], consequence: str) -> str:
    """What the user reads about `lost_runs`; `consequence` says what that means for the recovery."""
    listed = "".join(f"\n  {lost}" for lost in sorted(lost_runs, key=lambda lost: (lost.topic, lost.partition, lost.base_offset)))
    return (
        f"missing or damaged: {count_text(len(lost_runs), 'archived run')}; {consequence}. Mend the bucket and run the same command "
        "again, or add "
        f"--skip-damaged to recover everything else:{listed}"
    )
