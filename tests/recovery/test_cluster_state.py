"""The whole cluster as a part of a recovery: what of a snapshot comes back, and that the plan holds nothing secret."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import recovery
from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData, NotFound, UsageError, VerificationFailed
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, REGISTER_BROKER, SCRAM
from manifests import keys
from manifests.cluster_list import encode_cluster_list
from manifests.repository import ManifestRepository
from recovery.cluster_state import copied_state, copy_name
from recovery.recovery_plan import ClusterPlan, RecoveryPlan, decode_plan, encode_plan
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive

CLUSTER = recovery.Options(cluster="latest")


class Kitchen:
    """An archive of the kitchen, with a snapshot of `state`."""

    def __init__(self, **changes: object) -> None:
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
            )
        )
        self.archiver.step()

    def plan(self, options: recovery.Options = CLUSTER) -> RecoveryPlan:
        return recovery.plan(self.repository, None, options)


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
    assert any("settings of brokers 1 are left out" in note for note in plan.notes)


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


def test_a_snapshot_that_was_exchanged_is_not_recovered(tmp_path: Path) -> None:
    kitchen = Kitchen()
    plan = kitchen.plan()
    assert plan.cluster is not None
    wrong = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(plan.cluster, digest="crc64nvme:" + "0" * 16))
    with pytest.raises(VerificationFailed, match="is not what the plan names"):
        recovery.apply(wrong, tmp_path / "kafka", kitchen.store)
    assert not (tmp_path / "kafka" / "meta.properties").exists()


def test_what_does_not_come_back_is_left_out_by_name() -> None:
    soup = Kitchen().state.topics["menu"]
    topics = {
        **MetadataLog(unpack("kitchen") / DIRECTORY).read().topics,
        "soup": replace(soup, name="soup", topic_id="AAAAAAAAAAAAAAAAAAAAAQ"),
    }
    plan = Kitchen(topics=topics, unread={99: 3}, unknown=(b"\x01\x63\x00later",) * 3).plan()
    assert plan.left_out == (
        "soup: a topic of the cluster that the archive does not hold",
        "3 records of kinds [99], which this version does not know",
    )


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
