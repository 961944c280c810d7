import json
import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

import recovery
from headwater_core import milestones
from headwater_core.errors import (
    ForeignOwner,
    Locked,
    NotFound,
    NothingExamined,
    TransientError,
    Unauthorised,
    UsageError,
)
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.segments.log_dirs import LogDirs
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan, encode_plan
from recovery.target import locked
from tests.fixtures import unpack
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory, batches, bounds
from tests.recovery.interrupted import Failing, run
from tests.recovery.kill_walk import FIRST, LATER, UNDECIDED, applied, contents


@pytest.mark.parametrize("name", ["pantry", "pantry-live", "kitchen"])
def test_what_was_archived_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    source, into = unpack(name), tmp_path / "log"
    store, repository = archive_in_memory(source)
    plan = recovery.plan(repository, None, recovery.Options(keep_offsets=True, open_transactions="keep"))
    report = recovery.apply(plan, into, store)
    assert list(batches(into)) == list(batches(source))
    tails = {
        (topic.topic, partition.partition): partition.log_end
        for topic in plan.topics
        for partition in topic.partitions
        if partition.written  # commits, which are made again at the moment of the recovery
    }
    assert {topic for topic, _ in tails} == {"__consumer_offsets"}
    source_bounds = bounds(source)
    assert bounds(into) == {place: (*source_bounds[place][:2], tails.get(place, source_bounds[place][2])) for place in source_bounds}
    assert report.records > 0
    assert not report.again


