"""What the bucket says of a topic and of itself: the topic manifest, which incarnation a name means, who owns the bucket.

Deciding what changes is pure; the repository does the compare-and-swap around it.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from headwater_core.errors import ForeignOwner, UsageError
from headwater_core.partition import PartitionId, check_cluster_id, check_topic_id
from manifests.document import FORMAT, prepared, seal, unseal

_STORE_ID = re.compile(r"[0-9a-f]{32}")
PARTITIONS_MAX = 100_000  # per topic; clusters stay far below, and readers of the number make room for as many
FORMER_MAX = 100
PREVIOUS_MAX = 10_000  # earlier incarnations remembered, about 300 KB; the oldest are forgotten first


@prepared
class TopicManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a topic.

    version     rises with every commit of this document; the repository sets it
    partitions  as many as anyone has seen: Kafka never takes one away
    configs     the topic's own settings as the broker spells them; None while no agent has known them
    """

    format: tuple[int, int] = FORMAT
    cluster_id: str
    topic: str
    topic_id: str
    version: int = 0
    partitions: int
    configs: dict[str, str] | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for impossible names, ValueError for an impossible number of partitions."""
        if not 1 <= self.partitions <= PARTITIONS_MAX or self.version < 0:
            raise ValueError(f"{self.partitions} partitions, version {self.version}")
        self.partition_id(self.partitions - 1)

    def partition_id(self, partition: int) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, partition, self.topic)


@prepared
class Current(msgspec.Struct, frozen=True, kw_only=True):
    """Which incarnation a bare topic name means (see `turn_to`).

    previous  those that it meant before, oldest first
    as_of     metadata offset of the cluster at which an agent saw that the name is this one's; None while no agent could
    chosen    a person said so
    """

    format: tuple[int, int] = FORMAT
    cluster_id: str
    topic: str
    topic_id: str
    version: int = 1
    previous: tuple[str, ...] = ()
    as_of: int | None = None
    chosen: bool = False

    def __post_init__(self) -> None:
        PartitionId(self.cluster_id, self.topic_id, 0, self.topic)
        for topic_id in self.previous:
            check_topic_id(topic_id)
        if self.version < 0 or (self.as_of is not None and not 0 <= self.as_of < 2**63):
            raise ValueError(f"version {self.version}, as of metadata offset {self.as_of}")


@prepared
class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """headwater.json: whose archive this bucket is, and which store: data directories repeat the id. None before format 1.1.

    former  clusters that it was taken over from, the latest last: what a take-over has not reached yet is still theirs
    """

    format: tuple[int, int] = FORMAT
    cluster_id: str
    store_id: str | None = None
    former: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for cluster_id in (self.cluster_id, *self.former):
            check_cluster_id(cluster_id)
        if self.store_id is not None and not _STORE_ID.fullmatch(self.store_id):
            raise UsageError(f"not a store id: {self.store_id[:40]!r}")


def given_to(owner: Owner | None, former: str, cluster_id: str) -> Owner:
    """headwater.json once `cluster_id` has taken the archive over from `former`."""
    if owner is None:
        return Owner(cluster_id=cluster_id, former=(former,))
    return msgspec.structs.replace(owner, cluster_id=cluster_id, former=(*owner.former, former)[-FORMER_MAX:])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What an agent knows of the incarnation that it archives.

    as_of        metadata offset at which the cluster's metadata log gives the name to it; None without such a log
    is_replaced  at that time the name is another one's, or no topic's
    """

    as_of: int | None = None
    is_replaced: bool = False


NO_METADATA = Sight()


