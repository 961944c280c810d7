"""Finds the partitions in a broker's log directories: one look, as consistent as a directory lets us have it."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from model.epochs import EpochHistory
from model.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, SourceChanged, TransientError, Unauthorised, UsageError
from model.partition import PartitionId, TopicPartition
from segments import checkpoints, metadata_log
from segments.checkpoints import MetaProperties
from segments.log import Leadership, LocalLog, LocalSegment
from segments.metadata_log import ClusterMetadata, MetadataLog

_SEGMENT_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
_DIRECTORY_NAME = re.compile(r"(.+)-(\d{1,10})", re.ASCII)  # greedy: split at the last '-'
_RENAMED = ("-delete", "-future", "-stray")
_SWAP = ".swap"
_LOOKS = 5
_YOUNG_S = 60.0  # since a directory last got or lost a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One look at everything. `problems` are directories that should be partitions and could not be read, and why."""

    logs: tuple[LocalLog, ...]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which partitions there are, by their directories' names alone, each with its checkpointed high watermark, if it has one.

    Without `problems`, a partition that is not listed is not there.
    """

    partitions: Mapping[TopicPartition, int | None]
    problems: tuple[tuple[Path, HeadwaterError], ...] = ()


class LogDirs:
    """A broker's log.dirs, read-only. Safe to use from one thread at a time.

    metadata_dir  the broker's metadata.log.dir, when that is none of `dirs`
    owned         no broker works on them
    """

    def __init__(self, dirs: Sequence[Path], *, metadata_dir: Path | None = None, owned: bool = False) -> None:
        if not dirs:
            raise UsageError("no log directory is given")
        if len({os.path.realpath(each) for each in dirs}) < len(dirs):
            raise UsageError(f"a log directory is given twice: {', '.join(map(str, dirs))}")
        self._dirs = tuple(dirs)
        self._metadata_dir, self._owned = metadata_dir, owned
        self._metadata_log: MetadataLog | None = None

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
        """What the broker's own metadata log says by now; None when there is none in these directories.

        Raises UsageError when there is none where it should be, and ForeignOwner when it is another broker's.
        """
        named = self._metadata_dir
        directory = next(
            (found for each in ([named] if named else self._dirs) if _is_directory(found := each / metadata_log.DIRECTORY)), None
        )
        if directory is None:
            if named is None:
                return None
            raise UsageError(f"log.metadata_dir: {named} holds no {metadata_log.DIRECTORY}; it is the broker's metadata.log.dir")
        if named and self._metadata_log is None:
            _same_cluster([_Root.read(each, ()) for each in (named, *self._dirs)])
        if self._metadata_log is None:
            self._metadata_log = MetadataLog(directory)
        try:
            return self._metadata_log.read()
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
        metadata = self.metadata()
        logs: dict[TopicPartition, LocalLog] = {}
        roots, problems = self._roots()
        for root in roots:
            for topic_partition, path in root.partitions.items():
                try:
                    log = _look(path, topic_partition, root, metadata, owned=self._owned)
                    if topic_partition in logs:
                        raise CorruptData(str(path), 0, f"{topic_partition} is also in {logs[topic_partition].directory}")
                    logs[topic_partition] = log
                except NotFound:
                    pass  # deleted since the listing
                except HeadwaterError as error:
                    problems.append((path, error))
        return Survey(logs=tuple(logs[each] for each in sorted(logs)), problems=tuple(problems))

    def listing(self) -> Listing:
        """What survey would look at. Costs a listing of each log directory, however much its partitions hold.

        Raises what survey raises for the whole. What it would say of single partitions is for `look` to find.
        """
        self.metadata()
        partitions: dict[TopicPartition, int | None] = {}
        roots, problems = self._roots()
        for root in roots:
            for each, path in root.partitions.items():
                if each in partitions:
                    problems.append((path, CorruptData(str(path), 0, f"{each} is also in another log directory")))
                else:
                    partitions[each] = root.high_watermarks.get(each)
        return Listing(partitions={each: partitions[each] for each in sorted(partitions)}, problems=tuple(problems))

    def _roots(self) -> tuple[Sequence["_Root"], "_Problems"]:
        roots: list[_Root] = []
        problems: _Problems = []
        for directory in self._dirs:
            try:
                roots.append(_Root.read(directory, _partition_names(directory)))
            except HeadwaterError as error:
                problems.append((directory, error))
        if not roots:
            raise problems[0][1]
        _same_cluster(roots)
        return roots, problems

    def look(self, topic_partition: TopicPartition) -> LocalLog:
        """A fresh look at one partition.

        Raises NotFound when it is in none of the directories, SourceChanged when it does not hold still, and what
        survey would list as its problem.
        """
        name = f"{topic_partition.topic}-{topic_partition.partition}"
        for directory in self._dirs:
            if _is_directory(directory / name):
                return _look(directory / name, topic_partition, _Root.read(directory, (name,)), self.metadata(), owned=self._owned)
        for directory in self._dirs:
            _partition_names(directory)  # a directory that cannot be read proves no absence, nor does the empty mount point of one
            _Root.read(directory, ())
        raise NotFound(f"{topic_partition} is in none of {', '.join(map(str, self._dirs))}")

    def _identity(self) -> MetaProperties:
        found = [_Root.read(directory, ()) for directory in self._dirs if _partition_names(directory) is not None]
        return _same_cluster(found)


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
    def read(cls, directory: Path, names: Sequence[str]) -> "_Root":
        path = directory / checkpoints.META_PROPERTIES
        raw = _read_optional(path)
        if raw is None:
            raise UsageError(f"{directory} is no Kafka log directory: it has no {checkpoints.META_PROPERTIES}")
        return cls(
            directory=directory,
            properties=checkpoints.decode_meta_properties(raw, where=str(path)),
            high_watermarks=_offsets(directory / checkpoints.HIGH_WATERMARKS),
            log_starts=_offsets(directory / checkpoints.LOG_STARTS),
            cleaned=_offsets(directory / checkpoints.CLEANED),
            partitions={key: directory / name for name in names if (key := parse_directory_name(name)) is not None},
        )


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


def _look(path: Path, topic_partition: TopicPartition, root: _Root, metadata: ClusterMetadata | None, *, owned: bool) -> LocalLog:
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
    metadata: ClusterMetadata | None,
    listing: "_Listing",
    topic_id: str,
    epochs: EpochHistory,
) -> LocalLog:
    topic = metadata.topics.get(topic_partition.topic) if metadata else None
    if topic is not None and topic.topic_id != topic_id:
        topic = None  # another incarnation: what the cluster says now is not about this directory
    state = topic.partitions.get(topic_partition.partition) if topic else None
    first = listing.segments[0].base_offset if listing.segments else 0
    return LocalLog(
        partition=PartitionId(root.properties.cluster_id, topic_id, topic_partition.partition, topic_partition.topic),
        directory=path,
        segments=listing.segments,
        high_watermark=root.high_watermarks.get(topic_partition),
        log_start=max(first, root.log_starts.get(topic_partition, first)),
        epochs=epochs,
        cleaned_to=root.cleaned.get(topic_partition),
        compacted=metadata is not None and topic is not None and "compact" in metadata.policy_of(topic.name),
        delete_retention_ms=metadata.delete_retention_ms_of(topic.name, root.properties.node_id) if metadata and topic else None,
        leadership=None
        if state is None
        else Leadership(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            node=root.properties.node_id,
            replicas=state.replicas,
            in_sync=state.isr,
        ),
        settled=listing.settled,
        leftovers=listing.leftovers,
    )


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


def _offsets(path: Path) -> Mapping[TopicPartition, int]:
    raw = _read_optional(path)
    return {} if raw is None else _decoded(raw, str(path))


@lru_cache(maxsize=32)  # each look at one partition reads all of its directory's, and most looks find the same
def _decoded(raw: bytes, where: str) -> Mapping[TopicPartition, int]:
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
    try:
        with path.open("rb") as file:
            raw = file.read(checkpoints.FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(error, path) from error
    if len(raw) > checkpoints.FILE_BYTES_MAX:
        raise CorruptData(str(path), 0, f"more than {checkpoints.FILE_BYTES_MAX} bytes")
    return raw


def _translated(error: OSError, path: Path) -> HeadwaterError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return UsageError(f"log directory {path} does not exist" if not path.exists() else f"{path} is not a directory")
        case PermissionError():
            return Unauthorised(f"{path} may not be read by this user")
    return TransientError(f"{path}: {error.strerror}")
