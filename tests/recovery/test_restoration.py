"""Carrying out a plan: what was archived comes back byte for byte, once, whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.errors import (
    CorruptData,
    DiskFull,
    ForeignOwner,
    HeadwaterError,
    Locked,
    NotFound,
    NothingExamined,
    TransientError,
    Unauthorised,
    UsageError,
    VerificationFailed,
)
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests.head import Entry
from manifests.repository import ManifestRepository
from recovery import layout, runs
from recovery.plan import decode_plan, encode_plan
from recovery.target import locked
from tests.fixtures import unpack
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory, batches, bounds
from tests.recovery.test_plan import a_head, a_topic, an_entry, planned

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kitchen() -> tuple[MemoryStore, ManifestRepository]:
    """Read only."""
    return archive_in_memory(unpack("kitchen"))


@pytest.fixture(scope="module")
def kitchen_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    archive(unpack("kitchen"), DirectoryStore(root))
    return root


@pytest.fixture(scope="module")
def undisturbed(kitchen_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    into, store = tmp_path_factory.mktemp("undisturbed"), DirectoryStore(kitchen_on_disk)
    recovery.apply(recovery.plan(ManifestRepository(store), None), into, store)
    return files(into)


def files(directory: Path) -> dict[str, bytes]:
    """All of it, but for what is made up anew each time or names a time."""
    made_up = {"meta.properties", "bootstrap.checkpoint"}
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in made_up and not path.name.startswith(".headwater-recovery")
    }


@pytest.mark.parametrize("name", ["pantry", "pantry-live", "kitchen"])
def test_what_was_archived_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    source, into = unpack(name), tmp_path / "log"
    store, repository = archive_in_memory(source)
    report = recovery.apply(recovery.plan(repository, None, recovery.Options(keep_offsets=True)), into, store)
    assert list(batches(into)) == list(batches(source))
    assert bounds(into) == bounds(source)
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


def offsets(log_dir: Path, name: str) -> dict[str, int]:
    raw = (log_dir / name).read_bytes()
    return {str(partition): offset for partition, offset in checkpoints.decode_offsets(raw, where=name).items()}


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_no_log_counts_as_cleaned_beyond_what_its_source_had_cleaned(name: str, tmp_path: Path) -> None:
    """Else a tombstone goes as clean, and the value that it deletes stays in an earlier segment for good."""
    source = offsets(unpack(name), checkpoints.CLEANED)
    assert source or name == "kitchen"
    store, repository = archive_in_memory(unpack(name))
    recovery.apply(recovery.plan(repository, None), tmp_path / "log", store)
    recovered = offsets(tmp_path / "log", checkpoints.CLEANED)
    assert all(offset <= source.get(partition, -1) for partition, offset in recovered.items())


@pytest.mark.parametrize(("cleaned", "line"), [((), None), ((0,), 10), ((0, 10), 20), ((10, 20), None), ((0, 20), 10), ((0, 10, 20), 30)])
def test_a_log_counts_as_cleaned_up_to_the_first_entry_that_was_not(cleaned: tuple[int, ...], line: int | None) -> None:
    entries = [an_entry(base, base + 9, cleaned=base in cleaned) for base in (0, 10, 20)]
    made = layout.checkpoint_files(planned(a_topic(a_head(*entries), cleanup_policy="compact")))
    named = checkpoints.decode_offsets(made[PurePath(checkpoints.CLEANED)], where="cleaned")
    assert named == ({} if line is None else {TopicPartition("orders", 0): line})


def test_a_log_start_within_a_segment_is_named(tmp_path: Path) -> None:
    """Without that, records that were deleted come back."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = repository.resolve("bills").partition_id(0)
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, start_offset=7))
    recovery.apply(recovery.plan(repository, ["bills", "menu"]), tmp_path / "log", store)
    assert offsets(tmp_path / "log", checkpoints.LOG_STARTS) == {"bills:0": 7}


