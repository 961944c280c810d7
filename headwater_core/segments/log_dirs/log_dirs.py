"""Finds the partitions in a broker's log directories: one look, as consistent as a directory lets us have it."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from headwater_core.errors import CorruptData, HeadwaterError, LogNotFound, NotFound, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments.checkpoints import MetaProperties
from headwater_core.segments.disk import PATIENCE_S, Disk, DiskHangs, Progressed
from headwater_core.segments.local_log import Glimpse, LocalLog
from headwater_core.segments.log_dirs.broker_metadata import BrokerMetadata, KnownMetadata
from headwater_core.segments.log_dirs.log_directory import LogDirectory, partition_names, same_broker
from headwater_core.segments.log_dirs.partition_directory import (
    Identity,
    LocalPartition,
    glimpse_at,
    identify,
    local_partition,
    look_at,
)
from headwater_core.segments.log_dirs.small_files import SmallFiles, is_directory
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata

T = TypeVar("T")
_Problems = list[tuple[Path, HeadwaterError]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One look at everything. `problems` are directories that should be partitions and could not be read, and why."""

    logs: tuple[LocalLog, ...]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which partitions there are, by their directories' names, and how each looks from outside.

    Without `problems`, a partition that is not listed is not there.

    unread  why the broker's metadata log cannot be read: then it is not known who leads
    checkpoints_ms  by log directory: see LocalLog.checkpoint_ms
    """

    partitions: Mapping[TopicPartition, Glimpse]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()
    unread: HeadwaterError | None = None
    checkpoints_ms: Mapping[Path, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Which partition each directory holds. `problems` as in a Survey."""

    cluster_id: str
    partitions: Mapping[TopicPartition, LocalPartition]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()


