"""The state of a cluster while it is built, record by record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headwater_core.errors import CorruptData
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_records import (
    RESOURCE_TOPIC,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Topic,
    Transaction,
    Unread,
    decode_metadata_record,
)
from headwater_core.segments.records import decode_batch

_NO_OP = 20


@dataclass(slots=True)
class _Topic:
    name: str
    topic_id: str
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class MetadataImage:
    """The state while it is built, record by record."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._topics: dict[str, _Topic] = {}  # by id
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._features: dict[str, int] = {}
        self._next_producer_id = 0
        self._unread: dict[int, int] = {}
        self._pending: list[MetadataRecord] | None = None

    def apply_batch(self, header: BatchHeader, batch: memoryview, where: str) -> bool:
        """Apply the records of `batch`; True when something but NoOp records was in it. Raises CorruptData, UnsupportedFormat."""
        if header.is_control:
            return False
        changed = False
        for record in decode_batch(batch, where=where):
            if record.value is None:
                raise CorruptData(where, 0, f"metadata record {record.offset} is null")
            decoded = decode_metadata_record(record.value, where=f"{where}, record {record.offset}")
            changed |= self._take(decoded, where)
        return changed

    def _take(self, record: MetadataRecord, where: str) -> bool:
        if isinstance(record, Transaction):
            if record.api_key == Transaction.BEGIN:
                self._pending = []
                return False
            pending, self._pending = self._pending or [], None
            if record.api_key == Transaction.ABORT:
                return False
            for each in pending:
                self._apply(each, where)
            return bool(pending)
        if self._pending is not None:
            self._pending.append(record)
            return False
        self._apply(record, where)
        return not (isinstance(record, Unread) and record.api_key == _NO_OP)

    def _apply(self, record: MetadataRecord, where: str) -> None:
        match record:
            case Topic():
                self._topics[record.topic_id] = _Topic(record.name, record.topic_id)
            case RemoveTopic():
                topic = self._topics.pop(record.topic_id, None)
                if topic is not None:
                    self._configs.pop((RESOURCE_TOPIC, topic.name), None)
            case Partition():
                self._topic(record.topic_id, where).partitions[record.partition] = PartitionMetadata(
                    leader=record.leader, leader_epoch=record.leader_epoch, replicas=record.replicas, isr=record.in_sync
                )
            case PartitionChange():
                partitions = self._topic(record.topic_id, where).partitions
                if record.partition not in partitions:
                    raise CorruptData(where, 0, f"a change of partition {record.partition}, which {record.topic_id} does not have")
                partitions[record.partition] = _changed(partitions[record.partition], record)
            case ConfigRecord():
                settings = self._configs.setdefault((record.resource_type, record.resource_name), {})
                if record.value is None:
                    settings.pop(record.name, None)
                else:
                    settings[record.name] = record.value
            case FeatureLevel():
                self._features[record.name] = record.level
                if not record.level:
                    del self._features[record.name]
            case ProducerIds():
                self._next_producer_id = max(self._next_producer_id, record.next_producer_id)
            case Unread():
                self._unread[record.api_key] = self._unread.get(record.api_key, 0) + 1

    def _topic(self, topic_id: str, where: str) -> _Topic:
        try:
            return self._topics[topic_id]
        except KeyError:
            raise CorruptData(where, 0, f"a partition of topic id {topic_id}, which does not exist") from None

    def freeze(self) -> ClusterMetadata:
        """The state as it is now, as a value."""
        configs = {key: MappingProxyType(dict(value)) for key, value in self._configs.items()}
        nothing: Mapping[str, str] = MappingProxyType({})
        topics = {
            topic.name: TopicMetadata(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=MappingProxyType(dict(sorted(topic.partitions.items()))),
                configs=configs.get((RESOURCE_TOPIC, topic.name), nothing),
            )
            for topic in self._topics.values()
        }
        return ClusterMetadata(
            topics=MappingProxyType(topics),
            configs=MappingProxyType({key: value for key, value in configs.items() if key[0] != RESOURCE_TOPIC}),
            features=MappingProxyType(dict(self._features)),
            next_producer_id=self._next_producer_id,
            unread=MappingProxyType(dict(self._unread)),
            end_offset=self.end_offset,
        )


def _changed(before: PartitionMetadata, change: PartitionChange) -> PartitionMetadata:
    return PartitionMetadata(
        leader=before.leader if change.leader is None else change.leader,
        leader_epoch=before.leader_epoch + (change.leader is not None),
        replicas=before.replicas if change.replicas is None else change.replicas,
        isr=before.isr if change.in_sync is None else change.in_sync,
    )
