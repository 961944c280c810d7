"""Taking an archive over: its documents get another owner, so that the recovered cluster archives on and the old one cannot (design §6).

headwater.json is first: an agent that reads it begins nothing any more. Then looks at the bucket are repeated, and what they find is given,
until one finds nothing of another cluster. Each head changes hands by compare-and-swap: under the next fence, with the recovered cluster's
id. An agent of the old cluster commits on no head that is another cluster's, whenever it comes back and whatever it remembers. Every step
may be repeated.
"""

from collections.abc import Collection

import structlog
from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.counts import count_text
from headwater_core.errors import (
    CorruptData,
    Fenced,
    ForeignOwner,
    StoreGone,
    TransientError,
    UnknownOutcome,
    UnsupportedFormat,
    UsageError,
)
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.cluster_list import ClusterList
from manifests.document import check_ours
from manifests.head import Head
from manifests.namesakes import Namesakes, next_fence
from manifests.pending_list import FAILED
from manifests.repository import CommitLost, Incarnation, ManifestRepository, foreign_bucket
from manifests.topic import Owner, given_to
from recovery.bucket_survey import BucketSurvey, archived_since, owners_of, shown, survey
from recovery.recovery_plan import RecoveryPlan

MILESTONES = ("recover.owned", "recover.given", "recover.taken_over")
"""The milestones of a take-over, in order."""

_AT_A_TIME = 16  # documents are small, so it is round trips that take the time
_ATTEMPTS = 8  # of one head; each loses to a commit of the old cluster, which is at work then
_LOOKS = 8  # each finds what the old cluster has begun since the one before

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


class TakeOver:
    """The heads, topics and documents of a bucket, given to the cluster that `plan` recovers."""

    def __init__(self, plan: RecoveryPlan, repository: ManifestRepository, now_ms: int) -> None:
        self._plan, self._repository, self._now_ms = plan, repository, now_ms

    def run(self) -> None:
        """Give everything that is not given yet. When that is done, nobody else changes it any more: so what is found then counts.

        Raises UsageError when more was archived than was planned: before anything is given, or when it is; when something must not be
        written, before anything is given; ForeignOwner when the archive is a third cluster's; TransientError when the same call may succeed
        later.
        """
        plan = self._plan
        owner = self._repository.owner()
        if owner is None or owner.cluster_id != plan.cluster_id:
            self._decide_owner(owner)
            self._look_before(owner)
        former = self._repository.settle_owner(self._decide_owner).former
        milestones.reached("recover.owned")
        found = self._give_all(former)
        milestones.reached("recover.taken_over")
        owner = self._repository.owner()
        if owner is None:
            raise StoreGone(f"{self._repository.store.url} has no {keys.OWNER} any more: mount it again, or restore the bucket")
        if owner.cluster_id != plan.cluster_id:
            raise foreign_bucket(self._repository.store.url, owner, plan.cluster_id)
        self._check(
            found,
            f"nothing of it is lost, and the archive is cluster {plan.cluster_id}'s by now: recover with a new plan, into another "
            "directory, and with --take-over again",
        )
        for why in (*found.closed, *found.damaged):
            _log.warning("document_not_taken_over", reason=why)
        _log.info("archive_taken_over", cluster_id=plan.cluster_id, former=plan.source_cluster_id, heads=len(found.heads))

    def _look_before(self, owner: Owner | None) -> None:
        """Nothing has changed hands yet."""
        found = survey(self._repository)
        if refused := found.refusals(owners_of(self._plan, owner)):
            raise UsageError(f"the archive cannot be taken over as a whole, and nothing of it was: {'; '.join(shown(refused))}")
        self._check(found, "stop the old cluster and its agents, and make a new plan; nothing was taken over")

    def _check(self, found: BucketSurvey, what_to_do: str) -> None:
        if more := archived_since(found, self._plan):
            raise UsageError(f"more was archived than the plan brings back: {', '.join(shown(more))}; {what_to_do}")

    def _decide_owner(self, owner: Owner | None) -> Owner | None:
        if owner is not None and owner.cluster_id == self._plan.cluster_id:
            return None
        if owner is not None and owner.cluster_id != self._plan.source_cluster_id:
            raise foreign_bucket(self._repository.store.url, owner, self._plan.cluster_id)
        if owner is not None:
            check_ours(owner.format, keys.OWNER)
        return given_to(owner, self._plan.source_cluster_id, self._plan.cluster_id)

    def _give_all(self, former: Collection[str]) -> BucketSurvey:
        """The first look that finds nothing to give. What cannot be read or written then stays as it is: no agent takes it for its own."""
        for _ in range(_LOOKS):
            found = survey(self._repository)
            wanted = found.not_of({self._plan.cluster_id})
            if not wanted:
                return found
            if third := found.not_of({self._plan.cluster_id, *former}):
                cluster_id = found.documents[third[0]].cluster_id
                raise ForeignOwner(f"{third[0]} belongs to cluster {cluster_id}, which has taken the archive over")
            heads = [key for key in wanted if key in found.heads]
            self._give_each(heads, former)
            milestones.reached("recover.given")
            self._give_each([key for key in wanted if key not in found.heads], former)
        raise TransientError(
            f"the old cluster begins to archive again and again: stop its agents; left to take over: {count_text(len(wanted), 'document')}"
        )

    def _give_each(self, wanted: Collection[str], former: Collection[str]) -> None:
        with ContextThreads(_AT_A_TIME, "take-over") as pool:
            for _ in pool.map(lambda key: self._give(key, former), wanted):
                pass

    def _give(self, key: str, former: Collection[str]) -> None:
        """What is wrong with a document the next look says."""
        repository, cluster_id, name = self._repository, self._plan.cluster_id, keys.parse_manifest(key)
        try:
            if name is not None and name.partition is not None:
                self._give_head(PartitionId(cluster_id, name.topic_id, name.partition, name.topic), former)
            elif name is not None:
                repository.give_topic(Incarnation(name.topic, name.topic_id), cluster_id, former)
            elif topic := keys.parse_current(key):
                repository.give_current(topic, cluster_id, former)
            else:
                repository.change_snapshots(lambda listed: self._decide_snapshots(listed, former))
        except (CorruptData, UnsupportedFormat) as error:
            _log.warning("document_not_given", reason=str(error))

    def _give_head(self, partition: PartitionId, former: Collection[str]) -> None:
        cause: Exception | None = None
        for _ in range(_ATTEMPTS):
            held = self._repository.load_of_any_owner(partition)
            if held is None:
                return
            fence = next_fence(held.head, Namesakes(self._repository, partition))
            after = given_head(held.head, self._plan, former, fence, self._now_ms)
            if after is None:
                return
            try:
                self._repository.commit(held, after)
                return
            except (CommitLost, Fenced, UnknownOutcome, ForeignOwner) as error:
                cause = error  # a commit of the old cluster came first, or nobody knows: look again
        raise TransientError(f"{partition} could not be taken over in {_ATTEMPTS} attempts: {cause}") from cause

    def _decide_snapshots(self, listed: ClusterList | None, former: Collection[str]) -> ClusterList | None:
        """Those of before stay: they are the recovered cluster's past."""
        if listed is None or listed.cluster_id not in former:
            return listed
        return replace(listed, cluster_id=self._plan.cluster_id)
