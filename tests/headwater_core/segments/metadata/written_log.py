"""A metadata log written by hand."""

from pathlib import Path

from headwater_core.partition import topic_id_text
from headwater_core.segments.metadata.metadata_log import DIRECTORY
from headwater_core.segments.metadata.metadata_records import (
    MetadataRecord,
    Partition,
)
from headwater_core.segments.records import Record
from headwater_core.segments.varint import encode_uvarint
from tests.headwater_core.segments.builders import a_batch

SOUP, STEW = topic_id_text(b"soup" * 4), topic_id_text(b"stew" * 4)


def a_partition(number: int = 0, topic_id: str = SOUP, *, leader: int = 1, leader_epoch: int = 0) -> Partition:
    return Partition(partition=number, topic_id=topic_id, replicas=(1, 2), in_sync=(1, 2), leader=leader, leader_epoch=leader_epoch)


def batch_of(base_offset: int, *found: MetadataRecord) -> bytes:
    rows = [Record(base_offset + at, 0, None, record.encode(), ()) for at, record in enumerate(found)]
    return a_batch(base_offset, rows, epoch=1)


def newer(base_offset: int) -> bytes:
    """A batch whose record only a later version can read."""
    value = encode_uvarint(1) + encode_uvarint(Partition.api_key) + encode_uvarint(99)
    return a_batch(base_offset, [Record(base_offset, 0, None, value, ())], epoch=1)


class Log:
    """A metadata log under construction."""

    def __init__(self, root: Path) -> None:
        self.directory = root / DIRECTORY
        self.directory.mkdir()
        self.end = 0

    def append(self, *found: MetadataRecord, segment: int = 0) -> None:
        with (self.directory / f"{segment:020}.log").open("ab") as file:
            file.write(batch_of(self.end, *found))
        self.end += len(found)

    @property
    def first(self) -> Path:
        return self.directory / f"{0:020}.log"
