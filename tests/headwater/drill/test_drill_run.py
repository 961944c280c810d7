"""A drill over a real log's archive: what it compares, and what it finds. One flipped byte anywhere makes it fail, and is named."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater.drill.drill_report import DrillFinding, DrillOutcome, DrillReport, DrillRequest, decode_report, encode_report
from headwater.drill.drill_run import carry_out, prepare
from headwater.drill.equipment import DrillEquipment, OpenSpare, SpareBroker
from headwater.drill.scratch import Scratch, open_scratch
from headwater.drill_text import report_text
from headwater_core import milestones
from headwater_core.clock import SystemClock
from headwater_core.errors import DiskFull, HeadwaterError, NothingExamined, TransientError, Unauthorised, VerificationFailed
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests import page_limits
from manifests.repository import ManifestRepository
from tests.fixtures import unpack
from tests.headwater.drill.spare import served
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests import trees
from tests.recovery.archived import archive_in_memory
from tests.recovery.interrupted import Failing, damaged
from tests.recovery.written_archive import Archive, commit, data, marker, plain, shares, snapshot, state

ID = "20260131T120000.123Z-9f86d081"


@pytest.fixture(scope="module")
def kitchen() -> MemoryStore:
    return archive_in_memory(unpack("kitchen"))[0]


def drill(
    store: ObjectStore, base: Path, *, meddle: Callable[[Path], object] = lambda _: None, spare: OpenSpare | None = None, **request: Any
) -> DrillReport:
    """meddle: with what was restored, before it is read back"""

    equipment = DrillEquipment(store=store, clock=SystemClock(), version="1", spare=spare)
    prepared = prepare(equipment, DrillRequest(**{"topics": None, **request}), ID)
    with open_scratch(base, ID) as scratch, at_milestone("drill.restored", lambda: meddle(scratch.log_dir)):
        report = carry_out(equipment, prepared, scratch)
    assert not list(base.glob("scratch-*"))
    assert decode_report(encode_report(report), "report") == report
    return report


@contextmanager
def at_milestone(name: str, work: Callable[[], object]) -> Iterator[None]:
    before = milestones.observer

    def observe(reached: str) -> None:
        before(reached)
        if reached == name:
            work()

    milestones.observer = observe
    try:
        yield
    finally:
        milestones.observer = before


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key)[0] for info in store.list("")}


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_a_sound_archive_comes_back_as_it_was_archived(name: str, tmp_path: Path) -> None:
    store, _ = archive_in_memory(unpack(name))
    before = contents(store)
    report = drill(store, tmp_path)
    assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ())
    assert report.compared == report.paths[0].amount
    assert replace(report.compared, batches=0) == report.selected
    assert report.compared.batches > 0
    assert all(window.head_version > 0 for window in report.windows)
    assert {each.why for each in report.skipped} == {"no records are archived"}
    assert report.rto.ready_s is not None
    assert contents(store) == before  # the bucket is read, and nothing else


def test_a_sample_says_which_windows_it_drew_and_what_it_left(kitchen: MemoryStore, tmp_path: Path) -> None:
    reports = [drill(kitchen, tmp_path, share=0.3, seed=7) for _ in range(2)]
    assert reports[0].windows
    assert [each.windows for each in reports[:1]] == [each.windows for each in reports[1:]]
    report = reports[0]
    left = sum(each.amount.size_bytes for each in report.skipped)
    assert report.outcome is DrillOutcome.PASSED
    assert 0 < report.compared.size_bytes < report.selected.size_bytes == report.compared.size_bytes + left


def test_what_may_be_restored_bounds_the_sample(kitchen: MemoryStore, tmp_path: Path) -> None:
    report = drill(kitchen, tmp_path, scratch_bytes=6000)
    assert 0 < report.compared.size_bytes <= 6000
    assert report.share < 1
    nothing = drill(kitchen, tmp_path, scratch_bytes=10)
    assert (nothing.outcome, nothing.compared.runs) == (DrillOutcome.NOTHING, 0)


def test_windows_of_logs_with_gaps_and_open_transactions(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("plain", *([plain(at * 5, 5)] for at in range(6)))
    archive.topic("gaps", [plain(0, 5)], [data(5, 1000)], None, [plain(16, 5)], [plain(21, 5)])
    archive.topic("open", [plain(0, 5)], [data(5, 1000)], [plain(6, 5)])
    shares = [drill(archive.store, tmp_path, share=share, seed=seed) for share in (0.2, 0.6, 1.0) for seed in range(4)]
    assert {report.outcome for report in shares} == {DrillOutcome.PASSED}
    assert len({report.compared.runs for report in shares}) > 2


def test_an_empty_archive_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingExamined):
        drill(MemoryStore(SystemClock()), tmp_path)


def test_an_archive_of_empty_topics_proves_nothing(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.replace("orders", [plain(0, 5)], start_offset=5)
    report = drill(archive.store, tmp_path)
    assert (report.outcome, report.compared.runs) == (DrillOutcome.NOTHING, 0)


def test_a_partition_without_a_manifest_is_no_damage_and_no_pass(kitchen: MemoryStore, tmp_path: Path) -> None:
    repository = ManifestRepository(kitchen)
    topic = repository.resolve("specials")
    store = damaged(kitchen, f"meta/specials/{topic.topic_id}/2/manifest.json", "gone")
    report = drill(store, tmp_path)
    assert (report.outcome, report.findings) == (DrillOutcome.INCOMPLETE, ())
    assert "specials" in report.left_out[0]


def test_a_transaction_that_comes_back_in_part_is_no_pass(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, producer_epoch=1)])
    archive.topic("menu", [plain(0), data(1, 7)])
    report = drill(archive.store, tmp_path)
    assert (report.outcome, report.findings) == (DrillOutcome.INCOMPLETE, ())
    [torn] = report.torn
    assert "orders:0" in torn
    assert torn in report_text(report)


def test_an_earlier_incarnation_can_be_drilled_by_its_id(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    first = archive.ids["orders"]
    archive.topic("orders", [plain(0, 7)])
    assert drill(archive.store, tmp_path).compared.records == 7
    assert drill(archive.store, tmp_path, topics=(f"orders@{first}",)).compared.records == 5


# Damage


def of_recovery(key: str) -> bool:
    """Does a recovery of topics rest on this object? The others say how the archive is worked on."""
    return key.startswith(("data/", "meta/", "headwater.json"))


@pytest.mark.parametrize("seed", range(40))
def test_a_byte_that_is_flipped_anywhere_in_the_bucket_is_found_and_named(seed: int, kitchen: MemoryStore, tmp_path: Path) -> None:
    random = Random(seed)
    keys = sorted(info.key for info in kitchen.list("") if of_recovery(info.key))
    key = random.choice(keys)
    raw = bytearray(kitchen.get(key)[0])
    at, bit = random.randrange(len(raw)), 1 << random.randrange(8)
    raw[at] ^= bit
    store = damaged(kitchen, key, "gone")
    store.create(key, bytes(raw))
    try:
        report = drill(store, tmp_path)
    except VerificationFailed as error:
        named = str(error)
    else:
        if report.outcome is DrillOutcome.PASSED:
            assert key.startswith(("meta/", "headwater.json"))
            assert json.loads(bytes(raw)) == json.loads(kitchen.get(key)[0])  # white space, over which no digest is
            return
        assert report.outcome is DrillOutcome.FAILED, f"{key}, byte {at}"
        named = " ".join(f"{each.topic} {each.text}" for each in report.findings)
    assert key in named or key.split("/")[-4 if key.startswith("data/") else 1] in named


@pytest.mark.parametrize("change", ["gone", "short", "flipped"])
def test_what_is_sound_is_compared_all_the_same(change: str, kitchen: MemoryStore, tmp_path: Path) -> None:
    [topic] = recovery.plan(ManifestRepository(kitchen), ["bills"]).topics
    entry = topic.partitions[1].files[0]
    report = drill(damaged(kitchen, entry.key, change), tmp_path)
    assert report.outcome is DrillOutcome.FAILED
    assert {(each.topic, each.partition) for each in report.findings} == {("bills", 1)}
    assert any(entry.key in each.text for each in report.findings)
    assert report.compared.runs == report.selected.runs - 1


@pytest.mark.parametrize("seed", range(40))
def test_a_byte_that_is_flipped_in_what_was_restored_is_found_and_named(seed: int, kitchen: MemoryStore, tmp_path: Path) -> None:
    random, changed = Random(seed), []

    def flip(log_dir: Path) -> None:
        path = random.choice(sorted(path for path in log_dir.rglob("*.log") if path.stat().st_size))
        raw = bytearray(path.read_bytes())
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        path.write_bytes(bytes(raw))
        changed.append(path.parent.name)

    report = drill(kitchen, tmp_path, meddle=flip)
    assert changed
    assert report.outcome is DrillOutcome.FAILED
    named = {f"{each.topic}-{each.partition}" for each in report.findings}
    assert named == set(changed)


def test_a_segment_that_is_not_there_any_more_is_found(kitchen: MemoryStore, tmp_path: Path) -> None:
    def remove(log_dir: Path) -> None:
        (log_dir / "bills-1" / "00000000000000000000.log").unlink()

    report = drill(kitchen, tmp_path, meddle=remove)
    assert report.outcome is DrillOutcome.FAILED
    assert {(each.topic, each.partition) for each in report.findings} == {("bills", 1)}


def test_a_plan_that_was_wrong_is_found(kitchen: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recovery believes is not what the drill believes: here, that an emptied segment is the whole of a run."""
    monkeypatch.setattr(recovery, "apply", _without_the_last_batch)
    report = drill(kitchen, tmp_path)
    assert report.outcome is DrillOutcome.FAILED
    assert {each.kind for each in report.findings} == {"differs"}


