"""Restored logs as they must not be: one mistake each, and a drill names it. And the archive whose coordinator is older than its data."""

from pathlib import Path

import pytest

from headwater.drill.coordinator_check import OFFSETS, TRANSACTIONS, Finding, replay
from headwater.drill.drill_report import DrillOutcome
from headwater_core.errors import CorruptData
from headwater_core.segments import flexible
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.markers import ABORT, COMMIT
from headwater_core.segments.records import Record
from tests.headwater.drill.test_drill_run import drill
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.written_archive import Archive, commit, data, marker, plain, state, text

MADE_MS = 5  # of every commit of `commit`
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD, PREPARE_EPOCH_FENCE = range(8)


def found(directory: Path, topic: str, *batches: bytes, began_ms: int = MADE_MS) -> list[Finding]:
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    return list(replay(topic, directory, began_ms))


def tombstone(offset: int, transactional_id: str) -> bytes:
    return a_batch(offset, [Record(offset, 0, flexible.i16(0) + text(transactional_id), None, ())])


@pytest.mark.parametrize("status", [ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE])
def test_a_transactional_id_that_its_coordinator_would_end(tmp_path: Path, status: int) -> None:
    log = [state(0, "payer", 7, COMPLETE_COMMIT), state(1, "cook", 8, status), state(2, "payer", 7, EMPTY)]
    [finding] = found(tmp_path, TRANSACTIONS, *log)
    assert finding.offset == 1
    assert "'cook'" in finding.text
    assert found(tmp_path, TRANSACTIONS, *log, tombstone(3, "cook")) == []


def test_a_state_that_cannot_be_decoded_is_not_known(tmp_path: Path) -> None:
    log = [a_batch(0, [Record(0, 0, flexible.i16(0) + text("cook"), flexible.i16(9), ())])]
    [finding] = found(tmp_path, TRANSACTIONS, *log)
    assert "'cook'" in finding.text
    assert found(tmp_path, TRANSACTIONS, *log, tombstone(1, "cook")) == []


def test_a_commit_that_is_pending(tmp_path: Path) -> None:
    log = [commit(0, ("readers", "menu", 3, 7), producer=7)]
    findings = found(tmp_path, OFFSETS, *log)
    assert {each.offset for each in findings} == {0}
    assert any("'readers' for menu:3" in each.text and "producer id 7" in each.text for each in findings)
    for kind in (COMMIT, ABORT):
        assert found(tmp_path, OFFSETS, *log, marker(1, 7, kind)) == []


def test_a_commit_with_the_age_of_before(tmp_path: Path) -> None:
    log = [commit(0, ("readers", "menu", 3, 7)), commit(1, ("writers", "menu", 0, 1), producer=7), marker(2, 7)]
    assert found(tmp_path, OFFSETS, *log) == []
    assert [each.offset for each in found(tmp_path, OFFSETS, *log, began_ms=MADE_MS + 1)] == [0, 1]
    gone = [commit(3, ("readers", "menu", 3, None), ("writers", "menu", 0, None))]
    assert found(tmp_path, OFFSETS, *log, *gone, began_ms=MADE_MS + 1) == []
    aborted = [commit(0, ("writers", "menu", 0, 1), producer=7), marker(1, 7, ABORT)]
    assert found(tmp_path, OFFSETS, *aborted, began_ms=MADE_MS + 1) == []


def test_a_commit_that_is_deleted_while_its_transaction_is_open_has_no_age(tmp_path: Path) -> None:
    log = [commit(0, ("readers", "menu", 3, 7), producer=7), commit(1, ("readers", "menu", 3, None)), marker(2, 7)]
    assert found(tmp_path, OFFSETS, *log, began_ms=MADE_MS + 1) == []


def test_a_commit_with_an_expire_time(tmp_path: Path) -> None:
    def version_1(expire_ms: int) -> bytes:
        key = flexible.i16(1) + text("readers") + text("menu") + flexible.i32(0)
        value = flexible.i16(1) + flexible.i64(7) + text("m") + flexible.i64(MADE_MS) + flexible.i64(expire_ms)
        return a_batch(0, [Record(0, 0, key, value, ())])

    assert found(tmp_path, OFFSETS, version_1(-1)) == []
    [finding] = found(tmp_path, OFFSETS, version_1(MADE_MS + 1))
    assert "'readers' for menu:0" in finding.text


