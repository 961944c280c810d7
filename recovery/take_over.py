"""Taking an archive over: its heads get another owner, so that the recovered cluster archives on and the old one cannot (design §6).

Each head changes hands by compare-and-swap: under the next fence, with the recovered cluster's id. An agent of the old cluster commits
on no head that is another cluster's, whenever it comes back and whatever it remembers. Every step may be repeated.
"""

from collections.abc import Collection, Mapping, Sequence

import structlog
from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.errors import CorruptData, Fenced, ForeignOwner, TransientError, UnknownOutcome, UnsupportedFormat, UsageError
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.cluster_list import ClusterList
from manifests.head import Head
from manifests.namesakes import Namesakes, next_fence
from manifests.pending_list import FAILED
from manifests.repository import CommitLost, ManifestRepository, foreign_bucket
from manifests.topic import Owner, given_to
from recovery.recovery_plan import PartitionPlan, RecoveryPlan

MILESTONES = ("recover.owned", "recover.given", "recover.taken_over")
"""The milestones of a take-over, in order."""

_AT_A_TIME = 16  # heads are small, so it is round trips that take the time
_ATTEMPTS = 8  # of one head; each loses to a commit of the old cluster, which is at work then
_SHOWN = 10

_log = structlog.get_logger()


def given_head(head: Head, plan: RecoveryPlan, former: Collection[str], fence: int, now_ms: int) -> Head | None:
    """`head` as the recovered cluster's, under that fence; None when it is already. What was being written for it will never be listed.

    former  the clusters that it may be of

    Raises ForeignOwner for one of another cluster.
    """
    if head.cluster_id == plan.cluster_id:
        return None
    if head.cluster_id not in former:
        raise ForeignOwner(f"manifest of {head.partition_id} belongs to cluster {head.cluster_id}, which has taken the archive over")
    pending = tuple(replace(each, status=FAILED, failed_ms=now_ms) if each.is_assigned else each for each in head.pending)
    return replace(head, cluster_id=plan.cluster_id, fence=fence, writer=f"recovery-{plan.recovery_id}", pending=pending)


def archived_since(head: Head, planned: PartitionPlan, end: int, *, is_given: bool) -> bool:
    """Has more been archived than the plan knew? Merges, retention and collections are none of it, unless the log ends early: then the head
    has to be the one that was planned from.

    end       of the archive, as it was planned
    is_given  it is the recovered cluster's, which took one commit
    """
    if planned.end is not None:
        return head.version - is_given != planned.manifest_version
    return head.next_offset != end or head.leader_epoch > planned.leader_epoch


class TakeOver:
    """The heads, topics and documents of a bucket, given to the cluster that `plan` recovers."""

    def __init__(self, plan: RecoveryPlan, repository: ManifestRepository, now_ms: int) -> None:
        self._plan, self._repository, self._now_ms = plan, repository, now_ms
        ends = {(each.topic, each.partition): each.head for each in plan.cut.partitions} if plan.cut else {}
        self._planned: Mapping[PartitionId, tuple[PartitionPlan, int]] = {
            topic.archived_id(plan.source_cluster_id, each.partition): (each, ends.get((topic.topic, each.partition), each.next_offset))
            for topic in plan.topics
            for each in topic.partitions
            if each.manifest_version
        }

    def run(self) -> None:
        """Give everything that is not given yet. When that is done, nobody else changes it any more: so what is found then counts.

        Raises UsageError when more was archived than was planned: before anything is given, or when it is; ForeignOwner when the archive is
        a third cluster's; TransientError when the same call may succeed later.
        """
        partitions = self._partitions()
        if self._owner() == self._plan.source_cluster_id:
            self._check(partitions, "stop the old cluster and its agents, and make a new plan; nothing was taken over")
        former = self._repository.settle_owner(self._decide_owner).former
        milestones.reached("recover.owned")
        self._repository.change_snapshots(self._decide_snapshots)
        with ContextThreads(_AT_A_TIME, "take-over") as pool:
            left = [each for each in pool.map(lambda partition: self._give(partition, former), partitions) if each]
        milestones.reached("recover.given")
        for incarnation in self._repository.incarnations():
            self._repository.give_topic(incarnation, self._plan.cluster_id)
        milestones.reached("recover.taken_over")
        self._check(
            partitions,
            f"nothing of it is lost, and the archive is cluster {self._plan.cluster_id}'s by now: recover with a new plan, into another "
            "directory, and with --take-over again",
        )
        for why in left:
            _log.warning("head_not_taken_over", reason=why)
        _log.info("archive_taken_over", cluster_id=self._plan.cluster_id, former=self._plan.source_cluster_id, heads=len(partitions))

    def _owner(self) -> str | None:
        owner = self._repository.owner()
        return None if owner is None else owner.cluster_id

    def _decide_owner(self, owner: Owner | None) -> Owner | None:
        if owner is not None and owner.cluster_id == self._plan.cluster_id:
            return None
        if owner is not None and owner.cluster_id != self._plan.source_cluster_id:
            raise foreign_bucket(self._repository.store.url, owner, self._plan.cluster_id)
        return given_to(owner, self._plan.source_cluster_id, self._plan.cluster_id)

    def _decide_snapshots(self, listed: ClusterList | None) -> ClusterList | None:
        """Those of before stay: they are the recovered cluster's past."""
        if listed is None or listed.cluster_id != self._plan.source_cluster_id:
            return listed
        return replace(listed, cluster_id=self._plan.cluster_id)

    def _partitions(self) -> list[PartitionId]:
        """All that have a head, those of topics that do not come back too: who owns the bucket reads them."""
        names = (keys.parse_manifest(info.key) for info in self._repository.store.list(keys.META))
        source = self._plan.source_cluster_id
        listed = {PartitionId(source, each.topic_id, each.partition, each.topic) for each in names if each and each.partition is not None}
        return sorted(listed | self._planned.keys())

    def _give(self, partition: PartitionId, former: Collection[str]) -> str:
        """Why the head cannot be given, "" when it is."""
        cause: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                held = self._repository.load_of_any_owner(partition)
            except (CorruptData, UnsupportedFormat) as error:
                return str(error)  # nobody commits on it either
            if held is None:
                return f"{partition} has no manifest any more"
            fence = next_fence(held.head, Namesakes(self._repository, partition))
            after = given_head(held.head, self._plan, former, fence, self._now_ms)
            if after is None:
                return ""
            try:
                self._repository.commit(held, after)
                return ""
            except (CommitLost, Fenced, UnknownOutcome, ForeignOwner) as error:
                cause = error  # a commit of the old cluster came first, or nobody knows: look again
        raise TransientError(f"{partition} could not be taken over in {_ATTEMPTS} attempts: {cause}") from cause

    def _check(self, partitions: Sequence[PartitionId], what_to_do: str) -> None:
        with ContextThreads(_AT_A_TIME, "take-over") as pool:
            found = [why for why in pool.map(self._archived_since, partitions) if why]
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise UsageError(f"more was archived than the plan brings back: {', '.join(found[:_SHOWN])}{more}; {what_to_do}")

    def _archived_since(self, partition: PartitionId) -> str:
        if partition not in self._planned:
            return ""
        try:
            held = self._repository.load_of_any_owner(partition)
        except (CorruptData, UnsupportedFormat):
            return ""
        planned, end = self._planned[partition]
        is_given = held is not None and held.head.cluster_id == self._plan.cluster_id
        if held is None or not archived_since(held.head, planned, end, is_given=is_given):
            return ""
        return f"{partition} up to {held.head.next_offset}, leader epoch {held.head.leader_epoch}"
