"""What the archive has replaced since it was planned: such partitions are planned again, as a whole, from their heads as they are now.

A plan names the objects of one moment. The archive lives on: merges, retention and compaction let objects go, and when the readers'
lease is over, they are deleted. A recovery may be older than that, since it takes days, or was interrupted, or its plan lay in a file. So
what is missing is damage only while the head still lists it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from headwater_core.errors import CorruptData, ForeignOwner, TransientError, UnsupportedFormat
from headwater_core.partition import PartitionId
from manifests.repository import ManifestRepository
from recovery.endings import with_endings
from recovery.log_ends import Place
from recovery.planner import notes_of, plan_partition, retention_of
from recovery.recovery_plan import LostRun, PartitionPlan, RecoveryPlan, TopicPlan, check_partition, check_plan

REVISIONS_MAX = 8  # of one plan at a time, because the archive has replaced runs of it meanwhile

FindLost = Callable[[RecoveryPlan], Sequence[LostRun]]


def settled(plan: RecoveryPlan, manifests: ManifestRepository, find_lost: FindLost, now_ms: int) -> RecoveryPlan:
    """`plan` with where its logs end, and without what the archive has replaced; `holes` are the lost runs that the heads still list.

    find_lost  which runs of a plan are known to be missing or damaged
    now_ms     retention is measured from then

    Raises TransientError when the archive replaces runs again and again, CorruptData as check_plan, and what the store raises.
    """
    for _ in range(REVISIONS_MAX):
        ended, unread = with_endings(plan, manifests.store)
        lost = find_lost(ended)
        again = _planned_again(plan, manifests, {*unread, *((each.topic, each.partition) for each in lost)}, now_ms)
        if not again:
            return check_plan(replace(ended, holes=tuple(lost)))
        plan = _with_partitions(plan, again)
    raise TransientError(f"the archive has replaced runs {REVISIONS_MAX} times while they were planned: run the same command again")


def _planned_again(
    plan: RecoveryPlan, manifests: ManifestRepository, places: Collection[Place], now_ms: int
) -> Mapping[Place, PartitionPlan]:
    """Those of `places` whose heads do not list all that is planned any more, and can be recovered as they are now."""
    found: dict[Place, PartitionPlan] = {}
    for topic in plan.topics:
        before_ms, size_bytes = retention_of(topic.topic, topic.configs, plan.request.options, now_ms)
        for partition in topic.partitions:
            place = topic.topic, partition.partition
            if place not in places:
                continue
            identity = PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic)
            try:
                held = manifests.load(identity)
                listed = {entry.key for entry in held.head.entries} if held else set()
                if held and not all(entry.key in listed for entry in partition.files):
                    planned = plan_partition(held.head, before_ms, size_bytes)
                    planned = replace(planned, leader_epoch=max(planned.leader_epoch, partition.leader_epoch))  # a snapshot may have more
                    found[place] = check_partition(identity, planned)
            except (CorruptData, ForeignOwner, UnsupportedFormat):
                continue  # nothing better can be planned: what is lost stays lost
    return found


def _with_partitions(plan: RecoveryPlan, again: Mapping[Place, PartitionPlan]) -> RecoveryPlan:
    """`plan` with these partitions in place of its own, and with what is to be noted of them."""

    def revised(topic: TopicPlan) -> TopicPlan:
        return replace(topic, partitions=tuple(again.get((topic.topic, each.partition), each) for each in topic.partitions))

    topics = tuple(map(revised, plan.topics))
    outdated = {note for topic in plan.topics for note in notes_of(topic)}
    kept = [note for note in plan.notes if note not in outdated]
    return replace(plan, topics=topics, notes=(*kept, *(note for topic in topics for note in notes_of(topic))))