def test_a_commit_that_cannot_be_decoded_has_no_age(tmp_path: Path) -> None:
    key = flexible.i16(1) + text("readers") + text("menu") + flexible.i32(0)
    log = [commit(0, ("readers", "menu", 0, 7)), a_batch(1, [Record(1, 0, key, flexible.i16(9), ())])]
    assert found(tmp_path, OFFSETS, *log, began_ms=MADE_MS + 1) == []


def test_an_open_transaction_at_the_end_of_a_log(tmp_path: Path) -> None:
    log = [plain(0), data(1, 7), data(2, 8), data(3, 7), marker(4, 8)]
    [finding] = found(tmp_path, "orders", *log)
    assert finding.offset == 1
    assert "producer id 7" in finding.text
    assert (
        found(
            tmp_path,
            "orders",
            *log,
            encode_marker(5, ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, leader_epoch=0, timestamp_ms=0),
        )
        == []
    )


def test_what_cannot_be_read_is_no_pass(tmp_path: Path) -> None:
    raw = bytearray(plain(0))
    raw[-1] ^= 1
    with pytest.raises(CorruptData):
        found(tmp_path, "orders", bytes(raw))


def older_coordinator() -> Archive:
    """Its transactional ids are in the midst of transactions that the data has ended, and others have begun since."""
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=0), marker(1, 7, producer_epoch=1)], [data(2, 7, producer_epoch=5)])
    archive.topic("menu", *([plain(at * 10, 10)] for at in range(20)))
    states = [state(0, "payer", 7, ONGOING, ("orders", 0)), state(1, "cook", 9, PREPARE_COMMIT, ("menu", 0))]
    archive.topic(TRANSACTIONS, states, [state(2, "idle", 11, COMPLETE_ABORT)])
    commits = [commit(0, ("readers", "menu", 0, 7)), commit(1, ("payers", "menu", 0, 9), producer=13)]
    archive.topic(OFFSETS, commits, [commit(2, ("writers", "menu", 0, 700))])
    return archive


@pytest.mark.parametrize("share", [1.0, 0.1, 0.0001])
def test_a_coordinator_that_is_older_than_the_data_passes(tmp_path: Path, share: float) -> None:
    """Its logs come back whole, whatever the sample."""
    report = drill(older_coordinator().store, tmp_path, share=share, seed=3)
    assert (report.outcome, report.findings, report.unmet, report.torn) == (DrillOutcome.PASSED, (), (), ())
    windows = {each.topic: each.archived.runs for each in report.windows}
    assert (windows[TRANSACTIONS], windows[OFFSETS]) == (2, 2)
    assert share == 1.0 or windows.get("menu", 0) < 20


def test_coordinators_that_do_not_fit_make_it_incomplete(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("menu", [plain(0)])
    archive.topic(OFFSETS, [commit(at, (f"readers-{at}", "menu", 0, 0)) for at in range(9)])
    report = drill(archive.store, tmp_path, scratch_bytes=200)
    assert report.outcome is DrillOutcome.INCOMPLETE
    [unmet] = report.unmet
    assert OFFSETS in unmet
    assert {each.topic for each in report.windows} == {"menu"}


@pytest.mark.parametrize(
    ("topic", "batch", "named"),
    [
        (TRANSACTIONS, state(50, "cook", 9, PREPARE_COMMIT), "'cook'"),
        (OFFSETS, commit(50, ("readers", "menu", 0, 7)), "'readers'"),
        (OFFSETS, commit(50, ("readers", "menu", 0, 7), producer=9), "'readers'"),
        ("orders", data(50, 9), "producer id 9"),
    ],
)
def test_a_drill_names_it_with_its_partition(tmp_path: Path, topic: str, batch: bytes, named: str) -> None:
    def meddle(log_dir: Path) -> None:
        with max((log_dir / f"{topic}-0").glob("*.log")).open("ab") as file:
            file.write(batch[:12] + flexible.i32(99) + batch[16:])  # the leader epoch; no CRC covers it

    report = drill(older_coordinator().store, tmp_path, meddle=meddle)
    replayed = [each for each in report.findings if each.where == "replay"]
    assert {(each.topic, each.partition, each.offset) for each in replayed} == {(topic, 0, 50)}
    assert any(named in each.text for each in replayed)
