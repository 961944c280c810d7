import pytest

from archival.announce import RETRY_S, Announcer
from archival.topics import TopicFacts, TopicRecords
from control.log import LocalControl
from control.records import Record
from manifests.repository import ManifestRepository
from model.clock import ManualClock
from model.errors import ForeignOwner, TransientError
from model.partition import PartitionId
from objectstore.memory import MemoryStore
from objectstore.metered import MeteredStore
from tests.archival.builders import PARTITION
from tests.manifests import builders


def test_a_topic_is_written_once_and_again_when_it_changes() -> None:
    store = MeteredStore(MemoryStore())
    facts = TopicFacts(partitions=3, configs={"cleanup.policy": "compact"})
    records = TopicRecords(ManifestRepository(store), lambda _: facts)
    records.ensure(PARTITION)
    calls = sum(store.calls.values())
    records.ensure(PARTITION)
    assert sum(store.calls.values()) == calls
    facts = TopicFacts(partitions=4, configs={"cleanup.policy": "delete"})
    records.ensure(PARTITION)
    manifest = ManifestRepository(store).resolve(PARTITION.topic)
    assert (manifest.partitions, manifest.configs) == (4, {"cleanup.policy": "delete"})


def test_without_metadata_a_topic_has_the_partitions_that_were_seen() -> None:
    repository = ManifestRepository(MemoryStore())
    records = TopicRecords(repository, lambda _: TopicFacts())
    for number in (2, 0):
        records.ensure(PartitionId(PARTITION.cluster_id, PARTITION.topic_id, number, PARTITION.topic))
    assert repository.resolve(PARTITION.topic).partitions == 3


def test_another_clusters_bucket_is_refused() -> None:
    repository = ManifestRepository(MemoryStore())
    repository.ensure_owner("another")
    with pytest.raises(ForeignOwner, match="another"):
        TopicRecords(repository, lambda _: TopicFacts()).ensure(PARTITION)


class NoLeader(LocalControl):
    asked = 0

    def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
        self.asked += 1
        raise TransientError("no leader")


def test_a_control_log_without_a_leader_is_asked_again_only_after_a_while() -> None:
    control, clock = NoLeader(), ManualClock()
    announcer = Announcer(control, clock)
    head = builders.a_head()
    assert not announcer.announce(head)
    assert not announcer.announce(head)
    assert control.asked == 1
    clock.advance(int(RETRY_S * 1000))
    announcer.announce(head)
    assert control.asked == 2


def test_what_the_control_log_knows_is_not_said_again() -> None:
    class Counting(LocalControl):
        said = 0

        def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
            self.said += len(records)
            super().publish(*records, timeout_s=timeout_s)

    control = Counting()
    announcer = Announcer(control, ManualClock())
    assert announcer.announce(builders.a_head())
    assert announcer.announce(builders.a_head())
    assert control.said == 1
