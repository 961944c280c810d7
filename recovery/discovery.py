"""What the bucket holds: topics, their settings, and the head of every partition."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import (
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NothingExamined,
    UnsupportedFormat,
    VerificationFailed,
)
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository, Versioned
from manifests.topic import Owner, TopicManifest
from recovery.object_sizes import ObjectSizes
from recovery.recovery_plan import LostRun, Options, PartitionPlan, RecoveryPlan, TopicPlan
from recovery.requested_topics import INCARNATIONS_SHOWN, advised, listed_heads, meant_topics, other_incarnations

INDEXES_SHOWN = 10
_READERS = 16  # heads are small, so it is round trips that take the time


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """The current incarnation of one topic. heads: of those partitions that have one; damaged: what is wrong with the others'; digests: of
    the heads as the bucket has them; default_policy: the brokers' cleanup policy, for a topic that has none of its own, None where it is
    not known."""

    manifest: TopicManifest
    heads: Mapping[int, Head]
    damaged: Mapping[int, str] = field(default_factory=dict)
    digests: Mapping[int, str] = field(default_factory=dict)
    default_policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The topics to recover, by name.

    lost   what cannot be recovered of everything that is there, and why, for people
    unread of those, topics whose documents, or all of whose heads, cannot be read, and what is wrong
    others by name, the id that it means, and those of incarnations that what says so knows nothing of
    notes  what else was noticed
    owner  of the bucket; None where there is none, or it cannot be read: owner_damage
    """

    topics: Sequence[ArchivedTopic]
    lost: Sequence[str] = ()
    unread: Mapping[str, HeadwaterError] = field(default_factory=dict)
    others: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    owner: Owner | None = None
    owner_damage: str = ""


def discover(repository: ManifestRepository, topics: Iterable[str] | None, options: Options | None = None) -> Found:
    """The named topics, NAME or NAME@TOPIC_ID for an incarnation that the name may no longer mean, and of those that match a pattern every
    one that can be read; with None every one that can be read.

    options  a count of partitions stands for a topic manifest that cannot be read, and with a snapshot of the cluster there may be no topic
             that can be read

    Raises what is wrong with a named topic, such as NotFound for a name that the archive does not have, or a pattern that matches none.
    With None raises NothingExamined when there is nothing at all, as a wrong bucket must not look like an empty cluster, and
    VerificationFailed when nothing of it can be read.
    """
    owner, damage = _owner(repository)
    meant = meant_topics(repository, topics, options.partition_counts if options else None, options.partitions if options else None)
    manifests = [of_owner(each, owner) for each in (*meant.named.values(), *meant.matching)]
    found: list[ArchivedTopic] = []
    unread = dict(meant.unread)
    with ContextThreads(_READERS, "recover-discover") as pool:
        for manifest, archived in zip(manifests, pool.map(lambda each: load_archived(repository, each, owner), manifests), strict=True):
            topic = manifest.topic
            if isinstance(archived, ArchivedTopic):
                found.append(archived)
                continue
            if topic in meant.others:
                archived = advised(archived, other_incarnations(topic, meant.others[topic]))
            if topic in meant.named:
                raise archived
            unread[topic] = archived
    lost = [f"{name}: {error}" for name, error in unread.items()]
    if not found and lost and not (options and options.cluster):  # a snapshot may know more of them
        raise VerificationFailed("nothing can be recovered: " + "; ".join(lost))
    if not found and not lost:
        raise NothingExamined("the bucket holds no topics" if topics is None else "no topic was named")
    others = {each.topic: (each.topic_id, meant.others[each.topic]) for each in manifests if each.topic in meant.others}
    notes = list(meant.notes)
    if damage or owner is None:
        notes.append(f"{damage or f'{keys.OWNER} is not there'}; the owner of this archive was taken from the topics")
    return Found(topics=found, lost=lost, unread=unread, others=others, notes=notes, owner=owner, owner_damage=damage)