def _without_the_last_batch(plan: recovery.RecoveryPlan, into: Path, store: ObjectStore, **how: Any) -> recovery.RecoveryReport:
    from recovery.restoration import apply
    from tests.recovery.written_archive import batches_in

    done = apply(plan, into, store, **how)
    for directory in (into / "bills-0", into / "specials-0"):
        path = directory / "00000000000000000000.log"
        path.write_bytes(path.read_bytes()[: -len(batches_in(directory)[-1][1])])
    return done


def test_a_store_that_does_not_answer_is_no_verdict(kitchen: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        drill(Failing(kitchen, TransientError("throttled"), 5), tmp_path)
    assert not list(tmp_path.glob("scratch-*"))


def test_nothing_that_can_be_recovered_is_damage(kitchen: MemoryStore, tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    for info in kitchen.list(""):
        raw = kitchen.get(info.key)[0]
        store.create(info.key, raw[:-9] if info.key.endswith("manifest.json") else raw)
    with pytest.raises(VerificationFailed):
        drill(store, tmp_path)


def test_identities_are_those_of_the_archive(kitchen: MemoryStore, tmp_path: Path) -> None:
    report = drill(kitchen, tmp_path)
    for window in report.windows:
        held = ManifestRepository(kitchen).load(PartitionId(report.cluster_id, window.topic_id, window.partition, window.topic))
        assert held is not None
        assert held.head.version == window.head_version


def test_what_the_archive_replaces_meanwhile_is_no_damage_and_no_pass(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)], [plain(5, 5)])
    archive.topic("bills", [plain(0, 5)])

    def merge(_: Path) -> None:
        archive.replace("orders", [plain(0, 5), plain(5, 5)])

    report = drill(archive.store, tmp_path, meddle=merge)
    assert (report.outcome, report.findings) == (DrillOutcome.INCOMPLETE, ())
    assert [each.partition(" offsets ")[0] for each in report.unmet] == ["headwater: orders:0"] * 2
    assert report.compared.runs == 1