def test_the_end_of_a_log_stays_where_it_was_when_its_last_offsets_are_gone(tmp_path: Path) -> None:
    """As after a gap, or a compaction that removed the last records: the same offsets must not be handed out again."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = next(each for each in repository.partitions("bills", repository.resolve("bills").topic_id) if each.partition == 0)
    held = repository.load(partition)
    assert held is not None
    gap = Entry(base_offset=held.head.next_offset, last_offset=held.head.next_offset + 9, gap=True)
    repository.commit(held, replace(held.head, entries=(*held.head.entries, gap), last_offset=gap.last_offset))
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store)
    log = next(each for each in LogDirs([tmp_path / "log"]).partitions() if each.partition.partition == 0)
    assert log.high_watermark == gap.next_offset
    assert (log.segments[-1].base_offset, log.segments[-1].size_bytes) == (gap.next_offset, 0)


def test_a_log_that_starts_within_a_segment_says_so_in_its_epoch_history_too(tmp_path: Path) -> None:
    """A broker cuts it there, and a reader of the directory trusts what begins below the checkpointed log start."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = next(each for each in repository.partitions("bills", repository.resolve("bills").topic_id) if each.partition == 0)
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, start_offset=7))
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store)
    log = next(each for each in LogDirs([tmp_path / "log"]).partitions() if each.partition.partition == 0)
    assert (log.segments[0].base_offset, log.epochs.first_offset, log.start_offset) == (0, 7, 7)


# Once, and only in a directory of its own


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
    (tmp_path / content).write_bytes(b"somebody's")
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


def test_a_plan_goes_on_in_its_own_directory_though_the_mark_was_lost(
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


# Interruptions


class Failing(MemoryStore):
    """Reads data objects only so many times, then fails with `error`."""

    def __init__(self, other: MemoryStore, error: HeadwaterError, after: int) -> None:
        self.__dict__ = dict(other.__dict__)
        self.error, self.left = error, after

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error
        super().read_into(key, buffer, start=start)


def test_a_store_that_fails_midway_loses_nothing(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, None)
    placed: list[int] = []
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path / "log", Failing(store, TransientError("throttled"), 5), progress=placed.append)
    midway = recovery.status(tmp_path / "log")
    assert midway is not None
    assert (midway.files_placed, midway.bytes_placed, midway.finished_ms) == (5, sum(placed), None)
    assert not (tmp_path / "log" / "meta.properties").exists()
    report = recovery.apply(recovery.plan(repository, None), tmp_path / "log", Failing(store, TransientError("again"), midway.files - 5))
    assert report.resumed
    assert report.recovery_id == plan.recovery_id
    assert list(batches(tmp_path / "log")) == list(batches(unpack("kitchen")))


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


