"""Log directories with very many partitions of small segments, made in seconds, and a bucket in which all of it is archived."""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.logs import CLUSTER, Shape, make_batch
from headwater_core.epochs import EpochStart
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest

TOPIC_PARTITIONS = 50
BATCH_RECORDS = 10
VALUE_BYTES = 85  # so that a batch has about 1 KiB
UID = f"{1:032x}"
WRITER = "bench-1"


@dataclass(frozen=True, slots=True)
class Partitions:
    """`count` partitions in `directory`, each with `segments` sealed segments of one batch and an empty active one, all of it below the
    high watermark."""

    directory: Path
    count: int
    segments: int

    @property
    def end(self) -> int:
        return self.segments * BATCH_RECORDS

    @property
    def topics(self) -> int:
        return -(-self.count // TOPIC_PARTITIONS)

    def __iter__(self) -> Iterator[PartitionId]:
        for at in range(self.count):
            topic, number = divmod(at, TOPIC_PARTITIONS)
            yield PartitionId(CLUSTER, topic_id_text((topic + 1).to_bytes(16, "big")), number, f"topic-{topic:04}")

    def make(self, *, linked: bool = False) -> None:
        """Write all files.

        linked  the sealed segments of a partition are links to one file: quick, and enough for what will not be read
        """
        batch = a_batch()
        self.directory.mkdir(parents=True)
        for partition in self:
            path = self._path(partition)
            path.mkdir()
            names = [path / f"{base:020}.log" for base in range(0, self.end, BATCH_RECORDS)]
            for at, name in enumerate(names):
                if linked and at:
                    os.link(names[0], name)
                else:
                    name.write_bytes((at * BATCH_RECORDS).to_bytes(8, "big") + batch[8:])
            (path / f"{self.end:020}.log").touch()
            (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {partition.topic_id}")
            (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        (self.directory / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id=1\n")
        self.checkpoint({})
        os.sync()  # write-back of what was just made must not run into what is measured

    def checkpoint(self, ends: dict[PartitionId, int]) -> None:
        """Write the high watermarks, as a broker does every 5 s. ends: where they differ from `end`"""
        lines = "".join(f"{each.topic} {each.partition} {ends.get(each, self.end)}\n" for each in self)
        made = self.directory / "replication-offset-checkpoint.tmp"
        made.write_text(f"0\n{self.count}\n{lines}")
        made.rename(self.directory / "replication-offset-checkpoint")

    def roll(self, partition: PartitionId, end: int) -> None:
        """The active segment, which begins at `end`, gets a batch, and a new one begins."""
        self.append(partition, end)
        (self._path(partition) / f"{end + BATCH_RECORDS:020}.log").touch()

    def append(self, partition: PartitionId, end: int) -> None:
        """The active segment, which begins at `end`, gets a batch."""
        (self._path(partition) / f"{end:020}.log").write_bytes(end.to_bytes(8, "big") + a_batch()[8:])

    def archive(self, store: ObjectStore) -> None:
        """Let `store` list all of it as archived. The objects themselves are not there: an idle agent requests none."""
        manifests, batch = ManifestRepository(store), a_batch()
        manifests.ensure_owner(CLUSTER)
        for partition in self:
            if partition.partition == 0:
                count = min(TOPIC_PARTITIONS, self.count - int(partition.topic.rpartition("-")[2]) * TOPIC_PARTITIONS)
                manifests.ensure_topic(
                    TopicManifest(cluster_id=CLUSTER, topic=partition.topic, topic_id=partition.topic_id, partitions=count, configs=None)
                )
            manifests.commit(None, self._head(partition, batch))

    def _head(self, partition: PartitionId, batch: bytes) -> Head:
        entries = []
        for base in range(0, self.end, BATCH_RECORDS):
            key = keys.data(partition, base, base + BATCH_RECORDS - 1, 1, UID)
            entry = Entry(
                base_offset=base,
                last_offset=base + BATCH_RECORDS - 1,
                epochs=(EpochStart(0, base),),
                first_timestamp_ms=1_700_000_000_000,
                last_timestamp_ms=1_700_000_000_100,
                records=BATCH_RECORDS,
                uid=UID,
                fence=1,
                key=key,
                size_bytes=len(batch),
                live_bytes=len(batch),
                digest=digest_of(batch),
                index_key=keys.index(key),
                index_bytes=300,
                index_digest=digest_of(batch),
            )
            entries.append(entry)
        return Head(
            cluster_id=CLUSTER,
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            version=1,
            commit_id="unset",
            fence=1,
            writer=WRITER,
            leader_epoch=0,
            start_offset=0,
            last_offset=self.end - 1,
            entries=EntryTree(entries),
        )

    def _path(self, partition: PartitionId) -> Path:
        return self.directory / f"{partition.topic}-{partition.partition}"

    def remove(self) -> None:
        shutil.rmtree(self.directory)


def a_batch() -> bytes:
    """One batch; its base offset, which is not under the CRC, is 0."""
    shape = Shape(topic="", partitions=1, batch_records=BATCH_RECORDS, value_bytes=VALUE_BYTES, partition_bytes=0, segment_bytes=0)
    return make_batch(shape, random.Random(1))
