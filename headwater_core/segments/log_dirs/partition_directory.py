"""One partition's directory: a look at all of it, and a glimpse that shows from outside whether it has changed."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, NotFound, SourceChanged
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.local_log import Generation, Glimpse, Leadership, LocalLog, LocalSegment
from headwater_core.segments.log_dirs.broker_metadata import KnownMetadata
from headwater_core.segments.log_dirs.log_directory import LogDirectory
from headwater_core.segments.log_dirs.small_files import SETTLED_NS, disk_error, read_optional
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata

_SEGMENT_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
_SWAP = ".swap"
_LOOKS = 5
_YOUNG_S = 60.0  # since a directory last got or lost a file


def look_at(
    path: Path,
    topic_partition: TopicPartition,
    root: LogDirectory,
    metadata: KnownMetadata,
    *,
    owned: bool,
    static: Mapping[str, str] | None = None,
) -> LocalLog:
    """Read one partition directory between two listings that agree on names and inodes.

    static  the broker's server.properties; None: they are not known

    Raises NotFound when it is gone, SourceChanged when it does not hold still or is too young, CorruptData for a damaged file,
    Unauthorised and TransientError.
    """
    glimpse = glimpse_at(path, topic_partition, root, metadata.state)
    try:
        before: _Names | _Listing = _names(path, owned)
        for _ in range(_LOOKS):
            topic_id = _topic_id(path, owned)
            epochs = _epochs(path)
            after = _segments(path, owned)
            if before.files() == after.files():
                return _assemble(path, topic_partition, root, metadata, after, topic_id, epochs, glimpse, owned=owned, static=static)
            before = after
    except FileNotFoundError as error:
        raise NotFound(f"{path} is gone") from error
    except OSError as error:
        raise disk_error(error, path) from error
    raise SourceChanged(f"{path} changed during each of {_LOOKS} looks")


def _assemble(
    path: Path,
    topic_partition: TopicPartition,
    root: LogDirectory,
    metadata: KnownMetadata,
    listing: "_Listing",
    topic_id: str,
    epochs: EpochHistory,
    glimpse: Glimpse,
    *,
    owned: bool,
    static: Mapping[str, str] | None,
) -> LocalLog:
    cluster = metadata.state
    topic = cluster.topics.get(topic_partition.topic) if cluster else None
    if topic is not None and topic.topic_id != topic_id:
        topic = None  # another incarnation: the cluster's metadata is not about this directory
    state = topic.partitions.get(topic_partition.partition) if topic else None
    first = listing.segments[0].base_offset if listing.segments else 0
    try:
        return LocalLog(
            partition=PartitionId(root.properties.cluster_id, topic_id, topic_partition.partition, topic_partition.topic),
            directory=path,
            segments=listing.segments,
            high_watermark=root.high_watermarks.get(topic_partition),
            checkpoint_ms=root.checkpoint_ms,
            log_start=max(first, root.log_starts.get(topic_partition, first)),
            epochs=epochs,
            cleaned_to=root.cleaned.get(topic_partition),
            compacted=cluster is not None and topic is not None and "compact" in cluster.policy_of(topic.name),
            compacted_only=cluster is not None and topic is not None and cluster.policy_of(topic.name) == {"compact"},
            delete_retention_ms=cluster.delete_retention_ms_of(topic.name, root.properties.node_id) if cluster and topic else None,
            retention=cluster.retention_of(topic.name, root.properties.node_id, static) if cluster and topic and not owned else None,
            leadership=None
            if state is None
            else Leadership(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                node=root.properties.node_id,
                replicas=state.replicas,
                in_sync=state.isr,
            ),
            metadata_end=cluster.end_offset if cluster else None,
            leadership_unread=metadata.unread is not None,
            settled=listing.settled,
            leftovers=listing.leftovers,
            glimpse=glimpse,
        )
    except ValueError as error:  # a checkpoint or the metadata log holds an impossible value
        raise CorruptData(str(path), 0, str(error)) from error


class LocalPartition(NamedTuple):
    """Which partition a directory holds, without its segments.

    directory     the partition's own
    leader_epoch  the newest that the broker knows, by the log's history or the metadata log; -1 when there is none
    """

    partition: PartitionId
    directory: Path
    leader_epoch: int


class Identity(NamedTuple):
    """What a partition's directory says of itself; the same as long as `files` is, where that is known (see Glimpse)."""

    files: tuple[int, int] | None
    topic_id: str
    leader_epoch: int


def identify(path: Path, known: Identity | None, *, owned: bool) -> Identity:
    """Read two small files, or nothing where `known` shows that they are what they were. Raises as `look_at`."""
    files = _modified_ns(path)
    if known is not None and files is not None and known.files == files:
        return known
    try:
        raw = read_optional(f"{path}/{checkpoints.PARTITION_METADATA}")
        topic_id = _decode_topic_id(path, raw) if raw else _topic_id(path, owned)
        newest = _epochs(path).newest
    except FileNotFoundError as error:
        raise NotFound(f"{path} is gone") from error
    except OSError as error:
        raise disk_error(error, path) from error
    return Identity(files, topic_id, -1 if newest is None else newest)


