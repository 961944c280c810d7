"""What the bucket says of a topic and of itself: the topic manifest, which incarnation a name means, who owns the bucket.

Deciding what changes is pure; the repository does the compare-and-swap around it.
"""

import re

import msgspec

from manifests.document import FORMAT, prepared, seal, unseal
from model.errors import CorruptData, ForeignOwner, UsageError
from model.partition import PartitionId, check_topic_id, topic_id_text

_STORE_ID = re.compile(r"[0-9a-f]{32}")
PARTITIONS_MAX = 100_000  # per topic; clusters stay far below, and whoever reads the number makes room for as many
PREVIOUS_MAX = 10_000  # earlier incarnations remembered, about 300 KB; the oldest are forgotten first


@prepared
class TopicManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a topic.

    version     rises with every commit of this document; the repository sets it
    partitions  as many as anyone has seen: Kafka never takes one away
    configs     the topic's own settings as the broker spells them; None while nobody has known them
    """

    format: tuple[int, int] = FORMAT
    cluster_id: str
    topic: str
    topic_id: str
    version: int = 0
    partitions: int
    configs: dict[str, str] | None = None

    def partition_id(self, partition: int) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, partition, self.topic)


@prepared
class Current(msgspec.Struct, frozen=True, kw_only=True):
    """Which incarnation a bare topic name means. `previous` ones, oldest first, never come back (see `turn_to`)."""

    format: tuple[int, int] = FORMAT
    cluster_id: str
    topic: str
    topic_id: str
    version: int = 1
    previous: tuple[str, ...] = ()


@prepared
class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """headwater.json: whose archive this bucket is, and which store: data directories repeat the id. None before format 1.1."""

    format: tuple[int, int] = FORMAT
    cluster_id: str
    store_id: str | None = None


def merge(held: TopicManifest | None, seen: TopicManifest) -> TopicManifest | None:
    """The manifest to commit after an agent has `seen` the topic; None when `held` already says it all.

    Agents look at different moments: a partition count never falls, and not knowing the settings does not erase them.
    """
    if held is None:
        return msgspec.structs.replace(seen, version=1, format=FORMAT)
    partitions = max(held.partitions, seen.partitions)
    configs = held.configs if seen.configs is None else seen.configs
    if (partitions, configs) == (held.partitions, held.configs):
        return None
    return msgspec.structs.replace(held, format=FORMAT, version=held.version + 1, partitions=partitions, configs=configs)


def turn_to(held: Current | None, seen: TopicManifest) -> Current | None:
    """The document to commit when an agent archives incarnation `seen`; None when nothing changes.

    Topic ids have no order, so the bucket remembers the ones it has left behind: an agent that still works on an old
    incarnation finds its id there and leaves the name alone. An old incarnation that nobody ever archived while it was
    current cannot be told from a new one.
    """
    if held is None:
        return Current(cluster_id=seen.cluster_id, topic=seen.topic, topic_id=seen.topic_id)
    if seen.topic_id == held.topic_id or seen.topic_id in held.previous:
        return None
    return Current(
        cluster_id=seen.cluster_id,
        topic=seen.topic,
        topic_id=seen.topic_id,
        version=held.version + 1,
        previous=(*held.previous, held.topic_id)[-PREVIOUS_MAX:],
    )


def check_topic(manifest: TopicManifest) -> None:
    """Raises UsageError for impossible names, CorruptData for an impossible number of partitions."""
    manifest.partition_id(max(manifest.partitions - 1, 0))
    if not 1 <= manifest.partitions <= PARTITIONS_MAX or manifest.version < 0:
        raise CorruptData(f"topic manifest of {manifest.topic}", 0, f"{manifest.partitions} partitions, version {manifest.version}")


def check_current(current: Current) -> None:
    PartitionId(current.cluster_id, current.topic_id, 0, current.topic)
    for topic_id in current.previous:
        check_topic_id(topic_id)


def check_owner(owner: Owner) -> None:
    if owner.store_id is not None and not _STORE_ID.fullmatch(owner.store_id):
        raise UsageError(f"not a store id: {owner.store_id[:40]!r}")
    PartitionId(owner.cluster_id, topic_id_text(bytes(16)), 0, "any")


def encode_topic(manifest: TopicManifest) -> bytes:
    check_topic(manifest)
    return seal(manifest)


def encode_current(current: Current) -> bytes:
    check_current(current)
    return seal(current)


def encode_owner(owner: Owner) -> bytes:
    check_owner(owner)
    return seal(owner)


def decode_topic(raw: bytes, topic: str, topic_id: str) -> TopicManifest:
    """Raises CorruptData, UnsupportedFormat, and ForeignOwner when the document is another topic's."""
    where = f"topic manifest of {topic}"
    manifest = unseal(raw, TopicManifest, check_topic, where)
    if (manifest.topic, manifest.topic_id) != (topic, topic_id):
        raise ForeignOwner(f"{where} {topic_id} belongs to {manifest.topic} {manifest.topic_id}")
    return manifest


def decode_current(raw: bytes, topic: str) -> Current:
    where = f"current incarnation of {topic}"
    current = unseal(raw, Current, check_current, where)
    if current.topic != topic:
        raise ForeignOwner(f"{where} belongs to {current.topic}")
    return current


def decode_owner(raw: bytes) -> Owner:
    return unseal(raw, Owner, check_owner, "headwater.json")
