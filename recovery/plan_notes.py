"""What people should know of a plan beside what it brings back. Pure."""

from collections.abc import Iterable, Sequence

from headwater_core.counts import count_text
from manifests.page import is_ahead
from recovery.discovery import ArchivedTopic
from recovery.local_part import is_internal, is_made_up, items_of
from recovery.recovery_plan import Options, Request, TopicPlan

HELD_BACK = ("retention.ms", "retention.bytes")
"""Settings by which a broker would delete what was just recovered."""


def beyond_notes(topic: ArchivedTopic, count: int) -> Iterable[str]:
    if count > topic.manifest.partitions:
        yield (
            f"{topic.manifest.topic} comes back with {count_text(count, 'partition')}, its manifest has {topic.manifest.partitions}: "
            "new records of a key may go to another partition than the recovered ones"
        )
    if beyond := sorted(number for number in topic.heads if number >= count):
        yield f"{topic.manifest.topic}: partitions {numbers_text(beyond)} are archived and left out, as the given count says"


def producer_notes(topic: ArchivedTopic, planned: TopicPlan) -> Iterable[str]:
    recovered = {each.partition for each in planned.partitions if each.manifest_version}
    for number, head in sorted(topic.heads.items()):
        if number not in recovered:
            continue
        if made_up := [each.max_producer_id for each in (*items_of(head.entries), *items_of(head.superseded)) if is_made_up(each)]:
            yield (
                f"{topic.manifest.topic}:{number} holds producer id {max(made_up)}, which no coordinator gave: "
                "new ids do not begin above it"
            )


def time_notes(topic: ArchivedTopic, now_ms: int) -> Iterable[str]:
    """What is dated later than it was published; where an older version archived it, later than now."""
    for number, head in sorted(topic.heads.items()):
        dated = [item for item in head.entries.items if item.last_timestamp_ms is not None]
        if late := [item for item in dated if item.newest_ms != item.last_timestamp_ms]:
            yield (
                f"{topic.manifest.topic}:{number} has records from offset {late[0].base_offset} on that are dated later than they were "
                "published; they count as published then"
            )
        if ahead := [item for item in dated if is_ahead(item, now_ms)]:
            yield (
                f"{topic.manifest.topic}:{number} has records from offset {ahead[0].base_offset} on that are dated later than now, in runs "
                "of an older version: their times are taken as they are, so they may end a log early or keep it for longer"
            )


def notes_of(topic: TopicPlan) -> Iterable[str]:
    """What the user should know of a planned topic."""
    for partition in topic.partitions:
        where = f"{topic.topic}:{partition.partition}"
        for first, last in partition.gaps:
            yield f"{where} has no records from offset {first} to {last}: they were lost before they could be archived"
        if (end := partition.end) is not None:
            late = f", {'at least ' * end.at_least}{end.out_of_order} of them out of order: not later than that" if end.out_of_order else ""
            yield f"{where} ends at offset {end.offset} or before, as requested, without {count_text(end.records, 'record')} after it{late}"
    if dropped := sum(partition.below_retention for partition in topic.partitions):
        yield f"{topic.topic}: retention leaves out {count_text(dropped, 'archived run')}, kept in the archive"
    wanted, fewest = topic.configs.get("min.insync.replicas", "1"), min((len(each.replicas) or 1 for each in topic.partitions), default=1)
    if not wanted.isdecimal() or int(wanted) > fewest:
        with_ = "one" if fewest == 1 else fewest
        yield f"{topic.topic} wants {wanted[:20]!r} replicas in sync and is recovered with {with_}: acks=all waits for more"


def overall_notes(topics: Sequence[TopicPlan], request: Request, source_cluster_id: str) -> Iterable[str]:
    options = request.options
    if held := sum(bool(topic.held) for topic in topics):
        yield (
            f"retention is held back in {count_text(held, 'topic')} so that the broker keeps what is recovered; `headwater recover finish` "
            "puts it back, `headwater recover status` lists it"
        )
    if options.take_over:
        yield (
            f"the recovered cluster takes the archive over from cluster {source_cluster_id} when everything is verified, before a broker "
            "can start on it; agents of the old cluster archive nothing from then on. Stop them before"
        )
    elif request.topics is None and options.cluster_id != source_cluster_id and not options.running:
        yield (
            f"the bucket remains the archive of cluster {source_cluster_id}, the recovered cluster needs another one for its own; with "
            "--take-over it archives on in this one, and the old cluster cannot any more"
        )
    if options.mode != "full":
        yield from _notes_of_mode(topics, options, source_cluster_id)
    elif (limited := sum(any(topic.held.get(name, "-1") not in (None, "-1") for name in HELD_BACK) for topic in topics)) and (
        options.retention_ms is None and options.retention_bytes is None
    ):
        yield (
            f"everything live in the archive comes back, also what is beyond the own retention of {count_text(limited, 'topic')}; "
            "--apply-retention bounds the download by it"
        )
    for topic in topics:
        if topic.source is not None:
            yield (
                f"{topic.source.topic} comes back as {topic.topic}, with an id of its own: groups and ACLs know it by its old name, and "
                f"the archive of {topic.source.topic} is not its archive"
            )


def _notes_of_mode(topics: Sequence[TopicPlan], options: Options, source_cluster_id: str) -> Iterable[str]:
    left = [partition.left for topic in topics for partition in topic.partitions if partition.left is not None]
    if left:
        yield (
            f"left in the archive, where a gateway serves them: {count_text(sum(each.records for each in left), 'record')} of "
            f"{count_text(len(left), 'partition')}; the broker alone has nothing before its own first offset, and sets back a group that "
            "continues there by auto.offset.reset"
        )
    if left and options.running:
        yield (
            "the running cluster's own agents serve the topics from there on, as new incarnations: for what is older, keep a gateway over "
            "this bucket beside them. It has the same offsets, by the same names"
        )
    elif left and not options.take_over and options.cluster_id != source_cluster_id:
        yield (
            f"a gateway serves the archive of cluster {source_cluster_id} beside a broker of that cluster alone: recover everything with "
            f"--take-over, or with --cluster-id {source_cluster_id}, and never start the old cluster again"
        )
    if whole := [topic.topic for topic in topics if topic.compacted]:
        yield (
            f"in full all the same: {count_text(len(whole), 'compacted topic')}, {whole[0]} among them; "
            "the cleaner would see what is new alone, and deleted keys would be read from the archive"
        )
    if internal := [topic.topic for topic in topics if is_internal(topic.topic) and not topic.compacted]:
        yield f"{', '.join(internal)}: internal topics come back in full all the same"


def policy_notes(topics: Sequence[ArchivedTopic], options: Options) -> Iterable[str]:
    """Of a part of topics of which it is not known whether they are compacted: their own settings do not say it, and the brokers' are not
    in the archive of topics."""
    unknown = [
        each.manifest.topic
        for each in topics
        if each.default_policy is None
        and not is_internal(each.manifest.topic)
        and each.manifest.configs is not None
        and "cleanup.policy" not in each.manifest.configs
    ]
    if unknown and options.mode != "full":
        yield (
            f"no cleanup.policy of its own: {count_text(len(unknown), 'topic')}, {unknown[0]} among them, taken for one that "
            "delete, as is Kafka's default. If the brokers' log.cleanup.policy was compact, recover them in mode full"
        )


def numbers_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown
