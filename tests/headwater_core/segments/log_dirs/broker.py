"""Log directories made by hand."""

import os
import time
from pathlib import Path

from headwater_core.partition import TopicPartition
from headwater_core.segments.checkpoints import (
    MetaProperties,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from headwater_core.segments.log_dirs import LogDirs
from tests.headwater_core.segments.builders import a_segment

SOUP = TopicPartition("soup", 0)
TOPIC_ID = "CiYnVEVES8C-QkPo0sT7kA"


class Broker:
    """A log directory made by hand."""

    def __init__(self, root: Path, *, cluster_id: str = "kitchen-cluster", node_id: int = 1) -> None:
        self.root = root
        root.mkdir()
        (root / "meta.properties").write_bytes(encode_meta_properties(MetaProperties(cluster_id=cluster_id, node_id=node_id)))

    def partition(self, name: str = "soup-0", *bases: int, topic_id: str = TOPIC_ID) -> Path:
        directory = self.root / name
        directory.mkdir()
        (directory / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
        for base in bases or (0,):
            (directory / f"{base:020}.log").write_bytes(a_segment(base, 5))
        return directory

    def checkpoint(self, name: str, **offsets: int) -> None:
        listed = {TopicPartition(*_split(key)): value for key, value in offsets.items()}
        (self.root / f"{name}-offset-checkpoint").write_bytes(encode_offsets(listed))

    @property
    def logs(self) -> LogDirs:
        return LogDirs([self.root])


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("_")
    return topic, int(number)


def aged(directory: Path) -> None:
    """An hour ago a file was last made in it or removed."""
    os.utime(directory, (time.time() - 3600, time.time() - 3600))
