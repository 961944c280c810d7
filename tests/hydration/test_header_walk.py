"""What headers say, found in however many steps, is what a scan of all bytes finds."""

import io
from pathlib import Path
from random import Random

import pytest

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import NO_TIMESTAMP
from headwater_core.segments.transactions import OpenTransaction
from hydration.local.header_walk import SMALL_WINDOW_BYTES, WINDOW_BYTES, HeaderWalk
from hydration.local.scan_budget import ScanBudget, ScanBudgetExceeded
from hydration.runfile import RunFile
from tests.headwater_core.segments.builders import BASE_TIME, Producer, a_batch, a_record, a_segment, an_abort
from tests.hydration.test_segment_states import write


def a_file(path: Path, run: bytes) -> RunFile:
    path.write_bytes(run)
    return RunFile.open(path)


@pytest.mark.parametrize("seed", range(20))
def test_any_steps_lead_to_what_a_scan_finds(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr("hydration.local.header_walk.WINDOW_BYTES", random.choice((61, 100, 5_000, WINDOW_BYTES)))
    monkeypatch.setattr("hydration.local.header_walk.SMALL_WINDOW_BYTES", random.choice((61, 200, SMALL_WINDOW_BYTES)))
    log = write(random, 150)
    raw = b"".join(each.raw for each in log.batches)
    file = a_file(tmp_path / "run", raw + bytes(random.choice((0, 61, 5_000))))  # zeros are allocated ahead
    before = (OpenTransaction(3, 0),) if random.random() < 0.5 else ()
    walk = HeaderWalk(0, before)
    for end_offset in [*sorted(random.sample(range(log.next_offset), 20)), log.next_offset]:
        while True:
            try:
                walk.advance(file, file.size_bytes, end_offset=end_offset, budget=ScanBudget(random.choice((1, 10_000, None))))
                break
            except ScanBudgetExceeded:
                continue
        scan = scan_run(io.BytesIO(raw), start=0, end=len(raw), open_before=before, end_offset=end_offset, where="run")
        assert walk.done_to == end_offset
        assert walk.transactions.open == (scan.open_transactions if scan else before)
        assert walk.transactions.aborted == list(scan.aborted if scan else ())
        assert walk.position == (scan.end_position if scan else 0)
        assert walk.newest_ms == (scan.last_timestamp_ms if scan and scan.last_timestamp_ms is not None else NO_TIMESTAMP)
    file.release()


def test_bodies_of_large_batches_are_not_read(tmp_path: Path) -> None:
    file = a_file(tmp_path / "run", a_segment(0, 50, value_bytes=300_000))
    budget = ScanBudget(1 << 30)
    HeaderWalk(0).advance(file, file.size_bytes, end_offset=50, budget=budget)
    assert budget.left_bytes is not None
    assert (1 << 30) - budget.left_bytes < 1 << 20  # of 15 MB
    file.release()


def test_pieces_hold_what_may_be_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydration.local.header_walk.PIECE_BYTES", 1)  # one for each batch
    times = [5, 9, 7, 12, 3]
    batches = [a_batch(at, [a_record(at, timestamp=BASE_TIME + ms)]) for at, ms in enumerate(times)]
    file = a_file(tmp_path / "run", b"".join(batches))
    walk = HeaderWalk(0)
    walk.advance(file, file.size_bytes, end_offset=5, budget=ScanBudget())
    size = len(batches[0])
    assert [piece.start // size for piece in walk.pieces(0, 5, BASE_TIME + 7)] == [1, 2, 3]
    assert [piece.start // size for piece in walk.pieces(2, 3, BASE_TIME + 7)] == [2]
    assert [piece.end // size for piece in walk.pieces(3, 5, BASE_TIME)] == [4, 5]
    assert walk.pieces(0, 5, BASE_TIME + 13) == []
    file.release()


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (a_batch(3, 2) + a_batch(4, 1), CorruptData),  # falls back
        (b"\x00" * 16 + b"\x01" + b"\x00" * 60, CorruptData),
        (a_batch(0, 1)[:16] + b"\x01" + a_batch(0, 1)[17:], UnsupportedFormat),
        (an_abort(0, Producer(id=1))[:-1] + b"x", CorruptData),  # a marker's checksum is looked at
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, run: bytes, error: type[Exception]) -> None:
    file = a_file(tmp_path / "run", run)
    with pytest.raises(error):
        HeaderWalk(0).advance(file, len(run), end_offset=100, budget=ScanBudget())
    file.release()
