"""Settings as brokers look them up."""

from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, Retention, TopicMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER


def cluster(topic: dict[str, str], **broker: dict[str, str]) -> ClusterMetadata:
    topics = {"soup": TopicMetadata(name="soup", topic_id="x", partitions={}, configs=topic)}
    configs = {(RESOURCE_BROKER, name.strip("_")): values for name, values in broker.items()}
    return ClusterMetadata(topics=topics, configs=configs, features={}, next_producer_id=0, unread={}, end_offset=1)


def limits(found: Retention) -> tuple[int | None, int | None]:
    return found.age_ms, found.size_bytes


def test_the_topics_own_setting_wins_then_the_brokers_then_the_clusters_then_kafkas() -> None:
    default = {"_": {"log.retention.ms": "3", "log.retention.bytes": "30"}}
    assert limits(cluster({}).retention_of("soup", 1)) == (7 * 24 * 3600 * 1000, None)
    assert limits(cluster({}, **default).retention_of("soup", 1)) == (3, 30)
    assert limits(cluster({"retention.bytes": "10"}, **default).retention_of("soup", 1)) == (3, 10)
    assert limits(cluster({}, _1={"log.retention.ms": "2"}, **default).retention_of("soup", 1)) == (2, 30)
    assert limits(cluster({"retention.ms": "-1"}, **default).retention_of("soup", 1)) == (None, 30)
    assert limits(cluster({"cleanup.policy": "compact"}, **default).retention_of("soup", 1)) == (None, None)


def test_after_them_comes_the_brokers_own_file_in_its_finest_unit() -> None:
    static = {"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.bytes": "50"}
    assert limits(cluster({}).retention_of("soup", 1, static)) == (120_000, 50)
    assert limits(cluster({}).retention_of("soup", 1, static | {"log.retention.ms": "7"})) == (7, 50)
    assert limits(cluster({}).retention_of("soup", 1, {"log.retention.hours": "1"})) == (3_600_000, None)
    assert limits(cluster({}).retention_of("soup", 1, {"log.retention.hours": "-1"})) == (None, None)
    assert limits(cluster({"retention.ms": "5"}).retention_of("soup", 1, static)) == (5, 50)


def test_it_is_said_which_setting_it_is_and_when_none_is_known() -> None:
    default = {"_": {"log.retention.ms": "3"}}
    assert cluster({}).retention_of("soup", 1)[2:] == ("", "")
    assert cluster({"retention.bytes": "10"}, **default).retention_of("soup", 1)[2:] == (
        "the broker's dynamic log.retention.ms",
        "the topic's retention.bytes",
    )
    assert cluster({}).retention_of("soup", 1, {"log.retention.bytes": "50"})[2:] == (
        "Kafka's default log.retention.ms",
        "log.retention.bytes in server.properties",
    )
    assert cluster({"cleanup.policy": "compact"}).retention_of("soup", 1).age_by
