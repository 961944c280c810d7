"""Recovered partitions take the place of the empty ones that a running cluster's broker has made. The broker is stopped meanwhile.

Everything is looked at before anything is changed. Then, of each partition: its batches get leader epoch 0, its index files go, the
broker's empty directory is set aside under a name that Kafka itself deletes, and the recovered one is moved there. Each step may be
repeated after any interruption, and what an interruption leaves is a log directory on which a broker starts.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, UnsupportedFormat, UsageError, VerificationFailed
from headwater_core.files import disk_errors, sync_path
from headwater_core.objectstore.digest import Digest
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.batch_walk import walk
from manifests.document import FORMAT, seal, unseal
from manifests.entry import Entry
from recovery import layout
from recovery.broker_directory import broker_lock, change_checkpoints, give_to_owner, identity_of
from recovery.completion import gone_files
from recovery.epoch_reset import EPOCH, reset_epochs
from recovery.recovery_plan import PartitionPlan, TargetBroker, TopicPlan
from recovery.runs import segment_name
from recovery.target import PLACED, Mark, locked, read_mark
from recovery.target_files import publish, read_if_there

MILESTONES = ("place.begun", "place.reset", "place.checkpoints", "place.emptied", "place.copied", "place.moved", "place.finished")
"""Those of placing; `copied` only from one file system to another."""

_INDEXES = (".index", ".timeindex", ".txnindex")
_NAME_BYTES_MAX = 255
_SHOWN = 20
_PIECE_BYTES = 1 << 20

_log = structlog.get_logger()

Rename = Callable[[Path, Path], None]


class NamedLogDir(NamedTuple):
    """node_id: whose it is said to be; None: as its meta.properties says"""

    path: Path
    node_id: int | None = None


class PlacedNode(msgspec.Struct, frozen=True, kw_only=True):
    """How far the partitions of one broker are placed. prepared_ms: when that was done which can be while the broker runs; log_dirs:
    where they go, none before that is begun; again: what was requested had been done before."""

    format: tuple[int, int] = FORMAT
    node_id: int
    partitions: int
    log_dirs: tuple[str, ...] = ()
    begun_ms: int
    prepared_ms: int | None = None
    finished_ms: int | None = None
    again: bool = False


class _Place(NamedTuple):
    """One partition on its way. staged: the recovered directory; log_dir: where it goes; is_there: it has come there"""

    topic: TopicPlan
    partition: PartitionPlan
    staged: Path
    log_dir: Path
    is_there: bool = False

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic.topic, self.partition.partition)

    @property
    def final(self) -> Path:
        return self.log_dir / f"{self.topic.topic}-{self.partition.partition}"


def place(into: Path, log_dirs: Sequence[NamedLogDir], clock: Clock, *, rename: Rename = os.rename) -> list[PlacedNode]:
    """Move what was recovered in `into` for the brokers of these log directories there; return what is placed of each.

    rename  a directory within a file system; raises OSError, EXDEV for another one

    Raises NotFound when there is no recovery, UsageError when it is not one into a running cluster, is not finished, or a directory is
    missing, Locked when a broker runs there, ForeignOwner for the directories of another cluster or broker, VerificationFailed when what is
    there is not as `apply` left it, or holds records, and DiskFull; nothing is changed by then unless an earlier run had begun.
    """
    mark = _running_mark(into)
    with ExitStack() as stack:
        stack.enter_context(locked(into))
        for each in log_dirs:
            if into.resolve().is_relative_to(each.path.resolve()):
                raise UsageError(f"{into} lies in {each.path}: no broker starts on a log directory with anything else in it")
        nodes = _nodes(mark, log_dirs)
        for each in log_dirs:
            stack.enter_context(broker_lock(each.path))
        works = [_Work(mark, into, broker, paths, rename) for broker, paths in nodes.items()]
        _raise_problems(works)
        return [work.run(clock) for work in works]


def prepare(into: Path, clock: Clock) -> list[PlacedNode]:
    """Do what of `place` needs no log directory: leader epochs and index files, which takes longest. The brokers may run meanwhile.

    Raises as `place`.
    """
    mark = _running_mark(into)
    with locked(into):
        works = [_Work(mark, into, each, (), os.rename) for each in mark.plan.brokers if (into / each.directory).is_dir()]
        _raise_problems(works)
        return [work.prepare(clock) for work in works]


def _running_mark(into: Path) -> Mark:
    mark = read_mark(into)
    if mark is None:
        raise NotFound(f"no recovery was started in {into}")
    if mark.plan.running is None:
        raise UsageError(f"the recovery in {into} is not one into a running cluster: a broker starts on what it made")
    if mark.finished_ms is None:
        raise UsageError(f"the recovery in {into} is not finished: run `headwater recover apply` again")
    return mark


def placed_of(into: Path, mark: Mark) -> list[PlacedNode]:
    """Of each broker of which anything is on its way or in place, as far as this directory knows."""
    found = (_read(into / broker.directory) for broker in mark.plan.brokers)
    return [each for each in found if each is not None]


def _nodes(mark: Mark, log_dirs: Sequence[NamedLogDir]) -> Mapping[TargetBroker, Sequence[Path]]:
    brokers = {each.node_id: each for each in mark.plan.brokers}
    found: dict[TargetBroker, list[Path]] = {}
    for path, node_id in log_dirs:
        identity = identity_of(path)
        if path.resolve() in (each for paths in found.values() for each in paths):  # a second lock would end with the first one
            raise UsageError(f"{path} is named twice")
        if identity.cluster_id != mark.plan.cluster_id:
            raise ForeignOwner(f"{path} belongs to cluster {identity.cluster_id}, what was recovered is for {mark.plan.cluster_id}")
        if node_id not in (None, identity.node_id):
            raise ForeignOwner(f"{path} belongs to broker {identity.node_id}, not {node_id}")
        if identity.node_id not in brokers:
            raise ForeignOwner(f"{path} belongs to broker {identity.node_id}; the recovery is for {', '.join(map(str, brokers))}")
        found.setdefault(brokers[identity.node_id], []).append(path.resolve())
    if not found:
        raise UsageError("--log-dir is needed: each log directory of a broker that is stopped")
    return found


def _read(home: Path) -> PlacedNode | None:
    path = home / PLACED
    raw = read_if_there(path) if home.is_dir() else None
    return None if raw is None else unseal(raw, PlacedNode, str(path))


def _raise_problems(works: "Sequence[_Work]") -> None:
    problems = [text for work in works for text in work.problems]
    if problems:
        more = f"\n  {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise VerificationFailed("nothing was changed:" + "".join(f"\n  {each}" for each in problems[:_SHOWN]) + more)


class _Work:
    """The partitions of one broker. problems: why they cannot be placed, for people. log_dirs: none, to prepare them alone"""

    def __init__(self, mark: Mark, into: Path, broker: TargetBroker, log_dirs: Sequence[Path], rename: Rename) -> None:
        self._mark, self._into, self._broker, self._log_dirs, self._rename = mark, into, broker, log_dirs, rename
        self._home = into / broker.directory
        self._record = _read(self._home)
        self.problems: list[str] = []
        self._missing: list[str] = []
        self._places: list[_Place] = []
        if self._is_placed:
            return
        if self._record is None:
            self.problems += self._unstaged()
        if not self.problems and log_dirs:
            for topic, partition in self._partitions():
                self._look(topic, partition)
        if self._missing:
            self.problems.append(
                f"not in {', '.join(map(str, log_dirs))}: {count_text(len(self._missing), 'partition')}, {self._missing[0]} among "
                "them; name every "
                f"log directory of broker {broker.node_id}; if it was stopped before it had made theirs, start it and stop it again"
            )

    def prepare(self, clock: Clock) -> PlacedNode:
        record = self._begin(clock)
        if record.prepared_ms is not None or record.log_dirs:
            return replace(record, again=True)
        for topic, partition in self._partitions():
            _reset(self._home / f"{topic.topic}-{partition.partition}", partition)
            milestones.reached("place.reset")
        record = replace(record, prepared_ms=clock.now_ms())
        publish(self._home / PLACED, seal(record))
        return record

    def run(self, clock: Clock) -> PlacedNode:
        if self._record is not None and self._is_placed:
            return replace(self._record, again=True)
        record = replace(self._begin(clock), log_dirs=tuple(map(str, self._log_dirs)))
        publish(self._home / PLACED, seal(record))
        milestones.reached("place.begun")
        left = [each for each in self._places if not each.is_there]
        for each in left if record.prepared_ms is None else ():
            _reset(each.staged, each.partition)
            milestones.reached("place.reset")
        self._checkpoints(left)
        milestones.reached("place.checkpoints")
        for each in left:
            self._swap(each)
        for each in self._places:
            self._clear(each)
        record = replace(record, finished_ms=clock.now_ms())
        publish(self._home / PLACED, seal(record))
        milestones.reached("place.finished")
        _log.info("partitions_placed", node_id=record.node_id, partitions=record.partitions, log_dirs=record.log_dirs)
        return record

    @property
    def _is_placed(self) -> bool:
        return self._record is not None and self._record.finished_ms is not None

    def _partitions(self) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
        yield from (each for each in layout.partitions(self._mark.plan) if each[1].directory == self._broker.directory)

    def _begin(self, clock: Clock) -> PlacedNode:
        if self._record is not None:
            return self._record
        made = PlacedNode(node_id=self._broker.node_id, partitions=sum(1 for _ in self._partitions()), begun_ms=clock.now_ms())
        publish(self._home / PLACED, seal(made))
        return made

    def _unstaged(self) -> Iterator[str]:
        """What is not as `apply` left it; nothing was moved yet."""
        identity = layout.identity_files(self._mark.plan, self._mark.directory_id)
        name = next(each for each in identity if each.parent.name == self._broker.directory)
        if read_if_there(self._into / name) != identity[name]:
            yield f"{self._home} is not what was recovered for broker {self._broker.node_id}: bring all of it here, or apply again"
        elif gone := gone_files(self._into, self._mark, self._broker):
            yield f"gone or changed since the recovery: {count_text(len(gone), 'file')}, {gone[0]} among them; bring all of it here"

    def _look(self, topic: TopicPlan, partition: PartitionPlan) -> None:
        """Decide where it goes, or why it cannot."""
        name = f"{topic.topic}-{partition.partition}"
        staged = self._home / name
        homes = [each for each in self._log_dirs if (each / name).is_dir()]
        aside = [each for each in self._log_dirs if (each / self._aside_name(name, "emptied")).is_dir()]
        if len(homes) > 1:
            self.problems.append(f"{name} is in {homes[0]} and in {homes[1]}: no broker starts on both")
        elif not homes and not (aside and staged.is_dir()):
            self._missing.append(name)
        else:
            log_dir = homes[0] if homes else aside[0]
            found = _Place(topic, partition, staged, log_dir)
            begun = self._record is not None and bool(self._record.log_dirs)
            why, is_there = _occupied(found, begun=begun) if homes else ("", False)
            if why:
                self.problems.append(why)
            elif not is_there and self._record is not None and staged.is_dir() and (lacking := _lacking(found)):
                self.problems.append(f"{staged} lacks {lacking}, or a part of it: bring all of it here")
            elif not is_there and not staged.is_dir():
                self.problems.append(f"{name} is neither in {self._home} nor, with its records, in {log_dir}: bring it here again")
            else:
                self._places.append(found._replace(is_there=is_there))

    def _checkpoints(self, places: Sequence[_Place]) -> None:
        """Before the logs are there to be read by them."""
        wanted = {
            name.name: checkpoints.decode_offsets(content, where=str(name))
            for name, content in layout.checkpoint_files(self._mark.plan).items()
            if name.parent.name == self._broker.directory
        }
        for log_dir in self._log_dirs:
            here = {each.key for each in places if each.log_dir == log_dir}
            if here:
                change_checkpoints(log_dir, wanted, here)

    def _swap(self, each: _Place) -> None:
        aside = each.log_dir / self._aside_name(each.final.name, "emptied")
        with disk_errors(each.log_dir):
            give_to_owner(each.staged, each.log_dir)
            if each.final.is_dir():
                _remove(aside)
                os.rename(each.final, aside)
                sync_path(each.log_dir)
            milestones.reached("place.emptied")
            try:
                self._rename(each.staged, each.final)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy = each.log_dir / self._aside_name(each.final.name, "copied")
                _copy(each.staged, copy)
                give_to_owner(copy, each.log_dir)
                milestones.reached("place.copied")
                os.rename(copy, each.final)
            sync_path(each.log_dir)
            sync_path(self._home)
            milestones.reached("place.moved")

    def _clear(self, each: _Place) -> None:
        """What is left of it elsewhere: a broker would delete the former, and the latter is of no use any more."""
        with disk_errors(each.log_dir):
            _remove(each.log_dir / self._aside_name(each.final.name, "emptied"))
            _remove(each.staged)

    def _aside_name(self, name: str, what: str) -> str:
        """One that Kafka deletes when it starts, should it meet it: NAME.<32 hex digits>-delete."""
        topic, _, number = name.rpartition("-")
        digits = hashlib.blake2b(f"{self._mark.plan.recovery_id}/{what}/{name}".encode(), digest_size=16).hexdigest()
        suffix = f"-{number}.{digits}-delete"
        return topic[: _NAME_BYTES_MAX - len(suffix)] + suffix


def _occupied(each: _Place, *, begun: bool) -> tuple[str, bool]:
    """Why the broker's directory cannot be replaced, "" when it can; and whether the recovered one has come there. begun: by an earlier
    run"""
    final, path = each.final, each.final / checkpoints.PARTITION_METADATA
    raw = read_if_there(path)
    try:
        found = None if raw is None else checkpoints.decode_partition_metadata(raw, where=str(path))
    except (CorruptData, UnsupportedFormat) as error:
        return str(error), False
    if found not in (None, each.topic.topic_id):
        return f"{final} is of topic id {found}, and {each.topic.topic} was created with {each.topic.topic_id}", False
    with disk_errors(final):
        sizes = {log.name: log.stat().st_size for log in final.glob("*.log")}
        if begun and not each.staged.is_dir():
            return "", _is_whole(each)
        if not any(sizes.values()):
            return "", False
        if begun and _holds_all(each.staged, final):
            return "", True  # it was copied there, and the run ended before the source was removed
    return f"{final} holds records: somebody has written to {each.topic.topic} since it was created. Nothing overwrites them", False


def _bases(partition: PartitionPlan) -> set[str]:
    """The segments that a recovered partition has."""
    bases = {entry.base_offset for entry in partition.files} | {each.base_offset for each in partition.written}
    return {segment_name(base) for base in bases or {partition.log_end}}


def _is_whole(moved: _Place) -> bool:
    """Does the broker's directory hold every recovered record? Names do not say it: the broker's own empty segment 0 has one of them.
    Raises OSError."""
    logs = {log.name for log in moved.final.glob("*.log")}
    if not _bases(moved.partition) <= logs:
        return False
    runs = ((entry.base_offset, entry.last_offset, entry) for entry in moved.partition.files)
    own = ((written.base_offset, written.next_offset - 1, None) for written in moved.partition.written)
    return all(_holds_run(moved.final / segment_name(base), last, entry) for base, last, entry in (*runs, *own))


def _holds_run(path: Path, last_offset: int, entry: Entry | None) -> bool:
    """Is this segment sound up to `last_offset`, and of the size and digest of its archived run, but for leader epochs? Behind that a
    broker may have written. entry: None for what recovery has written. Raises OSError."""
    digest, last = Digest(), -1
    epochs = list(entry.epochs) if entry else []
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if entry and size_bytes < entry.live_bytes:
            return False
        try:
            for position, header in walk(file, 0, entry.live_bytes if entry else size_bytes, where=str(path)):
                if last >= last_offset:
                    break
                last = header.last_offset
                batch = bytearray(os.pread(file.fileno(), header.size_bytes, position))
                epoch = max((epoch for epoch, first in epochs if first <= header.base_offset), default=-1)
                batch[EPOCH] = epoch.to_bytes(4, "big", signed=True)
                digest.update(batch)
        except CorruptData:
            return False
    if entry is None or entry.run_bytes != entry.live_bytes or not entry.run_digest:
        return last == last_offset
    return last == last_offset and digest.text() == entry.run_digest


def _lacking(each: _Place) -> str:
    """A segment that the recovered directory should have, and has not, or not whole; "" for none."""
    wanted = {segment_name(entry.base_offset): entry.live_bytes for entry in each.partition.files}
    with disk_errors(each.staged):
        sizes = {log.name: log.stat().st_size for log in each.staged.glob("*.log")}
    short = [name for name, size in wanted.items() if sizes.get(name) != size]
    return next(iter(short or sorted(_bases(each.partition) - sizes.keys())), "")


def _holds_all(staged: Path, final: Path) -> bool:
    """Every record of `staged` is in `final`, in the same place. Raises OSError."""
    logs = [log for log in staged.glob("*.log") if log.stat().st_size]
    return bool(logs) and all(_begins_with(final / log.name, log) for log in logs)


def _begins_with(path: Path, other: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as longer, other.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            if longer.read(len(piece)) != piece:
                return False
    return True


def _reset(staged: Path, partition: PartitionPlan) -> None:
    """Leader epoch 0 everywhere, and no index files: a broker rebuilds what stands beside a segment without them, also after a clean stop,
    and with it what it knows of transactions and producers."""
    history = EpochHistory.of([(0, partition.start_offset)])
    with disk_errors(staged):
        for path in sorted(staged.iterdir()):
            if path.suffix == ".log":
                reset_epochs(path)
            elif path.suffix in _INDEXES:
                path.unlink()
        publish(staged / checkpoints.LEADER_EPOCHS, checkpoints.encode_epochs(history))
        sync_path(staged)


def _copy(source: Path, copy: Path) -> None:
    """`source` as `copy`, whole and durable, or not at all. Raises OSError."""
    _remove(copy)
    try:
        shutil.copytree(source, copy)
        for path in (*copy.iterdir(), copy):
            sync_path(path)
    except BaseException:
        with suppress(OSError):
            _remove(copy)  # a full disk gets its room back at once
        raise


def _remove(directory: Path) -> None:
    """Raises OSError."""
    if directory.is_dir():
        shutil.rmtree(directory)