def with_others_noted(found: Found) -> Found:
    """`found`, and of each topic that comes back as its name means what other incarnations there are, which it may mean as well."""
    notes = []
    for each in found.topics:
        topic, topic_id = each.manifest.topic, each.manifest.topic_id
        meant, others = found.others.get(topic, ("", ()))
        if meant == topic_id:
            notes.append(
                f"{topic}: {topic_id} is recovered; the archive has {', '.join(others[:INCARNATIONS_SHOWN])} too, of which "
                f"{keys.current(topic)} knows nothing: it may be older than it was; {topic}@TOPIC_ID recovers another one"
            )
    return dataclass_replace(found, notes=[*found.notes, *notes])


def with_owner_compared(found: Found) -> Found:
    """`found`, and whether the bucket is its topics' cluster's."""
    others = sorted({each.manifest.cluster_id for each in found.topics} - {found.owner.cluster_id}) if found.owner else []
    if found.owner is None or not others:
        return found
    note = (
        f"{keys.OWNER} says that the archive is cluster {found.owner.cluster_id}'s, and topics are {', '.join(others)}'s: it is older than "
        "they are, or another archive's"
    )
    return dataclass_replace(found, notes=[*found.notes, note])


def of_owner(manifest: TopicManifest, owner: Owner | None) -> TopicManifest:
    """As the bucket's owner has it, though a take-over has not reached it yet."""
    return replace(manifest, cluster_id=owner.cluster_id) if owner and manifest.cluster_id in owner.former else manifest


def load_head(repository: ManifestRepository, partition: PartitionId, others: Collection[str]) -> Versioned | None:
    """As ManifestRepository.load; so it is, too, where it is of one of the `others`: a take-over has not reached it, or has."""
    if not others:
        return repository.load(partition)
    held = repository.load_of_any_owner(partition)
    if held is None or held.head.cluster_id == partition.cluster_id:
        return held
    if held.head.cluster_id not in others:
        raise ForeignOwner(f"manifest of {partition} belongs to cluster {held.head.cluster_id}")
    return dataclass_replace(held, head=replace(held.head, cluster_id=partition.cluster_id))


def load_archived(repository: ManifestRepository, manifest: TopicManifest, owner: Owner | None = None) -> ArchivedTopic | HeadwaterError:
    """The topic with its heads, or what is wrong with it when no head of it can be read; raises what the store raises otherwise.

    owner  of the bucket: a head may be of the clusters, too, that it was taken over from
    """
    heads: dict[int, Head] = {}
    digests: dict[int, str] = {}
    damaged: dict[int, HeadwaterError] = {}
    listed = listed_heads(repository.store, manifest.topic, manifest.topic_id)
    numbers = (
        listed.get(manifest.topic, {}).get(manifest.topic_id, frozenset()).union(range(manifest.partitions))
    )  # a listing is a hint: an absence is the store's word

    def load(partition: PartitionId) -> Versioned | HeadwaterError | None:
        try:
            return load_head(repository, partition, owner.former if owner else ())
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            return error

    with ContextThreads(min(_READERS, max(1, len(numbers))), "recover-heads") as pool:
        for number, found in zip(sorted(numbers), pool.map(load, map(manifest.partition_id, sorted(numbers))), strict=True):
            if isinstance(found, HeadwaterError):
                damaged[number] = found
            elif found is not None:
                heads[number], digests[number] = found.head, found.digest
    if damaged and not heads:
        return next(iter(damaged.values()))
    return ArchivedTopic(manifest=manifest, heads=heads, damaged={number: str(error) for number, error in damaged.items()}, digests=digests)


