"""One log directory of a broker: whose it is, what its checkpoints say, and which partitions it holds."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headwater_core.errors import ForeignOwner, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.checkpoints import MetaProperties
from headwater_core.segments.log_dirs.small_files import SmallFiles, disk_error
from headwater_core.segments.metadata import metadata_log

_DIRECTORY_NAME = re.compile(r"(.+)-(\d{1,10})", re.ASCII)  # greedy: split at the last '-'
_RENAMED = ("-delete", "-future", "-stray")


class LogDirectory(NamedTuple):
    """One log directory: its identity and its checkpoints, read before its partitions are listed. `checkpoint_ms`: when the high watermarks
    were written, in milliseconds since the epoch; None when they never were.

    That order matters: a checkpointed high watermark never promises more than the segments listed after it hold.
    """

    directory: Path
    properties: MetaProperties
    high_watermarks: Mapping[TopicPartition, int]
    checkpoint_ms: int | None
    log_starts: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    partitions: dict[TopicPartition, Path]

    @classmethod
    def read(cls, directory: Path, names: Sequence[str], files: "SmallFiles") -> "LogDirectory":
        """Read `directory`; `names` are those of its partitions' directories.

        Raises UsageError when it is no log directory, CorruptData for a damaged file, Unauthorised and TransientError.
        """
        properties = files.read(f"{directory}/{checkpoints.META_PROPERTIES}", checkpoints.decode_meta_properties)
        if properties is None:
            raise UsageError(f"{directory} is no Kafka log directory: it has no {checkpoints.META_PROPERTIES}")

        def offsets(name: str) -> Mapping[TopicPartition, int]:
            return files.read_offsets(f"{directory}/{name}")

        return cls(
            directory=directory,
            properties=properties,
            high_watermarks=offsets(checkpoints.HIGH_WATERMARKS),
            checkpoint_ms=files.modified_ms(f"{directory}/{checkpoints.HIGH_WATERMARKS}"),
            log_starts=offsets(checkpoints.LOG_STARTS),
            cleaned=offsets(checkpoints.CLEANED),
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


def same_broker(roots: Sequence[LogDirectory]) -> MetaProperties:
    """The identity of the one broker that `roots` belong to. Raises ForeignOwner when there are two."""
    first = roots[0]
    for other in roots[1:]:
        if (other.properties.cluster_id, other.properties.node_id) != (first.properties.cluster_id, first.properties.node_id):
            raise ForeignOwner(f"{first.directory} and {other.directory} belong to different brokers")
    return first.properties


def partition_names(directory: Path) -> list[str]:
    """Names of the directories in it that hold a partition; a file by such a name is none."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if parse_directory_name(entry.name) and entry.is_dir())
    except OSError as error:
        raise disk_error(error, directory) from error
