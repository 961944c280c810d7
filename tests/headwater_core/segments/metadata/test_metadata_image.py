import json
import lzma

import pytest

from headwater_core.segments.batch_walk import walk
from headwater_core.segments.metadata.cluster_metadata import PartitionMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_records import (
    RESOURCE_BROKER,
    UNASSIGNED,
    ConfigRecord,
    Partition,
    PartitionChange,
    RemoveTopic,
    Topic,
    Transaction,
    decode_metadata_record,
)
from headwater_core.segments.records import decode_batch
from tests.fixtures import KAFKA, expected_cluster, unpack
from tests.headwater_core.segments.metadata.written_log import SOUP, STEW, Log, a_partition


@pytest.mark.parametrize("name", ["pantry", "kitchen", "brigade"])
def test_a_brokers_metadata_is_what_its_admin_api_said(name: str) -> None:
    directory = unpack(name) / "node9" if name == "brigade" else unpack(name)
    found = MetadataLog(directory / DIRECTORY).read()
    expected = expected_cluster(name)
    assert dict(found.features) == expected["features"]
    assert {topic["name"] for topic in expected["topics"]} == set(found.topics)
    for topic in expected["topics"]:
        ours = found.topics[topic["name"]]
        assert ours.topic_id == topic["topic_id"]
        assert dict(ours.configs) == topic["configs"]
        assert {each["partition"]: tuple(each["replicas"]) for each in topic["partitions"]} == {
            number: partition.replicas for number, partition in ours.partitions.items()
        }


def test_every_record_of_a_real_log_is_understood_or_kept() -> None:
    """Against the broker's own dump: as many records of each kind, in the same order."""
    kinds = {2: "TOPIC", 3: "PARTITION", 4: "CONFIG", 5: "PARTITION_CHANGE", 9: "REMOVE_TOPIC", 12: "FEATURE_LEVEL", 15: "PRODUCER_IDS"}
    kinds |= {23: "BEGIN_TRANSACTION", 24: "END_TRANSACTION"}
    path = unpack("kitchen") / DIRECTORY / f"{0:020}.log"
    raw = path.read_bytes()
    ours = []
    with path.open("rb") as file:
        for position, header in walk(file, 0, len(raw), where=path.name):
            if not header.is_control:
                for record in decode_batch(raw[position : position + header.size_bytes]):
                    assert record.value is not None
                    decoded = decode_metadata_record(record.value)
                    if not isinstance(decoded, Partition | PartitionChange | Transaction):  # written newer, or for people only
                        assert decoded.encode() == record.value
                    if decoded.api_key in kinds:
                        ours.append(f"{kinds[decoded.api_key]}_RECORD")
    with lzma.open(KAFKA / "expected" / "kitchen.metadata-dump.txt.xz", "rt") as lines:
        dumped = [json.loads(line.split("payload: ", 1)[1])["type"] for line in lines if line.startswith("| payload: ")]
    names = {f"{kind}_RECORD" for kind in kinds.values()}
    assert ours == [each for each in dumped if each in names]


def test_a_change_of_leader_begins_an_epoch_and_a_change_of_isr_does_not(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(leader_epoch=4))
    log.append(PartitionChange(partition=0, topic_id=SOUP, in_sync=(2,)))
    log.append(PartitionChange(partition=0, topic_id=SOUP, leader=2))
    log.append(PartitionChange(partition=0, topic_id=SOUP, leader=2, replicas=(2, 3)))
    found = MetadataLog(log.directory).read()
    expected = PartitionMetadata(leader=2, leader_epoch=6, replicas=(2, 3), isr=(2,), partition_epoch=3, directories=(UNASSIGNED,) * 2)
    assert found.topics["soup"].partitions[0] == expected


def test_a_removed_topic_takes_its_settings_along_and_may_come_back_as_another(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(), ConfigRecord(resource_name="soup", name="cleanup.policy", value="compact"))
    log.append(RemoveTopic(topic_id=SOUP), Topic(name="soup", topic_id=STEW), a_partition(3, STEW))
    soup = MetadataLog(log.directory).read().topics["soup"]
    assert (soup.topic_id, list(soup.partitions), dict(soup.configs)) == (STEW, [3], {})


def test_policy_is_the_topics_else_the_clusters_else_kafkas(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), Topic(name="stew", topic_id=STEW))
    follower = MetadataLog(log.directory)
    assert follower.read().policy_of("soup") == {"delete"}
    log.append(ConfigRecord(resource_type=RESOURCE_BROKER, resource_name="", name="log.cleanup.policy", value="compact"))
    log.append(ConfigRecord(resource_name="stew", name="cleanup.policy", value="compact, delete"))
    assert follower.read().policy_of("soup") == {"compact"}
    assert follower.read().policy_of("stew") == {"compact", "delete"}
    log.append(ConfigRecord(resource_name="stew", name="cleanup.policy", value=None))
    assert follower.read().policy_of("stew") == {"compact"}


def test_a_metadata_transaction_counts_as_a_whole_or_not_at_all(log: Log) -> None:
    log.append(Transaction(api_key=Transaction.BEGIN), Topic(name="soup", topic_id=SOUP))
    follower = MetadataLog(log.directory)
    assert not follower.read().topics
    log.append(Transaction(api_key=Transaction.ABORT))
    log.append(Transaction(api_key=Transaction.BEGIN), Topic(name="stew", topic_id=STEW))
    assert not follower.read().topics
    log.append(Transaction(api_key=Transaction.END))
    assert set(follower.read().topics) == {"stew"}
