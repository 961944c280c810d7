"""One drill from beginning to end: planned as a recovery is, a sample of it restored, read back, compared, reported."""

import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random

import recovery
from headwater.drill.broker_check import check_broker
from headwater.drill.coordinator_check import COORDINATORS, check_coordinators
from headwater.drill.drill_report import (
    FINDINGS_MAX,
    NOTHING,
    Amount,
    DrillFinding,
    DrillOutcome,
    DrillReport,
    DrillRequest,
    MeasuredPoint,
    MeasuredTime,
    NotCompared,
    PathSum,
    numbers_text,
)
from headwater.drill.drill_tally import DrillTally, amount_of, places_of
from headwater.drill.equipment import DrillEquipment
from headwater.drill.live_check import archive_alone, check_live
from headwater.drill.metadata_check import CheckedMetadata, check_metadata
from headwater.drill.restored_check import check_by_broker, check_directory
from headwater.drill.sample import Drawn, candidates, draw, narrowed
from headwater.drill.scratch import Scratch
from headwater_core import milestones
from headwater_core.errors import CorruptData, ForeignOwner, TransientError, UnsupportedFormat
from headwater_core.partition import PartitionId
from manifests.repository import ManifestRepository
from manifests.topic_survey import survey_topics
from recovery import PartitionPlan, RecoveryPlan, TopicPlan
from recovery.target import read_mark

MILESTONES = ("drill.scratch", "drill.planned", "drill.restored", "drill.read", "drill.compared", "drill.reported")
"""The milestones of a drill, in order."""

ROOM_FACTOR = 1.05  # indexes, and the small files of each partition


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a drill will do. whole: the plan of everything that was selected; planned: of the sample alone."""

    drill_id: str
    request: DrillRequest
    started_ms: int
    whole: RecoveryPlan
    planned: RecoveryPlan
    drawn: Drawn
    findings: tuple[DrillFinding, ...]
    planned_s: float

    @property
    def size_bytes(self) -> int:
        return self.planned.size_bytes


def prepare(equipment: DrillEquipment, request: DrillRequest, drill_id: str) -> Prepared:
    """Plan everything that is selected, as `recover plan` does, and draw the sample. Only reads. Raises as recovery.plan."""
    began_s, started_ms = equipment.clock.monotonic_s(), equipment.clock.now_ms()
    repository = ManifestRepository(equipment.store)
    options = recovery.Options(cluster="latest" if request.cluster else None)
    whole = recovery.plan(repository, request.topics, options, clock=equipment.clock)
    findings = [*_known_damage(whole, repository, request)]
    for topic, partition in places_of(whole):
        why = "" if partition.manifest_version else _why_empty(repository, whole, topic, partition)
        if why:
            findings.append(DrillFinding(kind="not recovered", topic=topic.topic, partition=partition.partition, text=why))
    drawn = draw(candidates(whole), request.share, request.scratch_bytes, Random(request.seed), undivided=COORDINATORS)
    kept = {topic.topic for topic in whole.topics} if request.cluster else ()
    planned = narrowed(whole, drawn.windows, kept_topics=kept)
    milestones.reached("drill.planned")
    elapsed_s = equipment.clock.monotonic_s() - began_s
    return Prepared(drill_id, request, started_ms, whole, planned, drawn, tuple(findings), elapsed_s)


def carry_out(
    equipment: DrillEquipment, prepared: Prepared, scratch: Scratch, progressed: Callable[[int], object] = lambda _: None
) -> DrillReport:
    """Restore the sample, read it back and compare it. Never writes but into the scratch directory.

    progressed  called with bytes: once as they are restored, and once as they are compared

    Raises what keeps it from being carried out: DiskFull, TransientError of the store, Unauthorised.
    """
    clock, tally = equipment.clock, DrillTally(list(prepared.findings))
    began_s = clock.monotonic_s()
    if not prepared.drawn.windows:
        return _report(equipment, prepared, tally, prepared.planned, MeasuredTime(planned_s=prepared.planned_s), None)
    drawn = {window.topic for window in prepared.drawn.windows}
    not_drawn = {candidate.topic for candidate in candidates(prepared.whole)} & COORDINATORS - drawn
    tally.unmet.extend(
        f"{topic}: only all of it could be restored, and that is more than drill.scratch_bytes" for topic in sorted(not_drawn)
    )
    scratch.check_room(round(prepared.size_bytes * ROOM_FACTOR))
    restoring_ms = clock.now_ms()
    restored_plan = _restore(equipment, prepared, scratch, tally, progressed)
    restored_s = clock.monotonic_s() - began_s
    milestones.reached("drill.restored")
    first_s = check_directory(equipment, restored_plan, scratch, tally, progressed)
    state = check_coordinators(prepared.whole, restored_plan, scratch.log_dir, restoring_ms, tally)
    metadata = check_metadata(equipment.store, restored_plan, scratch.log_dir, tally)
    milestones.reached("drill.read")
    check_by_broker(
        equipment,
        restored_plan,
        scratch,
        tally,
        lambda spare: check_broker(spare, prepared.whole, restored_plan, state, scratch.log_dir, prepared.request.seed, tally),
    )
    rpo = check_live(equipment, prepared.whole, restored_plan, tally)
    milestones.reached("drill.compared")
    pace = restored_plan.size_bytes / restored_s if restored_s > 0 and restored_plan.size_bytes else None
    rto = MeasuredTime(
        planned_s=prepared.planned_s,
        restored_s=restored_s,
        first_record_s=first_s,
        ready_s=None if first_s is None else prepared.planned_s + restored_s + first_s,
        bytes_per_s=pace,
        everything_s=prepared.planned_s + prepared.whole.size_bytes / pace if pace else None,
    )
    return _report(equipment, prepared, tally, restored_plan, rto, rpo, metadata)


# Before


def _known_damage(whole: RecoveryPlan, repository: ManifestRepository, request: DrillRequest) -> Iterator[DrillFinding]:
    """What the plan's own look at the bucket has found."""
    for hole in whole.holes:
        yield DrillFinding(kind="missing", topic=hole.topic, partition=hole.partition, offset=hole.base_offset, text=hole.reason)
    try:
        repository.owner()
    except (CorruptData, UnsupportedFormat) as error:
        yield DrillFinding(kind="damaged", topic="", text=str(error))
    patterns = ["*"] if request.topics is None else [each for each in request.topics if recovery.is_pattern(each)]
    if not patterns:
        return  # one that is named and cannot be planned ends the drill
    planned = {topic.topic for topic in whole.topics}
    topics, unreadable = survey_topics(repository.store)
    for each in unreadable:
        if _matches(each.topic, patterns):
            yield DrillFinding(kind="damaged", topic=each.topic, text=str(each.error))
    for manifest in topics:
        if manifest.topic not in planned and _matches(manifest.topic, patterns) and not request.cluster:
            text = next((line for line in whole.left_out if line.startswith(f"{manifest.topic}:")), "it cannot be recovered")
            yield DrillFinding(kind="not recovered", topic=manifest.topic, text=text)


