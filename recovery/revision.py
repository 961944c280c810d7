"""What the archive has replaced since it was planned: such partitions are planned again, as a whole, from their heads as they are now.

A plan names the objects of one moment. The archive lives on: merges, retention and compaction let objects go, and when the readers'
lease is over, they are deleted. A recovery may be older than that, since it takes days, or was interrupted, or its plan lay in a file. So
what is missing is damage only while the head still lists it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, TransientError, UnsupportedFormat, UsageError
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests.head import Head
from manifests.repository import ManifestRepository
from recovery.bucket_survey import owners_of
from recovery.discovery import load_head
from recovery.endings import with_endings
from recovery.entry_list import EntryList
from recovery.local_part import bounds_of, readable
from recovery.plan_notes import notes_of
from recovery.planner import plan_partition, policy_of
from recovery.recovery_plan import LostRun, PartitionPlan, Place, RecoveryPlan, TopicPlan, check_partition, check_plan
from recovery.requested_ends import find_end
from recovery.requested_topics import meant_topics
from recovery.topic_roles import is_brokers_own

REVISIONS_MAX = 8  # of one plan at a time, because the archive has replaced runs of it meanwhile

_READERS = 16
_SHOWN = 10

FindLost = Callable[[RecoveryPlan], Sequence[LostRun]]


def settled(plan: RecoveryPlan, manifests: ManifestRepository, find_lost: FindLost, now_ms: int) -> RecoveryPlan:
    """`plan` with where its logs end, and without what the archive has replaced; `holes` are the lost runs that the heads still list.

    find_lost  which runs of a plan are known to be missing or damaged
    now_ms     retention is measured from then

    Raises TransientError when the archive replaces runs again and again, CorruptData as check_plan, and what the store raises.
    """
    for _ in range(REVISIONS_MAX):
        ended, unread = with_endings(plan, manifests.store)
        lost = [*_on_lost_pages(ended), *find_lost(ended)]
        again = _planned_again(plan, manifests, {*unread, *((each.topic, each.partition) for each in lost)}, now_ms)
        if not again:
            return check_plan(replace(ended, holes=tuple(lost)))
        plan = _with_partitions(plan, again)
    raise TransientError(f"the archive has replaced runs {REVISIONS_MAX} times while they were planned: run the same command again")


def _owners(plan: RecoveryPlan, manifests: ManifestRepository) -> Collection[str]:
    """The clusters that the planned heads may be of: a take-over reaches them one by one."""
    try:
        return owners_of(plan, manifests.owner())
    except (CorruptData, UnsupportedFormat):
        return owners_of(plan, None)


def _on_lost_pages(plan: RecoveryPlan) -> Iterator[LostRun]:
    for topic in plan.topics:
        for partition in topic.partitions:
            for page in partition.lost_pages:
                yield LostRun(
                    topic=topic.topic,
                    partition=partition.partition,
                    base_offset=page.base_offset,
                    last_offset=page.last_offset,
                    reason=page.reason,
                )


def _planned_again(
    plan: RecoveryPlan, manifests: ManifestRepository, places: Collection[Place], now_ms: int
) -> Mapping[Place, PartitionPlan]:
    """Those of `places` whose heads do not list all that is planned any more, and can be recovered as they are now."""
    found: dict[Place, PartitionPlan] = {}
    owners = _owners(plan, manifests) if places else ()
    for topic in plan.topics:
        policy = policy_of(topic.topic, topic.configs, "compact" if topic.compacted else None)
        bounds = bounds_of(topic.topic, policy, topic.configs, plan.request.options, now_ms)
        for partition in topic.partitions:
            place = topic.topic, partition.partition
            if place not in places:
                continue
            identity = topic.archived_id(plan.source_cluster_id, partition.partition)
            try:
                held = load_head(manifests, identity, owners)
                if held and not _lists_all(held.head, partition):
                    options, name = plan.request.options, topic.archived_name.topic
                    end = partition.end or find_end(held.head, name, options, manifests.store)  # it may have grown beyond it
                    planned = plan_partition(held.head, bounds._replace(end=end))
                    epoch = max(planned.leader_epoch, partition.leader_epoch)  # a snapshot may have more
                    planned = replace(
                        planned,
                        leader_epoch=epoch,
                        manifest_digest=held.digest,
                        replicas=partition.replicas,
                        directory=partition.directory,
                    )
                    found[place] = check_partition(identity, planned)
            except (CorruptData, ForeignOwner, UnsupportedFormat):
                continue  # nothing better can be planned: what is lost stays lost
    return found


def _lists_all(head: Head, partition: PartitionPlan) -> bool:
    """Whether the objects of every run that is planned are among the head's: both lists are in order of their offsets."""
    listed = (entry.key for entry in readable(head.entries) if not entry.gap)
    key: str | None = None
    for entry in (EntryList.of(partition.beneath) + partition.entries).runs:
        while key != entry.key:
            if (key := next(listed, None)) is None:
                return False
    return True


