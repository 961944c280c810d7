"""A recovery whose disk is full, or that is killed, at any of its writes, and is run again."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recovery
from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from headwater_core.errors import DiskFull
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from manifests.repository import ManifestRepository
from recovery.held_settings import finish
from recovery.recovery_plan import RecoveryPlan
from recovery.replica_placement import numbered_brokers
from tests.fixtures import unpack
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.full_disk import FullDisk, Killed
from tests.recovery.plans import CLUSTER
from tests.recovery.test_held_settings import Cluster
from tests.recovery.written_archive import Archive, commit, data, plain

MODES: list[dict[str, Any]] = [
    {},
    {"mode": "partial", "keep_bytes": 1},
    {"mode": "instant"},
    {"cluster": "latest"},
    {"cluster": "latest", "brokers": numbered_brokers(2, 1)},
]
EVERY = int(os.environ.get("FULL_DISK_EVERY", "9"))  # of its writes; 1: all of them. The ten variants begin at different ones


def an_archive() -> Archive:
    """With what recovery writes itself: the marker of an open transaction, and a committed offset that is set back; and a snapshot."""
    archive = Archive()
    archive.topic("orders", [plain(0), plain(1)], [data(2, 7)], **{"retention.ms": "600"})
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9))], **{"cleanup.policy": "compact"})
    found = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    one = replace(found.topics["menu"], partitions={0: found.topics["menu"].partitions[0]})
    policies = {"orders": "delete", "__consumer_offsets": "compact"}
    topics = {
        name: replace(one, name=name, topic_id=archive.ids[name], configs={"cleanup.policy": each}) for name, each in policies.items()
    }
    equipment = ClusterArchiverEquipment(
        metadata=lambda: replace(found, topics=topics),
        store=archive.store,
        repository=ManifestRepository(archive.store),
        cluster_id=lambda: CLUSTER,
        writer="cook",
        clock=ManualClock(),
        new_uid=lambda: "a" * 32,
    )
    ClusterArchiver(equipment).step()
    return archive


@pytest.fixture(autouse=True)
def one_directory_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every file can be compared, what says who it is, too."""
    monkeypatch.setattr("recovery.restoration.new_kafka_id", lambda: "AAAAAAAAAAAAAAAAAAAAAQ")


def applied(plan: RecoveryPlan, into: Path, store: ObjectStore, disk: FullDisk) -> dict[str, bytes]:
    with disk.mounted():
        recovery.apply(plan, into, store, clock=ManualClock(), workers=1, recorded=False)
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("mode", range(len(MODES)))
def test_at_any_write_the_same_bytes_are_there_after_a_second_run(kills: bool, mode: int, tmp_path: Path) -> None:
    """Some of them in each mode, and the last ones in all: modes differ in their segments alone."""
    archive = an_archive()
    plan = archive.plan(**MODES[mode])
    undisturbed = applied(plan, tmp_path / "undisturbed", archive.store, disk := FullDisk())
    assert {"bootstrap.checkpoint", "meta.properties", ".headwater-recovery.json"} <= {Path(name).name for name in undisturbed}
    first = 1 + (mode + len(MODES) * kills) % EVERY
    for at in sorted({*range(first, disk.count + 1, EVERY), *range(disk.count - 8, disk.count + 1)}):
        into = tmp_path / str(at)
        with pytest.raises(Killed if kills else DiskFull):
            applied(plan, into, archive.store, FullDisk(at, kills=kills))
        assert applied(plan, into, archive.store, FullDisk()) == undisturbed, at
        assert not list(into.rglob("*.partial")), at


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
def test_what_is_held_back_is_put_back_once_though_that_cannot_be_noted_at_first(kills: bool, tmp_path: Path) -> None:
    archive = an_archive()
    plan, at = archive.plan(), 0
    while True:
        at += 1
        into, cluster = tmp_path / str(at), Cluster(plan)
        recovery.apply(plan, into, archive.store, recorded=False)
        disk = FullDisk(at, kills=kills)
        try:
            with disk.mounted():
                finish(into, cluster, ManualClock())
        except (DiskFull, Killed):
            assert not finish(into, cluster, ManualClock()).changed
        assert cluster.settings["orders"] == {"cleanup.policy": "delete", "retention.ms": "600"}
        if disk.count < at:
            break
    assert at > 3
