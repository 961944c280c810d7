"""One state of a cluster, as its metadata log gives it: plain values."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER, Tags
from headwater_core.segments.metadata.record_schemas import KnownRecord

UNKNOWN_BYTES_MAX = 16 << 20
NO_OTHERS: Mapping[int, Mapping[Hashable, KnownRecord]] = MappingProxyType({})
NO_TAGS: Mapping[tuple[int, str, str], Tags] = MappingProxyType({})
_DELETE_RETENTION_MS = 24 * 3600 * 1000  # Kafka's own default
_RETENTION_MS = 7 * 24 * 3600 * 1000  # likewise
_NONE: Mapping[str, str] = {}


class Retention(NamedTuple):
    """When a broker deletes a log's oldest segment: once it is older than `age_ms`, or at least `size_bytes` lie after it; None: not for
    that.

    age_by, size_by  which setting says so, for people; "" where none that is known does, and Kafka's own default is assumed
    """

    age_ms: int | None
    size_bytes: int | None
    age_by: str = ""
    size_by: str = ""


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
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    topic_id: str
    partitions: Mapping[int, PartitionMetadata]
    configs: Mapping[str, str]
    tags: Tags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """One state of a cluster.

    configs           of everything but topics: (resource type, resource name) -> settings; broker "" holds the defaults
    next_producer_id  producer ids from here on have not been handed out
    others            records of further kinds that hold: api key -> by what they are about (see metadata_image)
    unknown           records of kinds, or of versions, that this version does not know, verbatim and in order: the first UNKNOWN_BYTES_MAX.
                      Applied after all else, in this order, they make the state that a broker has
    kept              likewise, of which that is not so: a change that was applied as far as it is known, or one that a later record about
                      the same kind of thing may have undone
    unread            api key -> how many of both, those beyond included, and of records in the state with fields that are not known
    config_tags       of settings: (resource type, resource name, setting) -> fields that are not known
    end_offset        first metadata offset that is not part of this state
    end_epoch         the controller's epoch that the last of it was written under
    appended_ms       when that was; 0: not known
    """

    topics: Mapping[str, TopicMetadata]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    features: Mapping[str, int]
    next_producer_id: int
    unread: Mapping[int, int]
    end_offset: int
    end_epoch: int = 0
    appended_ms: int = 0
    others: Mapping[int, Mapping[Hashable, KnownRecord]] = field(default_factory=lambda: NO_OTHERS)
    unknown: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    config_tags: Mapping[tuple[int, str, str], Tags] = field(default_factory=lambda: NO_TAGS)

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

    def retention_of(self, topic: str, node: int, static: Mapping[str, str] | None = None) -> Retention:
        """retention.ms and retention.bytes on broker `node`, found likewise.

        static  its server.properties, which the metadata does not have; None: they are not known
        """
        if "delete" not in self.policy_of(topic):
            return Retention(None, None, "cleanup.policy", "cleanup.policy")
        age = self._told(topic, node, "retention.ms", "log.retention.ms") or _static_age(static)
        size = self._told(topic, node, "retention.bytes", "log.retention.bytes") or _static(static, "log.retention.bytes", "-1")
        age_ms, size_bytes = (int(text) if text.isascii() and text.isdecimal() else None for text, _ in (age, size))  # -1 is without limit
        return Retention(age_ms, size_bytes, age.by, size.by)

    def broker_configs(self, node: int) -> tuple[Mapping[str, str], ...]:
        """The dynamic settings of broker `node`, and those of all brokers."""
        return tuple(self.configs.get((RESOURCE_BROKER, broker), _NONE) for broker in (str(node), ""))

    def _setting(self, topic: str, node: int, name: str, broker_name: str) -> str | None:
        found = self._told(topic, node, name, broker_name)
        return found.text if found else None

    def _told(self, topic: str, node: int, name: str, broker_name: str) -> "_Told | None":
        found = self.topics.get(topic)
        if found and (text := found.configs.get(name)):
            return _Told(text, f"the topic's {name}")
        for broker in (str(node), ""):
            if text := self.configs.get((RESOURCE_BROKER, broker), {}).get(broker_name):
                return _Told(text, f"the broker's dynamic {broker_name}")
        return None


class _Told(NamedTuple):
    """A setting, and which one it is."""

    text: str
    by: str


def _static(static: Mapping[str, str] | None, name: str, default: str) -> _Told:
    if static is None:
        return _Told(default, "")
    return _Told(static[name], f"{name} in server.properties") if static.get(name) else _Told(default, f"Kafka's default {name}")


def _static_age(static: Mapping[str, str] | None) -> _Told:
    """Of the three units of one setting the finest wins, as in Kafka. -1 is without limit in each."""
    for name, unit_ms in (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)):
        if static and (text := static.get(name, "")):
            return _Told(str(int(text) * unit_ms) if text.isascii() and text.isdecimal() else "-1", f"{name} in server.properties")
    return _static(static, "log.retention.ms", str(_RETENTION_MS))
