"""The small files of a recovered log directory, as bytes. Pure: a plan in, names and contents out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints, markers
from headwater_core.segments.encoder import encode_batch, encode_marker
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from manifests.entry import Entry
from recovery.coordinators import Row
from recovery.identity import derived_kafka_id
from recovery.indexes import INTERVAL, INTERVAL_BYTES, Indexes
from recovery.initial_metadata import bootstrap_checkpoint
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, TopicPlan, Written
from recovery.runs import segment_name

BOOTSTRAP = "bootstrap.checkpoint"
STAGED = "recovered.properties"
PARTITION_NAMES = frozenset((checkpoints.PARTITION_METADATA, checkpoints.LEADER_EPOCHS))  # of what lies beside segments
_BATCH_COMMITS = 500
_IS_INT, _INT_MAX = re.compile("[0-9]{1,10}"), 2**31 - 1  # as Kafka takes the setting

Files = dict[PurePath, bytes]


def partition_directory(topic: TopicPlan, partition: PartitionPlan) -> PurePath:
    """Below the target."""
    return PurePath(partition.directory, f"{topic.topic}-{partition.partition}")


def partition_files(topic: TopicPlan, partition: PartitionPlan, last_end: int | None, timestamp_ms: int, rows: Sequence[Row] = ()) -> Files:
    """The files beside the restored segments of one partition, by their names in it.

    last_end      the offset after the last batch of the last restored segment; None when there is no segment
    timestamp_ms  of what recovery itself writes
    rows          the records that the plan counts as rewritten (coordinator_tail.py)
    """
    history = epoch_history(partition)
    files = {PurePath(checkpoints.PARTITION_METADATA): checkpoints.encode_partition_metadata(topic.topic_id)}
    if history.starts:
        files[PurePath(checkpoints.LEADER_EPOCHS)] = checkpoints.encode_epochs(history)
    for written in partition.written:
        name = PurePath(segment_name(written.base_offset))
        files[name], indexes = b"", Indexes(written.base_offset, index_interval_bytes(topic))
        for batch, last_offset in batches_of(topic, written, timestamp_ms, rows):
            indexes.add(len(files[name]), last_offset, timestamp_ms)
            files[name] += batch
        files |= {name.with_suffix(suffix): content for suffix, content in indexes.files().items()}
        last_end = max(last_end or 0, written.next_offset)
    if last_end != partition.log_end:
        # An empty segment holds the end where it was: a lower one would hand out the same offsets again.
        files[PurePath(segment_name(partition.log_end))] = b""
    return files


def batches_of(topic: TopicPlan, written: Written, timestamp_ms: int, rewritten: Sequence[Row] = ()) -> Iterator[tuple[bytes, int]]:
    """The batches of a segment of recovery's own, each with its last offset."""
    for offset, abort in enumerate(written.aborts, written.base_offset):
        marker = encode_marker(
            offset,
            markers.ABORT,
            producer_id=abort.producer_id,
            producer_epoch=abort.producer_epoch,
            coordinator_epoch=abort.coordinator_epoch,
            leader_epoch=written.leader_epoch,
            timestamp_ms=timestamp_ms,
            log_append_time=topic.configs.get("message.timestamp.type") == "LogAppendTime",
        )
        yield marker, offset
    first = written.base_offset + len(written.aborts)
    records = [*((commit.key, commit.value) for commit in written.commits), *(rewritten if written.rewritten else ())]
    for at in range(0, len(records), _BATCH_COMMITS):
        rows = records[at : at + _BATCH_COMMITS]
        batch = encode_batch(first + at, rows, leader_epoch=written.leader_epoch, timestamp_ms=timestamp_ms)
        yield batch, first + at + len(rows) - 1


def index_interval_bytes(topic: TopicPlan) -> int:
    """What the broker will index this topic's segments by: the default where its settings have what no broker takes."""
    value = topic.configs.get(INTERVAL, "")
    return int(value) if _IS_INT.fullmatch(value) and int(value) <= _INT_MAX else INTERVAL_BYTES


