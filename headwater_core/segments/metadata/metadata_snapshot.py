"""The state of a cluster as a file, in the form of Kafka's own metadata snapshots: what Kafka's tools read, and a controller would."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import read_marker
from headwater_core.segments.metadata.bootstrap_checkpoint import SNAPSHOT_FOOTER, write_checkpoint
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata
from headwater_core.segments.metadata.metadata_image import MetadataImage
from headwater_core.segments.metadata.metadata_records import (
    RESOURCE_TOPIC,
    ConfigRecord,
    FeatureLevel,
    Partition,
    ProducerIds,
    Topic,
)
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    KEPT,
    NO_OP,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    SCRAM,
    TOKEN,
    ZK_MIGRATION,
    make_record,
)
from headwater_core.segments.metadata.secret_settings import is_secret_setting

SECRET_KINDS = (SCRAM, TOKEN)


class SnapshotRecord(NamedTuple):
    """open_raw: what of it is written where nothing secret may be; None: nothing. Secret is what lets somebody in, or would let them try,
    and what nobody here can tell not to"""

    raw: bytes
    open_raw: bytes | None


def snapshot_records(state: ClusterMetadata) -> Iterator[SnapshotRecord]:
    """Records that make `state` when they are applied in this order, what is unknown last. Secret are credentials, delegation tokens,
    settings that may be passwords, and what is unknown."""
    features = sorted(state.features.items(), key=lambda each: (each[0] != "metadata.version", each[0]))
    yield from (_known(FeatureLevel(name=name, level=level)) for name, level in features)
    yield from _others(state, REGISTER_BROKER, REGISTER_CONTROLLER, ZK_MIGRATION)
    for name in sorted(state.topics):
        topic = state.topics[name]
        yield _known(Topic(name=name, topic_id=topic.topic_id, tags=topic.tags))
        for number, partition in topic.partitions.items():
            yield _known(_partition(topic.topic_id, number, partition))
        yield from _settings(state, RESOURCE_TOPIC, name, topic.configs)
    for (resource, name), settings in sorted(state.configs.items()):
        yield from _settings(state, resource, name, settings)
    yield from _others(state, QUOTA)
    if state.next_producer_id:
        yield _known(ProducerIds(broker=-1, broker_epoch=-1, next_producer_id=state.next_producer_id))
    yield from _others(state, ACL, *SECRET_KINDS)
    yield from (SnapshotRecord(raw, None) for raw in state.unknown)
    yield from (SnapshotRecord(make_record(NO_OP, 0, {KEPT: raw}).raw, None) for raw in state.kept)


def _known(record: Topic | Partition | ConfigRecord | FeatureLevel | ProducerIds) -> SnapshotRecord:
    return SnapshotRecord(record.encode(), replace(record, tags=()).encode() if record.tags else record.encode())


def _settings(state: ClusterMetadata, resource: int, name: str, settings: Mapping[str, str]) -> Iterator[SnapshotRecord]:
    for key, value in sorted(settings.items()):
        tags = state.config_tags.get((resource, name, key), ())
        record = _known(ConfigRecord(resource_type=resource, resource_name=name, name=key, value=value, tags=tags))
        yield record._replace(open_raw=None) if resource != RESOURCE_TOPIC and is_secret_setting(resource, key) else record


def _others(state: ClusterMetadata, *api_keys: int) -> Iterator[SnapshotRecord]:
    for api_key in api_keys:
        for record in sorted(state.others.get(api_key, {}).values(), key=lambda each: each.raw):
            known = record.raw if record.is_understood else make_record(api_key, record.version, record.fields).raw
            yield SnapshotRecord(record.raw, None if api_key in SECRET_KINDS else known)


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
        tags=partition.tags,
    )


def write_snapshot(state: ClusterMetadata, *, secrets: bool, timestamp_ms: int) -> bytes:
    """The whole file. Source: Kafka's format of snapshots, docs/formats/cluster-snapshot.md.

    secrets  False leaves out what is secret
    """
    raws = (record.raw if secrets else record.open_raw for record in snapshot_records(state))
    return write_checkpoint((raw for raw in raws if raw is not None), timestamp_ms=timestamp_ms)


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
