import shutil
import signal
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import (
    VerificationFailed,
)
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import batches
from tests.recovery.interrupted import run
from tests.recovery.kill_walk import contents

FOREIGN = b"version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"


@pytest.mark.parametrize("step", [step for step in recovery.MILESTONES if step not in ("recover.locked", "recover.recorded")])
def test_killed_and_formatted_it_is_not_a_success_until_that_is_undone(
    step: str, kitchen_bucket: Path, kitchen_plan: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    into, store = tmp_path / "log", DirectoryStore(kitchen_bucket)
    assert run(kitchen_bucket, into, "--plan", str(kitchen_plan), kill_at=step).returncode == -signal.SIGKILL
    (into / "meta.properties").write_bytes(FOREIGN)
    (into / "bootstrap.checkpoint").write_bytes(b"a format tool's")
    plan = decode_plan(kitchen_plan.read_bytes())
    with pytest.raises(VerificationFailed, match=r"Remove meta\.properties and bootstrap\.checkpoint"):
        recovery.apply(plan, into, store)
    found = recovery.status(into)
    assert found is not None
    assert "formatted" in found.problem
    assert (into / "meta.properties").read_bytes() == FOREIGN
    (into / "meta.properties").unlink()
    (into / "bootstrap.checkpoint").unlink()
    assert not recovery.apply(plan, into, store).again
    assert contents(into) == undisturbed
    assert list(batches(into)) == list(batches(unpack("kitchen")))


def test_a_finished_recovery_without_its_files_is_no_success(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, None)
    recovery.apply(plan, tmp_path, store)
    shutil.rmtree(tmp_path / "bills-0")
    with pytest.raises(VerificationFailed, match=r"gone or changed: .*bills-0"):
        recovery.apply(plan, tmp_path, store)
    found = recovery.status(tmp_path)
    assert found is not None
    assert "gone" in found.problem
    (tmp_path / "meta.properties").unlink()  # the remedy that the error names
    assert not recovery.apply(plan, tmp_path, store).again
    assert list(batches(tmp_path)) == list(batches(unpack("kitchen")))
    shutil.rmtree(tmp_path / "bills-0")
    (tmp_path / ".lock").touch()  # a broker has been at work: what it deletes is its own business
    assert recovery.apply(plan, tmp_path, store).again
    found = recovery.status(tmp_path)
    assert found is not None
    assert found.problem == ""
