"""An archive that somebody goes on writing while others read it."""

from dataclasses import dataclass, field
from pathlib import Path

from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import PartitionId, topic_id_text
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import CLUSTER, Archive

Offsets = list[tuple[str, int, int]]  # topic, partition, offset


@dataclass
class Growing:
    """Partition by partition, in a directory that other processes can read."""

    root: Path
    archives: dict[tuple[str, int], Archive] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir()

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def archive(self, topic: str, partition: int = 0, *, incarnation: int = 1) -> Archive:
        """One partition's; the same one every time."""
        if (topic, partition) not in self.archives:
            named = PartitionId(CLUSTER, topic_id_text(topic.encode().rjust(15, b".") + bytes([incarnation])), partition, topic)
            self.archives[topic, partition] = Archive(DirectoryStore(self.root), named)
        return self.archives[topic, partition]

    def append(self, topic: str, partition: int = 0, *, records: int, batches: int = 1, epoch: int = 0, value_bytes: int = 0) -> None:
        archive = self.archive(topic, partition)
        first = archive.head.next_offset if archive.held else 0
        archive.append(a_segment(first, batches, records=records, epoch=epoch, value_bytes=value_bytes))

    def merge(self, topic: str, partition: int) -> None:
        """All of a partition in one object; those it was in are gone at once."""
        archive = self.archive(topic, partition)
        entries, runs = archive.head.entries, []
        for entry in entries:
            buffer = bytearray(entry.size_bytes)
            archive.store.read_into(entry.key, memoryview(buffer), start=0)
            runs.append(bytes(buffer))
        archive.commit(archive.upload(b"".join(runs)))
        for entry in entries:
            archive.store.delete(entry.key)
            archive.store.delete(entry.index_key)

    def offsets(self) -> Offsets:
        return sorted(
            (topic, partition, offset)
            for (topic, partition), archive in self.archives.items()
            for offset in range(archive.head.start_offset, archive.head.next_offset)
        )
