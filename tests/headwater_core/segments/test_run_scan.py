import io
from bisect import bisect_right
from itertools import pairwise

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments import run_scan, runindex
from headwater_core.segments.run_scan import AbortedTransaction, OpenTransaction, scan_run
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_commit, a_record, a_segment, an_abort
from tests.headwater_core.segments.scans import scanned


def test_a_scan_tells_what_an_entry_lists() -> None:
    raw = a_batch(10, 3, epoch=2) + a_batch(13, 2, epoch=2) + a_batch(15, 1, epoch=4)
    found = scanned(raw)
    assert (found.base_offset, found.last_offset, found.next_offset, found.records) == (10, 15, 16, 6)
    assert (found.start_position, found.end_position, found.size_bytes) == (0, len(raw), len(raw))
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (BASE_TIME + 10, BASE_TIME + 15)
    assert found.epochs == ((2, 10), (4, 15))
    assert found.digest == f"crc64nvme:{crc64nvme(raw):016x}"
    assert (found.open_from, found.aborted, found.max_producer_id, found.first_gap) == (None, (), -1, None)


def test_a_run_may_begin_in_mid_segment_and_end_at_the_high_watermark() -> None:
    first, rest = a_segment(0, 2), a_segment(2, 3)
    found = scanned(first + rest + b"torn tail", start=len(first), end_offset=4)
    assert (found.base_offset, found.last_offset) == (2, 3)
    assert found.digest == f"crc64nvme:{crc64nvme(a_segment(2, 2)):016x}"
    assert found.index.points.positions[0] == 0  # from the run's own start


def test_nothing_below_the_high_watermark_is_no_run() -> None:
    assert scan_run(io.BytesIO(a_segment(5, 2)), start=0, end=len(a_segment(5, 2)), end_offset=5, where="test") is None
    assert scan_run(io.BytesIO(b""), start=0, end=0, where="test") is None


def test_markers_are_no_user_data() -> None:
    found = scanned(a_batch(0, 2, producer=7, transactional=True) + a_commit(2, 7))
    assert (found.records, found.last_offset) == (2, 2)
    assert found.last_timestamp_ms == BASE_TIME + 1
    only_markers = scanned(a_commit(0, 7))
    assert (only_markers.records, only_markers.first_timestamp_ms, only_markers.last_timestamp_ms) == (0, None, None)


def test_append_time_and_delete_horizon_replace_the_base_timestamp() -> None:
    found = scanned(a_batch(0, 2, log_append_time=BASE_TIME + 500) + a_batch(2, 1, delete_horizon=5, max_timestamp_ms=BASE_TIME + 600))
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (BASE_TIME + 500, BASE_TIME + 600)


def test_timestamps_need_not_rise_and_may_be_absent() -> None:
    found = scanned(
        a_batch(0, [a_record(0, timestamp=50)]) + a_batch(1, [a_record(1, timestamp=20)]) + a_batch(2, [a_record(2, timestamp=-1)])
    )
    assert (found.first_timestamp_ms, found.last_timestamp_ms, found.records) == (20, 50, 3)


def test_empty_batches_keep_their_offsets() -> None:
    found = scanned(a_batch(0, 0, last_offset=4, producer=3) + a_batch(9, 1))
    assert (found.base_offset, found.last_offset, found.records, found.first_gap) == (0, 9, 1, 5)


def test_an_aborted_transaction_reaches_from_its_first_data_to_its_marker() -> None:
    raw = (
        a_batch(0, 2, producer=7, transactional=True)
        + a_batch(2, 1, producer=8, transactional=True)
        + a_batch(3, 1, producer=7, transactional=True)
        + an_abort(4, 7)
        + a_commit(5, 8)
        + a_batch(6, 1, producer=7, transactional=True)
    )
    found = scanned(raw)
    assert found.aborted == (AbortedTransaction(7, 0, 4, 2),)
    assert found.open_transactions == (OpenTransaction(7, 6),)
    assert found.open_from == 6
    assert found.max_producer_id == 8


def test_transactions_span_runs() -> None:
    first = scanned(a_batch(0, 2, producer=7, transactional=True) + a_batch(2, 1, producer=8, transactional=True))
    assert first.open_transactions == (OpenTransaction(7, 0), OpenTransaction(8, 2))
    middle = scanned(a_batch(3, 1), open_before=first.open_transactions)
    assert middle.open_from == 0
    last = scanned(an_abort(4, 8) + an_abort(5, 7), open_before=middle.open_transactions)
    assert last.aborted == (AbortedTransaction(8, 2, 4, 0), AbortedTransaction(7, 0, 5, 6))
    assert last.open_from is None


def test_a_marker_without_data_changes_nothing() -> None:
    found = scanned(an_abort(0, 7) + a_batch(1, 1, producer=7) + an_abort(2, 7))  # idempotent, not transactional
    assert (found.aborted, found.open_transactions) == ((), ())