def _matches(topic: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _why_empty(repository: ManifestRepository, whole: RecoveryPlan, topic: TopicPlan, partition: PartitionPlan) -> str:
    """Why a partition comes back empty that has a manifest; "" when it has none: it was never archived, or that is lost."""
    identity = _identity(whole, topic, partition)
    try:
        if repository.load(identity) is None:
            return ""
    except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
        return str(error)
    where = f"{topic.topic}:{partition.partition} "
    return next((line for line in whole.left_out if line.startswith(where)), "it cannot be recovered as its manifest says")


# Restoring


class _TooMuch(TransientError):
    """The archive was changed meanwhile, and what is restored would not stay within its bounds."""


def _restore(
    equipment: DrillEquipment, prepared: Prepared, scratch: Scratch, tally: DrillTally, progressed: Callable[[int], object]
) -> RecoveryPlan:
    """The plan that was carried out, which may be another one where the archive has replaced runs. What is lost becomes a finding."""
    most, done = max(prepared.request.scratch_bytes, prepared.size_bytes), 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if done > most:
            raise _TooMuch("the archive has replaced runs while they were restored, and all would not fit: drill again")
        progressed(size_bytes)

    recovery.apply(
        prepared.planned,
        scratch.log_dir,
        equipment.store,
        clock=equipment.clock,
        progress=advance,
        skip_damaged=True,
        recorded=False,
    )
    mark = read_mark(scratch.log_dir)
    assert mark is not None
    known = {(each.topic, each.partition, each.offset) for each in tally.findings}
    runs = {
        f"{topic.topic}:{partition.partition} offsets {entry.base_offset}-{entry.last_offset}:": (topic.topic, partition.partition, entry)
        for topic, partition in places_of(prepared.planned)
        for entry in partition.files
    }
    for line in mark.plan.left_out:
        if line in prepared.whole.left_out:
            continue
        place = next((found for prefix, found in runs.items() if line.startswith(prefix)), None)
        if place is None:
            tally.findings.append(DrillFinding(kind="damaged", topic=line.partition(":")[0], text=line))
        elif (place[0], place[1], place[2].base_offset) not in known:
            tally.findings.append(DrillFinding(kind="damaged", topic=place[0], partition=place[1], offset=place[2].base_offset, text=line))
    return mark.plan


# The report


def _report(
    equipment: DrillEquipment,
    prepared: Prepared,
    tally: DrillTally,
    plan: RecoveryPlan,
    rto: MeasuredTime,
    rpo: MeasuredPoint | None,
    metadata: CheckedMetadata | None = None,
) -> DrillReport:
    whole = prepared.whole
    first_path = next(iter(tally.paths.values()), PathSum(name=""))
    compared = first_path.amount
    return DrillReport(
        id=prepared.drill_id,
        outcome=_outcome(tally, compared, whole),
        headwater=equipment.version,
        host=socket.gethostname(),
        store=equipment.store.url,
        cluster_id=whole.source_cluster_id,
        recovery_id=whole.recovery_id,
        started_ms=prepared.started_ms,
        ended_ms=equipment.clock.now_ms(),
        request=prepared.request,
        share=prepared.drawn.share,
        topics=len(whole.topics),
        partitions=sum(1 for _ in places_of(whole)),
        selected=sum((amount_of(partition) for _, partition in places_of(whole)), NOTHING),
        compared=compared,
        compared_partitions=len(tally.windows),
        paths=tuple(tally.paths.values()),
        windows=tuple(tally.windows),
        skipped=tuple(_skipped(whole, plan, tally)),
        findings=tuple(tally.findings[:FINDINGS_MAX]),
        finding_count=len(tally.findings),
        left_out=whole.left_out,
        torn=whole.torn,
        notes=(*whole.notes, *whole.endings),
        unmet=tuple(tally.unmet),
        error="; ".join(tally.blocked)[:2000],
        metadata=dict(metadata.counts) if metadata else {},
        unchecked=(*(metadata.unchecked if metadata else ()), *tally.unchecked),
        answers=tally.answers,
        rto=rto,
        rpo=rpo or archive_alone(whole),
    )


def _outcome(tally: DrillTally, compared: Amount, whole: RecoveryPlan) -> DrillOutcome:
    if tally.findings:
        return DrillOutcome.FAILED
    if tally.blocked:
        return DrillOutcome.UNFINISHED
    if not compared.batches:
        return DrillOutcome.NOTHING
    return DrillOutcome.INCOMPLETE if whole.left_out or whole.torn or tally.unmet else DrillOutcome.PASSED


def _skipped(whole: RecoveryPlan, plan: RecoveryPlan, tally: DrillTally) -> Iterator[NotCompared]:
    """By topic and reason."""
    taken = {(topic.topic, partition.partition): {entry.key for entry in partition.files} for topic, partition in places_of(plan)}
    compared = {(window.topic, window.partition) for window in tally.windows}
    for topic in whole.topics:
        groups: dict[str, list[tuple[int, Amount]]] = defaultdict(list)
        for partition in topic.partitions:
            place = topic.topic, partition.partition
            rest = [entry for entry in partition.files if place not in compared or entry.key not in taken.get(place, ())]
            amount = Amount(
                runs=len(rest), records=sum(entry.records for entry in rest), size_bytes=sum(entry.live_bytes for entry in rest)
            )
            if rest:
                groups["not in the sample" if place not in compared else "runs not in the sample"].append((partition.partition, amount))
            elif not partition.files:
                groups["no records are archived"].append((partition.partition, NOTHING))
        for why, members in groups.items():
            amount = sum((each for _, each in members), NOTHING)
            numbers = numbers_text([number for number, _ in members])
            yield NotCompared(topic=topic.topic, partitions=len(members), numbers=numbers, amount=amount, why=why)


def _identity(plan: RecoveryPlan, topic: TopicPlan, partition: PartitionPlan) -> PartitionId:
    return PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic)
