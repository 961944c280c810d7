"""KRaft metadata records: one frozen value each for those of topics and what archiving needs, and their bytes; all others by the table.

Source: the message schemas of Kafka 4.3 (docs/formats/kafka-log.md, "The metadata log").
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import ClassVar

from headwater_core.errors import UnsupportedFormat
from headwater_core.segments import flexible
from headwater_core.segments.flexible import Reader
from headwater_core.segments.metadata.record_schemas import FRAME_VERSION, KnownRecord, decode_known
from headwater_core.segments.varint import encode_uvarint

UNASSIGNED = "AAAAAAAAAAAAAAAAAAAAAQ"  # the directory id that lets the broker choose: value 1
NO_LEADER = -1
_LEADER_UNCHANGED = -2
_RECOVERY_UNCHANGED = -1

Tags = tuple[tuple[int, bytes], ...]
"""Tagged fields that nobody here knows, by their numbers: they stay with their record, byte for byte."""

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevel:
    """level 0 removes the feature."""

    api_key: ClassVar[int] = 12
    name: str
    level: int
    tags: Tags = ()

    def encode(self) -> bytes:
        return _frame(self.api_key, 0, flexible.string(self.name) + flexible.i16(self.level) + flexible.tags(dict(self.tags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    api_key: ClassVar[int] = 2
    name: str
    topic_id: str
    tags: Tags = ()

    def encode(self) -> bytes:
        return _frame(self.api_key, 0, flexible.string(self.name) + flexible.uuid(self.topic_id) + flexible.tags(dict(self.tags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopic:
    api_key: ClassVar[int] = 9
    topic_id: str
    tags: Tags = ()

    def encode(self) -> bytes:
        return _frame(self.api_key, 0, flexible.uuid(self.topic_id) + flexible.tags(dict(self.tags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """leader  NO_LEADER lets the controller elect one of `last_known_elr` or `in_sync`"""

    api_key: ClassVar[int] = 3
    partition: int
    topic_id: str
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    leader_recovery: int = 0
    tags: Tags = ()

    def encode(self, version: int = 2) -> bytes:
        """One directory per replica, UNASSIGNED when none is given. Version 1 has no eligible leaders, version 0 no directories either."""
        directories = self.directories or (UNASSIGNED,) * len(self.replicas)
        eligible = ((1, self.eligible_leader_replicas), (2, self.last_known_elr)) if version >= 2 else ()
        tagged = dict(self.tags) | {tag: _i32s(value) for tag, value in eligible if value is not None}
        if self.leader_recovery:
            tagged[0] = flexible.i8(self.leader_recovery)
        return _frame(
            self.api_key,
            version,
            flexible.i32(self.partition)
            + flexible.uuid(self.topic_id)
            + b"".join(_i32s(each) for each in (self.replicas, self.in_sync, self.removing, self.adding))
            + flexible.i32(self.leader)
            + flexible.i32(self.leader_epoch)
            + flexible.i32(self.partition_epoch)
            + (flexible.array(flexible.uuid(each) for each in directories) if version >= 1 else b"")
            + flexible.tags(tagged),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """None where a field stays as it was. A new leader, or the same one named again, begins a leader epoch."""

    api_key: ClassVar[int] = 5
    partition: int
    topic_id: str
    in_sync: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    leader_recovery: int | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[str, ...] | None = None
    tags: Tags = ()

    def encode(self) -> bytes:
        """As version 2."""
        of_nodes = {0: self.in_sync, 2: self.replicas, 3: self.removing, 4: self.adding}
        of_nodes |= {6: self.eligible_leader_replicas, 7: self.last_known_elr}
        tagged = dict(self.tags) | {tag: _i32s(nodes) for tag, nodes in of_nodes.items() if nodes is not None}
        if self.leader is not None:
            tagged[1] = flexible.i32(self.leader)
        if self.leader_recovery is not None:
            tagged[5] = flexible.i8(self.leader_recovery)
        if self.directories is not None:
            tagged[8] = flexible.array(flexible.uuid(each) for each in self.directories)
        return _frame(self.api_key, 2, flexible.i32(self.partition) + flexible.uuid(self.topic_id) + flexible.tags(tagged))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """value None deletes the setting. resource_name "" is every broker's default."""

    api_key: ClassVar[int] = 4
    resource_type: int = RESOURCE_TOPIC
    resource_name: str
    name: str
    value: str | None
    tags: Tags = ()

    def encode(self) -> bytes:
        text = b"".join(flexible.string(each) for each in (self.resource_name, self.name, self.value))
        return _frame(self.api_key, 0, flexible.i8(self.resource_type) + text + flexible.tags(dict(self.tags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIds:
    """Producer ids from next_producer_id on have not been handed out."""

    api_key: ClassVar[int] = 15
    broker: int
    broker_epoch: int
    next_producer_id: int
    tags: Tags = ()

    def encode(self) -> bytes:
        fields = flexible.i32(self.broker) + flexible.i64(self.broker_epoch) + flexible.i64(self.next_producer_id)
        return _frame(self.api_key, 0, fields + flexible.tags(dict(self.tags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """BeginTransaction, EndTransaction, AbortTransaction: what lies between counts as a whole or not at all."""

    BEGIN: ClassVar[int] = 23
    END: ClassVar[int] = 24
    ABORT: ClassVar[int] = 25
    api_key: int

    def encode(self) -> bytes:
        return _frame(self.api_key, 0, flexible.tags({}))  # names and reasons are tagged, for people only


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A record of a kind, or of a version of one, that this version of ours does not know: verbatim."""

    api_key: int
    raw: bytes

    def encode(self) -> bytes:
        return self.raw


MetadataRecord = (
    FeatureLevel | Topic | RemoveTopic | Partition | PartitionChange | ConfigRecord | ProducerIds | Transaction | KnownRecord | Unread
)


def decode_metadata_record(value: bytes, *, where: str = "metadata record") -> MetadataRecord:
    """The record in one value of the metadata log. One that is not known comes back as Unread.

    Raises CorruptData or TruncatedData when its fields do not fit, UnsupportedFormat for another frame, or for what archiving needs in
    a version that is newer than the ones we know.
    """
    reader = Reader(value, where)
    frame = reader.uvarint()
    if frame != FRAME_VERSION:
        raise UnsupportedFormat(f"{where} has frame version {frame}; this version reads {FRAME_VERSION}")
    api_key, version = reader.uvarint(), reader.uvarint()
    newest = _NEWEST_VERSION.get(api_key)
    if newest is None:
        return decode_known(value, where) or Unread(api_key=api_key, raw=bytes(value))
    if version > newest:
        raise UnsupportedFormat(f"{where} has api key {api_key} in version {version}; this version reads up to {newest}")
    return _decode_fields(reader, api_key, version)


_NEWEST_VERSION = {2: 0, 3: 2, 4: 0, 5: 2, 9: 0, 12: 0, 15: 0, 23: 0, 24: 0, 25: 0}


def _decode_fields(reader: Reader, api_key: int, version: int) -> MetadataRecord:
    match api_key:
        case Topic.api_key:
            return Topic(name=reader.string(), topic_id=reader.uuid(), tags=_unknown(reader.tags()))
        case RemoveTopic.api_key:
            return RemoveTopic(topic_id=reader.uuid(), tags=_unknown(reader.tags()))
        case Partition.api_key:
            return _decode_partition(reader, version)
        case PartitionChange.api_key:
            partition, topic_id, tags = reader.i32(), reader.uuid(), reader.tags()
            leader = tags[1].i32() if 1 in tags else _LEADER_UNCHANGED
            recovery = tags[5].i8() if 5 in tags else _RECOVERY_UNCHANGED
            return PartitionChange(
                partition=partition,
                topic_id=topic_id,
                in_sync=_tagged_i32s(tags, 0),
                leader=None if leader == _LEADER_UNCHANGED else leader,
                replicas=_tagged_i32s(tags, 2),
                removing=_tagged_i32s(tags, 3),
                adding=_tagged_i32s(tags, 4),
                leader_recovery=None if recovery == _RECOVERY_UNCHANGED else recovery,
                eligible_leader_replicas=_tagged_i32s(tags, 6),
                last_known_elr=_tagged_i32s(tags, 7),
                directories=tags[8].nullable_array(tags[8].uuid) if 8 in tags else None,
                tags=_unknown(tags, range(9)),
            )
        case ConfigRecord.api_key:
            return ConfigRecord(
                resource_type=reader.i8(),
                resource_name=reader.string(),
                name=reader.string(),
                value=reader.nullable_string(),
                tags=_unknown(reader.tags()),
            )
        case FeatureLevel.api_key:
            return FeatureLevel(name=reader.string(), level=reader.i16(), tags=_unknown(reader.tags()))
        case ProducerIds.api_key:
            broker, epoch, following = reader.i32(), reader.i64(), reader.i64()
            return ProducerIds(broker=broker, broker_epoch=epoch, next_producer_id=following, tags=_unknown(reader.tags()))
        case _:
            return Transaction(api_key=api_key)


def _decode_partition(reader: Reader, version: int) -> Partition:
    partition, topic_id = reader.i32(), reader.uuid()
    replicas, in_sync, removing, adding = (_read_i32s(reader) for _ in range(4))
    leader, leader_epoch, partition_epoch = reader.i32(), reader.i32(), reader.i32()
    directories = reader.array(reader.uuid) if version >= 1 else ()
    tags = reader.tags()
    return Partition(
        partition=partition,
        topic_id=topic_id,
        replicas=replicas,
        in_sync=in_sync,
        removing=removing,
        adding=adding,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=directories,
        eligible_leader_replicas=_tagged_i32s(tags, 1),
        last_known_elr=_tagged_i32s(tags, 2),
        leader_recovery=tags[0].i8() if 0 in tags else 0,
        tags=_unknown(tags, range(3)),
    )


def _unknown(tags: Mapping[int, Reader], known: Container[int] = ()) -> Tags:
    return tuple((tag, bytes(found.take(found.bytes_left))) for tag, found in sorted(tags.items()) if tag not in known)


def _frame(api_key: int, version: int, fields: bytes) -> bytes:
    return encode_uvarint(FRAME_VERSION) + encode_uvarint(api_key) + encode_uvarint(version) + fields


def _i32s(values: tuple[int, ...]) -> bytes:
    return flexible.array(flexible.i32(each) for each in values)


def _read_i32s(reader: Reader) -> tuple[int, ...]:
    return reader.array(reader.i32)


def _tagged_i32s(tags: Mapping[int, Reader], tag: int) -> tuple[int, ...] | None:
    return tags[tag].nullable_array(tags[tag].i32) if tag in tags else None
