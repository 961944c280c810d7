"""Batches and records that real brokers wrote."""

from collections.abc import Iterator

from headwater_core.partition import TopicPartition
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.records import Record, decode_batch
from tests.fixtures import unpack


def batches(name: str, topic: str | None = None) -> Iterator[tuple[TopicPartition, BatchHeader, bytes]]:
    for log in LogDirs([unpack(name)]).partitions():
        if topic in (None, log.partition.topic):
            for segment in log.segments:
                with segment.path.open("rb") as file:
                    for position, header in walk(file, 0, segment.size_bytes, where=str(segment.path)):
                        file.seek(position)
                        yield log.partition.topic_partition, header, file.read(header.size_bytes)


def records(name: str, topic: str) -> Iterator[Record]:
    for _, header, raw in batches(name, topic):
        if not header.is_control:
            yield from decode_batch(raw)
