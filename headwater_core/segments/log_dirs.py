"""Finds the partitions in a broker's log directories: one look, as consistent as a directory lets us have it."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar, cast

from headwater_core.epochs import EpochHistory
from headwater_core.errors import (
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    SourceChanged,
    TransientError,
    Unauthorised,
    UnsupportedFormat,
    UsageError,
)
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments import checkpoints, metadata_log
from headwater_core.segments.checkpoints import MetaProperties
from headwater_core.segments.disk import PATIENCE_S, Disk, DiskHangs, Progressed
from headwater_core.segments.local_log import Leadership, LocalLog, LocalSegment
from headwater_core.segments.metadata_log import ClusterMetadata, MetadataLog, PartitionMetadata

_SEGMENT_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
_DIRECTORY_NAME = re.compile(r"(.+)-(\d{1,10})", re.ASCII)  # greedy: split at the last '-'
_RENAMED = ("-delete", "-future", "-stray")
_SWAP = ".swap"
_LOOKS = 5
_SETTLED_NS = 2_000_000_000  # no file system's clock is coarser
_YOUNG_S = 60.0  # since a directory last got or lost a file


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One look at everything. `problems` are directories that should be partitions and could not be read, and why."""

    logs: tuple[LocalLog, ...]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()


class Glimpse(NamedTuple):
    """What tells from outside that a partition has changed, apart from bytes beyond its high watermark.

    directory  the log directory that it is in
    files      when its own directory and its epoch history were last changed; None when that is too short ago to tell
    """

    directory: Path
    high_watermark: int | None
    log_start: int | None
    cleaned_to: int | None
    files: tuple[int, int] | None
    topic_id: str | None
    configs: Mapping[str, str] | None
    leadership: PartitionMetadata | None

    def is_as(self, earlier: "Glimpse") -> bool:
        """Has nothing happened in between?"""
        return self.files is not None and self == earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which partitions there are, by their directories' names, and how each looks from outside.

    Without `problems`, a partition that is not listed is not there.

    unread  why the broker's metadata log cannot be read: then nobody knows who leads
    """

    partitions: Mapping[TopicPartition, Glimpse]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()
    unread: HeadwaterError | None = None


class LogDirs:
    """A broker's log.dirs, read-only. Safe to use from many threads, which do not wait for each other's disks: where one hangs, the
    partitions in it are unknown (DiskHangs), and all others are what they are.

    metadata_dir  the broker's metadata.log.dir, when that is none of `dirs`
    owned         no broker works on them
    patience_s    after how long without an answer a disk counts as one that hangs
    """

    def __init__(
        self, dirs: Sequence[Path], *, metadata_dir: Path | None = None, owned: bool = False, patience_s: float = PATIENCE_S
    ) -> None:
        if not dirs:
            raise UsageError("no log directory is given")
        self._dirs = tuple(dirs)
        self._metadata_dir, self._owned = metadata_dir, owned
        self._disks = {each: Disk(each, patience_s) for each in ((*dirs, metadata_dir) if metadata_dir else dirs)}
        if len(set(map(self._real_path, dirs))) < len(dirs):
            raise UsageError(f"a log directory is given twice: {', '.join(map(str, dirs))}")
        self._places: dict[TopicPartition, Path] = {}  # the log directory that each partition was last found in
        self._metadata_log: MetadataLog | None = None
        self._metadata_lock = threading.Lock()  # one caller waits for its disk
        self._metadata_reading = threading.Lock()  # one thread reads: one that hung may go on
        self._metadata_known: _Metadata | None = None
        self._files = _SmallFiles()

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
        """What the broker's own metadata log says by now; None when there is none in these directories. While its disk hangs: what it
        said last, and it says no more to the broker either.

        Raises UsageError when there is none where it should be, ForeignOwner when it is another broker's, UnsupportedFormat
        when it holds what only a later version can read, and DiskHangs when it was never read.
        """
        with self._metadata_lock:
            try:
                self._metadata_known = _Metadata(self._metadata())
            except DiskHangs:
                if self._metadata_known is None:
                    raise
            return self._metadata_known.state

    def _metadata(self) -> ClusterMetadata | None:
        named, hangs = self._metadata_dir, None
        if (
            named
            and self._metadata_log is None
            and self._disks[named].ask("metadata", lambda _: _is_directory(named / metadata_log.DIRECTORY))
        ):
            _same_cluster(self._answering((named, *self._dirs)))
        for each in (named,) if named else self._dirs:
            try:
                found = self._disks[each].ask("metadata", partial(self._read_metadata, each / metadata_log.DIRECTORY))
            except DiskHangs as error:
                hangs = hangs or error
                continue
            if found is not None:
                return found
        if hangs is not None:
            raise hangs  # it may be there
        if named is None:
            return None
        raise UsageError(f"log.metadata_dir: {named} holds no {metadata_log.DIRECTORY}; it is the broker's metadata.log.dir")

    def _read_metadata(self, directory: Path, progressed: Progressed) -> ClusterMetadata | None:
        if not _is_directory(directory):
            return None
        with self._metadata_reading:
            if self._metadata_log is None:
                self._metadata_log = MetadataLog(directory)
            try:
                return self._metadata_log.read(progressed)
            except OSError as error:
                raise _translated(error, directory) from error

    def partitions(self) -> list[LocalLog]:
        """Every partition that could be read; see survey."""
        return list(self.survey().logs)

    def survey(self) -> Survey:
        """Look at every partition, by topic and number.

        Raises UsageError when a log directory is missing, Unauthorised when it cannot be read, and whatever makes the
        whole of it unusable: directories of two clusters, a damaged metadata log. What concerns one partition, or one
        of several log directories, is among the problems.
        """
        metadata = self._metadata_if_read()

        def look_at_all(root: _Root, progressed: Progressed) -> list[tuple[TopicPartition, Path, LocalLog | HeadwaterError]]:
            found: list[tuple[TopicPartition, Path, LocalLog | HeadwaterError]] = []
            for topic_partition, path in root.partitions.items():
                try:
                    found.append((topic_partition, path, _look(path, topic_partition, root, metadata, owned=self._owned)))
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
        """What survey would look at. Costs a listing of each log directory and two file stamps a partition, however much that holds.

        Raises what survey raises for the whole. What it would say of single partitions is for `look` to find.
        """
        metadata = self._metadata_if_read()

        def glimpse_at_all(root: _Root, progressed: Progressed) -> list[tuple[TopicPartition, Path, Glimpse]]:
            found: list[tuple[TopicPartition, Path, Glimpse]] = []
            for topic_partition, path in root.partitions.items():
                found.append((topic_partition, path, _glimpse(path, topic_partition, root, metadata.state)))
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
        return Listing(partitions={each: partitions[each] for each in sorted(partitions)}, problems=tuple(problems), unread=metadata.unread)

    def _metadata_if_read(self) -> "_Metadata":
        """After an upgrade of Kafka the metadata log may hold what we do not know, and its disk may hang. That is no reason to stop."""
        try:
            return _Metadata(self.metadata())
        except (UnsupportedFormat, DiskHangs) as error:
            return _Metadata(None, error)

    def _root(self, directory: Path, names: Sequence[str] = ()) -> "_Root":
        return _Root.read(directory, names, self._files)

    def _in_each(self, look: "Callable[[_Root, Progressed], T]") -> "tuple[dict[Path, T], _Problems]":
        """What `look` finds in each log directory that can be read. Raises when none can, or they belong to different brokers."""
        found: dict[Path, tuple[_Root, T]] = {}
        problems: _Problems = []

        def in_one(directory: Path, progressed: Progressed) -> tuple[_Root, T]:
            root = self._root(directory, _partition_names(directory))
            return root, look(root, progressed)

        for directory in self._dirs:
            try:
                found[directory] = self._disks[directory].ask("partitions", partial(in_one, directory))
            except HeadwaterError as error:
                problems.append((directory, error))
        if not found:
            raise problems[0][1]
        _same_cluster([root for root, _ in found.values()])
        return {directory: each for directory, (_, each) in found.items()}, problems

    def look(self, topic_partition: TopicPartition) -> LocalLog:
        """A fresh look at one partition.

        Raises NotFound when it is in none of the directories, SourceChanged when it does not hold still, and what
        survey would list as its problem.
        """
        metadata, hangs = self._metadata_if_read(), None
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
        raise NotFound(f"{topic_partition} is in none of {', '.join(map(str, self._dirs))}")

    def _look_in(self, directory: Path, topic_partition: TopicPartition, metadata: "_Metadata", _: Progressed) -> LocalLog | None:
        name = f"{topic_partition.topic}-{topic_partition.partition}"
        if not _is_directory(directory / name):
            return None
        return _look(directory / name, topic_partition, self._root(directory, (name,)), metadata, owned=self._owned)

    def _check_readable(self, directory: Path, _: Progressed) -> None:
        """A directory that cannot be read proves no absence, nor does the empty mount point of one."""
        _partition_names(directory)
        self._root(directory)

    def _identity(self) -> MetaProperties:
        def read(directory: Path, _: Progressed) -> _Root:
            _partition_names(directory)
            return self._root(directory)

        return _same_cluster(self._answering(self._dirs, read))

    def _answering(self, directories: Iterable[Path], read: "Callable[[Path, Progressed], _Root] | None" = None) -> "Sequence[_Root]":
        """Of those whose disks do not hang. Raises DiskHangs when all do."""
        found: list[_Root] = []
        hangs: DiskHangs | None = None
        for directory in directories:
            try:
                found.append(self._disks[directory].ask("identity", partial(read or (lambda each, _: self._root(each)), directory)))
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


_Problems = list[tuple[Path, HeadwaterError]]


class _Root(NamedTuple):
    """One log directory: its identity and its checkpoints, read before its partitions are listed.

    That order matters: a checkpointed high watermark never promises more than the segments listed after it hold.
    """

    directory: Path
    properties: MetaProperties
    high_watermarks: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    partitions: dict[TopicPartition, Path]

    @classmethod
    def read(cls, directory: Path, names: Sequence[str], files: "_SmallFiles") -> "_Root":
        properties = files.read(directory / checkpoints.META_PROPERTIES, checkpoints.decode_meta_properties)
        if properties is None:
            raise UsageError(f"{directory} is no Kafka log directory: it has no {checkpoints.META_PROPERTIES}")

        def offsets(name: str) -> Mapping[TopicPartition, int]:
            return files.read(directory / name, _decode_offsets) or {}

        return cls(
            directory=directory,
            properties=properties,
            high_watermarks=offsets(checkpoints.HIGH_WATERMARKS),
            log_starts=offsets(checkpoints.LOG_STARTS),
            cleaned=offsets(checkpoints.CLEANED),
            partitions={key: directory / name for name in names if (key := parse_directory_name(name)) is not None},
        )


class _SmallFiles:
    """What small files hold, decoded once for each of their states: every look at one partition needs all of its directory's."""

    def __init__(self) -> None:
        self._known: dict[Path, _SmallFile] = {}

    def read(self, path: Path, decode: "Callable[..., T]") -> "T | None":
        """None when it is not there. `decode` is always the same for one path."""
        known, now = self._known.get(path), _stamp(path)
        if known and known.stamp and known.stamp == now:
            return cast(T, known.value)
        found = _read_stamped(path) if now else None
        if found is None:
            return None
        raw, stamp = found
        value = known.value if known and known.raw == raw else decode(raw, where=str(path))
        is_settled = time.time_ns() > stamp[1] + _SETTLED_NS
        self._known[path] = _SmallFile(stamp if is_settled else None, raw, value)
        return cast(T, value)