def test_the_archive_of_three_brokers_comes_back_as_the_final_state(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    for source in ("brigade-node2-dead-branch", "brigade/node1", "brigade/node2", "brigade/node3"):
        name, _, node = source.partition("/")
        archive(unpack(name) / node, store)
    plan = recovery.plan(ManifestRepository(store), ["dessert.trolley"])
    recovery.apply(plan, tmp_path / "log", store)
    dead = {raw for *_, raw in batches(unpack("brigade-node2-dead-branch")) if b"branch-on-2" in raw}
    found = [raw for *_, raw in batches(tmp_path / "log")]
    assert dead
    assert not dead & set(found)
    assert any(b"branch-on-3" in raw for raw in found)
    newest = {log.partition.partition: log.epochs.newest for log in LogDirs([tmp_path / "log"]).partitions()}
    assert newest
    assert all(partition.leader_epoch >= (newest[partition.partition] or 0) for partition in plan.topics[0].partitions)


def test_a_finished_recovery_is_not_done_again(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    into = tmp_path / "log"
    recovery.apply(recovery.plan(repository, None), into, store)
    (into / "specials-0" / "left-by-a-broker").write_bytes(b"x")
    before = {path: path.stat().st_mtime_ns for path in into.rglob("*")}
    assert recovery.apply(recovery.plan(repository, None), into, MemoryStore(ManualClock())).again
    assert {path: path.stat().st_mtime_ns for path in into.rglob("*")} == before


def test_another_recovery_finds_the_directory_taken(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    recovery.apply(recovery.plan(repository, ["menu"]), tmp_path / "log", store)
    with pytest.raises(ForeignOwner, match="another recovery"):
        recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store)


@pytest.mark.parametrize("content", ["meta.properties", "specials-0/00000000000000000000.log", ".hidden"])
def test_a_directory_that_holds_anything_is_left_alone(
    content: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    (tmp_path / content).parent.mkdir(exist_ok=True)
    (tmp_path / content).write_bytes(b"foreign")
    with pytest.raises(UsageError, match="not empty"):
        recovery.apply(recovery.plan(repository, None), tmp_path, store)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / content]


def test_the_root_of_a_file_system_is_refused_with_the_way_out(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(UsageError, match="below it"):
        recovery.apply(recovery.plan(repository, ["bills"]), tmp_path, store)
    assert recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store).records > 0


def test_two_at_a_time_exclude_each_other(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    with locked(tmp_path), pytest.raises(Locked):
        recovery.apply(recovery.plan(repository, None), tmp_path, store)


def test_the_control_log_remembers_that_a_plan_was_applied(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    control, plan = LocalControl(), recovery.plan(repository, ["menu"])
    recovery.apply(plan, tmp_path / "log", store, control=control)
    assert control.state().recoveries[plan.recovery_id].finished_ms is not None
    with pytest.raises(UsageError, match="has been applied"):
        recovery.apply(plan, tmp_path / "elsewhere", store, control=control)
    assert recovery.apply(plan, tmp_path / "log", store, control=control).again


def test_the_bucket_remembers_where_a_plan_was_applied(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, ["menu"])
    recovery.apply(plan, tmp_path / "log", store)
    with pytest.raises(UsageError, match=f"was applied to {tmp_path}/log on "):
        recovery.apply(plan, tmp_path / "elsewhere", store)
    assert recovery.status(tmp_path / "elsewhere") is None
    assert recovery.apply(plan, tmp_path / "log", store).again


def test_a_plan_continues_in_its_own_directory_though_the_mark_was_lost(
    kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, ["bills"])
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path / "log", Failing(store, TransientError("throttled"), 0))
    shutil.rmtree(tmp_path / "log")
    recovery.apply(plan, tmp_path / "log", store)
    held = json.loads(store.get(f"cluster/recoveries/{plan.recovery_id}.json")[0])
    assert f"directory.id={held['directory_id']}\n" in (tmp_path / "log" / "meta.properties").read_text()


class ReadOnly(MemoryStore):
    def __init__(self, other: MemoryStore) -> None:
        self.__dict__ = dict(other.__dict__)

    def create(self, key: str, document: bytes) -> str:
        raise Unauthorised(f"{key}: 403")


def test_a_bucket_that_can_only_be_read_needs_a_word(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, plan = ReadOnly(kitchen[0]), recovery.plan(kitchen[1], ["bills"])
    with pytest.raises(Unauthorised, match="--unrecorded"):
        recovery.apply(plan, tmp_path / "log", store)
    assert recovery.status(tmp_path / "log") is None
    assert recovery.apply(plan, tmp_path / "log", store, recorded=False).records > 0


def test_a_plan_with_problems_is_not_applied(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    plan = replace(recovery.plan(repository, None), problems=("something",))
    with pytest.raises(UsageError, match="something"):
        recovery.apply(plan, tmp_path / "log", store)
    assert recovery.status(tmp_path / "log") is None


def test_names_that_the_archive_does_not_hold(kitchen: tuple[MemoryStore, ManifestRepository]) -> None:
    with pytest.raises(NotFound, match=r"no\.such"):
        recovery.plan(kitchen[1], ["menu", "no.such"])
    with pytest.raises(NothingExamined):
        recovery.plan(ManifestRepository(MemoryStore(ManualClock())), None)


def test_what_was_begun_is_finished_even_if_more_has_been_archived_since(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    with pytest.raises(TransientError):
        recovery.apply(recovery.plan(repository, ["specials"]), tmp_path / "log", Failing(store, TransientError("throttled"), 1))
    partition = repository.partitions("specials", repository.resolve("specials").topic_id)[0]
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, start_offset=1))
    recovery.apply(recovery.plan(repository, ["specials"]), tmp_path / "log", store)
    log = next(each for each in LogDirs([tmp_path / "log"]).partitions() if each.partition.partition == 0)
    assert log.log_start == 0


@pytest.mark.parametrize("step", [*recovery.MILESTONES, "recover.fetched:7", "recover.placed:7"])
def test_killed_at_any_step_a_second_run_finishes(
    step: str, kitchen_bucket: Path, kitchen_plan: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    """The same bytes come out, of what says who it is, too: the second run has other ids and another clock, and does not use them."""
    into, store = tmp_path / "log", DirectoryStore(kitchen_bucket)
    killed = run(kitchen_bucket, into, "--plan", str(kitchen_plan), kill_at=step)
    assert killed.returncode == -signal.SIGKILL, f"{step} was not reached: {killed.stderr[-1000:]}"
    report = applied(decode_plan(kitchen_plan.read_bytes()), into, store, FIRST if step in UNDECIDED else LATER)
    assert report.again == (step == "recover.finished")
    assert list(batches(into)) == list(batches(unpack("kitchen")))
    assert contents(into) == undisturbed


@pytest.mark.parametrize(
    "step", [step for step in recovery.MILESTONES if step not in ("recover.locked", "recover.recorded", "recover.finished")]
)
@pytest.mark.parametrize("first", ["the copy", "the original"])
def test_one_of_a_directory_and_its_copy_on_another_host_is_finished(
    first: str, step: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, ["bills"])
    here, there = tmp_path / "here", tmp_path / "there"

    class Died(BaseException):
        pass

    def dies(name: str) -> None:
        if name == step:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(milestones, "reached", dies)
        with pytest.raises(Died):
            recovery.apply(plan, here, store, host="one")
    shutil.copytree(here, there)
    for moved in (False, True) if step in ("recover.claimed", "recover.identity") else (False,):
        with pytest.raises(UsageError, match="no copy of it is continued" if moved else "add --moved"):
            recovery.apply(plan, there, store, host="two", moved=moved)
    if step in ("recover.claimed", "recover.identity"):
        recovery.apply(plan, here, store, host="one")
        assert not (there / "meta.properties").exists() or step == "recover.identity"
        return
    if first == "the copy":
        recovery.apply(plan, there, store, host="two", moved=True)
        with pytest.raises(UsageError, match="was applied to"):
            recovery.apply(plan, here, store, host="one", moved=True)
        done, other = there, here
    else:
        recovery.apply(plan, here, store, host="one")
        with pytest.raises(UsageError, match="no copy of it is continued"):
            recovery.apply(plan, there, store, host="two", moved=True)
        done, other = here, there
    assert (recovery.apply(plan, done, store, host="any").again, (other / "meta.properties").exists()) == (True, False)
    assert [batch for batch in batches(unpack("kitchen")) if batch[0] == "bills"] == list(batches(done))


def test_a_copy_that_is_moved_while_the_original_is_at_work_has_the_identity_alone(
    kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, ["bills"])
    here, there = tmp_path / "here", tmp_path / "there"

    def copied(size_bytes: int) -> None:
        if not there.exists():
            shutil.copytree(here, there)
            recovery.apply(plan, there, store, host="two", moved=True)

    with pytest.raises(UsageError, match=f"continues in {there} on two since"):
        recovery.apply(plan, here, store, host="one", workers=1, progress=copied)
    assert ((here / "meta.properties").exists(), (there / "meta.properties").exists()) == (False, True)


def test_a_plan_is_applied_once_from_two_machines_too(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    """The same path, too, on disks of their own: a second machine begins when the first has begun, and when it has finished."""
    store, repository = kitchen
    plan = decode_plan(encode_plan(recovery.plan(repository, ["bills"])))
    into = tmp_path / "log"

    def refused(moved: bool) -> None:
        aside = into.rename(tmp_path / "of the first machine")
        with pytest.raises(UsageError, match=f"was applied to {into} on one"):
            recovery.apply(plan, into, store, host="two", moved=moved)
        assert recovery.status(into) is None
        shutil.rmtree(into)
        aside.rename(into)

    recovery.apply(plan, into, store, host="one", workers=1, progress=lambda size_bytes: refused(moved=True))
    for moved in (False, True):
        refused(moved)
    assert recovery.apply(plan, into, store, host="one").again
