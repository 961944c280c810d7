"""A cluster's state as a file, and back."""

from dataclasses import replace

import pytest

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments import flexible
from headwater_core.segments.metadata.cluster_metadata import UNKNOWN_BYTES_MAX, ClusterMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_records import ConfigRecord, PartitionChange, RemoveTopic, Topic, Unread
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot, write_snapshot
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    BROKER_CHANGE,
    CLEAR_ELR,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    REMOVE_ACL,
    REMOVE_SCRAM,
    SCRAM,
    TOKEN,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    KnownRecord,
    make_record,
)
from tests.fixtures import unpack
from tests.headwater_core.segments.metadata.test_record_schemas import AN_ACL, SECRET
from tests.headwater_core.segments.metadata.written_log import SOUP, Log, a_partition

BROKER = {
    "brokerId": 1,
    "isMigratingZkBroker": False,
    "incarnationId": SOUP,
    "brokerEpoch": 7,
    "endPoints": ({"name": "A", "host": "h", "port": 65535, "securityProtocol": 0},),
    "features": (),
    "rack": None,
    "fenced": True,
    "inControlledShutdown": False,
}
TOKEN_FIELDS: dict[str, object] = {"owner": "o", "requester": "r", "renewers": ("x",), "tokenId": "token-one"}
TOKEN_FIELDS |= dict.fromkeys(("issueTimestamp", "maxTimestamp", "expirationTimestamp"), 5)
UNKNOWN = bytes([1, 99, 0]) + b"from a later Kafka"


def quota(value: float, *, user: str | None, remove: bool = False) -> KnownRecord:
    entity = ({"entityType": "user", "entityName": user},)
    return make_record(QUOTA, 0, {"entity": entity, "key": "producer_byte_rate", "value": value, "remove": remove})


def again(state: ClusterMetadata, *, secrets: bool = True) -> ClusterMetadata:
    raw = write_snapshot(state, secrets=secrets, timestamp_ms=state.appended_ms)
    return read_snapshot(raw, "test", end_offset=state.end_offset, end_epoch=state.end_epoch)


@pytest.mark.parametrize("log", ["pantry", "kitchen", "brigade/node1", "brigade/node9"])
def test_a_brokers_state_comes_back_from_a_file(log: str) -> None:
    name, _, below = log.partition("/")
    state = MetadataLog(unpack(name) / below / DIRECTORY).read()
    assert state.unread == {}
    assert state.end_epoch > 0
    assert again(state) == state


def test_the_state_is_what_the_last_records_say(log: Log) -> None:
    log.append(make_record(REGISTER_BROKER, 0, BROKER), make_record(REGISTER_BROKER, 4, BROKER | {"brokerId": 2}))
    log.append(make_record(BROKER_CHANGE, 0, {"brokerId": 1, "brokerEpoch": 7, "fenced": -1}))
    log.append(make_record(UNREGISTER_BROKER, 0, {"brokerId": 2, "brokerEpoch": 7}))
    controller = {"incarnationId": SOUP, "zkMigrationReady": False, "endPoints": [], "features": []}
    log.append(*(make_record(REGISTER_CONTROLLER, 0, controller | {"controllerId": node}) for node in (1, 2)))
    log.append(make_record(UNREGISTER_CONTROLLER, 0, {"controllerId": 2}))
    log.append(make_record(ACL, 0, AN_ACL), make_record(ACL, 0, AN_ACL | {"id": SOUP}), make_record(REMOVE_ACL, 0, {"id": SOUP}))
    log.append(
        make_record(SCRAM, 0, SECRET), make_record(SCRAM, 0, SECRET | {"mechanism": 2}), make_record(SCRAM, 0, SECRET | {"salt": b"n"})
    )
    log.append(make_record(REMOVE_SCRAM, 0, {"name": "chef", "mechanism": 2}))
    log.append(quota(1.5, user="a"), quota(2.5, user="a"), quota(3.5, user=None), quota(4.5, user=""), quota(0, user=None, remove=True))
    found = again(MetadataLog(log.directory).read())
    (broker,) = found.others[REGISTER_BROKER].values()
    assert (broker.fields["brokerId"], broker.fields["fenced"], broker.fields["endPoints"][0]["port"]) == (1, False, 65535)
    assert [each.fields["controllerId"] for each in found.others[REGISTER_CONTROLLER].values()] == [1]
    assert [each.fields["id"] for each in found.others[ACL].values()] == [AN_ACL["id"]]
    assert [each.fields["salt"] for each in found.others[SCRAM].values()] == [b"n"]
    assert sorted(each.fields["value"] for each in found.others[QUOTA].values()) == [2.5, 4.5]


def test_replicas_that_may_lead_are_kept_until_they_are_cleared(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition())
    log.append(
        PartitionChange(partition=0, topic_id=SOUP, eligible_leader_replicas=(2,), last_known_elr=(1,), adding=(3,), leader_recovery=1)
    )
    found = again(MetadataLog(log.directory).read()).topics["soup"].partitions[0]
    assert (found.elr, found.last_known_elr, found.adding, found.leader_recovery, found.partition_epoch) == ((2,), (1,), (3,), 1, 1)
    log.append(make_record(CLEAR_ELR, 0, {"topicName": ""}))
    assert MetadataLog(log.directory).read().topics["soup"].partitions[0].elr is None


def test_what_is_unknown_stays_byte_for_byte_in_order_and_is_counted(log: Log) -> None:
    log.append(Unread(api_key=99, raw=UNKNOWN), Unread(api_key=98, raw=b"\x01\x62\x00!"), Unread(api_key=99, raw=UNKNOWN))
    found = again(MetadataLog(log.directory).read())
    assert found.unknown == (UNKNOWN, b"\x01\x62\x00!", UNKNOWN)
    assert found.unread == {99: 2, 98: 1}


