"""Every kind of record in a KRaft metadata log, as a table: which fields, of which types, since which version.

Source: the message schemas in Kafka's kafka-metadata 4.4.0 (4.3 has one kind less, 4.2 two versions and two tagged fields less). Kinds and
fields have the names that `kafka-dump-log.sh --cluster-metadata-decoder` prints.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments import flexible
from headwater_core.segments.flexible import Reader
from headwater_core.segments.varint import encode_uvarint

FRAME_VERSION = 1
_F64 = struct.Struct(">d")


class FieldType(NamedTuple):
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


class RecordField(NamedTuple):
    """since: the first version that has it. tag: None: it stands in its place in every record of these versions"""

    name: str
    type: FieldType
    since: int = 0
    tag: int | None = None


class RecordSchema(NamedTuple):
    """newest: the newest version that the table describes"""

    name: str
    newest: int
    fields: tuple[RecordField, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KnownRecord:
    """One record of a kind that the table has.

    fields         by name; a tagged field that is not there is absent
    is_understood  nothing is in it that the table does not have
    raw            the record, verbatim
    """

    api_key: int
    version: int
    fields: Mapping[str, Any]
    is_understood: bool
    raw: bytes

    @property
    def kind(self) -> str:
        return SCHEMAS[self.api_key].name

    def encode(self) -> bytes:
        return self.raw

    def __repr__(self) -> str:
        return f"KnownRecord({self.kind})"  # its fields may be secret


def decode_known(value: bytes, where: str) -> KnownRecord | None:
    """The record in one value of the metadata log; None for a kind, or a version of one, that the table does not have.

    Raises CorruptData or TruncatedData when its fields do not fit.
    """
    reader = Reader(value, where)
    frame, api_key, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    schema = SCHEMAS.get(api_key)
    if frame != FRAME_VERSION or schema is None or version > schema.newest:
        return None
    fields: dict[str, Any] = {}
    tagged: dict[int, RecordField] = {}
    for field in schema.fields:
        if version >= field.since:
            if field.tag is None:
                fields[field.name] = field.type.read(reader)
            else:
                tagged[field.tag] = field
    tags = reader.tags()
    for tag, found in tags.items():
        if tag in tagged:
            fields[tagged[tag].name] = tagged[tag].type.read(found)
    understood = reader.bytes_left == 0 and tags.keys() <= tagged.keys()
    return KnownRecord(api_key=api_key, version=version, fields=MappingProxyType(fields), is_understood=understood, raw=bytes(value))


def make_record(api_key: int, version: int, fields: Mapping[str, Any]) -> KnownRecord:
    """A record of these fields; a tagged one that is absent is left out. Raises KeyError when another is missing."""
    schema = SCHEMAS[api_key]
    body, tags = bytearray(), {}
    for field in schema.fields:
        if version >= field.since:
            if field.tag is None:
                body += field.type.write(fields[field.name])
            elif field.name in fields:
                tags[field.tag] = field.type.write(fields[field.name])
    raw = b"".join(encode_uvarint(each) for each in (FRAME_VERSION, api_key, version)) + bytes(body) + flexible.tags(tags)
    return KnownRecord(api_key=api_key, version=version, fields=MappingProxyType(dict(fields)), is_understood=True, raw=raw)


def _read_bytes(reader: Reader) -> bytes:
    size = reader.uvarint() - 1
    if size < 0:
        raise CorruptData(reader.where, reader.position, "null where bytes must be")
    return bytes(reader.take(size))


def _array_of(item: FieldType) -> FieldType:
    return FieldType(
        lambda reader: reader.array(lambda: item.read(reader)), lambda values: flexible.array(item.write(each) for each in values)
    )


def _nullable_array_of(item: FieldType) -> FieldType:
    return FieldType(
        lambda reader: reader.nullable_array(lambda: item.read(reader)),
        lambda values: encode_uvarint(0) if values is None else flexible.array(item.write(each) for each in values),
    )


def _struct_of(*fields: RecordField) -> FieldType:
    """A structure within a record: plain fields, then tagged ones, of which none is known."""

    def read(reader: Reader) -> dict[str, Any]:
        found = {field.name: field.type.read(reader) for field in fields}
        if reader.tags():
            raise CorruptData(reader.where, reader.position, "a structure has fields that its version does not have")
        return found

    return FieldType(read, lambda value: b"".join(field.type.write(value[field.name]) for field in fields) + flexible.tags({}))


_BOOL = FieldType(lambda reader: reader.i8() != 0, lambda value: flexible.i8(int(value)))
_I8 = FieldType(Reader.i8, flexible.i8)
_I16 = FieldType(Reader.i16, flexible.i16)
_U16 = FieldType(lambda reader: int.from_bytes(reader.take(2), "big"), lambda value: int(value).to_bytes(2, "big"))
_I32 = FieldType(Reader.i32, flexible.i32)
_I64 = FieldType(Reader.i64, flexible.i64)
_FLOAT = FieldType(lambda reader: _F64.unpack(reader.take(8))[0], _F64.pack)
_UUID = FieldType(Reader.uuid, flexible.uuid)
_TEXT = FieldType(Reader.string, flexible.string)
_TEXT_OR_NULL = FieldType(Reader.nullable_string, flexible.string)
_BYTES = FieldType(_read_bytes, lambda value: encode_uvarint(len(value) + 1) + value)
_I32S, _UUIDS, _TEXTS = _array_of(_I32), _array_of(_UUID), _array_of(_TEXT)
_I32S_OR_NULL, _UUIDS_OR_NULL = _nullable_array_of(_I32), _nullable_array_of(_UUID)
_END_POINTS = _array_of(
    _struct_of(RecordField("name", _TEXT), RecordField("host", _TEXT), RecordField("port", _U16), RecordField("securityProtocol", _I16))
)
_FEATURES = _array_of(
    _struct_of(RecordField("name", _TEXT), RecordField("minSupportedVersion", _I16), RecordField("maxSupportedVersion", _I16))
)
_ENTITY = _array_of(_struct_of(RecordField("entityType", _TEXT), RecordField("entityName", _TEXT_OR_NULL)))

REGISTER_BROKER, UNREGISTER_BROKER, FENCE_BROKER, UNFENCE_BROKER, BROKER_CHANGE = 0, 1, 7, 8, 17
REGISTER_CONTROLLER, UNREGISTER_CONTROLLER, ZK_MIGRATION, NO_OP, CLEAR_ELR = 27, 29, 21, 20, 28
KEPT, KEPT_TAG = "headwaterKept", 0x4857  # of a NoOp: a record that has no effect where it stands, verbatim. Kafka ignores it
TOKEN, REMOVE_TOKEN, SCRAM, REMOVE_SCRAM, QUOTA, ACL, REMOVE_ACL = 10, 26, 11, 22, 14, 18, 19

SCHEMAS: Mapping[int, RecordSchema] = {
    REGISTER_BROKER: RecordSchema(
        "REGISTER_BROKER_RECORD",
        4,
        (
            RecordField("brokerId", _I32),
            RecordField("isMigratingZkBroker", _BOOL, since=2),
            RecordField("incarnationId", _UUID),
            RecordField("brokerEpoch", _I64),
            RecordField("endPoints", _END_POINTS),
            RecordField("features", _FEATURES),
            RecordField("rack", _TEXT_OR_NULL),
            RecordField("fenced", _BOOL),
            RecordField("inControlledShutdown", _BOOL, since=1),
            RecordField("logDirs", _UUIDS, since=3, tag=0),
            RecordField("cordonedLogDirs", _UUIDS_OR_NULL, since=4, tag=1),
        ),
    ),
    UNREGISTER_BROKER: RecordSchema("UNREGISTER_BROKER_RECORD", 0, (RecordField("brokerId", _I32), RecordField("brokerEpoch", _I64))),
    2: RecordSchema("TOPIC_RECORD", 0, (RecordField("name", _TEXT), RecordField("topicId", _UUID))),
    3: RecordSchema(
        "PARTITION_RECORD",
        2,
        (
            RecordField("partitionId", _I32),
            RecordField("topicId", _UUID),
            RecordField("replicas", _I32S),
            RecordField("isr", _I32S),
            RecordField("removingReplicas", _I32S),
            RecordField("addingReplicas", _I32S),
            RecordField("leader", _I32),
            RecordField("leaderRecoveryState", _I8, tag=0),
            RecordField("leaderEpoch", _I32),
            RecordField("partitionEpoch", _I32),
            RecordField("directories", _UUIDS, since=1),
            RecordField("eligibleLeaderReplicas", _I32S_OR_NULL, since=2, tag=1),
            RecordField("lastKnownElr", _I32S_OR_NULL, since=2, tag=2),
        ),
    ),
    4: RecordSchema(
        "CONFIG_RECORD",
        0,
        (
            RecordField("resourceType", _I8),
            RecordField("resourceName", _TEXT),
            RecordField("name", _TEXT),
            RecordField("value", _TEXT_OR_NULL),
        ),
    ),
    5: RecordSchema(
        "PARTITION_CHANGE_RECORD",
        2,
        (
            RecordField("partitionId", _I32),
            RecordField("topicId", _UUID),
            RecordField("isr", _I32S_OR_NULL, tag=0),
            RecordField("leader", _I32, tag=1),
            RecordField("replicas", _I32S_OR_NULL, tag=2),
            RecordField("removingReplicas", _I32S_OR_NULL, tag=3),
            RecordField("addingReplicas", _I32S_OR_NULL, tag=4),
            RecordField("leaderRecoveryState", _I8, tag=5),
            RecordField("directories", _UUIDS_OR_NULL, since=1, tag=8),
            RecordField("eligibleLeaderReplicas", _I32S_OR_NULL, since=2, tag=6),
            RecordField("lastKnownElr", _I32S_OR_NULL, since=2, tag=7),
        ),
    ),
    FENCE_BROKER: RecordSchema("FENCE_BROKER_RECORD", 0, (RecordField("id", _I32), RecordField("epoch", _I64))),
    UNFENCE_BROKER: RecordSchema("UNFENCE_BROKER_RECORD", 0, (RecordField("id", _I32), RecordField("epoch", _I64))),
    9: RecordSchema("REMOVE_TOPIC_RECORD", 0, (RecordField("topicId", _UUID),)),
    TOKEN: RecordSchema(
        "DELEGATION_TOKEN_RECORD",
        0,
        (
            RecordField("owner", _TEXT),
            RecordField("requester", _TEXT),
            RecordField("renewers", _TEXTS),
            RecordField("issueTimestamp", _I64),
            RecordField("maxTimestamp", _I64),
            RecordField("expirationTimestamp", _I64),
            RecordField("tokenId", _TEXT),
        ),
    ),
    SCRAM: RecordSchema(
        "USER_SCRAM_CREDENTIAL_RECORD",
        0,
        (
            RecordField("name", _TEXT),
            RecordField("mechanism", _I8),
            RecordField("salt", _BYTES),
            RecordField("storedKey", _BYTES),
            RecordField("serverKey", _BYTES),
            RecordField("iterations", _I32),
        ),
    ),
    12: RecordSchema("FEATURE_LEVEL_RECORD", 0, (RecordField("name", _TEXT), RecordField("featureLevel", _I16))),
    QUOTA: RecordSchema(
        "CLIENT_QUOTA_RECORD",
        0,
        (RecordField("entity", _ENTITY), RecordField("key", _TEXT), RecordField("value", _FLOAT), RecordField("remove", _BOOL)),
    ),
    15: RecordSchema(
        "PRODUCER_IDS_RECORD", 0, (RecordField("brokerId", _I32), RecordField("brokerEpoch", _I64), RecordField("nextProducerId", _I64))
    ),
    BROKER_CHANGE: RecordSchema(
        "BROKER_REGISTRATION_CHANGE_RECORD",
        3,
        (
            RecordField("brokerId", _I32),
            RecordField("brokerEpoch", _I64),
            RecordField("fenced", _I8, tag=0),
            RecordField("inControlledShutdown", _I8, since=1, tag=1),
            RecordField("logDirs", _UUIDS, since=2, tag=2),
            RecordField("cordonedLogDirs", _UUIDS_OR_NULL, since=3, tag=3),
        ),
    ),
    ACL: RecordSchema(
        "ACCESS_CONTROL_ENTRY_RECORD",
        0,
        (
            RecordField("id", _UUID),
            RecordField("resourceType", _I8),
            RecordField("resourceName", _TEXT),
            RecordField("patternType", _I8),
            RecordField("principal", _TEXT),
            RecordField("host", _TEXT),
            RecordField("operation", _I8),
            RecordField("permissionType", _I8),
        ),
    ),
    REMOVE_ACL: RecordSchema("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", 0, (RecordField("id", _UUID),)),
    NO_OP: RecordSchema("NO_OP_RECORD", 0, (RecordField(KEPT, _BYTES, tag=KEPT_TAG),)),
    ZK_MIGRATION: RecordSchema("ZK_MIGRATION_STATE_RECORD", 0, (RecordField("zkMigrationState", _I8),)),
    REMOVE_SCRAM: RecordSchema("REMOVE_USER_SCRAM_CREDENTIAL_RECORD", 0, (RecordField("name", _TEXT), RecordField("mechanism", _I8))),
    23: RecordSchema("BEGIN_TRANSACTION_RECORD", 0, (RecordField("name", _TEXT_OR_NULL, tag=0),)),
    24: RecordSchema("END_TRANSACTION_RECORD", 0, ()),
    25: RecordSchema("ABORT_TRANSACTION_RECORD", 0, (RecordField("reason", _TEXT_OR_NULL, tag=0),)),
    REMOVE_TOKEN: RecordSchema("REMOVE_DELEGATION_TOKEN_RECORD", 0, (RecordField("tokenId", _TEXT),)),
    REGISTER_CONTROLLER: RecordSchema(
        "REGISTER_CONTROLLER_RECORD",
        0,
        (
            RecordField("controllerId", _I32),
            RecordField("incarnationId", _UUID),
            RecordField("zkMigrationReady", _BOOL),
            RecordField("endPoints", _END_POINTS),
            RecordField("features", _FEATURES),
        ),
    ),
    CLEAR_ELR: RecordSchema("CLEAR_ELR_RECORD", 0, (RecordField("topicName", _TEXT),)),
    UNREGISTER_CONTROLLER: RecordSchema("UNREGISTER_CONTROLLER_RECORD", 0, (RecordField("controllerId", _I32),)),
}
