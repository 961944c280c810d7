"""One state of a cluster, as its metadata log gives it: plain values."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.record_schemas import KnownRecord

UNKNOWN_BYTES_MAX = 16 << 20
NO_OTHERS: Mapping[int, Mapping[Hashable, KnownRecord]] = MappingProxyType({})
_DELETE_RETENTION_MS = 24 * 3600 * 1000  # Kafka's own default
_RETENTION_MS = 7 * 24 * 3600 * 1000  # likewise


class Retention(NamedTuple):
    """When a broker deletes a log's oldest segment: once it is older than `age_ms`, or at least `size_bytes` lie after it; None: not for
    that."""

    age_ms: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """leader           broker id, -1 while there is none
    partition_epoch  rises with every change
    leader_recovery  1 while the leader, elected unclean, recovers
    elr              None where the cluster does not keep them
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    leader_recovery: int = 0
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[str, ...] = ()


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
    others            records of further kinds that hold: api key -> by what they are about (see metadata_image)
    unknown           records of kinds, or of versions, that this version does not know, verbatim and in order: the first UNKNOWN_BYTES_MAX
    unread            the same counted, those beyond included: api key -> how many
    end_offset        first metadata offset that is not part of this state
    end_epoch         the controller's epoch that the last of it was written under
    """

    topics: Mapping[str, TopicMetadata]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    features: Mapping[str, int]
    next_producer_id: int
    unread: Mapping[int, int]
    end_offset: int
    end_epoch: int = 0
    others: Mapping[int, Mapping[Hashable, KnownRecord]] = field(default_factory=lambda: NO_OTHERS)
    unknown: tuple[bytes, ...] = ()

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
        text = self._setting(topic, node, "delete.retention.ms", "log.cleaner.delete.retention.ms")
        if text is None:
            return _DELETE_RETENTION_MS
        return int(text) if text.isascii() and text.isdecimal() else 0

    def retention_of(self, topic: str, node: int) -> Retention:
        """retention.ms and retention.bytes on broker `node`, found likewise. What its server.properties say is not in the metadata."""
        if "delete" not in self.policy_of(topic):
            return Retention(None, None)
        age = self._setting(topic, node, "retention.ms", "log.retention.ms") or str(_RETENTION_MS)
        size = self._setting(topic, node, "retention.bytes", "log.retention.bytes") or "-1"
        age_ms, size_bytes = (int(text) if text.isascii() and text.isdecimal() else None for text in (age, size))  # -1 is for ever
        return Retention(age_ms, size_bytes)

    def _setting(self, topic: str, node: int, name: str, broker_name: str) -> str | None:
        found = self.topics.get(topic)
        text = found.configs.get(name) if found else None
        for broker in (str(node), ""):
            text = text or self.configs.get((RESOURCE_BROKER, broker), {}).get(broker_name)
        return text
