"""A recovery whose disk is full, or that is killed, at any of its writes, and is run again."""

from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater_core.errors import DiskFull
from headwater_core.objectstore.store import ObjectStore
from recovery.held_settings import finish
from recovery.recovery_plan import RecoveryPlan
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.full_disk import FullDisk, Killed
from tests.recovery.interrupted import files
from tests.recovery.test_held_settings import Cluster
from tests.recovery.written_archive import Archive, commit, data, plain

MODES: list[dict[str, Any]] = [{}, {"mode": "partial", "keep_bytes": 1}, {"mode": "instant"}]


def an_archive() -> Archive:
    """With what recovery writes itself: the marker of an open transaction, and a committed offset that is set back."""
    archive = Archive()
    archive.topic("orders", [plain(0), plain(1)], [data(2, 7)], **{"retention.ms": "600"})
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9))], **{"cleanup.policy": "compact"})
    return archive


def applied(plan: RecoveryPlan, into: Path, store: ObjectStore, disk: FullDisk) -> dict[str, bytes]:
    with disk.mounted():
        recovery.apply(plan, into, store, clock=ManualClock(), workers=1, recorded=False)
    return files(into)


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("mode", range(3))
def test_at_any_write_the_same_bytes_are_there_after_a_second_run(kills: bool, mode: int, tmp_path: Path) -> None:
    """Some of them in each mode, and the last ones in all: modes differ in their segments alone."""
    options = MODES[mode]
    archive = an_archive()
    plan = archive.plan(**options)
    undisturbed = applied(plan, tmp_path / "undisturbed", archive.store, disk := FullDisk())
    assert len(undisturbed) > 5
    for at in sorted({*range(1 + mode, disk.count + 1, 5), *range(disk.count - 8, disk.count + 1)}):
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