def test_damage_below_a_head_with_a_lost_page_is_named_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", trees.SMALL)
    archive = Archive()
    entries = archive.topic("orders", *([plain(at * 5, 5)] for at in range(9)))
    [page, *_] = [info.key for info in archive.store.list("meta/") if info.key.endswith(".jsonl.gz")]
    store = damaged(damaged(archive.store, page, "gone"), entries[-1].index_key, "gone")
    report = drill(store, tmp_path)
    assert report.outcome is DrillOutcome.FAILED
    assert {(each.kind, each.offset) for each in report.findings} == {("missing", 0), ("damaged", entries[-1].base_offset)}


def test_a_pattern_selects_and_finds_what_is_damaged_of_it(kitchen: MemoryStore, tmp_path: Path) -> None:
    sound = drill(kitchen, tmp_path, topics=("bil*",))
    assert (sound.outcome, {each.topic for each in sound.windows}) == (DrillOutcome.PASSED, {"bills"})
    store = damaged(kitchen, f"meta/specials/{ManifestRepository(kitchen).resolve('specials').topic_id}/topic.json", "gone")
    report = drill(store, tmp_path, topics=("bills", "spec*l?", "bil*"))
    assert report.outcome is DrillOutcome.FAILED
    assert {each.topic for each in report.findings} == {"specials"}
    assert drill(store, tmp_path, topics=("bil*",)).outcome is DrillOutcome.PASSED


def by_broker(store: ObjectStore, base: Path, **equipped: Any) -> DrillReport:
    equipment = DrillEquipment(store=store, clock=SystemClock(), version="1", needs_spare=True, **equipped)
    prepared = prepare(equipment, DrillRequest(topics=None), ID)
    with open_scratch(base, ID) as scratch:
        return carry_out(equipment, prepared, scratch)


