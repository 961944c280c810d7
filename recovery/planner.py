"""Deciding what a recovery will do. Pure: heads and options in, a plan out."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError, VerificationFailed
from headwater_core.partition import check_cluster_id, check_topic_name
from manifests.entry import Entry
from manifests.head import Head
from manifests.topic import PARTITIONS_MAX
from recovery.discovery import ArchivedTopic, Found
from recovery.entry_list import EntryList
from recovery.identity import new_kafka_id
from recovery.local_part import (
    WHOLE,
    PartBounds,
    bounds_of,
    is_internal,
    is_made_up,
    items_of,
    newest_epoch,
    select_part,
    without_first_gaps,
)
from recovery.plan_notes import HELD_BACK, beyond_notes, notes_of, numbers_text, overall_notes, policy_notes, producer_notes, time_notes
from recovery.recovery_plan import (
    NODE_ID_MAX,
    LostRun,
    Options,
    PartitionPlan,
    Place,
    RecoveryPlan,
    Request,
    RequestedEnd,
    SourceTopic,
    TopicPlan,
    check_brokers,
    check_partition,
)

_INTERNAL_COMPACTED = frozenset({"__consumer_offsets", "__transaction_state"})
_REMOTE = (
    "remote.storage.enable",
    "local.retention.ms",
    "local.retention.bytes",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
)


def make_plan(
    found: Found,
    request: Request,
    *,
    now_ms: int,
    recovery_id: str,
    cluster_id: str,
    ends: Mapping[Place, RequestedEnd] | None = None,
    new_topic_id: Callable[[], str] = new_kafka_id,
) -> RecoveryPlan:
    """The plan for the topics in `found`, of which there is at least one. The partition is the unit: one that cannot be recovered
    comes back empty at its number, for a key's partition depends on the count.

    cluster_id    for the recovered cluster, unless the options name one
    ends          where logs are to end before their archive does, by the archive's topic and partition
    new_topic_id  for a topic that gets another name
    Raises UsageError for options that contradict each other, VerificationFailed when nothing can be recovered, and what the store raises
    when it does not answer for a page.
    """
    options = request.options
    _check_options(options, found.topics)
    clusters = sorted({topic.manifest.cluster_id for topic in found.topics})
    problems: list[str] = []
    notes = list(found.notes)
    left_out = list(found.lost)
    if len(clusters) > 1:
        problems.append(f"topics of several clusters: {', '.join(clusters)}; recover them one by one")
    if options.take_over and request.topics is not None:
        problems.append("an archive is taken over by a recovery of all topics: those that do not come back would be archived by nobody")
    topics = []
    for archived in found.topics:
        try:
            topic, lost = _plan_topic(archived, options, now_ms, ends or {})
        except (UsageError, VerificationFailed) as error:
            left_out.append(f"{archived.manifest.topic}: {error}")
            continue
        if (name := options.renames.get(topic.topic)) is not None:
            topic = replace(topic, topic=name, topic_id=new_topic_id(), source=SourceTopic(topic=topic.topic, topic_id=topic.topic_id))
        topics.append(topic)
        left_out += lost
        problems += _problems(archived, options)
        notes += beyond_notes(archived, len(topic.partitions))
        notes += notes_of(topic)
        notes += producer_notes(archived, topic)
        notes += time_notes(archived, now_ms)
        if archived.manifest.configs is None:
            notes.append(f"{topic.topic}: no broker ever gave its settings: it is recovered with the defaults, cleanup.policy among them")
    if not topics:
        raise VerificationFailed("nothing can be recovered: " + "; ".join(left_out))
    notes += overall_notes(topics, request, clusters[0])
    notes += policy_notes(found.topics, options)
    return RecoveryPlan(
        recovery_id=recovery_id,
        mode=options.mode,
        request=request,
        source_cluster_id=clusters[0],
        cluster_id=options.cluster_id or cluster_id,
        node_id=options.brokers[0].node_id if options.brokers else options.node_id,
        topics=tuple(topics),
        left_out=tuple(left_out),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _plan_topic(topic: ArchivedTopic, options: Options, now_ms: int, ends: Mapping[Place, RequestedEnd]) -> tuple[TopicPlan, list[str]]:
    """The topic, and which of its partitions come back empty, and why. Raises VerificationFailed when not one can be recovered."""
    configs, held = _configs(topic, options)
    settings = topic.manifest.configs or {}
    policy = policy_of(topic.manifest.topic, settings, topic.default_policy)
    bounds = bounds_of(topic.manifest.topic, policy, settings, options, now_ms)
    count = _given_count(topic, options) or topic.manifest.partitions
    wrong = {number: why for number, why in topic.damaged.items() if number < count}
    partitions = [PartitionPlan(partition=number) for number in range(count)]
    for number, head in topic.heads.items():
        if number < count:
            try:
                planned = plan_partition(head, bounds._replace(end=ends.get((topic.manifest.topic, number))))
                planned = replace(planned, manifest_digest=topic.digests.get(number, ""))
                partitions[number] = check_partition(topic.manifest.partition_id(number), planned)
            except (CorruptData, UnsupportedFormat) as error:  # of a page, too; what the store does not answer is no damage
                wrong[number] = str(error)
    name = topic.manifest.topic
    if wrong and not any(partition.manifest_version for partition in partitions):
        raise VerificationFailed("; ".join((*wrong.values(), *_problems(topic, options))))  # other partitions may be archived
    left_out = [f"{name}:{number} comes back empty: {why}" for number, why in sorted(wrong.items())]
    missing = [number for number in range(topic.manifest.partitions) if not (number in topic.heads or number in topic.damaged)]
    if missing := [number for number in missing if number < count]:
        left_out.append(
            f"{name}: of partitions {numbers_text(missing)} there is no manifest, they were never archived or are lost: "
            "they come back empty"
        )
    if "compact" in policy and (early := [each.partition for each in partitions if _lacks_keys(each)]):
        left_out.append(
            f"{name}: partitions {numbers_text(early)} end early: a key that was written again later has no value here where the cleaner "
            "had dropped the earlier one"
        )
    planned_topic = TopicPlan(
        topic=name,
        topic_id=topic.manifest.topic_id,
        compacted="compact" in policy,
        configs=configs,
        held=held,
        partitions=tuple(partitions),
        manifest_version=topic.manifest.version,
    )
    return planned_topic, left_out


def _lacks_keys(partition: PartitionPlan) -> bool:
    """The log ends early, and offsets before its end have no record: the cleaner dropped some of them for what was written later, or they
    are markers."""
    if partition.end is None or not partition.end.records:
        return False
    return partition.records < partition.next_offset - sum(last - first + 1 for first, last in partition.gaps)


def without(plan: RecoveryPlan, lost_runs: Iterable[LostRun]) -> RecoveryPlan:
    """`plan` with a gap in place of each lost run, so that every other record keeps its offset and the log its end; the plan says what
    is left out. A log does not begin with a gap."""
    places: dict[tuple[str, int], list[LostRun]] = {}
    for lost in lost_runs:
        places.setdefault((lost.topic, lost.partition), []).append(lost)

    def patched(topic: TopicPlan, partition: PartitionPlan) -> PartitionPlan:
        bases = {lost.base_offset for lost in places.get((topic.topic, partition.partition), ())}
        if not bases:
            return partition
        entries = (
            Entry(base_offset=entry.base_offset, last_offset=entry.last_offset, gap=True) if entry.base_offset in bases else entry
            for entry in partition.entries
        )
        kept = without_first_gaps(EntryList.of(entries))
        start = max(partition.start_offset, kept[0].base_offset) if kept else partition.next_offset
        pages = tuple(each for each in partition.lost_pages if each.base_offset not in bases)
        return replace(partition, entries=kept, start_offset=start, written=(), lost_pages=pages)

    def text(lost: LostRun) -> str:
        [compacted] = [topic.compacted for topic in plan.topics if topic.topic == lost.topic]
        return f"{lost}" + (" (compacted: earlier values of the keys written or deleted there come back)" if compacted else "")

    return replace(
        plan,
        topics=tuple(
            replace(topic, partitions=tuple(patched(topic, partition) for partition in topic.partitions)) for topic in plan.topics
        ),
        holes=(),
        left_out=(*plan.left_out, *(text(lost) for of_place in places.values() for lost in of_place)),
    )


def _given_count(topic: ArchivedTopic, options: Options) -> int | None:
    return options.partition_counts.get(topic.manifest.topic, options.partitions)


def _check_options(options: Options, found: Sequence[ArchivedTopic]) -> None:
    if options.partitions is not None and len(found) != 1:
        raise UsageError("a partition count without a topic is for exactly one topic")
    if unknown := sorted(options.partition_counts.keys() - {topic.manifest.topic for topic in found}):
        raise UsageError(f"a partition count for {unknown[0]}, which is not recovered")
    for count in (options.partitions, *options.partition_counts.values()):
        if count is not None and not 1 <= count <= PARTITIONS_MAX:
            raise UsageError(f"a topic of {count_text(count, 'partition')}; from 1 to {PARTITIONS_MAX} are recovered")
    if options.apply_retention and (options.retention_ms is not None or options.retention_bytes is not None):
        raise UsageError("either the topics' own retention or given values, not both")
    if any(value is not None and value < 0 for value in (options.retention_ms, options.retention_bytes)):
        raise UsageError("retention may not be negative")
    _check_mode(options)
    if options.take_over and options.renames:
        raise UsageError("a topic with another name has no archive to take over")
    if options.take_over and (options.to_time_ms is not None or options.to_offsets or options.open_transactions == "cut"):
        raise UsageError(
            "a log that ends before its archive cannot continue it: what lies after the end would be taken for a dead branch, and deleted. "
            "Recover without --take-over, and let the recovered cluster archive into a bucket or a prefix of its own"
        )
    _check_renames(options, {topic.manifest.topic for topic in found})
    check_brokers(options.brokers)
    _check_running(options)
    if options.brokers and options.cluster is None and not options.running:
        raise UsageError("several brokers are for a recovery of the whole cluster: only a snapshot says how many replicas a topic had")
    if not 0 <= options.node_id <= NODE_ID_MAX:
        raise UsageError(f"not a node id: {options.node_id}")
    if options.cluster_id is not None:
        check_cluster_id(options.cluster_id)


def _check_mode(options: Options) -> None:
    keeps = [each for each in (options.keep_bytes, options.keep_ms) if each is not None]
    if bool(keeps) != (options.mode == "partial") or min(keeps, default=1) < 1:
        raise UsageError("a partial recovery needs the bytes or the time to keep, 1 or more, and no other does")
    if options.mode == "full":
        return
    if options.to_time_ms is not None or options.to_offsets or options.open_transactions == "cut":
        raise UsageError(f"a log that ends before its archive is for a full recovery: in mode {options.mode} a gateway serves the archive")
    if options.renames:
        raise UsageError(f"another name is for a full recovery: in mode {options.mode} a gateway serves the archive by the topic's own")


def _check_running(options: Options) -> None:
    """What has no meaning where a cluster runs already."""
    if not options.running:
        return
    if options.take_over:
        raise UsageError(
            "--take-over is for a cluster that begins with the archive; a running one has an archive of its own, or none: its topics are "
            "archived again under their new ids"
        )
    if any(each is not None for each in (options.cluster_id, options.kafka_release, options.metadata_version)):
        raise UsageError(
            "cluster id, Kafka release and feature levels are the running cluster's own: leave out --cluster-id, --kafka-release and "
            "--metadata-version"
        )
    if options.node_id != 1 and not options.brokers:
        raise UsageError("--node-id is the first of --brokers N: a running cluster has brokers of its own")


def _check_renames(options: Options, found: Collection[str]) -> None:
    if unknown := sorted(options.renames.keys() - found):
        raise UsageError(f"another name for {unknown[0]}, which is not recovered")
    names = [options.renames.get(topic, topic) for topic in sorted(found)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two topics would be {twice[0]}")
    for topic, name in options.renames.items():
        if is_internal(topic) or is_internal(name):
            raise UsageError(f"{topic} as {name}: internal topics keep their names")
        if check_topic_name(name) != name or options.cluster is not None:
            raise UsageError(f"{topic} as {name}: in a recovery of the whole cluster topics keep their names")


# Settings


def policy_of(topic: str, configs: Mapping[str, str], default: str | None = None) -> str:
    """The cleanup policy of a topic with these settings. default: the brokers'; None where it is not known: Kafka's."""
    return configs.get("cleanup.policy", "compact" if topic in _INTERNAL_COMPACTED else default or "delete")


def _configs(topic: ArchivedTopic, options: Options) -> tuple[dict[str, str], dict[str, str | None]]:
    """The settings that the recovered topic gets, and those held back.

    A broker measures retention against record timestamps: with the old settings it would delete most of what an archive
    gives back within minutes of its start.
    """
    configs = dict(topic.manifest.configs or {})
    held: dict[str, str | None] = {}
    if configs.get("remote.storage.enable") == "true":  # there is no remote tier to go with it
        held |= {name: configs.pop(name) for name in _REMOTE if name in configs}
    if "delete" not in policy_of(topic.manifest.topic, configs, topic.default_policy) or options.apply_retention:
        return configs, held
    given_values = (None, None) if is_internal(topic.manifest.topic) else (options.retention_ms, options.retention_bytes)
    for name, given in zip(HELD_BACK, given_values, strict=True):
        value = "-1" if given is None else str(given)
        if given is None and configs.get(name) != value:  # one that was given stays: nothing is put back in its place
            held[name] = configs.get(name)
        configs[name] = value
    return configs, held


# Partitions


def _problems(topic: ArchivedTopic, options: Options) -> Iterable[str]:
    """A partition count decides where a key goes: it is believed when a broker gave it and no head contradicts it, or the user says so."""
    name, count = topic.manifest.topic, topic.manifest.partitions
    if (given := _given_count(topic, options)) is not None:
        archived = max(count, *(number + 1 for number in (*topic.heads, *topic.damaged)), 0)
        if given < archived and not options.drop_partitions:
            yield (
                f"{name} has {count_text(archived, 'partition')} in the archive, requested: {given}; the others' records would not "
                "come back, and "
                "new records of a key may go to another partition than the recovered ones; --drop-partitions if that is meant"
            )
        return
    if beyond := sorted(number for number in (*topic.heads, *topic.damaged) if number >= count):
        yield (
            f"{name} has {count_text(count, 'partition')} by its manifest, yet {numbers_text(beyond)} is archived; "
            f"name the count that is right: --partitions {name}=N"
        )
    if topic.manifest.configs is None:
        yield (
            f"{name}: no broker ever said how many partitions it has, {count} were seen; "
            f"confirm with --partitions {name}={count}, or correct it"
        )


def plan_partition(head: Head, bounds: PartBounds = WHOLE) -> PartitionPlan:
    """The partition that `head` describes, as far as `bounds` want it. Entries wholly below its start are dropped."""
    part = select_part(head, bounds)
    start = max(head.start_offset, part.entries[0].base_offset) if part.entries else part.next_offset
    everything = [*items_of(head.entries), *items_of(head.superseded)]  # new epochs and producer ids begin above those of dead branches too
    open_from = next((entry.open_from for entry in reversed(EntryList.of(part.beneath) + part.entries) if not entry.gap), None)
    return PartitionPlan(
        partition=head.partition,
        start_offset=start,
        next_offset=part.next_offset,
        leader_epoch=max(0, head.leader_epoch, *map(newest_epoch, everything)),
        head_epoch=head.leader_epoch,
        max_producer_id=max((each.max_producer_id for each in everything if not is_made_up(each)), default=-1),
        manifest_version=head.version,
        manifest_fence=head.fence,
        entries=part.entries,
        below_retention=part.below_retention,
        open_from=None if open_from is None else max(open_from, start),
        end=bounds.end,
        left=part.left,
        beneath=part.beneath,
        lost_pages=part.lost_pages,
        archive_end=head.next_offset,
        newest_ms=max((item.newest_ms for item in head.entries.items if item.newest_ms is not None), default=None),
    )
