"""The state of a cluster as a file, in the form of Kafka's own metadata snapshots: what Kafka's tools read, and a controller would."""

import io
from collections.abc import Iterator
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import read_marker
from headwater_core.segments.metadata.bootstrap_checkpoint import SNAPSHOT_FOOTER, write_checkpoint
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata
from headwater_core.segments.metadata.metadata_image import MetadataImage
from headwater_core.segments.metadata.metadata_records import (
    ConfigRecord,
    FeatureLevel,
    Partition,
    ProducerIds,
    Topic,
)
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    SCRAM,
    TOKEN,
    ZK_MIGRATION,
)
from headwater_core.segments.metadata.secret_settings import is_secret_setting

SECRET_KINDS = (SCRAM, TOKEN)


class SnapshotRecord(NamedTuple):
    """is_secret: it lets somebody in, or would let them try, or nobody here can tell that it does not"""

    raw: bytes
    is_secret: bool


def snapshot_records(state: ClusterMetadata) -> Iterator[SnapshotRecord]:
    """Records that make `state` when they are applied in this order, what is unknown last. Secret are credentials, delegation tokens,
    settings that may be passwords, and what is unknown."""
    features = sorted(state.features.items(), key=lambda each: (each[0] != "metadata.version", each[0]))
    yield from (SnapshotRecord(FeatureLevel(name=name, level=level).encode(), False) for name, level in features)
    yield from _others(state, REGISTER_BROKER, REGISTER_CONTROLLER, ZK_MIGRATION)
    for name in sorted(state.topics):
        topic = state.topics[name]
        yield SnapshotRecord(Topic(name=name, topic_id=topic.topic_id).encode(), False)
        for number, partition in topic.partitions.items():
            yield SnapshotRecord(_partition(topic.topic_id, number, partition).encode(), False)
        for key, value in sorted(topic.configs.items()):
            yield SnapshotRecord(ConfigRecord(resource_name=name, name=key, value=value).encode(), False)
    for (resource, name), settings in sorted(state.configs.items()):
        for key, value in sorted(settings.items()):
            record = ConfigRecord(resource_type=resource, resource_name=name, name=key, value=value)
            yield SnapshotRecord(record.encode(), is_secret_setting(resource, key))
    yield from _others(state, QUOTA)
    if state.next_producer_id:
        yield SnapshotRecord(ProducerIds(broker=-1, broker_epoch=-1, next_producer_id=state.next_producer_id).encode(), False)
    yield from _others(state, ACL, *SECRET_KINDS)
    yield from (SnapshotRecord(raw, True) for raw in state.unknown)


def _others(state: ClusterMetadata, *api_keys: int) -> Iterator[SnapshotRecord]:
    for api_key in api_keys:
        raws = sorted(record.raw for record in state.others.get(api_key, {}).values())
        yield from (SnapshotRecord(raw, api_key in SECRET_KINDS) for raw in raws)


def _partition(topic_id: str, number: int, partition: PartitionMetadata) -> Partition:
    return Partition(
        partition=number,
        topic_id=topic_id,
        replicas=partition.replicas,
        in_sync=partition.isr,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        removing=partition.removing,
        adding=partition.adding,
        directories=partition.directories,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        leader_recovery=partition.leader_recovery,
    )


def write_snapshot(state: ClusterMetadata, *, secrets: bool, timestamp_ms: int) -> bytes:
    """The whole file. Source: Kafka's format of snapshots, docs/formats/cluster-snapshot.md.

    secrets  False leaves out what is secret
    """
    raws = (record.raw for record in snapshot_records(state) if secrets or not record.is_secret)
    return write_checkpoint(raws, timestamp_ms=timestamp_ms)


def read_snapshot(raw: bytes, where: str, *, end_offset: int = 0, end_epoch: int = 0) -> ClusterMetadata:
    """The state in such a file, ours or a broker's. Raises CorruptData, TruncatedData, UnsupportedFormat.

    end_offset, end_epoch  of the state: its name says them, not the file
    """
    image, complete, next_offset, appended_ms = MetadataImage(), False, 0, 0
    for position, header in walk(io.BytesIO(raw), 0, len(raw), where=where):
        if header.base_offset != next_offset:
            raise CorruptData(where, position, f"records {next_offset} to {header.base_offset - 1} are missing")
        next_offset = header.next_offset
        batch = memoryview(raw)[position : position + header.size_bytes]
        complete = header.is_control and header.records > 0 and read_marker(bytes(batch), where=where).type == SNAPSHOT_FOOTER
        if not position:
            appended_ms = header.max_timestamp_ms
        image.apply_batch(header, batch, where)
    if not complete:
        raise CorruptData(where, len(raw), "it ends without the footer of a snapshot")
    image.end_offset, image.end_epoch, image.appended_ms = end_offset, end_epoch, max(0, appended_ms)
    return image.freeze()
