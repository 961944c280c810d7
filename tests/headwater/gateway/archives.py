"""The real archivers, run over a log directory until they have nothing left to do."""

from concurrent.futures import ThreadPoolExecutor
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
from headwater_core.segments.log_dirs import LogDirs
from manifests.repository import ManifestRepository
from tests.headwater_core.control.local_control import LocalControl

TAILS_TOO = Policy(tail_after_ms=0)


def archive(root: Path, store: ObjectStore, policy: Policy = TAILS_TOO, *, workers: int = 1) -> None:
    """Everything below the high watermarks, the tails of active segments included unless `policy` says otherwise."""
    clock = SystemClock()
    repository = ManifestRepository(store)
    announcer, tails, looks = Announcer(LocalControl(), clock), Tails(None, clock), CleanerLooks(None, clock)
    dirs = LogDirs([root])
    metadata = dirs.metadata()
    known = metadata.topics if metadata else {}

    def describe(partition: PartitionId) -> TopicFacts:
        topic = known.get(partition.topic)
        return TopicFacts(partitions=len(topic.partitions) if topic else None)

    topics = TopicRecords(repository, describe)

    equipment = ArchiverEquipment(
        logs=LogDirs([root]),
        store=store,
        repository=repository,
        announcer=announcer,
        topics=topics,
        tails=tails,
        looks=looks,
        writer="test",
        new_uid=lambda: uuid4().hex,
    )

    def archive_one(partition: PartitionId) -> None:
        archiver = PartitionArchiver(partition, equipment, open_layout("segment"))
        while archiver.step(policy).progressed:
            pass

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(archive_one, [log.partition for log in dirs.partitions()]))