def epoch_history(partition: PartitionPlan) -> EpochHistory:
    """Cut at the log start, as a broker cuts it: a reader of the directory takes an earlier beginning for the log's."""
    starts: list[EpochStart] = []
    for entry in partition.entries:
        starts += (each for each in entry.epochs if not starts or each.epoch > starts[-1].epoch)
    for written in partition.written:
        if written.leader_epoch > max((epoch for epoch, _ in starts), default=-1):
            starts.append(EpochStart(written.leader_epoch, written.base_offset))
    start = partition.start_offset
    begun = [epoch for epoch, first in starts if first <= start][-1:]
    return EpochHistory.of([*((epoch, start) for epoch in begun), *(each for each in starts if each.first_offset > start)])


def checkpoint_files(plan: RecoveryPlan) -> Files:
    """Each log directory's own checkpoints.

    Compacted logs count as cleaned only as far as that is proven. Log starts are named where they lie inside the first
    segment; without that, deleted records would come back.
    """
    files: Files = {}
    for broker in plan.targets:
        here = [each for each in partitions(plan) if each[1].directory == broker.directory]
        files |= {PurePath(broker.directory, name): content for name, content in _checkpoints(here).items()}
    return files


def _checkpoints(here: Iterable[tuple[TopicPlan, PartitionPlan]]) -> Files:
    starts, ends, cleaned = {}, {}, {}
    for topic, partition in here:
        key = TopicPartition(topic.topic, partition.partition)
        ends[key] = partition.log_end
        if partition.start_offset != first_segment(partition):
            starts[key] = partition.start_offset
        if topic.compacted and (end := cleaned_end(partition)) is not None:
            cleaned[key] = end
    by_name: Mapping[str, Mapping[TopicPartition, int]] = {
        checkpoints.HIGH_WATERMARKS: ends,
        checkpoints.LOG_STARTS: starts,
        checkpoints.CLEANED: cleaned,
    }
    return {PurePath(name): checkpoints.encode_offsets(offsets) for name, offsets in by_name.items()}


def bootstrap_files(plan: RecoveryPlan, started_ms: int, state: ClusterMetadata | None) -> Files:
    """The file that the metadata log begins with; a running cluster has one. state: of the whole cluster; None: topics alone"""
    if plan.running is not None:
        return {}
    content = bootstrap_checkpoint(plan, state, timestamp_ms=started_ms)
    return {PurePath(broker.directory, BOOTSTRAP): content for broker in plan.targets}  # whichever controller leads first reads its own


def identity_files(plan: RecoveryPlan, directory_id: str) -> Files:
    """meta.properties: what makes it a log directory. Written last, so that no broker starts on half of one.

    What is to be placed in the directories of a running broker has another file instead, with the same content: nobody shall start that
    broker on it.
    """
    name = checkpoints.META_PROPERTIES if plan.running is None else STAGED
    files: Files = {}
    for broker in plan.targets:
        own_id = derived_kafka_id(directory_id, broker.node_id) if plan.brokers else directory_id
        properties = checkpoints.MetaProperties(cluster_id=plan.cluster_id, node_id=broker.node_id, directory_id=own_id)
        files[PurePath(broker.directory, name)] = checkpoints.encode_meta_properties(properties)
    return files


def cleaned_end(partition: PartitionPlan) -> int | None:
    """The end of the oldest entries that were clean when they were archived; None when there are none.

    The cleaner looks for doubled keys only past this offset. If it is too high, a deleted key comes back for good: its
    tombstone, taken for clean, is dropped in time, and the older value below it is never read again. If it is too low, the
    cleaner only does its work again.
    """
    end = None
    for entry in partition.entries:
        if not entry.cleaned:
            break
        end = entry.next_offset
    return end


def first_segment(partition: PartitionPlan) -> int:
    """Base offset of the partition's first segment file."""
    files = partition.files
    return files[0].base_offset if files else partition.next_offset


def partitions(plan: RecoveryPlan) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    for topic in plan.topics:
        for partition in topic.partitions:
            yield topic, partition


class Segment(NamedTuple):
    """One planned segment: of which run it is made, and where it lies; at: its place among the partition's."""

    topic: TopicPlan
    partition: PartitionPlan
    at: int
    entry: Entry
    path: Path


def segment_files(plan: RecoveryPlan, into: Path) -> Iterator[Segment]:
    """Every segment that `plan` places below `into`."""
    for topic, partition in partitions(plan):
        directory = into / partition_directory(topic, partition)
        for at, entry in enumerate(partition.files):
            yield Segment(topic, partition, at, entry, directory / segment_name(entry.base_offset))
