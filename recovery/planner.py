"""Deciding what a recovery will do. Pure: heads and options in, a plan out."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile

from msgspec.structs import replace

from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError, VerificationFailed
from headwater_core.partition import check_cluster_id
from manifests.entry import Entry
from manifests.head import Head
from manifests.page import PageRef
from manifests.topic import PARTITIONS_MAX
from recovery.discovery import ArchivedTopic, Found
from recovery.recovery_plan import (
    NODE_ID_MAX,
    PRODUCER_ID_MAX,
    LostRun,
    Options,
    PartitionPlan,
    RecoveryPlan,
    Request,
    TopicPlan,
    check_partition,
)

_INTERNAL_COMPACTED = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_HELD = ("retention.ms", "retention.bytes")
_REMOTE = ("remote.storage.enable", "local.retention.ms", "local.retention.bytes")


def make_plan(found: Found, request: Request, *, now_ms: int, recovery_id: str, cluster_id: str) -> RecoveryPlan:
    """The plan for the topics in `found`, of which there is at least one. The partition is the unit: one that cannot be recovered
    comes back empty at its number, for a key's partition depends on the count.

    cluster_id  for the recovered cluster, unless the options name one
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
    topics = []
    for archived in found.topics:
        try:
            topic, lost = _plan_topic(archived, options, now_ms)
        except (UsageError, VerificationFailed) as error:
            left_out.append(f"{archived.manifest.topic}: {error}")
            continue
        topics.append(topic)
        left_out += lost
        problems += _problems(archived, options)
        notes += _beyond(archived, len(topic.partitions))
        notes += notes_of(topic)
        notes += _producer_notes(archived, topic)
        if archived.manifest.configs is None:
            notes.append(f"{topic.topic}: no broker ever gave its settings: it is recovered with the defaults, cleanup.policy among them")
    if not topics:
        raise VerificationFailed("nothing can be recovered: " + "; ".join(left_out))
    if held := sum(bool(topic.held) for topic in topics):
        notes.append(f"retention is held back in {held} topics so that the broker keeps what is recovered; put it back when you are ready")
    return RecoveryPlan(
        recovery_id=recovery_id,
        request=request,
        source_cluster_id=clusters[0],
        cluster_id=options.cluster_id or cluster_id,
        node_id=options.node_id,
        topics=tuple(topics),
        left_out=tuple(left_out),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _plan_topic(topic: ArchivedTopic, options: Options, now_ms: int) -> tuple[TopicPlan, list[str]]:
    """The topic, and which of its partitions come back empty, and why. Raises VerificationFailed when not one can be recovered."""
    configs, held = _configs(topic, options)
    before_ms, size_bytes = retention_of(topic.manifest.topic, topic.manifest.configs or {}, options, now_ms)
    count = _given_count(topic, options) or topic.manifest.partitions
    wrong = {number: why for number, why in topic.damaged.items() if number < count}
    partitions = [PartitionPlan(partition=number) for number in range(count)]
    for number, head in topic.heads.items():
        if number < count:
            try:
                partitions[number] = check_partition(topic.manifest.partition_id(number), plan_partition(head, before_ms, size_bytes))
            except (CorruptData, UnsupportedFormat) as error:  # of a page, too; what the store does not answer is no damage
                wrong[number] = str(error)
    name = topic.manifest.topic
    if wrong and not any(partition.manifest_version for partition in partitions):
        raise VerificationFailed("; ".join(wrong.values()))
    left_out = [f"{name}:{number} comes back empty: {why}" for number, why in sorted(wrong.items())]
    missing = [number for number in range(topic.manifest.partitions) if not (number in topic.heads or number in topic.damaged)]
    if missing := [number for number in missing if number < count]:
        left_out.append(
            f"{name}: of partitions {_numbers(missing)} there is no manifest, they were never archived or are lost: they come back empty"
        )
    planned_topic = TopicPlan(
        topic=name,
        topic_id=topic.manifest.topic_id,
        compacted="compact" in _policy(name, configs),
        configs=configs,
        held=held,
        partitions=tuple(partitions),
    )
    return planned_topic, left_out


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
        entries = [
            Entry(base_offset=entry.base_offset, last_offset=entry.last_offset, gap=True) if entry.base_offset in bases else entry
            for entry in partition.entries
        ]
        kept = _from_first_record(entries)
        start = max(partition.start_offset, kept[0].base_offset) if kept else partition.next_offset
        return replace(partition, entries=tuple(kept), start_offset=start, written=())

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
            raise UsageError(f"a topic of {count} partitions; from 1 to {PARTITIONS_MAX} are recovered")
    if options.apply_retention and (options.retention_ms is not None or options.retention_bytes is not None):
        raise UsageError("either the topics' own retention or given values, not both")
    if any(value is not None and value < 0 for value in (options.retention_ms, options.retention_bytes)):
        raise UsageError("retention may not be negative")
    if not 0 <= options.node_id <= NODE_ID_MAX:
        raise UsageError(f"not a node id: {options.node_id}")
    if options.cluster_id is not None:
        check_cluster_id(options.cluster_id)


# Settings


def _policy(topic: str, configs: Mapping[str, str]) -> str:
    return configs.get("cleanup.policy", "compact" if topic in _INTERNAL_COMPACTED else "delete")


def _configs(topic: ArchivedTopic, options: Options) -> tuple[dict[str, str], dict[str, str | None]]:
    """The settings that the recovered topic gets, and those held back.

    A broker measures retention against record timestamps: with the old settings it would delete most of what an archive
    gives back within minutes of its start.
    """
    configs = dict(topic.manifest.configs or {})
    held: dict[str, str | None] = {}
    if configs.get("remote.storage.enable") == "true":  # there is no remote tier to go with it
        held |= {name: configs.pop(name) for name in _REMOTE if name in configs}
    if "delete" not in _policy(topic.manifest.topic, configs) or options.apply_retention:
        return configs, held
    for name, given in zip(_HELD, (options.retention_ms, options.retention_bytes), strict=True):
        value = "-1" if given is None else str(given)
        if configs.get(name) != value:
            held[name] = configs.get(name)
            configs[name] = value
    return configs, held


def retention_of(topic: str, configs: Mapping[str, str], options: Options, now_ms: int) -> tuple[int | None, int | None]:
    """The oldest timestamp and the bytes that each partition of a topic with these settings keeps; None without a bound. Raises
    UsageError."""
    if "delete" not in _policy(topic, configs):
        return None, None
    ms, size = options.retention_ms, options.retention_bytes
    if options.apply_retention:
        ms, size = _limit(configs, "retention.ms"), _limit(configs, "retention.bytes")
    return None if ms is None else now_ms - ms, size


def _limit(configs: Mapping[str, str], name: str) -> int | None:
    """A topic's own limit; None when it has none of its own: the lost broker's default is not known."""
    try:
        value = int(configs.get(name, "-1"))
    except ValueError as error:
        raise UsageError(f"{name} is {configs[name][:40]!r}") from error
    return value if value >= 0 else None


# Partitions


def _problems(topic: ArchivedTopic, options: Options) -> Iterable[str]:
    """A partition count decides where a key goes: it is believed when a broker gave it and no head contradicts it, or the user says so."""
    name, count = topic.manifest.topic, topic.manifest.partitions
    if _given_count(topic, options) is not None:
        return
    if beyond := sorted(number for number in (*topic.heads, *topic.damaged) if number >= count):
        yield (
            f"{name} has {count} partitions by its manifest, yet {_numbers(beyond)} is archived; "
            f"name the count that is right: --partitions {name}=N"
        )
    if topic.manifest.configs is None:
        yield (
            f"{name}: no broker ever said how many partitions it has, {count} were seen; "
            f"confirm with --partitions {name}={count}, or correct it"
        )


def _beyond(topic: ArchivedTopic, count: int) -> Iterable[str]:
    if beyond := sorted(number for number in topic.heads if number >= count):
        yield f"{topic.manifest.topic}: partitions {_numbers(beyond)} are archived and left out, as the given count says"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown


def plan_partition(head: Head, before_ms: int | None = None, retention_bytes: int | None = None) -> PartitionPlan:
    """The partition that `head` describes: entries wholly below its start, or that retention leaves out, are dropped.

    before_ms        entries whose newest record is older are left out, from the oldest on, as a broker's retention does
    retention_bytes  at least so many bytes are kept
    """
    live = [entry for entry in head.entries if entry.next_offset > head.start_offset]
    dropped = _expired(live, before_ms, retention_bytes)
    kept = _from_first_record(live[dropped:])
    start = max(head.start_offset, kept[0].base_offset) if kept else head.next_offset
    everything = (*head.entries, *_of_dead_branches(head))
    open_from = next((entry.open_from for entry in reversed(kept) if not entry.gap), None)
    return PartitionPlan(
        partition=head.partition,
        start_offset=start,
        next_offset=head.next_offset,
        leader_epoch=max(0, head.leader_epoch, *map(_newest_epoch, everything)),
        max_producer_id=max((each.max_producer_id for each in everything if not _is_made_up(each)), default=-1),
        manifest_version=head.version,
        entries=tuple(kept),
        below_retention=dropped,
        open_from=None if open_from is None else max(open_from, start),
    )


def _from_first_record(entries: Sequence[Entry]) -> list[Entry]:
    """A log begins with its first record, not with a gap."""
    return list(dropwhile(lambda entry: entry.gap, entries))


def _of_dead_branches(head: Head) -> Sequence[Entry | PageRef]:
    """Their entries, which are not recovered; new epochs and producer ids begin above theirs. Where a page of them is damaged, what the
    head lists itself, with the sums of its pages: the partition is sound all the same. Raises CorruptData when those do not say it."""
    try:
        return tuple(head.superseded)
    except CorruptData:
        if any(isinstance(each, PageRef) and each.spans is None for each in head.superseded.items):
            raise
        return head.superseded.items


def _newest_epoch(item: Entry | PageRef) -> int:
    epochs = [epoch for epoch, _ in item.epochs] if isinstance(item, Entry) else [span.epoch for span in item.spans or ()]
    return max(epochs, default=0)


def _is_made_up(item: Entry | PageRef) -> bool:
    """It holds a producer id that no coordinator gave: new ids do not begin above it."""
    return item.max_producer_id > PRODUCER_ID_MAX


def _expired(entries: Sequence[Entry], before_ms: int | None, retention_bytes: int | None) -> int:
    """How many of the oldest entries retention leaves out. Control records and gaps are no reason to keep anything."""
    by_age = by_size = 0
    if before_ms is not None:
        young = (at for at, entry in enumerate(entries) if entry.last_timestamp_ms is not None and entry.last_timestamp_ms >= before_ms)
        by_age = next(young, len(entries))
    if retention_bytes is not None:
        spare = sum(entry.live_bytes for entry in entries) - retention_bytes
        for entry in entries:
            spare -= entry.live_bytes
            if spare < 0:
                break
            by_size += 1
    return max(by_age, by_size)


def _producer_notes(topic: ArchivedTopic, planned: TopicPlan) -> Iterable[str]:
    recovered = {each.partition for each in planned.partitions if each.manifest_version}
    for number, head in sorted(topic.heads.items()):
        if number not in recovered:
            continue
        if made_up := [each.max_producer_id for each in (*head.entries, *_of_dead_branches(head)) if _is_made_up(each)]:
            yield (
                f"{topic.manifest.topic}:{number} holds producer id {max(made_up)}, which no coordinator gave: "
                "new ids do not begin above it"
            )


def notes_of(topic: TopicPlan) -> Iterable[str]:
    """What the user should know of a planned topic."""
    for partition in topic.partitions:
        where = f"{topic.topic}:{partition.partition}"
        for first, last in partition.gaps:
            yield f"{where} has no records from offset {first} to {last}: they were lost before they could be archived"
    if dropped := sum(partition.below_retention for partition in topic.partitions):
        yield f"{topic.topic}: retention leaves out {dropped} archived runs; they stay in the archive"
    if (wanted := topic.configs.get("min.insync.replicas", "1")) != "1":
        yield f"{topic.topic} wants {wanted[:20]!r} replicas in sync and is recovered with one: acks=all waits for more"