TAG = 77, b"of a later Kafka"


def with_tag(record: KnownRecord) -> Unread:
    """`record` with a tagged field that nobody knows. It has none of its own."""
    assert record.raw.endswith(b"\x00")
    return Unread(api_key=record.api_key, raw=record.raw[:-1] + flexible.tags(dict([TAG])))


def test_fields_that_are_not_known_stay_with_their_record_which_is_applied_once_and_counted(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP, tags=(TAG,)), replace(a_partition(), tags=(TAG,)))
    log.append(ConfigRecord(resource_name="soup", name="retention.ms", value="5", tags=(TAG,)))
    log.append(with_tag(make_record(SCRAM, 0, SECRET)), with_tag(make_record(ACL, 0, AN_ACL)), with_tag(make_record(ACL, 0, AN_ACL)))
    state = MetadataLog(log.directory).read()
    assert again(state) == state
    assert state.unread == {2: 1, 3: 1, 4: 1, SCRAM: 1, ACL: 1}
    assert (state.unknown, state.kept) == ((), ())
    assert (state.topics["soup"].tags, state.topics["soup"].partitions[0].tags) == ((TAG,), (TAG,))
    (acl,) = state.others[ACL].values()
    assert acl.raw.endswith(TAG[1])
    without = again(state, secrets=False)
    assert (without.unread, without.topics["soup"].configs) == ({}, {"retention.ms": "5"})
    assert [each.fields["id"] for each in without.others[ACL].values()] == [AN_ACL["id"]]
    log.append(
        make_record(ACL, 0, AN_ACL), make_record(SCRAM, 0, SECRET), ConfigRecord(resource_name="soup", name="retention.ms", value="6")
    )
    assert MetadataLog(log.directory).read().unread == {2: 1, 3: 1}
    log.append(RemoveTopic(topic_id=SOUP))
    assert MetadataLog(log.directory).read().unread == {}


def test_a_change_with_fields_that_are_not_known_is_applied_where_it_stands_and_kept_without_effect(log: Log) -> None:
    removal = with_tag(make_record(REMOVE_SCRAM, 0, {"name": "chef", "mechanism": 1}))
    change = PartitionChange(partition=0, topic_id=SOUP, leader=2, tags=(TAG,))
    log.append(make_record(SCRAM, 0, SECRET), removal, make_record(SCRAM, 0, SECRET | {"salt": b"new"}))
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(), change)
    state = MetadataLog(log.directory).read()
    found = again(state)
    assert found == state
    assert [each.fields["salt"] for each in found.others[SCRAM].values()] == [b"new"]
    assert found.topics["soup"].partitions[0].leader_epoch == a_partition().leader_epoch + 1
    assert (found.unknown, found.kept) == ((), (removal.raw, change.encode()))
    assert found.unread == {REMOVE_SCRAM: 1, 5: 1}


def test_an_unknown_record_that_a_known_one_may_undo_is_not_applied_after_it(log: Log) -> None:
    later = Unread(api_key=SCRAM, raw=b"\x01\x0b\x07of a later version")
    other = Unread(api_key=99, raw=UNKNOWN)
    log.append(later, other)
    assert MetadataLog(log.directory).read().unknown == (later.raw, UNKNOWN)
    log.append(make_record(REMOVE_SCRAM, 0, {"name": "chef", "mechanism": 1}))
    state = MetadataLog(log.directory).read()
    assert (state.unknown, state.kept, state.unread) == ((UNKNOWN,), (later.raw,), {SCRAM: 1, 99: 1})
    assert again(state) == state
    log.append(later)
    state = MetadataLog(log.directory).read()
    assert (state.unknown, state.kept) == ((UNKNOWN, later.raw), (later.raw,))
    assert again(state) == state


def test_unknown_records_without_end_take_no_memory_without_end(log: Log) -> None:
    big = Unread(api_key=99, raw=UNKNOWN + bytes(UNKNOWN_BYTES_MAX // 4))
    for _ in range(5):
        log.append(big)
    found = MetadataLog(log.directory).read()
    assert (len(found.unknown), found.unread[99]) == (3, 5)


def test_without_secrets_nothing_is_left_that_lets_somebody_in(log: Log) -> None:
    log.append(make_record(SCRAM, 0, SECRET), make_record(TOKEN, 0, TOKEN_FIELDS), make_record(ACL, 0, AN_ACL))
    log.append(Unread(api_key=99, raw=UNKNOWN))
    for name in ("listener.name.a.ssl.keystore.password", "log.retention.ms"):
        log.append(ConfigRecord(resource_type=4, resource_name="1", name=name, value="hush"))
    state = MetadataLog(log.directory).read()
    raw = write_snapshot(state, secrets=False, timestamp_ms=0)
    for secret in (b"salty", b"stored", b"server", b"token-one", b"later Kafka", b"keystore"):
        assert secret not in raw
    assert read_snapshot(raw, "test").configs == {(4, "1"): {"log.retention.ms": "hush"}}
    assert again(state) == state


def test_a_file_that_was_cut_or_changed_is_damage() -> None:
    state = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    raw = write_snapshot(state, secrets=True, timestamp_ms=0)
    for broken in (raw[:-30], raw[: len(raw) // 2], raw[:500] + b"\xff" + raw[501:], raw + b"x" * 70, b""):
        with pytest.raises((CorruptData, TruncatedData)):
            read_snapshot(broken, "test")