class LogDirs:
    """A broker's log.dirs, read-only. Safe to use from many threads, which do not wait for each other's disks: where one hangs, the
    partitions in it are unknown (DiskHangs), and all others are what they are.

    metadata_dir  the broker's metadata.log.dir, when that is none of `dirs`
    owned         no broker works on them
    static        the broker's server.properties; None: they are not known
    patience_s    after how long without an answer a disk counts as one that hangs
    """

    def __init__(
        self,
        dirs: Sequence[Path],
        *,
        metadata_dir: Path | None = None,
        owned: bool = False,
        static: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not dirs:
            raise UsageError("no log directory is given")
        self._dirs = tuple(dirs)
        self._owned, self.static = owned, static
        self._disks = {each: Disk(each, patience_s) for each in ((*dirs, metadata_dir) if metadata_dir else dirs)}
        if len(set(map(self._real_path, dirs))) < len(dirs):
            raise UsageError(f"a log directory is given twice: {', '.join(map(str, dirs))}")
        self._places: dict[TopicPartition, Path] = {}  # the log directory that each partition was last found in
        self._metadata = BrokerMetadata(self._dirs, metadata_dir, self._disks, self._check_same_broker)
        self._files = SmallFiles()
        self._identities: dict[Path, dict[Path, Identity]] = {}  # of the partitions in each log directory, as last read

    @property
    def dirs(self) -> tuple[Path, ...]:
        return self._dirs

    @property
    def cluster_id(self) -> str:
        return self._identity().cluster_id

    @property
    def node_id(self) -> int:
        return self._identity().node_id

    def metadata(self) -> ClusterMetadata | None:
        """See BrokerMetadata.read."""
        return self._metadata.read()

    def last_metadata(self) -> KnownMetadata:
        """What the last look or listing has read of it."""
        return self._metadata.last()

    def partitions(self) -> list[LocalLog]:
        """Every partition that could be read; see survey."""
        return list(self.survey().logs)

    def survey(self) -> Survey:
        """Look at every partition, by topic and number.

        Raises UsageError when a log directory is missing, Unauthorised when it cannot be read, and what makes all
        of it unusable: directories of two clusters, a damaged metadata log. What concerns one partition, or one
        of several log directories, is among the problems.
        """
        metadata = self._metadata.known()

        def look_at_all(root: LogDirectory, progressed: Progressed) -> list[tuple[TopicPartition, Path, LocalLog | HeadwaterError]]:
            found: list[tuple[TopicPartition, Path, LocalLog | HeadwaterError]] = []
            for topic_partition, path in root.partitions.items():
                try:
                    found.append(
                        (topic_partition, path, look_at(path, topic_partition, root, metadata, owned=self._owned, static=self.static))
                    )
                except NotFound:
                    pass  # deleted since the listing
                except HeadwaterError as error:
                    found.append((topic_partition, path, error))
                progressed()
            return found

        logs: dict[TopicPartition, LocalLog] = {}
        directories, problems = self._in_each(look_at_all)
        for directory, looks in directories.items():
            for topic_partition, path, found in looks:
                if isinstance(found, HeadwaterError):
                    problems.append((path, found))
                elif topic_partition in logs:
                    twice = CorruptData(str(path), 0, f"{topic_partition} is also in {logs[topic_partition].directory}")
                    problems.append((path, twice))
                else:
                    logs[topic_partition] = found
                    self._places[topic_partition] = directory
        return Survey(logs=tuple(logs[each] for each in sorted(logs)), problems=tuple(problems))

    def listing(self) -> Listing:
        """What survey would look at. It costs a listing of each log directory and two file stamps a partition, however many files that has.

        Raises what survey raises for the whole. What is wrong with single partitions is left to `look`.
        """
        metadata = self._metadata.known()

        checkpoints_ms: dict[Path, int] = {}

        def glimpse_at_all(root: LogDirectory, progressed: Progressed) -> list[tuple[TopicPartition, Path, Glimpse]]:
            if root.checkpoint_ms is not None:
                checkpoints_ms[root.directory] = root.checkpoint_ms
            found: list[tuple[TopicPartition, Path, Glimpse]] = []
            for topic_partition, path in root.partitions.items():
                found.append((topic_partition, path, glimpse_at(path, topic_partition, root, metadata.state)))
                progressed()
            return found

        partitions: dict[TopicPartition, Glimpse] = {}
        directories, problems = self._in_each(glimpse_at_all)
        for directory, glimpses in directories.items():
            for topic_partition, path, glimpse in glimpses:
                if topic_partition in partitions:
                    problems.append((path, CorruptData(str(path), 0, f"{topic_partition} is also in another log directory")))
                else:
                    partitions[topic_partition] = glimpse
                    self._places[topic_partition] = directory
        if not problems:
            for gone in [each for each in list(self._places) if each not in partitions]:
                self._places.pop(gone, None)
        return Listing(
            partitions={each: partitions[each] for each in sorted(partitions)},
            problems=tuple(problems),
            unread=metadata.unread,
            checkpoints_ms=checkpoints_ms,
        )

    def roster(self) -> Roster:
        """Which partitions survey would find, and no more of each than that. It costs a listing of each log directory and two file stamps
        a partition; what has changed since the last roster costs two small files more.

        Raises what survey raises for the whole.
        """
        metadata = self._metadata.known().state

        def identify_all(root: LogDirectory, progressed: Progressed) -> list[tuple[TopicPartition, Path, LocalPartition | HeadwaterError]]:
            found: list[tuple[TopicPartition, Path, LocalPartition | HeadwaterError]] = []
            known, now = self._identities.get(root.directory, {}), dict[Path, Identity]()
            for topic_partition, path in root.partitions.items():
                try:
                    now[path] = identify(path, known.get(path), owned=self._owned)
                    found.append((topic_partition, path, local_partition(path, topic_partition, now[path], root, metadata)))
                except NotFound:
                    pass  # deleted since the listing
                except HeadwaterError as error:
                    found.append((topic_partition, path, error))
                progressed()
            self._identities[root.directory] = now
            return found

        partitions: dict[TopicPartition, LocalPartition] = {}
        directories, problems = self._in_each(identify_all)
        for found in directories.values():
            for topic_partition, path, local in found:
                if isinstance(local, HeadwaterError):
                    problems.append((path, local))
                elif topic_partition in partitions:
                    problems.append(
                        (path, CorruptData(str(path), 0, f"{topic_partition} is also in {partitions[topic_partition].directory}"))
                    )
                else:
                    partitions[topic_partition] = local
        return Roster(cluster_id=self.cluster_id, partitions=partitions, problems=tuple(problems))

    def _read_directory(self, directory: Path, names: Sequence[str] = ()) -> LogDirectory:
        return LogDirectory.read(directory, names, self._files)

    def _in_each(self, look: Callable[[LogDirectory, Progressed], T]) -> tuple[dict[Path, T], _Problems]:
        """What `look` finds in each log directory that can be read. Raises when none can, or they belong to different brokers."""
        found: dict[Path, tuple[LogDirectory, T]] = {}
        problems: _Problems = []

        def in_one(directory: Path, progressed: Progressed) -> tuple[LogDirectory, T]:
            root = self._read_directory(directory, partition_names(directory))
            return root, look(root, progressed)

        for directory in self._dirs:
            try:
                found[directory] = self._disks[directory].ask("partitions", partial(in_one, directory))
            except HeadwaterError as error:
                problems.append((directory, error))
        if not found:
            raise problems[0][1]
        same_broker([root for root, _ in found.values()])
        return {directory: each for directory, (_, each) in found.items()}, problems

    def look(self, topic_partition: TopicPartition) -> LocalLog:
        """A fresh look at one partition.

        Raises LogNotFound when it is in none of the directories, SourceChanged when it does not hold still, and what
        survey would list as its problem.
        """
        hangs = None
        metadata = self._metadata.known() if self._metadata.only_beside is None else None
        last = self._places.get(topic_partition)
        for directory in sorted(self._dirs, key=lambda each: each != last):  # where it was, first
            try:
                found = self._disks[directory].ask(topic_partition, partial(self._look_in, directory, topic_partition, metadata))
            except DiskHangs as error:
                hangs = hangs or error
                continue
            if found is not None:
                self._places[topic_partition] = directory
                return found
        if hangs is not None:
            raise hangs  # it may be there
        for directory in self._dirs:
            self._disks[directory].ask("identity", partial(self._check_readable, directory))
        self._places.pop(topic_partition, None)
        raise LogNotFound(f"{topic_partition} is in none of {', '.join(map(str, self._dirs))}")

    def read(self, log: LocalLog, work: Callable[[Progressed], T]) -> T:
        """What `work`, which reads files of `log`, returns or raises; DiskHangs when their disk does not answer: see Disk.ask."""
        return self._disks[log.directory.parent].ask(("files", log.partition), work)

    def glimpse(self, topic_partition: TopicPartition) -> Glimpse | None:
        """How one partition looks from outside, where it was last found; None where that is not known. Raises what the disk raises."""
        directory = self._places.get(topic_partition)
        if directory is None:
            return None
        metadata = self._metadata.known() if self._metadata.only_beside is None else None

        def at_it(progressed: Progressed) -> Glimpse:
            known, name = (
                metadata or self._metadata.known_beside(directory, progressed),
                f"{topic_partition.topic}-{topic_partition.partition}",
            )
            return glimpse_at(directory / name, topic_partition, self._read_directory(directory, ()), known.state)

        return self._disks[directory].ask(topic_partition, at_it)

    def _look_in(
        self, directory: Path, topic_partition: TopicPartition, metadata: KnownMetadata | None, progressed: Progressed
    ) -> LocalLog | None:
        metadata = metadata or self._metadata.known_beside(directory, progressed)
        name = f"{topic_partition.topic}-{topic_partition.partition}"
        if not is_directory(directory / name):
            return None
        return look_at(
            directory / name, topic_partition, self._read_directory(directory, (name,)), metadata, owned=self._owned, static=self.static
        )

    def _check_readable(self, directory: Path, _: Progressed) -> None:
        """A directory that cannot be read proves no absence, nor does the empty mount point of one."""
        partition_names(directory)
        self._read_directory(directory)

    def _check_same_broker(self, named: Path) -> None:
        same_broker(self._answering((named, *self._dirs)))

    def _identity(self) -> MetaProperties:
        def read(directory: Path, _: Progressed) -> LogDirectory:
            partition_names(directory)
            return self._read_directory(directory)

        return same_broker(self._answering(self._dirs, read))

    def _answering(
        self, directories: Iterable[Path], read: Callable[[Path, Progressed], LogDirectory] | None = None
    ) -> Sequence[LogDirectory]:
        """Of those whose disks do not hang. Raises DiskHangs when all do."""
        found: list[LogDirectory] = []
        hangs: DiskHangs | None = None
        for directory in directories:
            try:
                found.append(
                    self._disks[directory].ask("identity", partial(read or (lambda each, _: self._read_directory(each)), directory))
                )
            except DiskHangs as error:
                hangs = hangs or error
        if not found and hangs is not None:
            raise hangs
        return found

    def _real_path(self, directory: Path) -> str:
        try:
            return self._disks[directory].ask("path", lambda _: os.path.realpath(directory))
        except DiskHangs:
            return os.path.abspath(directory)
