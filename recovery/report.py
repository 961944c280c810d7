"""What a recovery says when it is done."""

from pathlib import Path

import msgspec

from recovery.initial_metadata import starting_on
from recovery.recovery_plan import PartitionPlan, TargetBroker, TopicPlan
from recovery.target import Mark


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: int
    segments: int
    records: int
    size_bytes: int


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the directory now, what the plan `left_out`, and which transactions are `torn`.

    again       it had been finished before, and nothing was done
    kafka       which releases start on it, in words
    brokers     several, each with its directory below `into`
    taken_over  the bucket belongs to the recovered cluster
    running     it is to be placed in the directories of a running cluster's brokers
    """

    recovery_id: str
    into: str
    source_cluster_id: str
    cluster_id: str
    node_id: int
    topics: tuple[TopicReport, ...]
    left_out: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    notes: tuple[str, ...]
    started_ms: int
    finished_ms: int
    resumed: bool = False
    again: bool = False
    kafka: str = ""
    taken_over: bool = False
    brokers: tuple[TargetBroker, ...] = ()
    running: bool = False

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)


def report_of(into: Path, mark: Mark, *, resumed: bool, again: bool) -> RecoveryReport:
    """The report of the recovery that `mark` describes."""
    plan = mark.plan
    return RecoveryReport(
        recovery_id=plan.recovery_id,
        into=str(into),
        source_cluster_id=plan.source_cluster_id,
        cluster_id=plan.cluster_id,
        node_id=plan.node_id,
        topics=tuple(_topicreport_of(topic) for topic in plan.topics),
        left_out=plan.left_out,
        torn=plan.torn,
        notes=(*plan.notes, *plan.endings),
        started_ms=mark.started_ms,
        finished_ms=mark.finished_ms or 0,
        resumed=resumed,
        again=again,
        kafka=str(starting_on(plan)),
        taken_over=plan.request.options.take_over,
        brokers=plan.brokers,
        running=plan.running is not None,
    )


def _topicreport_of(topic: TopicPlan) -> TopicReport:
    def segments(partition: PartitionPlan) -> int:
        return len(partition.files)

    return TopicReport(
        topic=topic.topic,
        partitions=len(topic.partitions),
        segments=sum(map(segments, topic.partitions)),
        records=topic.records,
        size_bytes=topic.size_bytes,
    )
