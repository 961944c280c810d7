"""One state of a cluster, as its metadata log gives it: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER

_DELETE_RETENTION_MS = 24 * 3600 * 1000  # Kafka's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """leader  broker id, -1 while there is none"""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    topic_id: str
    partitions: Mapping[int, PartitionMetadata]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """One state of a cluster.

    configs           of everything but topics: (resource type, resource name) -> settings; broker "" holds the defaults
    next_producer_id  producer ids from here on have not been handed out
    unread            records of other kinds that lie in the log: api key -> how many
    end_offset        first metadata offset that is not part of this state
    """

    topics: Mapping[str, TopicMetadata]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    features: Mapping[str, int]
    next_producer_id: int
    unread: Mapping[int, int]
    end_offset: int

    def policy_of(self, topic: str) -> frozenset[str]:
        """cleanup.policy as the metadata gives it: the topic's, else the cluster's dynamic default, else Kafka's own."""
        found = self.topics.get(topic)
        text = found.configs.get("cleanup.policy") if found else None
        if text is None:
            text = self.configs.get((RESOURCE_BROKER, ""), {}).get("log.cleanup.policy", "delete")
        return frozenset(part.strip() for part in text.split(","))

    def delete_retention_ms_of(self, topic: str, node: int) -> int:
        """delete.retention.ms on broker `node`: the topic's, else the broker's or the cluster's dynamic default, else Kafka's own.

        0, the shortest there is, when the setting is no number.
        """
        found = self.topics.get(topic)
        text = found.configs.get("delete.retention.ms") if found else None
        for broker in (str(node), ""):
            text = text or self.configs.get((RESOURCE_BROKER, broker), {}).get("log.cleaner.delete.retention.ms")
        if text is None:
            return _DELETE_RETENTION_MS
        return int(text) if text.isascii() and text.isdecimal() else 0
