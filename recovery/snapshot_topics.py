"""The topics of a recovered cluster are those of the snapshot: which incarnations, how many partitions, which settings.

A topic's manifest follows the cluster with a delay, and knows nothing of an earlier time. Data comes back as far as it is archived.
"""

from collections.abc import Sequence
from dataclasses import replace as with_fields

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import HeadwaterError
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from manifests.repository import ManifestRepository
from manifests.topic import PARTITIONS_MAX, Owner
from recovery.discovery import ArchivedTopic, Found, load_archived, of_owner
from recovery.recovery_plan import TopicPlan
from recovery.requested_topics import UNREADABLE, counted_manifest, listed_heads


def as_in_snapshot(found: Found, state: ClusterMetadata, repository: ManifestRepository, *, unlisted: bool) -> Found:
    """`found`, with each topic as `state` has it.

    unlisted  topics that `state` does not have come back too, as the archive has them; else they are lost, by name

    Raises what the store raises when it does not answer.
    """
    topics: list[ArchivedTopic] = []
    lost, notes = list(found.lost), list(found.notes)
    for archived in found.topics:
        name, topic_id = archived.manifest.topic, archived.manifest.topic_id
        wanted = state.topics.get(name)
        if wanted is None and unlisted:
            notes.append(f"{name}: the snapshot does not have it; it comes back as the archive has it")
            topics.append(with_fields(archived, default_policy=_default_policy(state)))
        elif wanted is None:
            lost.append(f"{name}: the snapshot does not have it, it was deleted before or created after: --unlisted-topics recovers it")
        elif wanted.topic_id == topic_id:
            topics.append(_as_in(archived, wanted, state))
            notes += _differences(archived, topics[-1])
        else:
            other: ArchivedTopic | HeadwaterError
            try:
                other = load_archived(repository, of_owner(repository.incarnation(name, wanted.topic_id), found.owner), found.owner)
            except UNREADABLE as error:
                other = _by_snapshot(repository, wanted, found.owner) or error
            if isinstance(other, HeadwaterError):
                lost.append(f"{name}: the snapshot has incarnation {wanted.topic_id}, the archive means {topic_id}: {other}")
                continue
            notes.append(f"{name}: as incarnation {wanted.topic_id}, which the snapshot has; the archive means {topic_id} by the name")
            topics.append(_as_in(other, wanted, state))
            notes += _differences(other, topics[-1])
    for name, damage in found.unread.items():
        if (wanted := state.topics.get(name)) and (known := _by_snapshot(repository, wanted, found.owner)) is not None:
            lost = [each for each in lost if each != f"{name}: {damage}"]
            notes.append(f"{name}: {damage}; it comes back as the snapshot has it")
            topics.append(_as_in(known, wanted, state))
    return with_fields(found, topics=sorted(topics, key=lambda each: each.manifest.topic), lost=lost, notes=notes)


def _by_snapshot(repository: ManifestRepository, wanted: TopicMetadata, owner: Owner | None) -> ArchivedTopic | None:
    """A topic of which a document cannot be read: the snapshot says which incarnation it is, and has its settings. None where nothing of it
    can be read."""
    name, topic_id = wanted.name, wanted.topic_id
    numbers = listed_heads(repository.store, name, topic_id).get(name, {}).get(topic_id, frozenset())
    try:
        manifest = repository.load_topic(name, topic_id)
    except UNREADABLE:
        manifest = None
    manifest = manifest or counted_manifest(repository, name, topic_id, numbers)
    archived = None if manifest is None else load_archived(repository, of_owner(manifest, owner), owner)
    return archived if isinstance(archived, ArchivedTopic) else None


def _as_in(archived: ArchivedTopic, wanted: TopicMetadata, state: ClusterMetadata) -> ArchivedTopic:
    """With the settings of `wanted`. Kafka never takes a partition away: those added since come back with their data."""
    count = min(max(archived.manifest.partitions, len(wanted.partitions)), PARTITIONS_MAX)
    manifest = replace(archived.manifest, partitions=count, configs=dict(wanted.configs))
    return with_fields(archived, manifest=manifest, default_policy=_default_policy(state))


def _default_policy(state: ClusterMetadata) -> str | None:
    """The dynamic one of the cluster, which comes back with it. None: it has none, and the brokers' files are not in a snapshot."""
    return state.configs.get((RESOURCE_BROKER, ""), {}).get("log.cleanup.policy")


def _differences(archived: ArchivedTopic, planned: ArchivedTopic) -> Sequence[str]:
    """What the snapshot says otherwise than the archive, for people."""
    name, before, after = archived.manifest.topic, archived.manifest.configs, planned.manifest.configs or {}
    notes = []
    if planned.manifest.partitions != archived.manifest.partitions:
        notes.append(
            f"{name}: {count_text(planned.manifest.partitions, 'partition')} as in the snapshot; its manifest has "
            f"{archived.manifest.partitions}"
        )
    if before is not None and (changed := sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))):
        notes.append(f"{name}: settings as in the snapshot; its manifest has others for {', '.join(changed)}")
    return notes


def with_epochs(topic: TopicPlan, wanted: TopicMetadata | None) -> TopicPlan:
    """`topic` with leader epochs not below those of `wanted`: a client that has seen an epoch waits without end for a broker below it."""
    if wanted is None or wanted.topic_id != topic.topic_id:
        return topic
    epochs = {number: partition.leader_epoch for number, partition in wanted.partitions.items()}
    raised = (replace(each, leader_epoch=max(each.leader_epoch, epochs.get(each.partition, 0))) for each in topic.partitions)
    return replace(topic, partitions=tuple(raised))