def _with_partitions(plan: RecoveryPlan, again: Mapping[Place, PartitionPlan]) -> RecoveryPlan:
    """`plan` with these partitions in place of its own, and with what is to be noted of them."""

    def revised(topic: TopicPlan) -> TopicPlan:
        return replace(topic, partitions=tuple(again.get((topic.topic, each.partition), each) for each in topic.partitions))

    topics = tuple(map(revised, plan.topics))
    outdated = {note for topic in plan.topics for note in notes_of(topic)}
    kept = [note for note in plan.notes if note not in outdated]
    return replace(plan, topics=topics, notes=(*kept, *(note for topic in topics for note in notes_of(topic))))


def changes_since(plan: RecoveryPlan, manifests: ManifestRepository) -> list[str]:
    """What is otherwise in the archive than `plan` was made from, for people: heads, the manifests of topics, and topics that it would have
    by now. Raises what the store raises."""
    places = [(topic, partition) for topic in plan.topics for partition in topic.partitions]
    owners = _owners(plan, manifests)

    def changed_head(place: tuple[TopicPlan, PartitionPlan]) -> str:
        topic, partition = place
        return _changed_head(manifests, topic.archived_id(plan.source_cluster_id, partition.partition), partition, owners)

    with ContextThreads(_READERS, "recover-heads") as pool:
        heads = pool.map(changed_head, places)
        topics = pool.map(lambda topic: _changed_topic(manifests, topic), plan.topics)
        found = [text for text in (*_other_topics(manifests, plan), *topics, *heads) if text]
    return [*found[:_SHOWN], *([f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])]


def _changed_head(manifests: ManifestRepository, identity: PartitionId, planned: PartitionPlan, owners: Collection[str]) -> str:
    place = identity.topic_partition
    try:
        held = load_head(manifests, identity, owners)
    except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
        return f"{place}: {error}" if planned.manifest_version else ""  # it was so when the plan was made
    if held is None:
        return f"{place} has no manifest any more" if planned.manifest_version else ""
    before, now = (planned.manifest_version, planned.manifest_fence), (held.head.version, held.head.fence)
    if not planned.manifest_version:
        return f"{place} has a manifest of version {now[0]}, and had none that could be read"
    if before != now:
        return f"{place} had version {before[0]} and fence {before[1]}, and has {now[0]} and {now[1]}"
    if planned.manifest_digest not in ("", held.digest):
        return f"{place} has another manifest of version {now[0]}: {held.digest}, not {planned.manifest_digest}"
    return ""


def _changed_topic(manifests: ManifestRepository, planned: TopicPlan) -> str:
    """Its settings, or how many partitions it has."""
    name, topic_id = planned.archived_name.topic, planned.archived_name.topic_id
    try:
        held = manifests.load_topic(name, topic_id)
    except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
        return f"{name}: {error}" if planned.manifest_version else ""  # it was so when the plan was made
    if held is None:
        return f"{name} has no topic manifest any more" if planned.manifest_version else ""
    if planned.manifest_version not in (0, held.version):
        return (
            f"{name} had a topic manifest of version {planned.manifest_version}, and has {held.version}: "
            f"{count_text(held.partitions, 'partition')}"
        )
    return ""


def _other_topics(manifests: ManifestRepository, plan: RecoveryPlan) -> Iterator[str]:
    """Topics that the request means by now, and that are not those of the plan."""
    options = plan.request.options
    try:
        meant = meant_topics(manifests, plan.request.topics, options.partition_counts, options.partitions)
    except (CorruptData, ForeignOwner, NotFound, UnsupportedFormat, UsageError) as error:
        yield str(error)
        return
    planned = {topic.archived_name.topic: topic.archived_name.topic_id for topic in plan.topics}
    left_out = {text.partition(": ")[0] for text in plan.left_out}
    for each in (*meant.named.values(), *meant.matching):
        topic_id = planned.get(each.topic)
        if plan.running is not None and (each.topic in plan.running.kept or is_brokers_own(each.topic)):
            continue
        if topic_id is None and each.topic not in left_out and (options.cluster is None or options.unlisted_topics):
            yield f"{each.topic} is in the archive, and is not planned"
        elif topic_id not in (None, each.topic_id) and options.cluster is None:
            yield f"{each.topic} is {each.topic_id} by now, {topic_id} is planned"
