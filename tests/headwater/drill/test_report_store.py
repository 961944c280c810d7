"""Reports, kept; and what the last one said."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.drill.drill_report import Amount, DrillOutcome, DrillReport, DrillRequest, decode_report, numbers_text
from headwater.drill.report_store import LAST, ReportStore
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData
from tests.events import written_events


def a_report(at: int, outcome: DrillOutcome = DrillOutcome.PASSED, **more: object) -> DrillReport:
    return DrillReport(
        id=f"20260131T1200{at:02}.000Z-9f86d081",
        outcome=outcome,
        headwater="1",
        host="h",
        store="memory:",
        started_ms=at,
        ended_ms=at + 1,
        request=DrillRequest(topics=None),
        **more,  # type: ignore[arg-type]
    )


def test_the_last_one_is_remembered_and_when_one_passed(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, 10)
    assert store.last() is None
    assert store.stamp() is None
    path = store.add(a_report(1, compared=Amount(runs=2, records=5, size_bytes=70), compared_partitions=2))
    first = store.stamp()
    assert decode_report(path.read_bytes(), "report").compared.records == 5
    store.add_text(a_report(1), "text \udcff\n")
    assert path.with_suffix(".txt").read_text() == "text \\udcff\n"
    store.add(a_report(5, DrillOutcome.FAILED, finding_count=3))
    last = ReportStore(tmp_path, 10).last()
    assert last is not None
    assert (last.outcome, last.ended_ms, last.passed_ms, last.findings) == (DrillOutcome.FAILED, 6, 2, 3)
    assert store.stamp() != first


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, 3)
    for at in range(6):
        store.add(a_report(at))
        store.add_text(a_report(at), "text\n")
    assert sorted(path.name for path in store.directory.glob("report-*.json")) == [f"report-{a_report(at).id}.json" for at in (3, 4, 5)]
    assert len(list(store.directory.glob("report-*.txt"))) == 3


def test_damage_of_the_memory_is_unknown_knowledge(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, 3)
    store.add(a_report(1))
    raw = bytearray((store.directory / LAST).read_bytes())
    raw[len(raw) // 2] ^= 1
    (store.directory / LAST).write_bytes(bytes(raw))
    with written_events(SystemClock()) as written:
        assert store.last() is None
    assert [each["event"] for each in written] == ["last_drill_unknown"]
    store.add(a_report(2))
    assert store.last() is not None


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_change_of_a_report_shows(tmp_path: Path, at: float) -> None:
    raw = bytearray(ReportStore(tmp_path, 3).add(a_report(1, error="nothing")).read_bytes())
    where = raw.index(b"nothing") if at == 0.5 else int(len(raw) * at)
    raw[where] ^= 4
    with pytest.raises(CorruptData):
        decode_report(bytes(raw), "report")


def test_numbers_are_short() -> None:
    assert numbers_text([]) == ""
    assert numbers_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_with_the_clock_set_back_the_report_that_was_completed_last_stays(tmp_path: Path) -> None:
    """Neither its id nor its file's time is the greatest."""
    store = ReportStore(tmp_path, 3)
    for at in (50, 51, 52):
        path = store.add(a_report(at))
        os.utime(path, (4_000_000_000 + at, 4_000_000_000 + at))
    completed = [store.add(a_report(at)).name for at in (9, 3, 7, 1)]
    assert {path.name for path in store.directory.glob("report-*.json")} == set(completed[-3:])
    last = store.last()
    assert last is not None
    assert last.report == completed[-1]


def test_of_one_kept_report_the_new_one_stays(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, 1)
    for at in (9, 1):
        store.add(a_report(at))
    assert [path.name for path in store.directory.glob("report-*.json")] == [f"report-{a_report(1).id}.json"]


def test_reports_of_two_drills_that_end_at_once_are_both_kept(tmp_path: Path) -> None:
    store = ReportStore(tmp_path, 100)
    outcomes = [DrillOutcome.PASSED if at == 5 else DrillOutcome.FAILED for at in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: ReportStore(tmp_path, 100).add(a_report(each[0], each[1])), enumerate(outcomes)))
    last = store.last()
    assert last is not None
    assert last.passed_ms == 6
    assert len(list(store.directory.glob("report-*.json"))) == 20
