"""One plan from two machines, each a process of its own: it is carried out once, and the other machine says why it does not.

A machine is known by the name that it has for itself, and by the directory: here each process is told its name. In one process, at more
steps: tests/recovery/test_restoration.py.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import ForeignOwner, Locked, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery.bucket_survey import survey
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import RecoveryPlan
from recovery.target import LOCK, read_mark
from tests.recovery.interrupted import run, started
from tests.recovery.kill_walk import FIRST, LATER, Seed, applied, contents

NAMES = ("one", "two")
EVERYTHING = bool(os.environ.get("KILL_EVERYWHERE"))  # else a sample
TIMES = range(10 if EVERYTHING else 1)  # of what depends on who is faster


class Machine:
    """name: as it knows itself; seed: what it makes up, which no two machines do alike"""

    def __init__(self, name: str, seed: Seed, into: Path, bucket: Path, plan: Path) -> None:
        self.name, self.into, self.bucket = name, into, bucket
        self.arguments: tuple[str, ...] = (
            "--plan",
            str(plan),
            "--host",
            name,
            "--directory-id",
            seed.directory_id,
            "--at-ms",
            str(seed.at_ms),
        )

    def run(self, *arguments: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
        return run(self.bucket, self.into, *self.arguments, *arguments, kill_at=kill_at)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return started(self.bucket, self.into, *self.arguments, **environment)


@contextmanager
def held(step: str, root: Path, *machines: Machine) -> Iterator[list[int]]:
    """All of them have come to `step`. At the end of the block they go on at the same moment, and their exit codes are known."""
    go, codes = root / "go", list[int]()
    running = [each.start(HOLD_AT=f"{step}:{go}") for each in machines]
    try:
        for process in running:
            assert process.stdout
            assert process.stdout.readline() == f"{step}\n"
        yield codes
    finally:
        go.touch()
        for process in running:
            process.communicate(timeout=60)
            codes.append(process.returncode)


def machines(tmp_path: Path, bucket: Path, plan: Path, second_plan: Path | None = None, *, shared: bool = False) -> tuple[Machine, Machine]:
    """shared: they see the same directory"""
    one = Machine("one", FIRST, tmp_path / "one" / "log", bucket, plan)
    return one, Machine("two", LATER, one.into if shared else tmp_path / "two" / "log", bucket, second_plan or plan)


def undisturbed(into: Path, bucket: Path, at: Path) -> dict[str, object]:
    """What a run that nobody disturbs leaves, of the same plan, which makes up and reads what the run in `into` did."""
    mark = read_mark(into)
    assert mark is not None
    applied(mark.plan, at, DirectoryStore(bucket), Seed(mark.directory_id, mark.started_ms), recorded=False)
    return contents(at)


def names(directory: Path) -> list[str]:
    return [str(path.relative_to(directory)) for path in directory.rglob("*")]


def everything(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {name: (path.read_bytes(), path.stat().st_mtime_ns) for name in names(directory) if (path := directory / name).is_file()}


@pytest.mark.parametrize("step", ["recover.marked", *(["recover.locked", "recover.verified"] if EVERYTHING else [])])
def test_while_one_is_at_work_in_a_directory_the_other_says_so(step: str, kitchen_bucket: Path, kitchen_plan: Path, tmp_path: Path) -> None:
    one, two = machines(tmp_path, kitchen_bucket, kitchen_plan, shared=True)
    with held(step, tmp_path, one) as codes:
        ran = two.run("--moved")
        assert (ran.returncode, ran.stdout.split()[0]) == (Locked.exit_code, "Locked"), ran.stderr
        assert "another recovery into" in ran.stdout
    assert codes == [0]
    before = everything(one.into)
    assert two.run().stdout == "again\n"
    assert everything(one.into) == before  # not one file is written a second time
    assert contents(one.into) == undisturbed(one.into, kitchen_bucket, tmp_path / "undisturbed")


@pytest.mark.parametrize("time", TIMES)
def test_of_two_that_begin_at_the_same_moment_on_disks_of_their_own_one_has_the_plan(
    time: int, kitchen_bucket: Path, kitchen_plan: Path, tmp_path: Path
) -> None:
    one, two = machines(tmp_path, kitchen_bucket, kitchen_plan)
    with held("recover.locked", tmp_path, one, two) as codes:
        pass
    assert sorted(codes) == [0, UsageError.exit_code]
    done, other = (one, two) if codes[0] == 0 else (two, one)
    assert names(other.into) == [LOCK]
    assert contents(done.into) == undisturbed(done.into, kitchen_bucket, tmp_path / "undisturbed")
    before = everything(done.into)
    late = other.run("--moved")
    assert (late.returncode, f"was applied to {done.into} on {done.name}" in late.stdout) == (UsageError.exit_code, True)
    assert names(other.into) == [LOCK]
    assert done.run().stdout == "again\n"
    assert everything(done.into) == before


@pytest.mark.parametrize("step", ["recover.placed:7", *(["recover.marked", "recover.bootstrap"] if EVERYTHING else [])])
def test_what_one_has_begun_the_other_continues_when_it_is_said_to_be_moved(
    step: str, kitchen_bucket: Path, kitchen_plan: Path, tmp_path: Path
) -> None:
    one, two = machines(tmp_path, kitchen_bucket, kitchen_plan)
    assert one.run(kill_at=step).returncode == -signal.SIGKILL
    shutil.copytree(one.into, two.into)
    before = everything(two.into)
    refused = two.run()
    assert (refused.returncode, "add --moved" in refused.stdout) == (UsageError.exit_code, True)
    assert everything(two.into) == before
    assert two.run("--moved", kill_at="recover.segments").returncode == -signal.SIGKILL  # it has it by then, and need not say so again
    assert two.run().stdout == "resumed\n"
    left = contents(two.into)
    assert left == undisturbed(two.into, kitchen_bucket, tmp_path / "undisturbed")
    mark = read_mark(two.into)
    assert mark is not None
    assert (mark.directory_id, mark.started_ms) == (LATER.directory_id, FIRST.at_ms)  # begun then; two directories never have one id
    late = one.run("--moved")
    assert (late.returncode, f"was applied to {two.into} on two" in late.stdout) == (UsageError.exit_code, True)
    assert not (one.into / "meta.properties").exists()


@pytest.mark.parametrize("time", TIMES)
def test_of_two_that_continue_copies_at_the_same_moment_one_has_the_plan(
    time: int, kitchen_bucket: Path, kitchen_plan: Path, tmp_path: Path
) -> None:
    one, two = machines(tmp_path, kitchen_bucket, kitchen_plan)
    assert one.run(kill_at="recover.segments").returncode == -signal.SIGKILL
    shutil.copytree(one.into, two.into)
    one.arguments += ("--moved",)
    two.arguments += ("--moved",)
    with held("recover.marked", tmp_path, one, two) as codes:
        pass
    assert codes.count(0) == 1
    done, other = (one, two) if codes[0] == 0 else (two, one)
    assert other.run("--moved").returncode == UsageError.exit_code  # a loser by a hair is told to run the same command again
    assert ((done.into / "meta.properties").exists(), (other.into / "meta.properties").exists()) == (True, False)
    assert contents(done.into) == undisturbed(done.into, kitchen_bucket, tmp_path / "undisturbed")


@pytest.mark.parametrize("time", TIMES)
def test_of_two_that_take_an_archive_over_at_the_same_moment_one_has_all_of_it(time: int, kitchen_bucket: Path, tmp_path: Path) -> None:
    """Each by a plan of its own, so that nothing else stands between them."""
    repository, files = ManifestRepository(DirectoryStore(kitchen_bucket)), []
    plans: list[RecoveryPlan] = [recovery.plan(repository, None, recovery.Options(take_over=True)) for _ in NAMES]
    for name, plan in zip(NAMES, plans, strict=True):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_bytes(encode_plan(plan))
    one, two = machines(tmp_path, kitchen_bucket, *files)
    with held("recover.claimed", tmp_path, one, two) as codes:
        pass
    assert sorted(codes) == [0, ForeignOwner.exit_code]
    done, other = (one, two) if codes[0] == 0 else (two, one)
    owner = repository.owner()
    assert owner is not None
    assert decode_plan(files[codes.index(0)].read_bytes()).cluster_id == owner.cluster_id
    assert not survey(repository).not_of({owner.cluster_id})
    assert not (other.into / "meta.properties").exists()
    assert other.run().returncode == ForeignOwner.exit_code
    assert done.run().stdout == "again\n"