class _SmallFile(NamedTuple):
    """stamp: inode, modification time and size; None when it was just written, so that they need not show the next change"""

    stamp: tuple[int, int, int] | None
    raw: bytes
    value: object


class _Metadata(NamedTuple):
    """state: None when there is none. unread: why it cannot be read"""

    state: ClusterMetadata | None
    unread: HeadwaterError | None = None


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory of this name holds; None for renamed ones, the metadata log and anything else."""
    match = _DIRECTORY_NAME.fullmatch(name)
    if match is None or name.endswith(_RENAMED) or name == metadata_log.DIRECTORY:
        return None
    topic, number = match.groups()
    if number != str(int(number)):
        return None
    try:
        return TopicPartition(topic, int(number))
    except UsageError:
        return None


def _look(path: Path, topic_partition: TopicPartition, root: _Root, metadata: _Metadata, *, owned: bool) -> LocalLog:
    """Read one partition directory between two listings that agree on names and inodes."""
    try:
        before = _segments(path, owned)
        for _ in range(_LOOKS):
            topic_id = _topic_id(path, before)
            epochs = _epochs(path)
            after = _segments(path, owned)
            if before.same_files(after):
                return _assemble(path, topic_partition, root, metadata, after, topic_id, epochs)
            before = after
    except FileNotFoundError as error:
        raise NotFound(f"{path} is gone") from error
    except OSError as error:
        raise _translated(error, path) from error
    raise SourceChanged(f"{path} changed during each of {_LOOKS} looks")


def _assemble(
    path: Path,
    topic_partition: TopicPartition,
    root: _Root,
    metadata: _Metadata,
    listing: "_Listing",
    topic_id: str,
    epochs: EpochHistory,
) -> LocalLog:
    cluster = metadata.state
    topic = cluster.topics.get(topic_partition.topic) if cluster else None
    if topic is not None and topic.topic_id != topic_id:
        topic = None  # another incarnation: what the cluster says now is not about this directory
    state = topic.partitions.get(topic_partition.partition) if topic else None
    first = listing.segments[0].base_offset if listing.segments else 0
    try:
        return LocalLog(
            partition=PartitionId(root.properties.cluster_id, topic_id, topic_partition.partition, topic_partition.topic),
            directory=path,
            segments=listing.segments,
            high_watermark=root.high_watermarks.get(topic_partition),
            log_start=max(first, root.log_starts.get(topic_partition, first)),
            epochs=epochs,
            cleaned_to=root.cleaned.get(topic_partition),
            compacted=cluster is not None and topic is not None and "compact" in cluster.policy_of(topic.name),
            delete_retention_ms=cluster.delete_retention_ms_of(topic.name, root.properties.node_id) if cluster and topic else None,
            leadership=None
            if state is None
            else Leadership(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                node=root.properties.node_id,
                replicas=state.replicas,
                in_sync=state.isr,
            ),
            leadership_unread=metadata.unread is not None,
            settled=listing.settled,
            leftovers=listing.leftovers,
        )
    except ValueError as error:  # a checkpoint, or the metadata log, says what cannot be
        raise CorruptData(str(path), 0, str(error)) from error


def _glimpse(path: Path, topic_partition: TopicPartition, root: _Root, cluster: ClusterMetadata | None) -> Glimpse:
    topic = cluster.topics.get(topic_partition.topic) if cluster else None
    return Glimpse(
        directory=root.directory,
        high_watermark=root.high_watermarks.get(topic_partition),
        log_start=root.log_starts.get(topic_partition),
        cleaned_to=root.cleaned.get(topic_partition),
        files=_modified_ns(path),
        topic_id=topic.topic_id if topic else None,
        configs=topic.configs if topic else None,
        leadership=topic.partitions.get(topic_partition.partition) if topic else None,
    )


def _modified_ns(directory: Path) -> tuple[int, int] | None:
    try:
        made, epochs = os.stat(directory).st_mtime_ns, os.stat(directory / checkpoints.LEADER_EPOCHS).st_mtime_ns
    except OSError:
        return None  # a look will tell
    return (made, epochs) if time.time_ns() > max(made, epochs) + _SETTLED_NS else None


class _Listing(NamedTuple):
    segments: tuple[LocalSegment, ...]
    settled: bool
    leftovers: tuple[str, ...]

    def same_files(self, other: "_Listing") -> bool:
        return (self.settled, self.leftovers, self._files()) == (other.settled, other.leftovers, other._files())

    def _files(self) -> list[tuple[int, int]]:
        return [(each.base_offset, each.generation[0]) for each in self.segments]


def _segments(directory: Path, owned: bool) -> _Listing:
    """A compaction shows in the log from its first .swap file to its last. The .cleaned files that it writes before are nothing yet,
    for as long as that takes: the cleaner may still give up, and a broker that starts deletes them."""
    found: list[tuple[int, os.stat_result, str]] = []
    unsettled: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _SEGMENT_NAME.fullmatch(entry.name)
            if match is not None:
                try:
                    found.append((int(match[1]), entry.stat(follow_symlinks=False), entry.path))
                except FileNotFoundError:
                    continue  # dropped since the directory was read; the next listing will agree
            elif entry.name.endswith(_SWAP):
                unsettled.append(entry.name)
    found.sort(key=lambda each: each[0])
    return _Listing(
        tuple(
            LocalSegment(
                base_offset=base,
                path=Path(path),
                size_bytes=stat.st_size,
                generation=(stat.st_ino, stat.st_mtime_ns),
                is_active=at == len(found) - 1,
            )
            for at, (base, stat, path) in enumerate(found)
        ),
        not unsettled,
        tuple(sorted(unsettled)) if owned else (),
    )


def _topic_id(directory: Path, listing: "_Listing") -> str:
    """Raises SourceChanged while a broker may still have to write it: some moments after it has made the directory."""
    path = directory / checkpoints.PARTITION_METADATA
    raw = _read_optional(path)
    if raw:
        return checkpoints.decode_partition_metadata(raw, where=str(path))
    if time.time() < directory.stat().st_mtime + _YOUNG_S or not any(each.size_bytes for each in listing.segments):
        raise SourceChanged(f"{directory} has no {checkpoints.PARTITION_METADATA} yet")
    raise CorruptData(str(directory), 0, f"no {checkpoints.PARTITION_METADATA}: which topic id this is cannot be told")


def _epochs(directory: Path) -> EpochHistory:
    path = directory / checkpoints.LEADER_EPOCHS
    raw = _read_optional(path)
    return EpochHistory() if raw is None else checkpoints.decode_epochs(raw, where=str(path))


def _decode_offsets(raw: bytes, *, where: str) -> Mapping[TopicPartition, int]:
    return MappingProxyType(checkpoints.decode_offsets(raw, where=where))


def _same_cluster(roots: Sequence[_Root]) -> MetaProperties:
    first = roots[0]
    for other in roots[1:]:
        if (other.properties.cluster_id, other.properties.node_id) != (first.properties.cluster_id, first.properties.node_id):
            raise ForeignOwner(f"{first.directory} and {other.directory} belong to different brokers")
    return first.properties


def _partition_names(directory: Path) -> list[str]:
    """Names of the directories in it that hold a partition; a file by such a name is none."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if parse_directory_name(entry.name) and entry.is_dir())
    except OSError as error:
        raise _translated(error, directory) from error


def _is_directory(path: Path) -> bool:
    """Path.is_dir takes a failing disk for an exception of its own."""
    try:
        return path.is_dir()
    except OSError as error:
        raise _translated(error, path) from error


def _read_optional(path: Path) -> bytes | None:
    """A small file; None when it is not there."""
    found = _read_stamped(path)
    return None if found is None else found[0]


def _read_stamped(path: Path) -> tuple[bytes, tuple[int, int, int]] | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(checkpoints.FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(error, path) from error
    if len(raw) > checkpoints.FILE_BYTES_MAX:
        raise CorruptData(str(path), 0, f"more than {checkpoints.FILE_BYTES_MAX} bytes")
    return raw, (status.st_ino, status.st_mtime_ns, status.st_size)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(error, path) from error
    return status.st_ino, status.st_mtime_ns, status.st_size


def _translated(error: OSError, path: Path) -> HeadwaterError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return UsageError(f"log directory {path} does not exist" if not path.exists() else f"{path} is not a directory")
        case PermissionError():
            return Unauthorised(f"{path} may not be read by this user")
    return TransientError(f"{path}: {error.strerror}")
