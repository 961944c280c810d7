"""A recovery whose disk is full, or that is killed, at any of its writes, and is run again."""

import os
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import DiskFull
from manifests import keys
from recovery.held_settings import finish
from recovery.target import MARK, read_mark
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.full_disk import FullDisk, Killed
from tests.recovery.kill_walk import FIRST, LATER, VARIANTS, Walk, an_archive
from tests.recovery.test_held_settings import Cluster

EVERY = int(os.environ.get("FULL_DISK_EVERY", "9"))  # of its writes; 1: all of them. The tests begin at different ones
_LAST = 8  # writes that every variant has: they differ in their segments alone


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_at_any_write_the_same_bytes_are_there_after_a_second_run(kills: bool, variant: str, tmp_path: Path) -> None:
    """Some of them in each variant, and the last ones in all; in the bucket and the running cluster, too."""
    walk = Walk.of(variant, tmp_path)
    with (disk := FullDisk()).mounted():
        walk.apply("undisturbed", FIRST)
    wanted = walk.left("undisturbed")
    names = {Path(name).name for name in wanted}
    assert MARK in names
    assert variant == "running" or {"bootstrap.checkpoint", "meta.properties"} <= names
    first = 1 + (list(VARIANTS).index(variant) + len(VARIANTS) * kills) % EVERY
    for at in sorted({*range(first, disk.count + 1, EVERY), *range(disk.count - _LAST, disk.count + 1)}):
        name = str(at)
        with pytest.raises(Killed if kills else DiskFull), FullDisk(at, kills=kills).mounted():
            walk.apply(name, FIRST)
        is_begun = read_mark(walk.into(name)) is not None or any(walk.stores[name].list(keys.RECOVERIES))
        walk.apply(name, LATER if is_begun else FIRST)
        assert walk.left(name) == wanted, at
        assert not list(walk.into(name).rglob("*.partial")), at


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
