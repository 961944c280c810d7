"""From nothing but the bucket to a log directory on which a broker starts."""

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import UsageError
from manifests.repository import ManifestRepository
from recovery.archive_remainder import not_looked_at, with_remainder
from recovery.archived_groups import read_groups, read_shares
from recovery.bucket_survey import survey, ungiven, with_take_over
from recovery.cluster_state import SnapshotFound, find_snapshot, with_cluster
from recovery.completion import RecoveryStatus, status
from recovery.discovery import Found, RunsLookedAt, discover, look_at_runs, with_others_noted, with_owner_compared, without_twins
from recovery.feature_levels import archived_levels, with_levels
from recovery.given_state import hand_over
from recovery.held_settings import finish, held_of, with_originals
from recovery.identity import new_kafka_id
from recovery.partition_swap import PlacedNode, placed_of
from recovery.placement import Progress
from recovery.plan_document import read_plan, write_plan
from recovery.planner import make_plan
from recovery.recovery_plan import (
    GroupCommit,
    LostRun,
    Options,
    PartitionPlan,
    RecoveryPlan,
    Request,
    TopicPlan,
)
from recovery.report import RecoveryReport
from recovery.requested_ends import find_ends
from recovery.requested_topics import is_pattern
from recovery.restoration import MILESTONES, apply, begun_plan
from recovery.revision import settled
from recovery.running_cluster import RunningAdmin, RunningView, onto_running, replicas_of, with_running_state, without_brokers_own
from recovery.snapshot_topics import as_in_snapshot
from recovery.target import awaits_broker, read_mark
from recovery.topic_download import DownloadOutcome, TopicDownload, bring_back
from recovery.unlisted_runs import unlisted_notes

__all__ = [
    "MILESTONES",
    "DownloadOutcome",
    "Options",
    "PartitionPlan",
    "Progress",
    "RecoveryPlan",
    "RecoveryReport",
    "RecoveryStatus",
    "TopicDownload",
    "TopicPlan",
    "apply",
    "awaits_broker",
    "begun_plan",
    "bring_back",
    "finish",
    "hand_over",
    "held_of",
    "is_pattern",
    "placed_in",
    "plan",
    "read_plan",
    "request_of",
    "running_plan",
    "status",
    "write_plan",
]


def request_of(topics: Iterable[str] | None, options: Options | None = None) -> Request:
    """What `plan` is asked for."""
    return Request(topics=None if topics is None else tuple(sorted(set(topics))), options=options or Options())


def plan(
    repository: ManifestRepository,
    topics: Iterable[str] | None,
    options: Options | None = None,
    *,
    clock: Clock | None = None,
    running: RunningAdmin | None = None,
    thorough: bool = False,
) -> RecoveryPlan:
    """What recovering `topics`, None for all, will do; `apply` does it. Only reads.

    running   the cluster that the topics come back in, where the options say that it runs
    thorough  what stays in the archive is looked at, too: all its pages are read, and its objects listed

    Of all topics those that are damaged or lost are left out, and the plan says so; one that is named raises what is wrong
    with it. A partition that cannot be had comes back empty either way, and the plan says so. Raises NotFound for a topic
    that the archive does not know, NothingExamined when it holds none, VerificationFailed when it holds none that can be
    read, UsageError for options that contradict each other, TransientError when the archive changes too quickly.
    """
    request = request_of(topics, options)
    names = request.topics
    now_ms = (clock or SystemClock()).now_ms()
    before = survey(repository) if request.options.take_over else None
    found = discover(repository, names, request.options)
    snapshot = None if request.options.cluster is None else find_snapshot(repository, request.options.cluster)
    if snapshot is not None:
        found = as_in_snapshot(found, snapshot.state, repository, unlisted=request.options.unlisted_topics)
    found = with_originals(with_owner_compared(with_others_noted(found)), repository.store)
    found = without_brokers_own(found) if request.options.running else without_twins(found, request.options.renames)
    former = found.owner.former if found.owner else ()
    ends = find_ends(found.topics, request.options, repository.store)
    made = make_plan(found, request, now_ms=now_ms, recovery_id=uuid4().hex, cluster_id=new_kafka_id(), ends=ends)
    if request.options.running:
        made = _in_running(made, repository, running, snapshot, found)
    elif snapshot is not None:
        made = with_cluster(made, snapshot, former)
    else:
        made = with_levels(made, archived_levels(repository), former)
    made = replace(made, notes=(*made.notes, *unlisted_notes(repository, found.topics)))
    looks: list[RunsLookedAt] = []

    def find_lost(each: RecoveryPlan) -> list[LostRun]:
        looks.append(look_at_runs(repository.store, each))
        return looks[-1].lost

    made = settled(made, repository, find_lost, now_ms)
    made = replace(made, notes=(*made.notes, *looks[-1].notes()))
    made = with_remainder(made, repository, found.topics, former) if thorough else not_looked_at(made)
    if request.options.running:
        return made
    if before is not None:
        return with_take_over(made, before, found.owner, found.owner_damage)
    if found.owner is not None and found.owner.former and made.cluster_id == made.source_cluster_id:
        return replace(made, problems=(*made.problems, *ungiven(survey(repository), made.cluster_id)))
    return made


def _in_running(
    made: RecoveryPlan, repository: ManifestRepository, running: RunningAdmin | None, snapshot: SnapshotFound | None, found: Found
) -> RecoveryPlan:
    """`made`, in the running cluster; with what groups had committed, and what a snapshot of the cluster has beside."""
    if running is None:
        raise UsageError("a recovery into a running cluster needs its brokers: --bootstrap-servers, or log.bootstrap_servers")
    view = running.view()
    bounds = running.log_bounds([(each.topic, number) for each in made.topics for number in range(_partitions_there(view, each.topic))])
    groups = read_groups(repository, until_ms=made.request.options.to_time_ms, with_ends=False)
    commits = [
        GroupCommit(group=each.group, topic=each.topic, partition=each.partition, offset=each.offset, metadata=each.metadata)
        for each in groups.offsets
    ]
    shares = read_shares(repository, {topic.topic_id: topic.topic for topic in made.topics}, until_ms=made.request.options.to_time_ms)
    commits += [
        GroupCommit(group=each.group, topic=each.topic, partition=each.partition, offset=each.start, shared=True)
        for each in shares.places
        if each.start is not None
    ]
    archived = replicas_of(snapshot.state) if snapshot is not None else None
    made = onto_running(made, view, bounds, commits=commits, archived=archived)
    made = replace(made, notes=(*made.notes, *(f"committed offsets: {each}" for each in (*groups.unread, *shares.unread))))
    if snapshot is None:
        return made
    return with_running_state(made, snapshot, found.owner.former if found.owner else ())


def _partitions_there(view: RunningView, topic: str) -> int:
    held = view.topics.get(topic)
    return 0 if held is None else len(held.replicas)


def running_plan(into: Path) -> RecoveryPlan | None:
    """The plan of the recovery in `into`, when that is one into a running cluster."""
    mark = read_mark(into)
    return mark.plan if mark is not None and mark.plan.running is not None else None


def placed_in(into: Path) -> list[PlacedNode]:
    """Of a recovery into a running cluster, the brokers whose partitions are on their way or in place, as far as `into` knows."""
    mark = read_mark(into)
    return [] if mark is None or mark.plan.running is None else placed_of(into, mark)