def turn_to(
    held: Current | None, seen: TopicManifest, sight: Sight = NO_METADATA, moves: Callable[[], bool] = lambda: True
) -> Current | None:
    """The document to commit when an agent archives incarnation `seen`; None when nothing changes.

    Topic ids have no order, but a cluster's metadata has: what it says at a higher offset is later. So an agent that knows an offset wins
    over one that knows none, and the higher one over the lower; a broker that comes back with an old disk has old metadata too, or new
    metadata that knows better. The lowest offset at which an incarnation was seen counts: a cluster that was recovered under its
    old id begins its metadata again, and what it makes later is later than that. Where no agent knows an offset the name goes to a
    newcomer, but not while the one that has it moves (`moves`, called last), and never back. What a person chose stays until the
    cluster names one that was not known then.
    """
    if held is None:
        return Current(cluster_id=seen.cluster_id, topic=seen.topic, topic_id=seen.topic_id, as_of=sight.as_of)
    if seen.topic_id == held.topic_id:
        lowers = held.as_of is None or (held.cluster_id == seen.cluster_id and not held.chosen)
        if sight.as_of is None or not lowers or (held.as_of is not None and held.as_of <= sight.as_of):
            return None
        return msgspec.structs.replace(held, format=FORMAT, version=held.version + 1, as_of=sight.as_of)
    known = held.as_of if held.cluster_id == seen.cluster_id else None
    if sight.is_replaced or (seen.topic_id in held.previous and (held.chosen or sight.as_of is None)):
        return None
    if (known is not None and (sight.as_of is None or sight.as_of <= known)) or (sight.as_of is None and moves()):
        return None
    return _turned(held, seen, as_of=sight.as_of)


def turn_command(topic: str, topic_id: str) -> str:
    """The command by which a person lets the name mean this incarnation."""
    return f"headwater topics set {topic} --incarnation {topic_id}"


def choose(held: Current | None, chosen: TopicManifest, others: Iterable[str]) -> Current | None:
    """The document to commit when a person wants the name to mean incarnation `chosen`; None when it does by choice already.

    others  all incarnations that the archive knows: none of them takes the name by itself from now on
    """
    held = held or Current(cluster_id=chosen.cluster_id, topic=chosen.topic, topic_id=chosen.topic_id, version=0)
    if held.topic_id == chosen.topic_id and held.chosen:
        return None
    turned = _turned(held, chosen, as_of=held.as_of if held.cluster_id == chosen.cluster_id else None)
    left = dict.fromkeys((*others, *turned.previous))
    left.pop(chosen.topic_id, None)
    return msgspec.structs.replace(turned, previous=tuple(left)[-PREVIOUS_MAX:], chosen=True)


def _turned(held: Current, to: TopicManifest, *, as_of: int | None) -> Current:
    left = dict.fromkeys((*held.previous, held.topic_id))
    left.pop(to.topic_id, None)
    return Current(
        cluster_id=to.cluster_id,
        topic=to.topic,
        topic_id=to.topic_id,
        version=held.version + 1,
        previous=tuple(left)[-PREVIOUS_MAX:],
        as_of=as_of,
    )


def encode_topic(manifest: TopicManifest) -> bytes:
    return seal(manifest)


def encode_current(current: Current) -> bytes:
    return seal(current)


def encode_owner(owner: Owner) -> bytes:
    return seal(owner)


def decode_topic(raw: bytes, topic: str, topic_id: str) -> TopicManifest:
    """Raises CorruptData, UnsupportedFormat, and ForeignOwner when the document is another topic's."""
    where = f"topic manifest of {topic}"
    manifest = unseal(raw, TopicManifest, where)
    if (manifest.topic, manifest.topic_id) != (topic, topic_id):
        raise ForeignOwner(f"{where} {topic_id} belongs to {manifest.topic} {manifest.topic_id}")
    return manifest


def decode_current(raw: bytes, topic: str) -> Current:
    """Raises CorruptData, UnsupportedFormat, and ForeignOwner when the document is another topic's."""
    where = f"current incarnation of {topic}"
    current = unseal(raw, Current, where)
    if current.topic != topic:
        raise ForeignOwner(f"{where} belongs to {current.topic}")
    return current


def decode_owner(raw: bytes) -> Owner:
    """Raises CorruptData and UnsupportedFormat."""
    return unseal(raw, Owner, "headwater.json")
