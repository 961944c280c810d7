"""From nothing but the bucket to a log directory on which a broker starts."""

from collections.abc import Iterable
from uuid import uuid4

from msgspec.structs import replace

from headwater_core.clock import Clock, SystemClock
from manifests.repository import ManifestRepository
from recovery.bucket_survey import survey, ungiven, with_take_over
from recovery.cluster_state import find_snapshot, with_cluster
from recovery.completion import RecoveryStatus, status
from recovery.discovery import discover, find_lost_runs, is_pattern
from recovery.held_settings import finish, held_of, with_originals
from recovery.identity import new_kafka_id
from recovery.placement import Progress
from recovery.planner import make_plan
from recovery.recovery_plan import Options, PartitionPlan, RecoveryPlan, Request, TopicPlan, decode_plan, encode_plan
from recovery.report import RecoveryReport
from recovery.requested_ends import find_ends
from recovery.restoration import MILESTONES, apply, begun_take_over
from recovery.revision import settled
from recovery.snapshot_topics import as_in_snapshot
from recovery.target import awaits_broker
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
    "begun_take_over",
    "bring_back",
    "decode_plan",
    "encode_plan",
    "finish",
    "held_of",
    "is_pattern",
    "plan",
    "request_of",
    "status",
]


def request_of(topics: Iterable[str] | None, options: Options | None = None) -> Request:
    """What `plan` is asked for."""
    return Request(topics=None if topics is None else tuple(sorted(set(topics))), options=options or Options())


def plan(
    repository: ManifestRepository, topics: Iterable[str] | None, options: Options | None = None, *, clock: Clock | None = None
) -> RecoveryPlan:
    """What recovering `topics`, None for all, will do; `apply` does it. Only reads.

    Of all topics those that are damaged or lost are left out, and the plan says so; one that is named raises what is wrong
    with it. A partition that cannot be had comes back empty either way, and the plan says so. Raises NotFound for a topic
    that the archive does not know, NothingExamined when it holds none, VerificationFailed when it holds none that can be
    read, UsageError for options that contradict each other, TransientError when the archive changes too quickly.
    """
    request = request_of(topics, options)
    names = request.topics
    now_ms = (clock or SystemClock()).now_ms()
    before = survey(repository) if request.options.take_over else None
    found = discover(repository, names)
    snapshot = None if request.options.cluster is None else find_snapshot(repository, request.options.cluster)
    if snapshot is not None:
        found = as_in_snapshot(found, snapshot.state, repository, unlisted=request.options.unlisted_topics)
    found = with_originals(found, repository.store)
    ends = find_ends(found.topics, request.options, repository.store)
    made = make_plan(found, request, now_ms=now_ms, recovery_id=uuid4().hex, cluster_id=new_kafka_id(), ends=ends)
    if snapshot is not None:
        made = with_cluster(made, snapshot, found.owner.former if found.owner else ())
    made = replace(made, notes=(*made.notes, *unlisted_notes(repository, found.topics)))
    made = settled(made, repository, lambda each: find_lost_runs(repository.store, each), now_ms)
    if before is not None:
        return with_take_over(made, before, found.owner, found.owner_damage)
    if found.owner is not None and found.owner.former and made.cluster_id == made.source_cluster_id:
        return replace(made, problems=(*made.problems, *ungiven(survey(repository), made.cluster_id)))
    return made
