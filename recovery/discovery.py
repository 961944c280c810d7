"""What the bucket holds: topics, their settings, and the head of every partition."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from msgspec.structs import replace

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
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, parse_incarnation
from headwater_core.threads import ContextThreads
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository, Versioned
from manifests.topic import Owner, TopicManifest
from manifests.topic_survey import survey_topics
from recovery.object_sizes import ObjectSizes
from recovery.recovery_plan import LostRun, PartitionPlan, RecoveryPlan, TopicPlan

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
    notes  what else was noticed
    owner  of the bucket; None where there is none, or it cannot be read: owner_damage
    """

    topics: Sequence[ArchivedTopic]
    lost: Sequence[str] = ()
    notes: Sequence[str] = ()
    owner: Owner | None = None
    owner_damage: str = ""


def discover(repository: ManifestRepository, topics: Iterable[str] | None) -> Found:
    """The named topics, NAME or NAME@TOPIC_ID for an incarnation that the name may no longer mean, and of those that match a pattern every
    one that can be read; with None every one that can be read.

    Raises what is wrong with a named topic, such as NotFound for a name that the archive does not have, or a pattern that matches none.
    With None raises NothingExamined when there is nothing at all, as a wrong bucket must not look like an empty cluster, and
    VerificationFailed when nothing of it can be read.
    """
    owner, damage = _owner(repository)
    named, matching, lost = meant_topics(repository, topics)
    manifests = [of_owner(each, owner) for each in (*named.values(), *matching)]
    found: list[ArchivedTopic] = []
    with ContextThreads(_READERS, "recover-discover") as pool:
        for manifest, archived in zip(manifests, pool.map(lambda each: load_archived(repository, each, owner), manifests), strict=True):
            if isinstance(archived, ArchivedTopic):
                found.append(archived)
            elif manifest.topic not in named:
                lost.append(f"{manifest.topic}: {archived}")
            else:
                raise archived
    if not found and lost:
        raise VerificationFailed("nothing can be recovered: " + "; ".join(lost))
    if not found:
        raise NothingExamined("the bucket holds no topics" if topics is None else "no topic was named")
    notes = [f"{damage}; the owner of this archive was taken from the topics"] if damage else []
    return Found(topics=found, lost=lost, notes=notes, owner=owner, owner_damage=damage)


def meant_topics(
    repository: ManifestRepository, topics: Iterable[str] | None
) -> tuple[Mapping[str, TopicManifest], Sequence[TopicManifest], list[str]]:
    """The topics that are named, by name; those that patterns match, all with None; and what cannot be read of the latter. Raises as
    `discover`."""
    given = ["*"] if topics is None else list(topics)
    named = {each.topic: each for each in _named(repository, [each for each in given if not is_pattern(each)])}
    if not (patterns := [each for each in given if is_pattern(each)]):
        return named, (), []
    matching, lost = _matching(repository, patterns, required=topics is not None)
    return named, [each for each in matching if each.topic not in named], lost


def is_pattern(name: str) -> bool:
    """Whether it stands for every topic that it matches, as `fnmatch` has it."""
    return bool(set(name) & set("*?["))


def _matching(repository: ManifestRepository, patterns: Sequence[str], *, required: bool) -> tuple[list[TopicManifest], list[str]]:
    """The topics that a pattern matches, and those that cannot be read. Raises NotFound for a pattern that matches none and is `required`
    to."""
    manifests, unreadable = survey_topics(repository.store)
    known = [*(manifest.topic for manifest in manifests), *(each.topic for each in unreadable)]
    for pattern in patterns:
        if required and not any(fnmatchcase(name, pattern) for name in known):
            raise NotFound(f"no topic in the archive matches {pattern[:300]!r}")
    wanted = {name for name in known for pattern in patterns if fnmatchcase(name, pattern)}
    lost = [f"{each.topic}: {each.error}" for each in unreadable if each.topic in wanted]
    return [manifest for manifest in manifests if manifest.topic in wanted], lost


def _named(repository: ManifestRepository, topics: Iterable[str]) -> list[TopicManifest]:
    """Raises UsageError for two incarnations of one topic: their logs would be one directory."""
    meant: dict[str, str | None] = {}
    for topic, topic_id in map(parse_incarnation, sorted(set(topics))):
        if meant.setdefault(topic, topic_id) != topic_id:
            raise UsageError(f"{topic} is named as two incarnations: recover one at a time")
    return [repository.resolve(topic) if topic_id is None else repository.incarnation(topic, topic_id) for topic, topic_id in meant.items()]


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
    try:
        listed = repository.partitions(manifest.topic, manifest.topic_id)
    except (CorruptData, ForeignOwner, NotFound, UnsupportedFormat) as error:
        return error
    numbers = {each.partition for each in listed}.union(range(manifest.partitions))  # a listing is a hint: an absence is the store's word

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
        f"{count} index objects are missing, or have another length: {shown}{more}. No record is lost, the runs themselves are read for it"
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
    for key, size_bytes in open_layout(entry.layout).data_objects(entry):
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
    except CorruptData as error:
        return None, str(error)
