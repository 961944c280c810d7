"""Settings as brokers look them up."""

from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, Retention, TopicMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER


def cluster(topic: dict[str, str], **broker: dict[str, str]) -> ClusterMetadata:
    topics = {"soup": TopicMetadata(name="soup", topic_id="x", partitions={}, configs=topic)}
    configs = {(RESOURCE_BROKER, name.strip("_")): values for name, values in broker.items()}
    return ClusterMetadata(topics=topics, configs=configs, features={}, next_producer_id=0, unread={}, end_offset=1)


def test_the_topics_own_setting_wins_then_the_brokers_then_the_clusters_then_kafkas() -> None:
    default = {"_": {"log.retention.ms": "3", "log.retention.bytes": "30"}}
    assert cluster({}).retention_of("soup", 1) == Retention(7 * 24 * 3600 * 1000, None)
    assert cluster({}, **default).retention_of("soup", 1) == Retention(3, 30)
    assert cluster({"retention.bytes": "10"}, **default).retention_of("soup", 1) == Retention(3, 10)
    assert cluster({}, _1={"log.retention.ms": "2"}, **default).retention_of("soup", 1) == Retention(2, 30)
    assert cluster({"retention.ms": "-1"}, **default).retention_of("soup", 1) == Retention(None, 30)
    assert cluster({"cleanup.policy": "compact"}, **default).retention_of("soup", 1) == Retention(None, None)
