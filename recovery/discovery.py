"""What the bucket holds: topics, their settings, and the head of every partition."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headwater_core.errors import (
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    NothingExamined,
    UnsupportedFormat,
    UsageError,
    VerificationFailed,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, parse_incarnation
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from manifests.topic_survey import survey_topics
from recovery.recovery_plan import LostRun, PartitionPlan, RecoveryPlan, TopicPlan

_READERS = 16  # heads are small, so it is round trips that take the time


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """The current incarnation of one topic. heads: of those partitions that have one; damaged: what is wrong with the others'."""

    manifest: TopicManifest
    heads: Mapping[int, Head]
    damaged: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The topics to recover, by name.

    lost   what cannot be recovered of everything that is there, and why, for people
    notes  what else was noticed
    """

    topics: Sequence[ArchivedTopic]
    lost: Sequence[str] = ()
    notes: Sequence[str] = ()


def discover(repository: ManifestRepository, topics: Iterable[str] | None) -> Found:
    """The named topics, NAME or NAME@TOPIC_ID for an incarnation that the name may no longer mean; with None every one that can be read.

    Raises what is wrong with a named topic, such as NotFound for a name that the archive does not have. With None raises
    NothingExamined when there is nothing at all, as a wrong bucket must not look like an empty cluster, and
    VerificationFailed when nothing of it can be read.
    """
    if topics is None:
        manifests, unreadable = survey_topics(repository.store)
        lost = [f"{each.topic}: {each.error}" for each in unreadable]
    else:
        manifests, lost = _named(repository, topics), []
    found: list[ArchivedTopic] = []
    with ContextThreads(_READERS, "recover-discover") as pool:
        for manifest, archived in zip(manifests, pool.map(lambda each: load_archived(repository, each), manifests), strict=True):
            if isinstance(archived, ArchivedTopic):
                found.append(archived)
            elif topics is None:
                lost.append(f"{manifest.topic}: {archived}")
            else:
                raise archived
    if not found and lost:
        raise VerificationFailed("nothing can be recovered: " + "; ".join(lost))
    if not found:
        raise NothingExamined("the bucket holds no topics" if topics is None else "no topic was named")
    return Found(topics=found, lost=lost, notes=_notes(repository))


def _named(repository: ManifestRepository, topics: Iterable[str]) -> list[TopicManifest]:
    """Raises UsageError for two incarnations of one topic: their logs would be one directory."""
    meant: dict[str, str | None] = {}
    for topic, topic_id in map(parse_incarnation, sorted(set(topics))):
        if meant.setdefault(topic, topic_id) != topic_id:
            raise UsageError(f"{topic} is named as two incarnations: recover one at a time")
    return [repository.resolve(topic) if topic_id is None else repository.incarnation(topic, topic_id) for topic, topic_id in meant.items()]


def load_archived(repository: ManifestRepository, manifest: TopicManifest) -> ArchivedTopic | HeadwaterError:
    """The topic with its heads, or what is wrong with it when no head of it can be read; raises what the store raises otherwise."""
    heads: dict[int, Head] = {}
    damaged: dict[int, HeadwaterError] = {}
    try:
        listed = repository.partitions(manifest.topic, manifest.topic_id)
    except (CorruptData, ForeignOwner, NotFound, UnsupportedFormat) as error:
        return error
    numbers = {each.partition for each in listed}.union(range(manifest.partitions))  # a listing is a hint: an absence is the store's word
    for partition in map(manifest.partition_id, sorted(numbers)):
        try:
            if versioned := repository.load(partition):
                heads[partition.partition] = versioned.head
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            damaged[partition.partition] = error
    if damaged and not heads:
        return next(iter(damaged.values()))
    return ArchivedTopic(manifest=manifest, heads=heads, damaged={number: str(error) for number, error in damaged.items()})


def find_lost_runs(store: ObjectStore, plan: RecoveryPlan) -> list[LostRun]:
    """Runs that the archive lists and that are missing or of another length. One listing per partition; an absence is the store's
    definite answer."""

    def of(place: tuple[TopicPlan, PartitionPlan]) -> list[LostRun]:
        topic, partition = place
        source = PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic)
        both = keys.data_prefix(source), keys.stream_prefix(source)
        prefixes = [each for each in both if any(entry.key.startswith(each) for entry in partition.files)]
        sizes = {info.key: info.size_bytes for prefix in prefixes for info in store.list(prefix)}
        wrong = ((entry, _wrong_length(store, entry, sizes.get(entry.key))) for entry in partition.files)
        return [
            LostRun(
                topic=topic.topic,
                partition=partition.partition,
                base_offset=entry.base_offset,
                last_offset=entry.last_offset,
                reason=reason,
            )
            for entry, reason in wrong
            if reason
        ]

    places = [(topic, partition) for topic in plan.topics for partition in topic.partitions]
    with ContextThreads(_READERS, "recover-lost") as pool:
        return [lost for found in pool.map(of, places) for lost in found]


def _wrong_length(store: ObjectStore, entry: Entry, listed_bytes: int | None) -> str:
    if listed_bytes is None:
        try:
            listed_bytes = store.stat(entry.key).size_bytes
        except NotFound:
            return f"the archive lists {entry.key}, and it is gone"
    return "" if listed_bytes == entry.size_bytes else f"{entry.key} has {listed_bytes} bytes, the manifest lists {entry.size_bytes}"


def _notes(repository: ManifestRepository) -> Sequence[str]:
    try:
        repository.owner()
    except CorruptData as error:
        return [f"{error}; the owner of this archive was taken from the topics"]
    return ()