def test_a_requested_broker_that_there_is_none_of_is_no_pass(kitchen: MemoryStore, tmp_path: Path) -> None:
    report = by_broker(kitchen, tmp_path, no_spare="there is no Java")
    assert (report.outcome, report.error) == (DrillOutcome.UNFINISHED, "kafka: nothing was compared: there is no Java")
    assert report.compared.runs == report.selected.runs


@pytest.mark.parametrize("error", [TransientError("no leader"), Unauthorised("java: Permission denied")])
def test_a_broker_that_this_machine_cannot_start_is_no_damage(error: HeadwaterError, kitchen: MemoryStore, tmp_path: Path) -> None:
    def spare(*_: object) -> AbstractContextManager[SpareBroker]:
        raise error

    report = by_broker(kitchen, tmp_path, spare=spare)
    assert (report.outcome, report.findings) == (DrillOutcome.UNFINISHED, ())
    assert str(error) in report.error
    assert report.compared.runs == report.selected.runs  # what was compared without it stands in the report


@pytest.mark.parametrize("call", ["bounds", "batches", "stable_end", "pass_expiry_check", "committed", "shared", "initialize"])
def test_a_broker_that_does_not_answer_any_more_is_no_damage(call: str, tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 9)])
    archive.topic("__consumer_offsets", [commit(0, ("readers", "orders", 0, 7))])
    archive.topic("__transaction_state", [state(0, "payer", 7, 4)])
    archive.topic("__share_group_state", [shares(0, ("sharers", snapshot(3)))])

    def silent(*_: object) -> Any:
        raise TransientError("disconnected")

    @contextmanager
    def silenced(scratch: Scratch, plan: recovery.RecoveryPlan) -> Iterator[SpareBroker]:
        with served(scratch, plan) as spare:
            setattr(spare.path if hasattr(spare.path, call) else spare.coordinators, call, silent)
            yield spare

    report = by_broker(archive.store, tmp_path, spare=silenced)
    assert (report.outcome, report.findings) == (DrillOutcome.UNFINISHED, ())
    assert "disconnected" in report.error


def test_a_broker_that_refuses_what_was_restored_is_a_finding_and_a_full_disk_or_store_none(kitchen: MemoryStore, tmp_path: Path) -> None:
    def broken(error: HeadwaterError) -> Callable[..., AbstractContextManager[SpareBroker]]:
        def spare(*_: object) -> AbstractContextManager[SpareBroker]:
            raise error

        return spare

    report = by_broker(kitchen, tmp_path, spare=broken(VerificationFailed("exit code 1")))
    assert [(each.kind, each.where) for each in report.findings] == [("differs", "kafka")]
    with pytest.raises(DiskFull):
        by_broker(kitchen, tmp_path, spare=broken(DiskFull("full")))

    store = Failing(kitchen, TransientError("throttled"), 10**9)

    @contextmanager
    def throttled(scratch: Scratch, plan: recovery.RecoveryPlan) -> Iterator[SpareBroker]:
        with served(scratch, plan) as spare:
            store.left = 0
            yield spare

    with pytest.raises(TransientError, match="throttled"):
        by_broker(store, tmp_path, spare=throttled)


def test_a_report_has_these_keys(kitchen: MemoryStore, tmp_path: Path) -> None:
    """Programs read them: keys are added, never changed; the format's minor version counts."""
    body = json.loads(encode_report(drill(kitchen, tmp_path)))
    assert body["format"] == [1, 4]
    words = (
        "answers cluster_id compared compared_partitions digest ended_ms error finding_count findings format headwater host id left_out "
        "metadata notes outcome partitions paths recovery_id request rpo rto scratch selected share skipped started_ms store topics torn "
        "unchecked unmet windows"
    )
    assert " ".join(sorted(body)) == " ".join(sorted(words.split()))
    assert " ".join(sorted(body["request"])) == "by cluster live scratch_bytes seed share topics"
    assert " ".join(sorted(body["rpo"])) == "behind newest_record_ms partitions records source unmeasured why worst worst_s"
    assert " ".join(sorted(body["windows"][0])) == (
        "archived base_offset by end_offset head_version last_offset live partition start_offset topic topic_id"
    )


def test_a_hostile_name_stays_in_its_line_of_the_text(kitchen: MemoryStore, tmp_path: Path) -> None:
    report = replace(
        drill(kitchen, tmp_path),
        outcome=DrillOutcome.FAILED,
        findings=(DrillFinding(kind="damaged", topic="a\nPASSED: \x1b[2Jall", text="b\rc"),),
        finding_count=1,
    )
    text = report_text(report)
    assert "\nPASSED" not in text
    assert "    PASSED: \\x1b[2Jall: damaged: b\\rc" in text
    assert all(each.isprintable() for each in text.splitlines())
