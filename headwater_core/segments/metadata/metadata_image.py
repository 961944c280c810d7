"""The state of a cluster while it is built, record by record."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.metadata.cluster_metadata import (
    UNKNOWN_BYTES_MAX,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from headwater_core.segments.metadata.metadata_records import (
    RESOURCE_TOPIC,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Tags,
    Topic,
    Transaction,
    Unread,
    decode_metadata_record,
)
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    BROKER_CHANGE,
    CLEAR_ELR,
    FENCE_BROKER,
    KEPT,
    NO_OP,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    REMOVE_ACL,
    REMOVE_SCRAM,
    REMOVE_TOKEN,
    SCRAM,
    TOKEN,
    UNFENCE_BROKER,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    ZK_MIGRATION,
    KnownRecord,
    make_record,
)
from headwater_core.segments.records import decode_batch


def _quota_key(fields: Mapping[str, Any]) -> Hashable:
    return tuple(sorted((each["entityType"], each["entityName"] or "", each["entityName"] is None) for each in fields["entity"])), fields[
        "key"
    ]


_ABOUT: Mapping[int, Callable[[Mapping[str, Any]], Hashable]] = {  # of two records about the same the later one holds
    REGISTER_BROKER: lambda fields: fields["brokerId"],
    REGISTER_CONTROLLER: lambda fields: fields["controllerId"],
    TOKEN: lambda fields: fields["tokenId"],
    SCRAM: lambda fields: (fields["name"], fields["mechanism"]),
    QUOTA: _quota_key,
    ACL: lambda fields: fields["id"],
    ZK_MIGRATION: lambda _: 0,
}


_BROKER_VERSION = 4  # has room for all that the changes of older ones say


class _Removal(NamedTuple):
    """What a record takes away: that of which kind, about what."""

    api_key: int
    about: Callable[[Mapping[str, Any]], Hashable]


_REMOVALS: Mapping[int, _Removal] = {
    UNREGISTER_BROKER: _Removal(REGISTER_BROKER, _ABOUT[REGISTER_BROKER]),
    UNREGISTER_CONTROLLER: _Removal(REGISTER_CONTROLLER, _ABOUT[REGISTER_CONTROLLER]),
    REMOVE_TOKEN: _Removal(TOKEN, _ABOUT[TOKEN]),
    REMOVE_SCRAM: _Removal(SCRAM, _ABOUT[SCRAM]),
    REMOVE_ACL: _Removal(ACL, _ABOUT[ACL]),
}


def _family(api_key: int) -> int:
    """What a record of this kind is about: the same as one that takes it away."""
    return _REMOVALS[api_key].api_key if api_key in _REMOVALS else api_key


class _Verbatim(NamedTuple):
    api_key: int
    raw: bytes


@dataclass(slots=True)
class _Topic:
    name: str
    topic_id: str
    tags: Tags = ()
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class MetadataImage:
    """The state while it is built, record by record."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.end_epoch = 0
        self.appended_ms = 0
        self._topics: dict[str, _Topic] = {}  # by id
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._features: dict[str, int] = {}
        self._next_producer_id = 0
        self._config_tags: dict[tuple[int, str, str], Tags] = {}
        self._others: dict[int, dict[Hashable, KnownRecord]] = {}
        self._unknown: list[_Verbatim] = []
        self._kept: list[_Verbatim] = []
        self._unknown_families: set[int] = set()
        self._beyond: Counter[int] = Counter()  # of both, what there was no room for
        self._verbatim_bytes = 0
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
        return record.api_key != NO_OP

    def _apply(self, record: MetadataRecord, where: str) -> None:
        match record:
            case Topic():
                self._topics[record.topic_id] = _Topic(record.name, record.topic_id, record.tags)
            case RemoveTopic():
                topic = self._topics.pop(record.topic_id, None)
                if topic is not None:
                    for name in self._configs.pop((RESOURCE_TOPIC, topic.name), {}):
                        self._config_tags.pop((RESOURCE_TOPIC, topic.name, name), None)
                self._keep_unless_known(record)
            case Partition():
                self._topic(record.topic_id, where).partitions[record.partition] = PartitionMetadata(
                    leader=record.leader,
                    leader_epoch=record.leader_epoch,
                    replicas=record.replicas,
                    isr=record.in_sync,
                    partition_epoch=record.partition_epoch,
                    removing=record.removing,
                    adding=record.adding,
                    leader_recovery=record.leader_recovery,
                    elr=record.eligible_leader_replicas,
                    last_known_elr=record.last_known_elr,
                    directories=record.directories,
                    tags=record.tags,
                )
            case PartitionChange():
                partitions = self._topic(record.topic_id, where).partitions
                if record.partition not in partitions:
                    raise CorruptData(where, 0, f"a change of partition {record.partition}, which {record.topic_id} does not have")
                partitions[record.partition] = _changed(partitions[record.partition], record)
                self._keep_unless_known(record)
            case ConfigRecord():
                place = record.resource_type, record.resource_name, record.name
                self._config_tags.pop(place, None)
                if record.tags and record.value is not None:
                    self._config_tags[place] = record.tags
                settings = self._configs.setdefault((record.resource_type, record.resource_name), {})
                if record.value is None:
                    settings.pop(record.name, None)
                else:
                    settings[record.name] = record.value
            case FeatureLevel():
                self._features[record.name] = record.level
                if not record.level:
                    del self._features[record.name]
                self._keep_unless_known(record)
            case ProducerIds():
                self._next_producer_id = max(self._next_producer_id, record.next_producer_id)
                self._keep_unless_known(record)
            case KnownRecord():
                self._apply_known(record)
            case Unread():
                self._keep(self._unknown, record.api_key, record.raw)
                self._unknown_families.add(_family(record.api_key))

    def _apply_known(self, record: KnownRecord) -> None:
        fields = record.fields
        self._set_aside(_family(record.api_key))
        if record.api_key == NO_OP:
            if KEPT in fields:
                self._keep(self._kept, decode_metadata_record(fields[KEPT]).api_key, fields[KEPT])
            return
        if not record.is_understood and record.api_key not in _ABOUT:
            self._keep(self._kept, record.api_key, record.raw)  # what else it changes nobody here can take into account
        if record.api_key in _ABOUT:
            about, held = _ABOUT[record.api_key](fields), self._others.setdefault(record.api_key, {})
            held.pop(about, None)
            if not (record.api_key == QUOTA and fields["remove"]):
                held[about] = record
        elif record.api_key in _REMOVALS:
            removal = _REMOVALS[record.api_key]
            self._others.get(removal.api_key, {}).pop(removal.about(fields), None)
        elif record.api_key in (FENCE_BROKER, UNFENCE_BROKER):
            self._change_broker(fields["id"], {"fenced": record.api_key == FENCE_BROKER})
        elif record.api_key == BROKER_CHANGE:
            changes = {name: fields[name] > 0 for name in ("fenced", "inControlledShutdown") if fields.get(name)}  # 1 and -1; 0: as it was
            if fields.get("logDirs"):
                changes["logDirs"] = fields["logDirs"]
            if fields.get("cordonedLogDirs") is not None:
                changes["cordonedLogDirs"] = fields["cordonedLogDirs"]
            self._change_broker(fields["brokerId"], changes)
        elif record.api_key == CLEAR_ELR:
            for topic in self._topics.values():
                if fields["topicName"] in ("", topic.name):
                    for number, partition in topic.partitions.items():
                        topic.partitions[number] = replace(partition, elr=None, last_known_elr=None)

    def _change_broker(self, broker: int, changes: Mapping[str, Any]) -> None:
        held = self._others.get(REGISTER_BROKER, {})
        if (before := held.get(broker)) is not None:
            fields = {"isMigratingZkBroker": False, "inControlledShutdown": False, **before.fields, **changes}
            held[broker] = make_record(REGISTER_BROKER, _BROKER_VERSION, fields)

    def _keep(self, where: list[_Verbatim], api_key: int, raw: bytes) -> None:
        self._verbatim_bytes += len(raw)
        if self._verbatim_bytes <= UNKNOWN_BYTES_MAX:
            where.append(_Verbatim(api_key, raw))
        else:
            self._beyond[api_key] += 1

    def _keep_unless_known(self, record: RemoveTopic | PartitionChange | FeatureLevel | ProducerIds) -> None:
        """A change with fields that nobody here can take into account."""
        if record.tags:
            self._keep(self._kept, record.api_key, record.encode())

    def _set_aside(self, family: int) -> None:
        """Unknown records of this family, that a known one follows: the later one holds, so they must not be applied after all else."""
        if family not in self._unknown_families:
            return
        self._unknown_families.discard(family)
        self._kept += (each for each in self._unknown if _family(each.api_key) == family)
        self._unknown = [each for each in self._unknown if _family(each.api_key) != family]

    def _partly_known(self) -> Iterator[int]:
        """The api keys of records in the state with fields that are not known."""
        for topic in self._topics.values():
            if topic.tags:
                yield Topic.api_key
            yield from (Partition.api_key for partition in topic.partitions.values() if partition.tags)
        yield from (ConfigRecord.api_key for _ in self._config_tags)
        for held in self._others.values():
            yield from (record.api_key for record in held.values() if not record.is_understood)

    def _topic(self, topic_id: str, where: str) -> _Topic:
        try:
            return self._topics[topic_id]
        except KeyError:
            raise CorruptData(where, 0, f"a partition of topic id {topic_id}, which does not exist") from None

    def freeze(self) -> ClusterMetadata:
        """The state as it is now, as a value."""
        configs = {key: MappingProxyType(dict(value)) for key, value in self._configs.items()}
        unread = Counter(each.api_key for each in (*self._unknown, *self._kept)) + self._beyond + Counter(self._partly_known())
        nothing: Mapping[str, str] = MappingProxyType({})
        topics = {
            topic.name: TopicMetadata(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=MappingProxyType(dict(sorted(topic.partitions.items()))),
                configs=configs.get((RESOURCE_TOPIC, topic.name), nothing),
                tags=topic.tags,
            )
            for topic in self._topics.values()
        }
        return ClusterMetadata(
            topics=MappingProxyType(topics),
            configs=MappingProxyType({key: value for key, value in configs.items() if key[0] != RESOURCE_TOPIC}),
            features=MappingProxyType(dict(self._features)),
            next_producer_id=self._next_producer_id,
            unread=MappingProxyType(dict(unread)),
            end_offset=self.end_offset,
            end_epoch=self.end_epoch,
            appended_ms=self.appended_ms,
            others=MappingProxyType({api_key: MappingProxyType(dict(held)) for api_key, held in self._others.items() if held}),
            unknown=tuple(each.raw for each in self._unknown),
            kept=tuple(each.raw for each in self._kept),
            config_tags=MappingProxyType(dict(self._config_tags)),
        )


def _changed(before: PartitionMetadata, change: PartitionChange) -> PartitionMetadata:
    replicas = before.replicas if change.replicas is None else change.replicas
    directories = before.directories if change.directories is None else change.directories
    return PartitionMetadata(
        leader=before.leader if change.leader is None else change.leader,
        leader_epoch=before.leader_epoch + (change.leader is not None),
        replicas=replicas,
        isr=before.isr if change.in_sync is None else change.in_sync,
        partition_epoch=before.partition_epoch + 1,
        removing=before.removing if change.removing is None else change.removing,
        adding=before.adding if change.adding is None else change.adding,
        leader_recovery=before.leader_recovery if change.leader_recovery is None else change.leader_recovery,
        elr=before.elr if change.eligible_leader_replicas is None else change.eligible_leader_replicas,
        last_known_elr=before.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        directories=directories if len(directories) == len(replicas) else (),
        tags=before.tags,
    )
