"""An archive of a real log directory, made by the real archiver; and a record's view of any log directory."""

from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import uuid4

from archival.partition.announcer import Announcer
from archival.partition.archiver import ArchiverEquipment, PartitionArchiver
from archival.partition.looks import CleanerLooks
from archival.partition.tails import Tails
from archival.partition.topics import TopicFacts, TopicRecords
from archival.plan.policy import Policy
from headwater_core.clock import SystemClock
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.log_dirs import LogDirs
from manifests.repository import ManifestRepository
from recovery.target import read_mark
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.objectstore.memory import MemoryStore

EVERYTHING = Policy(tail_after_ms=0)


def archive(
    log_dir: Path, store: ObjectStore, topics: Collection[str] | None = None, policy: Policy = EVERYTHING, layout: str = "segment"
) -> ManifestRepository:
    """What `policy` allows of `log_dir`, which is everything below the high watermarks; `topics` None: all."""
    dirs, repository, clock = LogDirs([log_dir]), ManifestRepository(store), SystemClock()

    def describe(partition: PartitionId) -> TopicFacts:
        metadata = dirs.metadata()
        topic = metadata.topics.get(partition.topic) if metadata else None
        if topic is None or topic.topic_id != partition.topic_id:
            return TopicFacts()
        return TopicFacts(partitions=len(topic.partitions), configs=dict(topic.configs))

    equipment = ArchiverEquipment(
        logs=dirs,
        store=store,
        repository=repository,
        announcer=Announcer(LocalControl(), clock),
        topics=TopicRecords(repository, describe),
        tails=Tails(None, clock),
        looks=CleanerLooks(None, clock),
        writer="test",
        new_uid=lambda: uuid4().hex,
    )
    for log in dirs.partitions():
        if topics is not None and log.partition.topic not in topics:
            continue
        archiver = PartitionArchiver(log.partition, equipment, open_layout(layout))
        while archiver.step(policy).progressed:
            pass
    return repository


def archive_in_memory(log_dir: Path) -> tuple[MemoryStore, ManifestRepository]:
    store = MemoryStore(SystemClock())
    return store, archive(log_dir, store)


def batches(log_dir: Path, *, with_tails: bool = False) -> Iterator[tuple[str, int, int, bytes]]:
    """(topic, partition, base offset, bytes) of every batch that a client could see something of, in order.

    with_tails  what recovery wrote behind coordinators' logs is among it
    """
    mark = read_mark(log_dir) or read_mark(log_dir.parent)
    tails = {
        (topic.topic, partition.partition, written.base_offset)
        for topic in (mark.plan.topics if mark is not None and not with_tails else ())
        for partition in topic.partitions
        for written in partition.written
        if written.rewritten
    }
    for log in sorted(LogDirs([log_dir]).partitions(), key=lambda each: each.partition.topic_partition):
        place = log.partition.topic_partition
        for segment in log.segments:
            if (place.topic, place.partition, segment.base_offset) in tails:
                continue
            with segment.path.open("rb") as file:
                for position, header in walk(file, 0, segment.size_bytes, where=str(segment.path)):
                    if header.last_offset >= log.log_start:
                        file.seek(position)
                        yield place.topic, place.partition, header.base_offset, file.read(header.size_bytes)


def bounds(log_dir: Path) -> dict[tuple[str, int], tuple[str, int, int | None]]:
    """Topic id, log start and high watermark of every partition."""
    logs = LogDirs([log_dir]).partitions()
    return {(log.partition.topic, log.partition.partition): (log.partition.topic_id, log.start_offset, log.high_watermark) for log in logs}