def test_an_empty_control_batch_is_what_the_cleaner_left_of_a_marker() -> None:
    found = scanned(a_batch(0, 1, producer=7, transactional=True) + a_batch(1, 0, producer=7, transactional=True, control=True))
    assert found.open_from == 0


def test_other_control_batches_are_passed_over() -> None:
    found = scanned(a_batch(0, [a_record(0, b"leader", key=b"\x00\x00\x00\x02")], control=True) + a_batch(1))
    assert found.records == 1


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x00\x00\x01"])
def test_a_marker_that_is_none_is_damage(key: bytes) -> None:
    with pytest.raises(CorruptData):
        scanned(a_batch(0, [a_record(0, b"", key=key)], producer=7, transactional=True, control=True))


def test_points_lie_64_kib_apart_and_lead_to_every_offset() -> None:
    raw = a_segment(100, 300, records=2, value_bytes=1000)
    index = scanned(raw).index
    assert len(index.points.offsets) == pytest.approx(len(raw) / (64 << 10), abs=2)
    assert (index.points.offsets[0], index.points.positions[0], index.points.max_timestamps_ms[0]) == (100, 0, runindex.NO_TIMESTAMP)
    for offset in range(100, 700, 7):
        position = index.points.positions[bisect_right(index.points.offsets, offset) - 1]
        found = scanned(raw, start=position)
        assert found.base_offset <= offset < found.base_offset + 70
    for timestamp in range(BASE_TIME + 90, BASE_TIME + 700, 13):
        position = index.position_for_time(timestamp)
        assert position == 0 or scanned(raw[:position]).last_timestamp_ms < timestamp  # type: ignore[operator]


def test_a_full_index_ends_the_run_and_the_rest_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, "ABORTED_MAX", 20)
    monkeypatch.setattr(run_scan, "_SPARE_ROWS", 10)
    monkeypatch.setattr(runindex, "POINT_SPACING_BYTES", 1)
    raw = b"".join(a_batch(offset, 1, producer=7, transactional=True) + an_abort(offset + 1, 7) for offset in range(0, 60, 2))
    runs = [scanned(raw)]
    while runs[-1].end_position < len(raw):
        runs.append(scanned(raw, start=runs[-1].end_position, open_before=runs[-1].open_transactions))
    assert len(runs) > 1
    assert [each.last_offset for run in runs for each in run.aborted] == list(range(1, 60, 2))
    assert all(len(run.aborted) <= 20 for run in runs)
    for run in runs:
        assert run.digest == f"crc64nvme:{crc64nvme(raw[run.start_position : run.end_position]):016x}"


def test_more_open_transactions_than_an_index_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, "OPEN_MAX", 3)
    with pytest.raises(UnsupportedFormat, match="4 transactions are open"):
        scanned(b"".join(a_batch(offset, 1, producer=offset, transactional=True) for offset in range(4)))


def test_open_transactions_are_counted_on_the_way_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, "OPEN_MAX", 3)
    monkeypatch.setattr(runindex, "POINT_SPACING_BYTES", 1)
    raw = b"".join(a_batch(offset, 1, producer=offset, transactional=True) for offset in range(50))
    with pytest.raises(UnsupportedFormat, match="4 transactions are open"):
        scanned(raw + b"never reached")


def test_damage_names_its_place() -> None:
    raw = a_segment(0, 2)
    with pytest.raises(CorruptData, match="CRC mismatch in the batch at offset 1") as caught:
        scanned(raw[:-1] + b"?")
    assert caught.value.position == len(a_batch(0))
    with pytest.raises(TruncatedData):
        scanned(raw[:-1])


@given(cuts=st.sets(st.integers(1, 11)), plan=st.lists(st.sampled_from("abcdA"), min_size=12, max_size=12))
def test_scanning_in_pieces_finds_what_one_scan_finds(cuts: set[int], plan: list[str]) -> None:
    """Letters: data of producers a, b, c; d plain; A aborts the open producer with the lowest id."""
    batches, opened = [], set[int]()
    for offset, letter in enumerate(plan):
        if letter == "A" and opened:
            batches.append(an_abort(offset, min(opened)))
            opened.discard(min(opened))
        elif letter in "abc":
            batches.append(a_batch(offset, 1, producer=ord(letter), transactional=True))
            opened.add(ord(letter))
        else:
            batches.append(a_batch(offset, 1))
    whole = scanned(b"".join(batches))
    before: tuple[OpenTransaction, ...] = ()
    aborted: list[AbortedTransaction] = []
    bounds = [0, *sorted(cuts), 12]
    for low, high in pairwise(bounds):
        piece = scanned(b"".join(batches[low:high]), open_before=before)
        before = piece.open_transactions
        aborted += piece.aborted
    assert (before, tuple(aborted)) == (whole.open_transactions, whole.aborted)
