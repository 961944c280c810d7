"""The whole cluster as a part of a recovery: what of a snapshot comes back, and that the plan holds nothing secret."""

import gzip
import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import recovery
from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from archival.config import ClusterConfig
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData, NotFound, UsageError, VerificationFailed
from headwater_core.objectstore.digest import digest_of
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, REGISTER_BROKER, SCRAM, TOKEN, make_record
from manifests import keys
from manifests.cluster_list import ClusterList, ListedSnapshot, encode_cluster_list
from manifests.cluster_snapshot import facts_of, pack_snapshot
from manifests.repository import ManifestRepository
from manifests.topic import Owner, encode_owner
from recovery.cluster_state import copied_state
from recovery.initial_metadata import starting_on
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import ClusterPlan, RecoveryPlan
from recovery.target import copy_name
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.metadata.test_metadata_snapshot import TOKEN_FIELDS
from tests.recovery.archived import archive, batches

CLUSTER = recovery.Options(cluster="latest")
FOR_NEWER = recovery.Options(cluster="latest", kafka_release="4.5")


class Kitchen:
    """An archive of the kitchen, with a snapshot of `state`. secrets: as cluster.secrets says"""

    def __init__(self, *, secrets: bool = True, **changes: object) -> None:
        self.store = MemoryStore(SystemClock())
        archive(unpack("kitchen"), self.store)
        self.repository = ManifestRepository(self.store)
        found = MetadataLog(unpack("kitchen") / DIRECTORY).read()
        self.state: ClusterMetadata = replace(found, **changes)  # type: ignore[arg-type]
        topic = self.repository.resolve("menu")
        self.archiver = ClusterArchiver(
            ClusterArchiverEquipment(
                metadata=lambda: self.state,
                store=self.store,
                repository=self.repository,
                cluster_id=lambda: topic.cluster_id,
                writer="cook",
                clock=SystemClock(),
                new_uid=lambda: f"{self.state.end_offset:032x}",
                settings=lambda: ClusterConfig(secrets=secrets),
            )
        )
        self.archiver.step()

    def plan(self, options: recovery.Options = CLUSTER) -> RecoveryPlan:
        return recovery.plan(self.repository, None, options)


def replicated(state: ClusterMetadata, replicas: int) -> dict[str, TopicMetadata]:
    """Its topics, as if each partition had so many."""
    nodes = tuple(range(1, replicas + 1))

    def wider(topic: TopicMetadata) -> TopicMetadata:
        return replace(topic, partitions={number: replace(each, replicas=nodes) for number, each in topic.partitions.items()})

    return {name: wider(topic) for name, topic in state.topics.items()}


