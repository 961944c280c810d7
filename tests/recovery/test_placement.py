import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.errors import (
    CorruptData,
    DiskFull,
    TransientError,
    VerificationFailed,
)
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery import placement, runs
from recovery.layout import segment_files
from recovery.plan_document import decode_plan, encode_plan
from recovery.target_room import RESERVE_BYTES_MAX, free_bytes
from tests.fixtures import unpack
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, batches, bounds
from tests.recovery.interrupted import Failing, damaged, run, runs_of
from tests.recovery.kill_walk import LATER, applied, contents
from tests.recovery.plans import a_head, a_topic, an_entry, planned


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


@pytest.mark.parametrize("at", [16, 100, -1])
@pytest.mark.parametrize("bit", range(8))
def test_a_placed_file_that_was_damaged_meanwhile_is_fetched_again(
    at: int, bit: int, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    """16: the format of the first batch, an older one then."""
    store, repository = kitchen
    with pytest.raises(TransientError):
        recovery.apply(recovery.plan(repository, ["bills"]), tmp_path, Failing(store, TransientError("throttled"), 1), workers=1)
    [placed] = tmp_path.rglob("*.log")
    raw = bytearray(placed.read_bytes())
    raw[at] ^= 1 << bit
    placed.write_bytes(raw)
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path, store)
    wanted = [batch for batch in batches(unpack("kitchen")) if batch[0] == "bills"]
    assert list(batches(tmp_path)) == wanted


@pytest.mark.parametrize("change", ["short", "gone"])
def test_what_is_missing_is_known_before_anything_is_fetched(
    change: str, kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path
) -> None:
    number, entry = runs_of(kitchen[1], "bills")[0]
    store = damaged(kitchen[0], entry.key, change)
    plan = recovery.plan(ManifestRepository(store), None)
    [lost] = plan.holes
    assert str(lost).startswith(f"bills:{number} offsets {entry.base_offset}-{entry.last_offset}: ")
    assert entry.uid in lost.reason
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
    with pytest.raises(VerificationFailed) as reason:
        recovery.apply(plan, tmp_path, store)
    for topic, (number, entry) in bad.items():
        assert f"{topic}:{number} offsets {entry.base_offset}-{entry.last_offset}: " in str(reason.value)
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
    [reason] = report.left_out
    assert reason.startswith(f"bills:{number} offsets {entry.base_offset}-{entry.last_offset}: ")
    skipped = [each for each in batches(tmp_path) if each[:2] == ("bills", number) and each[2] in entry]
    assert skipped == []
    wanted = [each for each in batches(unpack("kitchen")) if each[:2] != ("bills", number) or each[2] not in entry]
    assert list(batches(tmp_path)) == wanted
    ends = {place: end for place, (_, _, end) in bounds(tmp_path).items()}
    log_ends = {(topic.topic, partition.partition): partition.log_end for topic in plan.topics for partition in topic.partitions}
    assert ends == {place: log_ends[place] for place in bounds(unpack("kitchen"))}
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


@pytest.mark.parametrize("step", ["recover.segments", "recover.checkpoints", "recover.verified", "recover.identity"])
def test_killed_and_robbed_of_files_it_fetches_them_again(
    step: str, kitchen_bucket: Path, kitchen_plan: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    into, store = tmp_path / "log", DirectoryStore(kitchen_bucket)
    assert run(kitchen_bucket, into, "--plan", str(kitchen_plan), kill_at=step).returncode == -signal.SIGKILL
    shutil.rmtree(into / "bills-0")
    next((into / "specials-0").glob("*.log")).write_bytes(b"")
    applied(decode_plan(kitchen_plan.read_bytes()), into, store, LATER)
    assert contents(into) == undisturbed


def test_a_full_disk_is_said_so_and_the_rest_comes_later(tmp_path: Path) -> None:
    """A limit on file sizes is the one kind of full disk that needs no mount; only the photos are larger."""
    (tmp_path / "archive").mkdir()
    into, store = tmp_path / "log", DirectoryStore(tmp_path / "archive")
    archive(unpack("pantry"), store, ["photos", "menu.prices"])
    full = run(tmp_path / "archive", into, "--file-bytes-max", "500000")
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


def test_room_that_others_take_meanwhile_stops_it_before_the_disk_is_full(
    kitchen: tuple[MemoryStore, ManifestRepository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, repository = kitchen
    plan, placed = recovery.plan(repository, None), list[int]()
    room = plan.size_bytes + 1000 * len(list(segment_files(plan, tmp_path)))
    monkeypatch.setattr(placement, "free_bytes", lambda directory: room - sum(placed) - (room - 9000) * (len(placed) >= 3))
    with pytest.raises(DiskFull, match="make room and run the same command again"):
        recovery.apply(plan, tmp_path, store, workers=1, progress=placed.append)
    assert len(placed) == 3
    monkeypatch.setattr(placement, "free_bytes", lambda directory: room)
    assert recovery.apply(plan, tmp_path, store).resumed


def test_some_room_is_left_to_others(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    reserve = min(RESERVE_BYTES_MAX, usage.total // 100)
    assert abs(free_bytes(tmp_path) - (usage.free - reserve)) < reserve // 2
