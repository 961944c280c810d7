"""A target in which something differs from what was planned is named by its files."""

from pathlib import Path

import pytest

import recovery
from headwater_core.errors import TransientError, VerificationFailed
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan, encode_plan
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.interrupted import Failing

CHANGES = ("added", "log added", "flipped", "magic", "gone", "truncated", "index", "epochs", "checkpoint", "bootstrap")


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_in_a_file_finds_every_file_of_a_finished_recovery_that_differs(
    change: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    plan, into = decode_plan(encode_plan(recovery.plan(repository, None))), tmp_path / "log"
    recovery.apply(plan, into, store, unchanged=True)
    assert recovery.apply(plan, into, MemoryStore(ManualClock()), unchanged=True).again
    changed = {
        "added": into / "specials-0" / "left-by-somebody",
        "log added": into / "soup-0",
        "epochs": into / "bills-0" / "leader-epoch-checkpoint",
        "checkpoint": into / "replication-offset-checkpoint",
        "bootstrap": into / "bootstrap.checkpoint",
    }.get(change) or max((into / "bills-0").glob("*.timeindex" if change == "index" else "*.log"), key=lambda path: path.stat().st_size)
    if change == "log added":
        changed.mkdir()
    elif change == "added":
        changed.write_bytes(b"x")
    elif change == "gone":
        changed.unlink()
    else:
        raw = bytearray(changed.read_bytes())
        raw[16 if change == "magic" else len(raw) // 2] ^= 2  # 16: the format of the first batch, an older one then
        changed.write_bytes(raw[:-1] if change == "truncated" else raw)
    with pytest.raises(VerificationFailed) as raised:
        recovery.apply(plan, into, store, unchanged=True)
    assert str(changed) in str(raised.value)
    (into / "meta.properties").unlink()  # the remedy that the error names
    if "added" in change:
        changed.rmdir() if changed.is_dir() else changed.unlink()
    assert not recovery.apply(plan, into, store, unchanged=True).again
    (into / "bills-0" / "of-the-broker").touch()
    (into / ".lock").touch()  # a broker has started: the files are its own
    assert recovery.apply(plan, into, store, unchanged=True).again


@pytest.mark.parametrize("name", ["specials-0/left-by-somebody", "notes.txt", "soup-0"])
def test_what_does_not_belong_there_is_named_before_anything_more_is_fetched(
    name: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, None)
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path, Failing(store, TransientError("throttled"), 3))
    foreign = tmp_path / name
    foreign.mkdir() if name == "soup-0" else foreign.write_bytes(b"x")
    with pytest.raises(VerificationFailed, match=f"nothing was fetched: {foreign}"):
        recovery.apply(plan, tmp_path, Failing(store, TransientError("nothing is read"), 0))
    foreign.rmdir() if foreign.is_dir() else foreign.unlink()
    assert recovery.apply(plan, tmp_path, store).resumed
