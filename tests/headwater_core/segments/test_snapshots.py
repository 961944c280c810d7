import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.snapshots import decode_snapshot, open_transactions
from headwater_core.segments.transactions import OpenTransaction
from tests.headwater_core.segments.broker_files import encode_snapshot

i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
states = st.builds(ProducerState, i64, st.integers(-1, 2**15 - 1), i32, i64, i32, i64, i32, i64)


@given(producers=st.lists(states, max_size=5).map(tuple))
def test_what_is_written_reads_back(producers: tuple[ProducerState, ...]) -> None:
    assert decode_snapshot(encode_snapshot(producers), where="test") == producers


def test_any_cut_or_flipped_bit_is_noticed() -> None:
    raw = encode_snapshot([ProducerState(1, 2, 3, 4, 5, 6, 7, 8), ProducerState(9, 0, 1, 1, 0, 1, -1, -1)])
    for cut in range(len(raw)):
        with pytest.raises(CorruptData):
            decode_snapshot(raw[:cut], where="test")
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptData, UnsupportedFormat)):
            decode_snapshot(damaged, where="test")


def test_an_empty_file_is_no_snapshot_without_producers() -> None:
    with pytest.raises(TruncatedData):
        decode_snapshot(b"", where="test")
    assert len(encode_snapshot([])) == 10


def test_open_transactions_come_oldest_first() -> None:
    producers = [ProducerState(1, 0, 0, 0, 0, 0, 0, 20), ProducerState(2, 0, 0, 0, 0, 0, 0, -1), ProducerState(3, 0, 0, 0, 0, 0, 0, 4)]
    assert open_transactions(producers) == (OpenTransaction(3, 4), OpenTransaction(1, 20))
