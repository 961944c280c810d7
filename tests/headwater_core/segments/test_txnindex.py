"""Kafka's list of aborted transactions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.transactions import AbortedTransaction, Transactions
from headwater_core.segments.txnindex import decode_txnindex
from tests.headwater_core.segments.broker_files import encode_txnindex

ONE, TWO = AbortedTransaction(7, 1, 5, 3), AbortedTransaction(8, 3, 9, 10)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("data", "abort", "commit"))), max_size=60))
def test_whatever_a_log_says_is_read_back(events: list[tuple[int, str]]) -> None:
    transactions = Transactions()
    for offset, (producer, what) in enumerate(events):
        if what == "data":
            transactions.data(producer, offset)
        else:
            transactions.marker(producer, offset, aborts=what == "abort")
    aborted = tuple(transactions.aborted)
    assert decode_txnindex(encode_txnindex(aborted), 0, len(events), where="x") == aborted


@pytest.mark.parametrize(
    "rows",
    [
        (ONE, TWO._replace(last_offset=5)),  # the second marker is where the first one is
        (ONE._replace(last_offset=20),),  # outside of the segment
        (TWO._replace(first_offset=9),),
        (ONE, TWO._replace(first_offset=2)),  # it would have kept the last stable offset down
        (ONE, TWO._replace(last_stable_offset=2)),
        (ONE._replace(last_stable_offset=7),),
        (ONE._replace(producer_id=-1),),
        (AbortedTransaction(0, 0, 0, 0),),  # zeros, as a crash may leave them
    ],
)
def test_what_contradicts_itself_is_refused(rows: tuple[AbortedTransaction, ...]) -> None:
    with pytest.raises(CorruptData):
        decode_txnindex(encode_txnindex(rows), 0, 20, where="x")


def test_what_was_cut_or_is_newer_is_refused() -> None:
    raw = encode_txnindex((ONE, TWO))
    with pytest.raises(TruncatedData):
        decode_txnindex(raw[:-1], 0, 20, where="x")
    with pytest.raises(UnsupportedFormat):
        decode_txnindex(b"\x00\x01" + raw[2:], 0, 20, where="x")
    with pytest.raises(CorruptData):
        decode_txnindex(raw, 6, 20, where="x")