def test_the_metadata_log_begins_with_the_users_acls_quotas_settings_and_features_of_the_snapshot(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    assert plan.left_out == ()
    recovery.apply(decode_plan(encode_plan(plan)), tmp_path / "kafka", kitchen.store)
    found = read_snapshot((tmp_path / "kafka" / "bootstrap.checkpoint").read_bytes(), "bootstrap")
    assert {key: found.others[key] for key in (ACL, QUOTA, SCRAM)} == {key: kitchen.state.others[key] for key in (ACL, QUOTA, SCRAM)}
    assert found.configs == kitchen.state.configs
    assert found.features == kitchen.state.features
    assert {name: topic.topic_id for name, topic in found.topics.items()} == {
        name: topic.topic_id for name, topic in kitchen.state.topics.items()
    }
    assert REGISTER_BROKER not in found.others
    assert found.next_producer_id > kitchen.state.next_producer_id
    again = recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    assert again.again


def test_another_node_id_gets_no_settings_of_the_old_one_and_the_plan_says_so() -> None:
    plan = Kitchen().plan(recovery.Options(cluster="1", node_id=7))
    assert plan.left_out == ("settings of brokers 1: the recovered cluster has broker 7 alone",)


@pytest.mark.parametrize(("level", "has_users"), [(10, False), (11, True)])
def test_users_of_a_level_that_has_none_are_left_out_by_name(level: int, has_users: bool, tmp_path: Path) -> None:
    """A controller at this level could not write its next snapshot."""
    kitchen = Kitchen(features={"metadata.version": level})
    plan = kitchen.plan()
    assert plan.cluster is not None
    assert (plan.cluster.users > 0, [each for each in plan.left_out if "SCRAM" in each] == []) == (has_users, has_users)
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    found = read_snapshot((tmp_path / "kafka" / "bootstrap.checkpoint").read_bytes(), "bootstrap")
    assert (SCRAM in found.others) == has_users


def test_nothing_secret_is_in_a_plan_or_a_report(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    report = recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    text = encode_plan(plan) + msgspec.json.encode(report) + (tmp_path / "kafka" / ".headwater-recovery.json").read_bytes()
    for record in kitchen.state.others[SCRAM].values():
        for name in ("salt", "storedKey", "serverKey"):
            secret = record.fields[name]
            assert secret not in text
            assert msgspec.json.encode(secret)[1:-1] not in text


PASSWORDS = {
    (4, ""): {"listener.name.a.ssl.keystore.password": "hush-one", "house.plugin.rule": "hush-two"},
    (16, "kitchen-telemetry"): {"sasl.jaas.config": "hush-three"},
}
WITHHELD = "users, delegation tokens and passwords in settings: the snapshot was taken with cluster.secrets = false"
NOT_KNOWN = "whether the snapshot was taken with users, tokens and passwords is not known: neither a list nor the object says it"


def with_passwords(state: ClusterMetadata) -> dict[str, object]:
    """A delegation token, and settings that are or may be passwords, beside what `state` has of both."""
    token = make_record(TOKEN, 0, TOKEN_FIELDS)
    configs = {place: {**settings, **PASSWORDS.get(place, {})} for place, settings in state.configs.items()}
    assert configs.keys() >= PASSWORDS.keys()
    return {"others": {**state.others, TOKEN: {"token-one": token}}, "configs": configs}


@pytest.mark.parametrize("secrets", [True, False])
def test_without_secrets_they_are_left_out_by_name_and_all_else_comes_back(secrets: bool, tmp_path: Path) -> None:
    state = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    kitchen, into = Kitchen(secrets=secrets, **with_passwords(state)), tmp_path / "kafka"
    plan = kitchen.plan()
    assert plan.left_out == (() if secrets else (WITHHELD,))
    assert plan.cluster is not None
    assert plan.cluster.users == (len(state.others[SCRAM]) if secrets else 0)
    tokens = [note for note in plan.notes if "delegation tokens hold on brokers" in note]
    assert [note.rpartition(": ")[2] for note in tokens] == [
        "the first at 1970-01-01T00:00:00Z, the last at 1970-01-01T00:00:00Z"
    ] * secrets
    assert recovery.apply(decode_plan(encode_plan(plan)), into, kitchen.store).left_out == plan.left_out
    back = injected(into)
    assert {SCRAM, TOKEN} & back.others.keys() == ({SCRAM, TOKEN} if secrets else set())
    assert back.configs == (kitchen.state if secrets else state).configs
    assert {key: back.others[key] for key in (ACL, QUOTA)} == {key: state.others[key] for key in (ACL, QUOTA)}
    assert back.features == state.features
    for topic in plan.topics:
        assert back.topics[topic.topic].configs == topic.configs
        put_back = {name: value for name, value in {**topic.configs, **topic.held}.items() if value is not None}
        assert put_back == state.topics[topic.topic].configs
    assert list(batches(into)) == list(batches(unpack("kitchen")))  # what groups had committed is among it
    copy = (into / copy_name(plan.cluster)).read_bytes()
    for secret in (b"token-one", b"hush-one", b"hush-two", b"hush-three", *(each.fields["salt"] for each in state.others[SCRAM].values())):
        assert (secret in gzip.decompress(copy)) is secrets


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("says_so", [True, False])
def test_where_neither_list_nor_object_says_whether_it_has_secrets_that_is_noted(is_listed: bool, says_so: bool) -> None:
    kitchen = Kitchen(secrets=False)
    listed, tag = kitchen.repository.load_snapshots(), kitchen.store.get(keys.CLUSTER_LIST)[1]
    assert listed is not None
    if not says_so:  # as those of before
        packed = gzip.compress(gzip.decompress(kitchen.store.get(listed.newest.key)[0]))
        newest = msgspec.structs.replace(listed.newest, size_bytes=len(packed), digest=digest_of(packed))
        kitchen.store.delete(newest.key)
        kitchen.store.put(newest.key, io.BytesIO(packed), size_bytes=len(packed))
        changed = msgspec.structs.replace(listed, snapshots=(newest,))
        kitchen.store.replace(keys.CLUSTER_LIST, encode_cluster_list(changed), expected_tag=tag)
    if not is_listed:
        kitchen.store.delete(keys.CLUSTER_LIST)
    plan = kitchen.plan()
    assert plan.left_out == ((WITHHELD,) if is_listed or says_so else ())
    assert (NOT_KNOWN in plan.notes) is not (is_listed or says_so)
    assert plan.problems == ()


def test_files_with_credentials_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    assert plan.cluster is not None
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    modes = {name: (tmp_path / "kafka" / name).stat().st_mode & 0o777 for name in (copy_name(plan.cluster), "bootstrap.checkpoint")}
    assert set(modes.values()) == {0o600}


def test_it_goes_on_with_its_own_copy_when_the_snapshot_is_gone(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    assert plan.cluster is not None

    class Lost(Exception):
        pass

    def fails(size_bytes: int) -> None:
        raise Lost

    with pytest.raises(Lost):
        recovery.apply(plan, tmp_path / "kafka", kitchen.store, progress=fails)
    kitchen.store.delete(plan.cluster.key)
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    (tmp_path / "kafka" / copy_name(plan.cluster)).write_bytes(b"?")
    with pytest.raises(VerificationFailed, match="gone or damaged"):
        copied_state(plan, tmp_path / "kafka")
    with pytest.raises(NotFound, match="plan the recovery again"):
        recovery.apply(msgspec.structs.replace(plan, recovery_id="other"), tmp_path / "another", kitchen.store)


def test_a_snapshot_that_expired_before_it_was_begun_leaves_a_directory_for_another_plan(tmp_path: Path) -> None:
    kitchen = DamagedKitchen()
    plan, into = kitchen.plan(recovery.Options(cluster="1")), tmp_path / "kafka"
    kitchen.store.delete(kitchen.first.key)
    with pytest.raises(NotFound, match="plan the recovery again"):
        recovery.apply(plan, into, kitchen.store)
    assert (recovery.status(into), list(kitchen.store.list(keys.RECOVERIES))) == (None, [])
    assert recovery.apply(kitchen.plan(), into, kitchen.store).records


def test_what_a_run_left_that_ended_before_its_mark_does_not_stay(tmp_path: Path) -> None:
    kitchen = Kitchen()
    for name in ("cluster-" + "a" * 32 + ".checkpoint.gz", "plan-" + "b" * 16 + ".json.gz"):
        (tmp_path / f".headwater-recovery-{name}").write_bytes(b"of another plan")
        (tmp_path / f".headwater-recovery-{name}.partial").write_bytes(b"of another plan")
    recovery.apply(kitchen.plan(), tmp_path, kitchen.store)
    assert len(list(tmp_path.glob(".headwater-recovery*"))) == 4


def test_a_snapshot_that_was_exchanged_is_not_recovered(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    assert plan.cluster is not None
    wrong = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(plan.cluster, digest="crc64nvme:" + "0" * 16))
    with pytest.raises(VerificationFailed, match="is not what the plan names"):
        recovery.apply(wrong, tmp_path / "kafka", kitchen.store)
    assert not (tmp_path / "kafka" / "meta.properties").exists()


def test_a_topic_without_data_is_left_out_by_name() -> None:
    soup = TopicMetadata(name="soup", topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partitions={}, configs={})
    plan = Kitchen(topics={**MetadataLog(unpack("kitchen") / DIRECTORY).read().topics, "soup": soup}).plan()
    assert plan.left_out == ("soup: a topic of the cluster that the archive does not hold",)


LATER = (b"\x01\x63\x00one", b"\x01\x62\x00two", b"\x01\x63\x00three")
OF_A_NODE = b"\x01\x00\x09a broker of a later version"


def injected(into: Path) -> ClusterMetadata:
    return read_snapshot((into / "bootstrap.checkpoint").read_bytes(), "bootstrap")


def test_unknown_records_come_back_byte_for_byte_and_in_order_after_all_else(tmp_path: Path) -> None:
    kitchen = Kitchen(unread={99: 2, 98: 1, 0: 1}, unknown=(LATER[0], OF_A_NODE, *LATER[1:]))
    plan = kitchen.plan(FOR_NEWER)
    assert plan.left_out == ()
    assert plan.cluster is not None
    assert (plan.cluster.starts_on, str(starting_on(plan))) == ((), "4.5 or newer")
    assert "3 records of kinds [98, 99], which this version does not know: back byte for byte and in order" in plan.notes
    assert plan.cluster is not None
    assert plan.cluster.unknown == 3
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    assert injected(tmp_path / "kafka").unknown == LATER
    assert (tmp_path / "kafka" / "bootstrap.checkpoint").read_bytes().index(LATER[0]) > 0


@pytest.mark.parametrize("options", [CLUSTER, FOR_NEWER])
def test_unknown_records_that_may_be_secret_are_left_out_and_counted(options: recovery.Options, tmp_path: Path) -> None:
    kitchen = Kitchen(secrets=False, unread={99: 2, 98: 1, 11: 1}, unknown=LATER, kept=(b"\x01\x0b\x09later",))
    plan = kitchen.plan(options)
    assert plan.left_out == (WITHHELD, "4 records that its writer did not know, as nobody can tell what is secret there")
    assert plan.cluster is not None
    assert (plan.cluster.unknown, plan.problems) == (0, ())
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    assert (injected(tmp_path / "kafka").unknown, injected(tmp_path / "kafka").kept) == ((), ())


@pytest.mark.parametrize("release", [None, "4.4"])
def test_no_release_that_cannot_have_written_an_unknown_record_gets_one(release: str | None, tmp_path: Path) -> None:
    kitchen = Kitchen(unread={99: 2, 98: 1}, unknown=LATER)
    plan = kitchen.plan(recovery.Options(cluster="latest", kafka_release=release))
    (left_out,) = plan.left_out
    assert left_out.startswith("3 records of kinds [98, 99], which this version does not know: no Kafka up to 4.4 writes such")
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    assert injected(tmp_path / "kafka").unknown == ()


def test_levels_on_which_a_newer_release_alone_starts_say_that_it_reads_what_was_written_at_them() -> None:
    plan = Kitchen(unread={99: 2, 98: 1}, unknown=LATER, features={"metadata.version": 34}).plan()
    assert plan.cluster is not None
    assert (plan.left_out, plan.cluster.unknown) == ((), 3)
    assert any("metadata.version 34; Kafka newer than 4.4 starts on it" in note for note in plan.notes)


def test_what_a_later_record_may_have_undone_and_what_had_no_room_is_left_out(tmp_path: Path) -> None:
    undone = Kitchen(unread={99: 1, 11: 1}, unknown=LATER[:1], kept=(b"\x01\x0b\x09later",))
    plan = undone.plan(FOR_NEWER)
    assert plan.left_out == ("1 record of kinds [11], which this version does not know: later ones may have undone a part",)
    recovery.apply(plan, tmp_path / "one", undone.store)
    assert (injected(tmp_path / "one").unknown, injected(tmp_path / "one").kept) == (LATER[:1], ())
    incomplete = Kitchen(unread={99: 5}, unknown=LATER[:1])
    plan = incomplete.plan(FOR_NEWER)
    assert plan.left_out == (
        "4 records that its writer did not know, and had no room for",
        "1 record of kinds [99], which this version does not know: later ones may have undone a part",
    )
    recovery.apply(plan, tmp_path / "two", incomplete.store)
    assert injected(tmp_path / "two").unknown == ()


def test_fields_that_are_not_known_come_back_with_their_records(tmp_path: Path) -> None:
    found = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    (about, acl), *_ = found.others[ACL].items()
    later = replace(acl, raw=acl.raw[:-1] + b"\x01\x4d\x05later", is_understood=False)
    tags = ((77, b"later"),)
    menu = replace(found.topics["menu"], tags=tags)
    setting = (4, "1", "log.cleaner.threads") if ("log.cleaner.threads" in found.configs.get((4, "1"), {})) else _a_setting(found)
    kitchen = Kitchen(
        topics={**found.topics, "menu": menu},
        others={**found.others, ACL: {**found.others[ACL], about: later}},
        config_tags={setting: tags},
        unread={2: 1, ACL: 1, 4: 1},
    )
    plan = kitchen.plan()
    assert plan.left_out == ()
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    back = injected(tmp_path / "kafka")
    assert back.topics["menu"].tags == tags
    assert back.others[ACL][about].raw == later.raw
    assert back.config_tags == {setting: tags}
    partition = replace(menu.partitions[0], tags=tags)
    plan = Kitchen(
        topics={**found.topics, "menu": replace(menu, tags=(), partitions={**menu.partitions, 0: partition})}, unread={3: 1}
    ).plan()
    assert plan.left_out == ("what 1 partition had that this version does not know: the replicas are others",)


def _a_setting(state: ClusterMetadata) -> tuple[int, str, str]:
    return next((kind, name, key) for (kind, name), settings in state.configs.items() if name in ("", "1") for key in settings)


def test_the_plan_says_which_kafka_starts_and_refuses_one_that_does_not() -> None:
    kitchen = Kitchen(features={"metadata.version": 29, "streams.version": 1})
    plan = kitchen.plan()
    assert plan.cluster is not None
    assert (plan.problems, plan.cluster.starts_on) == ((), ("4.2", "4.3", "4.4"))
    assert any("metadata.version 29, streams.version 1; Kafka 4.2 or 4.3 or 4.4 or newer starts on it" in note for note in plan.notes)
    assert kitchen.plan(recovery.Options(cluster="latest", kafka_release="4.2")).problems == ()
    (problem,) = kitchen.plan(recovery.Options(cluster="latest", kafka_release="4.1")).problems
    assert "Kafka 4.1 does not start on metadata.version 29 (it knows 27)" in problem
    (problem,) = Kitchen(features={}).plan().problems
    assert "no metadata.version" in problem


def test_logs_that_end_before_the_newest_snapshot_was_taken_have_a_note_how_to_get_an_older_one() -> None:
    kitchen = DamagedKitchen()
    until_ms = 1_500_000_000_000
    (note,) = (each for each in kitchen.plan(recovery.Options(cluster="latest", to_time_ms=until_ms)).notes if "--at" in each)
    assert "logs end at 2017-07-14T02:40:00Z: `--at 2017-07-14T02:40:00Z` takes the snapshot of then" in note
    for options in (recovery.Options(cluster="2", to_time_ms=until_ms), recovery.Options(cluster="latest", to_time_ms=2**42), CLUSTER):
        assert not any("--at" in each for each in kitchen.plan(options).notes)


@pytest.mark.parametrize(("level", "version"), [(7, 0), (21, 1), (25, 2)])
def test_partitions_have_the_version_of_the_level(tmp_path: Path, level: int, version: int) -> None:
    kitchen = Kitchen(features={"metadata.version": level})
    recovery.apply(kitchen.plan(), tmp_path / "kafka", kitchen.store)
    raw = (tmp_path / "kafka" / "bootstrap.checkpoint").read_bytes()
    frames = {raw[at + 2] for at in range(len(raw)) if raw[at : at + 2] == b"\x01\x03" and raw[at + 3 : at + 6] == bytes(3)}
    assert frames == {version}


def test_what_lies_beside_the_metadata_is_listed() -> None:
    plan = Kitchen().plan()
    assert plan.cluster is not None
    assert plan.cluster.used_by["consumer groups"] == ("__consumer_offsets",)
    assert "the state of consumer groups comes back with __consumer_offsets" in plan.notes
    of_groups = {(32, "cooks"): {"consumer.session.timeout.ms": "50000"}, (16, "slow"): {"interval.ms": "9", "metrics": "org.apache"}}
    plan = Kitchen(configs={(4, "1"): {"log.cleaner.threads": "2"}, (4, "2"): {"log.cleaner.threads": "3"}, **of_groups}).plan()
    assert plan.cluster is not None
    assert plan.cluster.settings == {"brokers": 1, "client metrics": 2, "groups": 1}
    assert "settings come back of brokers (1), client metrics (2), groups (1)" in plan.notes
    assert plan.left_out == ("settings of brokers 2: the recovered cluster has broker 1 alone",)


def test_without_a_snapshot_or_with_that_of_another_cluster_nothing_is_planned() -> None:
    kitchen = Kitchen()
    listed, tag = kitchen.repository.load_snapshots(), kitchen.store.get(keys.CLUSTER_LIST)[1]
    assert listed is not None
    for wrong in ("7", "yesterday"):
        with pytest.raises((NotFound, UsageError)):
            kitchen.plan(recovery.Options(cluster=wrong))
    other = encode_cluster_list(msgspec.structs.replace(listed, cluster_id="pantry"))
    kitchen.store.replace(keys.CLUSTER_LIST, other, expected_tag=tag)
    assert any("the snapshots are of cluster pantry" in each for each in kitchen.plan().problems)
    for info in list(kitchen.store.list(keys.CLUSTER)):
        kitchen.store.delete(info.key)
    with pytest.raises(NotFound, match="no snapshot"):
        kitchen.plan()


@pytest.mark.parametrize("damaged", [False, True])
def test_without_a_list_the_snapshots_that_are_there_are_used(damaged: bool) -> None:
    kitchen = Kitchen()
    before = kitchen.plan().cluster
    raw, tag = kitchen.store.get(keys.CLUSTER_LIST)
    if damaged:
        kitchen.store.replace(keys.CLUSTER_LIST, raw[:-9], expected_tag=tag)
    else:
        kitchen.store.delete(keys.CLUSTER_LIST)
    plan = kitchen.plan()
    assert plan.cluster is not None
    assert before is not None
    assert (plan.cluster.key, plan.cluster.users, plan.problems) == (before.key, before.users, ())
    assert any(f"latest.json is not used, it is {'damaged' if damaged else 'lost'}" in note for note in plan.notes)
    [info] = [info for info in kitchen.store.list(keys.CLUSTER) if info.key != keys.CLUSTER_LIST]
    kitchen.store.delete(info.key)
    with pytest.raises(CorruptData if damaged else NotFound):
        kitchen.plan()


class DamagedKitchen(Kitchen):
    """With two snapshots, of which the newer one is what a test makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.listed.newest
        self.list_of_before = self.store.get(keys.CLUSTER_LIST)[0]
        configs = {**self.state.configs, (32, "g"): {"a": "b"}}
        self.state = replace(self.state, end_offset=self.state.end_offset + 1, configs=configs, topics=dict(self.state.topics))
        self.archiver.step(requested=True)
        self.second = self.listed.newest

    @property
    def listed(self) -> ClusterList:
        found = self.repository.load_snapshots()
        assert found is not None
        return found

    def put(self, content: bytes) -> None:
        self.store.delete(self.second.key)
        self.store.put(self.second.key, io.BytesIO(content), size_bytes=len(content))

    def object_of(self, snapshot: ListedSnapshot) -> bytes:
        return self.store.get(snapshot.key)[0]

    def refused(self, words: str) -> None:
        """The plan names the snapshot and what is wrong with it, and which one may be taken in its place."""
        with pytest.raises(VerificationFailed, match=words) as raised:
            self.plan()
        assert self.second.key in str(raised.value)
        assert "`--at 1` takes another one" in str(raised.value)
        plan = self.plan(recovery.Options(cluster="1"))
        assert plan.cluster is not None
        assert (plan.cluster.number, plan.problems) == (1, ())


@pytest.mark.parametrize("with_list", [True, False])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "exchanged", "empty"])
def test_a_damaged_snapshot_is_named_and_another_one_can_be_taken(damage: str, with_list: bool) -> None:
    kitchen = DamagedKitchen()
    if not with_list:
        kitchen.store.delete(keys.CLUSTER_LIST)
    whole = kitchen.object_of(kitchen.second)
    if damage == "flipped":
        for at in range(0, len(whole), 1 + len(whole) // 9):
            kitchen.put(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            kitchen.refused("damaged|are listed|unpacked|does not|checksum|corrupt|byte")
        return
    kitchen.put({"truncated": whole[:-20], "exchanged": kitchen.object_of(kitchen.first), "empty": b""}[damage])
    kitchen.refused("it is snapshot 1 of cluster" if damage == "exchanged" else "bytes|damaged|does not end")


def test_a_snapshot_that_is_gone_is_named_and_another_one_can_be_taken() -> None:
    kitchen = DamagedKitchen()
    kitchen.store.delete(kitchen.second.key)
    kitchen.refused("is not there")


def test_an_older_list_that_was_put_back_is_noted() -> None:
    kitchen = DamagedKitchen()
    kitchen.store.replace(keys.CLUSTER_LIST, kitchen.list_of_before, expected_tag=kitchen.store.get(keys.CLUSTER_LIST)[1])
    plan = kitchen.plan()
    assert plan.cluster is not None
    assert plan.cluster.number == 1
    assert "not listed: 1 snapshot, the last 2" in plan.notes


def test_a_snapshot_of_another_cluster_is_a_problem_though_no_list_says_so() -> None:
    kitchen = DamagedKitchen()
    facts = facts_of(kitchen.object_of(kitchen.second), "it")
    assert facts is not None
    kitchen.put(pack_snapshot(kitchen.state, msgspec.structs.replace(facts, cluster_id="pantry")))
    kitchen.store.delete(keys.CLUSTER_LIST)
    (problem,) = kitchen.plan().problems
    assert "the snapshots are of cluster pantry" in problem


@pytest.mark.parametrize(("former", "is_refused"), [((), True), (("pantry",), False), (None, False)])
def test_a_listed_snapshot_of_a_cluster_that_the_archive_was_never_taken_over_from_is_refused(
    former: tuple[str, ...] | None, is_refused: bool
) -> None:
    kitchen = DamagedKitchen()
    facts, listed = facts_of(kitchen.object_of(kitchen.second), "it"), kitchen.listed
    assert facts is not None
    packed = pack_snapshot(kitchen.state, msgspec.structs.replace(facts, cluster_id="pantry"))
    newest = msgspec.structs.replace(kitchen.second, size_bytes=len(packed), digest=digest_of(packed))
    changed = msgspec.structs.replace(listed, snapshots=(*listed.snapshots[:-1], newest))
    kitchen.put(packed)
    kitchen.store.replace(keys.CLUSTER_LIST, encode_cluster_list(changed), expected_tag=kitchen.store.get(keys.CLUSTER_LIST)[1])
    kitchen.store.delete(keys.OWNER)
    if former is not None:
        kitchen.store.create(keys.OWNER, encode_owner(Owner(cluster_id=listed.cluster_id, former=former)))
    if is_refused:
        kitchen.refused("it is a snapshot of cluster pantry")
    else:
        plan = kitchen.plan()
        assert plan.cluster is not None
        assert (plan.cluster.number, plan.problems) == (2, ())
        assert any("it is a snapshot of cluster pantry" in note for note in plan.notes) == (former is None)


@pytest.mark.parametrize("with_list", [True, False])
def test_one_that_is_exchanged_after_it_was_planned_is_not_recovered(tmp_path: Path, with_list: bool) -> None:
    kitchen = DamagedKitchen()
    if not with_list:
        kitchen.store.delete(keys.CLUSTER_LIST)
    plan = kitchen.plan()
    whole = kitchen.object_of(kitchen.second)
    for wrong in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8], kitchen.object_of(kitchen.first)):
        kitchen.put(wrong)
        with pytest.raises(VerificationFailed, match="is not what the plan names"):
            recovery.apply(plan, tmp_path / "kafka", kitchen.store)
        assert not {"meta.properties", "bootstrap.checkpoint"} & {path.name for path in (tmp_path / "kafka").iterdir()}
    kitchen.put(whole)
    recovery.apply(plan, tmp_path / "kafka", kitchen.store)
    assert injected(tmp_path / "kafka").configs[32, "g"] == {"a": "b"}


@pytest.mark.parametrize("key", ["../../etc/passwd", "cluster/latest.json", "data/x"])
def test_a_plan_that_names_something_else_is_refused(key: str) -> None:
    plan = Kitchen().plan()
    assert plan.cluster is not None
    hostile = encode_plan(plan).replace(plan.cluster.key.encode(), key.encode())
    with pytest.raises(CorruptData):
        decode_plan(hostile)
    with pytest.raises(ValueError, match="no snapshot"):
        msgspec.structs.replace(plan.cluster, key=key)
    assert isinstance(plan.cluster, ClusterPlan)