def test_a_placed_file_that_was_damaged_meanwhile_is_fetched_again(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    with pytest.raises(TransientError):
        recovery.apply(recovery.plan(repository, ["bills"]), tmp_path, Failing(store, TransientError("throttled"), 1), workers=1)
    [placed] = tmp_path.rglob("*.log")
    raw = bytearray(placed.read_bytes())
    raw[len(raw) // 2] ^= 1
    placed.write_bytes(raw)
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path, store)
    wanted = [batch for batch in batches(unpack("kitchen")) if batch[0] == "bills"]
    assert list(batches(tmp_path)) == wanted


def damaged(store: MemoryStore, key: str, change: str) -> MemoryStore:
    """A copy in which one object was changed behind everyone's back."""
    other = MemoryStore(ManualClock())
    for info in store.list(""):
        raw = bytearray(store.get(info.key)[0])
        if info.key == key:
            if change == "gone":
                continue
            if change == "short":
                del raw[-1]
            else:
                raw[len(raw) // 2] ^= 0x10
        other.create(info.key, bytes(raw))
    return other


def runs_of(repository: ManifestRepository, topic: str) -> list[tuple[int, Entry]]:
    [planned_topic] = recovery.plan(repository, [topic]).topics
    return [(partition.partition, entry) for partition in planned_topic.partitions for entry in partition.files]


@pytest.mark.parametrize("change", ["short", "gone"])
def test_what_is_missing_is_known_before_anything_is_fetched(
    change: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    number, entry = runs_of(kitchen[1], "bills")[0]
    store = damaged(kitchen[0], entry.key, change)
    plan = recovery.plan(ManifestRepository(store), None)
    [hole] = plan.holes
    assert str(hole).startswith(f"bills:{number} offsets {entry.base_offset}-{entry.last_offset}: ")
    assert entry.uid in hole.reason
    with pytest.raises(VerificationFailed, match=entry.uid):
        recovery.apply(decode_plan(encode_plan(plan)), tmp_path / "log", store)
    assert recovery.status(tmp_path / "log") is None


@pytest.mark.parametrize("change", ["flipped", "short", "gone"])
def test_objects_that_are_not_what_the_archive_says_stop_nothing_else_and_are_all_named(
    change: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, None)  # before anything happened to the objects
    bad = {topic: runs_of(repository, topic)[0] for topic in ("bills", "specials")}
    for _, entry in bad.values():
        store = damaged(store, entry.key, change)
    with pytest.raises(VerificationFailed) as told:
        recovery.apply(plan, tmp_path, store)
    for topic, (number, entry) in bad.items():
        assert f"{topic}:{number} offsets {entry.base_offset}-{entry.last_offset}: " in str(told.value)
        assert not (tmp_path / f"{topic}-{number}" / runs.segment_name(entry.base_offset)).exists()
    assert not (tmp_path / "meta.properties").exists()
    assert not list(tmp_path.rglob("*.partial"))
    placed = recovery.status(tmp_path)
    assert placed is not None
    assert placed.files_placed == placed.files - 2
    mended = recovery.apply(plan, tmp_path, kitchen[0])  # the bucket was mended
    assert (mended.resumed, mended.left_out) == (True, ())
    assert list(batches(tmp_path)) == list(batches(unpack("kitchen")))


@pytest.mark.parametrize("change", ["flipped", "gone"])
@pytest.mark.parametrize("interrupted", [False, True])
def test_what_is_damaged_can_be_skipped_and_becomes_a_gap(
    change: str, interrupted: bool, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    repository = kitchen[1]
    number, entry = runs_of(repository, "bills")[0]
    store = damaged(kitchen[0], entry.key, change)
    if interrupted:  # it was found on the way, and the directory is begun
        with pytest.raises(VerificationFailed):
            recovery.apply(recovery.plan(repository, None), tmp_path, store)
    plan = recovery.plan(ManifestRepository(store), None)
    report = recovery.apply(plan, tmp_path, store, skip_damaged=True)
    [told] = report.left_out
    assert told.startswith(f"bills:{number} offsets {entry.base_offset}-{entry.last_offset}: ")
    skipped = [each for each in batches(tmp_path) if each[:2] == ("bills", number) and each[2] in entry]
    assert skipped == []
    wanted = [each for each in batches(unpack("kitchen")) if each[:2] != ("bills", number) or each[2] not in entry]
    assert list(batches(tmp_path)) == wanted
    ends = {place: end for place, (_, _, end) in bounds(tmp_path).items()}
    assert ends == {place: end for place, (_, _, end) in bounds(unpack("kitchen")).items()}
    again = recovery.apply(plan, tmp_path, store)
    assert (again.again, again.left_out) == (True, report.left_out)


def test_a_manifest_that_disagrees_with_its_object_stops_the_recovery(
    kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    store, repository = kitchen
    entry = next(topic for topic in recovery.plan(repository, ["bills"]).topics).partitions[0].files[0]
    path = tmp_path / "run"
    for wrong in (
        replace(entry, records=entry.records + 1),
        replace(entry, base_offset=entry.base_offset + 1, epochs=()),
        replace(entry, last_offset=entry.last_offset - 1),
        replace(entry, epochs=((9, entry.base_offset),)),
        replace(entry, live_bytes=entry.live_bytes - 1),
        replace(entry, digest="crc64nvme:0123456789abcdef"),
    ):
        with pytest.raises(CorruptData):
            runs.restore(store, wrong, path)
        assert not path.exists()


def run(archive_in: Path, into: Path, *arguments: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.recovery.apply_once", str(archive_in), str(into), *arguments]
    environment = {**os.environ, "KILL_AT": kill_at}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)


@pytest.mark.parametrize("step", [*recovery.MILESTONES, "recover.fetched:7", "recover.placed:7"])
def test_killed_at_any_step_a_second_run_finishes(step: str, kitchen_on_disk: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    into, store = tmp_path / "log", DirectoryStore(kitchen_on_disk)
    killed = run(kitchen_on_disk, into, kill_at=step)
    assert killed.returncode == -signal.SIGKILL, f"{step} was not reached: {killed.stderr[-1000:]}"
    repository = ManifestRepository(store)
    report = recovery.apply(recovery.plan(repository, None), into, store)
    assert report.again == (step == "recover.finished")
    assert list(batches(into)) == list(batches(unpack("kitchen")))
    assert not list(into.rglob("*.partial"))
    assert files(into) == undisturbed


FOREIGN = b"version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"


@pytest.mark.parametrize("step", [step for step in recovery.MILESTONES if step not in ("recover.locked", "recover.recorded")])
def test_killed_and_formatted_by_somebody_it_is_not_a_success_until_that_is_undone(
    step: str, kitchen_on_disk: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    into, store = tmp_path / "log", DirectoryStore(kitchen_on_disk)
    assert run(kitchen_on_disk, into, kill_at=step).returncode == -signal.SIGKILL
    (into / "meta.properties").write_bytes(FOREIGN)
    (into / "bootstrap.checkpoint").write_bytes(b"a format tool's")
    plan = recovery.plan(ManifestRepository(store), None)
    with pytest.raises(VerificationFailed, match=r"Remove meta\.properties and bootstrap\.checkpoint"):
        recovery.apply(plan, into, store)
    found = recovery.status(into)
    assert found is not None
    assert "formatted" in found.problem
    assert (into / "meta.properties").read_bytes() == FOREIGN
    (into / "meta.properties").unlink()
    (into / "bootstrap.checkpoint").unlink()
    assert not recovery.apply(plan, into, store).again
    assert files(into) == undisturbed
    assert list(batches(into)) == list(batches(unpack("kitchen")))


@pytest.mark.parametrize("step", ["recover.segments", "recover.checkpoints", "recover.verified", "recover.identity"])
def test_killed_and_robbed_of_files_it_fetches_them_again(
    step: str, kitchen_on_disk: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    into, store = tmp_path / "log", DirectoryStore(kitchen_on_disk)
    assert run(kitchen_on_disk, into, kill_at=step).returncode == -signal.SIGKILL
    shutil.rmtree(into / "bills-0")
    next((into / "specials-0").glob("*.log")).write_bytes(b"")
    recovery.apply(recovery.plan(ManifestRepository(store), None), into, store)
    assert files(into) == undisturbed


def test_a_finished_recovery_without_its_files_is_no_success(kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path) -> None:
    store, repository = kitchen
    plan = recovery.plan(repository, None)
    recovery.apply(plan, tmp_path, store)
    shutil.rmtree(tmp_path / "bills-0")
    with pytest.raises(VerificationFailed, match=r"files are gone or changed, .*bills-0"):
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


def test_a_full_disk_is_said_so_and_the_rest_comes_later(tmp_path: Path) -> None:
    """A limit on file sizes is the one kind of full disk that needs no mount; only the photos are larger."""
    (tmp_path / "archive").mkdir()
    into, store = tmp_path / "log", DirectoryStore(tmp_path / "archive")
    archive(unpack("pantry"), store, ["photos", "menu.prices"])
    full = run(tmp_path / "archive", into, "500000")
    assert (full.returncode, full.stdout.splitlines()[-1].split()[0]) == (DiskFull.exit_code, "DiskFull")
    assert not list(into.rglob("*.partial"))
    assert recovery.apply(recovery.plan(ManifestRepository(store), None), into, store).resumed
    assert list(batches(into)) == [batch for batch in batches(unpack("pantry")) if batch[0] in ("photos", "menu.prices")]


def test_too_little_room_is_seen_before_anything_is_fetched(tmp_path: Path) -> None:
    largest = 2**31 - 1
    count = shutil.disk_usage(tmp_path).free // largest + 2
    heads = (a_head(an_entry(0, 9, partition=at, size_bytes=largest, live_bytes=largest), partition=at) for at in range(count))
    with pytest.raises(DiskFull, match="make room"):
        recovery.apply(planned(a_topic(*heads)), tmp_path / "log", MemoryStore(ManualClock()))
