"""A directory of Parquet files is complete or not there."""

import errno
from pathlib import Path

import pytest

from headwater.pipeline.scan import parquet_directory
from headwater.pipeline.scan.parquet_directory import scan_to_parquet
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater_core.errors import CorruptData, DiskFull
from tests.headwater.pipeline.archives import a_copy, soup, soup_rows


def test_files_are_complete_or_not_there(tmp_path: Path) -> None:
    store = a_copy(soup())
    query = parse_query({"topics": "soup", "fail_on_data_loss": False, "split_bytes": 100_000})
    plan = plan_scan(store, query)
    store.delete(plan.splits[-1].entries[-1].key)
    with pytest.raises(CorruptData):
        scan_to_parquet(store, plan, query, tmp_path / "out", workers=2)
    assert list(tmp_path.iterdir()) == []
    assert scan_to_parquet(soup(), plan, query, tmp_path / "out", workers=2).counters.rows == len(soup_rows("read_uncommitted"))


def test_a_disk_that_is_full_is_said_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    query = parse_query({"topics": "soup", "fail_on_data_loss": False})
    monkeypatch.setattr(parquet_directory, "sync_path", full)
    with pytest.raises(DiskFull, match="No space left"):
        scan_to_parquet(soup(), plan_scan(soup(), query), query, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_progress_adds_up_to_the_plan(tmp_path: Path) -> None:
    query = parse_query({"topics": "soup", "fail_on_data_loss": False, "split_bytes": 100_000})
    plan = plan_scan(soup(), query)
    reported: list[tuple[int, str]] = []
    scan_to_parquet(soup(), plan, query, tmp_path / "out", progressed=lambda size_bytes, note: reported.append((size_bytes, note)))
    assert sum(size_bytes for size_bytes, _ in reported) == plan.size_bytes
    assert {note for _, note in reported} == {"soup:0"}