def without_twins(found: Found, renames: Collection[str] = ()) -> Found:
    """`found`, without topics of one id, of which a broker can serve one: the one that has records stays, and where that does not tell
    them apart, none. renames: topics that get an id of their own"""
    by_id: dict[str, list[ArchivedTopic]] = {}
    for each in found.topics:
        if each.manifest.topic not in renames:
            by_id.setdefault(each.manifest.topic_id, []).append(each)
    dropped: dict[str, str] = {}
    for topic_id, twins in by_id.items():
        with_heads = [each for each in twins if each.heads or each.damaged]
        kept = with_heads if len(with_heads) == 1 else []
        names = [each.manifest.topic for each in twins if each not in kept]
        for name in names if len(twins) > 1 else ():
            others = ", ".join(each.manifest.topic for each in twins if each.manifest.topic != name)
            dropped[name] = (
                f"{name}: it has the topic id of {others}, {topic_id}, and no broker serves both: --as {name}=NEW_NAME gives it another"
            )
    topics = [each for each in found.topics if each.manifest.topic not in dropped]
    return dataclass_replace(found, topics=topics, lost=[*found.lost, *dropped.values()])


class RunsLookedAt(NamedTuple):
    """
    lost      runs that the archive lists and that are missing or of another length
    lacking   of the others, how many index objects of which that is so
    indexes   the first of those
    """

    lost: list[LostRun]
    lacking: int = 0
    indexes: tuple[str, ...] = ()

    def notes(self) -> Iterable[str]:
        if self.lacking:
            yield index_note(self.indexes, self.lacking)


def index_note(names: Sequence[str], count: int) -> str:
    """names: the first ones of so many"""
    more = f" and {count - len(names[:INDEXES_SHOWN])} more" if count > len(names[:INDEXES_SHOWN]) else ""
    shown = ", ".join(names[:INDEXES_SHOWN])
    return (
        f"missing, or of another length: {count_text(count, 'index object')}: {shown}{more}. No record is lost, the runs "
        "themselves are read for it"
    )


def look_at_runs(store: ObjectStore, plan: RecoveryPlan) -> RunsLookedAt:
    """At all that come back. One listing per partition; an absence is the store's definite answer."""

    def of(place: tuple[TopicPlan, PartitionPlan]) -> RunsLookedAt:
        topic, partition = place
        sizes = ObjectSizes(store, topic.archived_id(plan.source_cluster_id, partition.partition))
        lost: list[LostRun] = []
        lacking, indexes = 0, list[str]()
        for entry in partition.files:
            index_bytes = sizes.of(entry.index_key) if entry.index_key else entry.index_bytes  # before the run: in order of the keys
            if reason := wrong_length(entry, sizes):
                lost.append(
                    LostRun(
                        topic=topic.topic,
                        partition=partition.partition,
                        base_offset=entry.base_offset,
                        last_offset=entry.last_offset,
                        reason=reason,
                    )
                )
            elif index_bytes != entry.index_bytes:
                lacking += 1
                indexes += [entry.index_key] * (len(indexes) < INDEXES_SHOWN)
        return RunsLookedAt(lost, lacking, tuple(indexes))

    places = [(topic, partition) for topic in plan.topics for partition in topic.partitions]
    with ContextThreads(_READERS, "recover-lost") as pool:
        found = list(pool.map(of, places))
    return RunsLookedAt(
        [lost for each in found for lost in each.lost],
        sum(each.lacking for each in found),
        tuple([key for each in found for key in each.indexes][:INDEXES_SHOWN]),
    )


def wrong_length(entry: Entry, sizes: ObjectSizes) -> str:
    """Of an object that holds some of the run; "" when all of them are there as they were written."""
    try:
        objects = open_layout(entry.layout).data_objects(entry)
    except (CorruptData, UnsupportedFormat) as error:  # of what the entry says of them
        return str(error)
    for key, size_bytes in objects:
        found = sizes.of(key)
        if found is None:
            return f"the archive lists {key}, and it is gone"
        if found != size_bytes:
            return f"{key} has {found} bytes, the manifest lists {size_bytes}"
    return ""


def _owner(repository: ManifestRepository) -> tuple[Owner | None, str]:
    """Whose archive it is, and what is wrong with the document that says it."""
    try:
        return repository.owner(), ""
    except (CorruptData, UnsupportedFormat) as error:
        return None, str(error)