def local_partition(
    path: Path, topic_partition: TopicPartition, identity: Identity, root: LogDirectory, cluster: ClusterMetadata | None
) -> LocalPartition:
    topic = cluster.topics.get(topic_partition.topic) if cluster else None
    led = topic.partitions.get(topic_partition.partition) if topic and topic.topic_id == identity.topic_id else None
    partition = PartitionId(root.properties.cluster_id, identity.topic_id, topic_partition.partition, topic_partition.topic)
    return LocalPartition(partition, path, max(identity.leader_epoch, led.leader_epoch if led else -1))


def glimpse_at(path: Path, topic_partition: TopicPartition, root: LogDirectory, cluster: ClusterMetadata | None) -> Glimpse:
    """How the partition looks from outside; never raises for what is wrong with its files."""
    topic = cluster.topics.get(topic_partition.topic) if cluster else None
    return Glimpse(
        directory=root.directory,
        high_watermark=root.high_watermarks.get(topic_partition),
        log_start=root.log_starts.get(topic_partition),
        cleaned_to=root.cleaned.get(topic_partition),
        files=_modified_ns(path),
        topic_id=topic.topic_id if topic else None,
        configs=topic.configs if topic else None,
        broker_configs=cluster.broker_configs(root.properties.node_id) if cluster else (),
        leadership=topic.partitions.get(topic_partition.partition) if topic else None,
    )


def _modified_ns(directory: Path) -> tuple[int, int] | None:
    try:
        made, epochs = os.stat(directory).st_mtime_ns, os.stat(f"{directory}/{checkpoints.LEADER_EPOCHS}").st_mtime_ns
    except OSError:
        return None  # a look will find out
    return (made, epochs) if time.time_ns() > max(made, epochs) + SETTLED_NS else None


class _Listing(NamedTuple):
    segments: tuple[LocalSegment, ...]
    settled: bool
    leftovers: tuple[str, ...]

    def files(self) -> "_Files":
        return self.settled, self.leftovers, [(each.base_offset, each.generation.inode) for each in self.segments]


_Files = tuple[bool, tuple[str, ...], list[tuple[int, int]]]


class _Names(NamedTuple):
    """A listing that costs no stat of each file. Where a file system's directories tell other inodes than its files, it is no other
    listing's equal, and the next one is a whole one."""

    settled: bool
    leftovers: tuple[str, ...]
    inodes: dict[int, int]

    def files(self) -> _Files:
        return self.settled, self.leftovers, sorted(self.inodes.items())


def _names(directory: Path, owned: bool) -> _Names:
    unsettled: list[str] = []
    inodes: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if match := _SEGMENT_NAME.fullmatch(entry.name):
                inodes[int(match[1])] = entry.inode()
            elif entry.name.endswith(_SWAP):
                unsettled.append(entry.name)
    return _Names(not unsettled, tuple(sorted(unsettled)) if owned else (), inodes)


def _segments(directory: Path, owned: bool) -> _Listing:
    """A compaction shows in the log from its first .swap file to its last. The .cleaned files that it writes before do not count,
    however long that takes: the cleaner may still give up, and a broker that starts deletes them."""
    found: list[tuple[int, os.stat_result]] = []
    unsettled: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _SEGMENT_NAME.fullmatch(entry.name)
            if match is not None:
                try:
                    found.append((int(match[1]), entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # dropped since the directory was read; the next listing will agree
            elif entry.name.endswith(_SWAP):
                unsettled.append(entry.name)
    found.sort(key=lambda each: each[0])
    return _Listing(
        tuple(
            LocalSegment(
                base_offset=base,
                directory=directory,
                size_bytes=stat.st_size,
                generation=Generation(stat.st_ino, stat.st_mtime_ns),
                is_active=at == len(found) - 1,
            )
            for at, (base, stat) in enumerate(found)
        ),
        not unsettled,
        tuple(sorted(unsettled)) if owned else (),
    )


def _topic_id(directory: Path, owned: bool) -> str:
    """Raises SourceChanged while a broker may still have to write it: a moment after it has made the directory."""
    raw = read_optional(f"{directory}/{checkpoints.PARTITION_METADATA}")
    if raw:
        return _decode_topic_id(directory, raw)
    if time.time() < directory.stat().st_mtime + _YOUNG_S or not any(each.size_bytes for each in _segments(directory, owned).segments):
        raise SourceChanged(f"{directory} has no {checkpoints.PARTITION_METADATA} yet")
    raise CorruptData(str(directory), 0, f"no {checkpoints.PARTITION_METADATA}: its topic id is not known")


def _decode_topic_id(directory: Path, raw: bytes) -> str:
    return checkpoints.decode_partition_metadata(raw, where=str(directory / checkpoints.PARTITION_METADATA))


def _epochs(directory: Path) -> EpochHistory:
    path = f"{directory}/{checkpoints.LEADER_EPOCHS}"
    raw = read_optional(path)
    return EpochHistory() if raw is None else checkpoints.decode_epochs(raw, where=path)
