"""A recovery whose disk is full, or that is killed, at any of its writes, and is run again."""

import os
from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater_core.errors import DiskFull
from headwater_core.objectstore.store import ObjectStore
from recovery.held_settings import finish
from recovery.recovery_plan import RecoveryPlan
from recovery.replica_placement import numbered_brokers
from recovery.target import read_mark
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.full_disk import FullDisk, Killed
from tests.recovery.kill_walk import FIRST, LATER, Seed, an_archive, applied, contents
from tests.recovery.test_held_settings import Cluster

MODES: list[dict[str, Any]] = [
    {},
    {"mode": "partial", "keep_bytes": 1},
    {"mode": "instant"},
    {"cluster": "latest"},
    {"cluster": "latest", "brokers": numbered_brokers(2, 1)},
]
EVERY = int(os.environ.get("FULL_DISK_EVERY", "9"))  # of its writes; 1: all of them. The ten variants begin at different ones


def left(plan: RecoveryPlan, into: Path, store: ObjectStore, disk: FullDisk, seed: Seed) -> dict[str, object]:
    with disk.mounted():
        applied(plan, into, store, seed, workers=1, recorded=False)
    return contents(into)


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("mode", range(len(MODES)))
def test_at_any_write_the_same_bytes_are_there_after_a_second_run(kills: bool, mode: int, tmp_path: Path) -> None:
    """Some of them in each mode, and the last ones in all: modes differ in their segments alone."""
    archive = an_archive()
    plan = archive.plan(**MODES[mode])
    undisturbed = left(plan, tmp_path / "undisturbed", archive.store, disk := FullDisk(), FIRST)
    assert {"bootstrap.checkpoint", "meta.properties", ".headwater-recovery.json"} <= {Path(name).name for name in undisturbed}
    first = 1 + (mode + len(MODES) * kills) % EVERY
    for at in sorted({*range(first, disk.count + 1, EVERY), *range(disk.count - 8, disk.count + 1)}):
        into = tmp_path / str(at)
        with pytest.raises(Killed if kills else DiskFull):
            left(plan, into, archive.store, FullDisk(at, kills=kills), FIRST)
        seed = LATER if read_mark(into) is not None else FIRST  # unrecorded, so that nothing else than the mark knows what was begun
        assert left(plan, into, archive.store, FullDisk(), seed) == undisturbed, at
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
