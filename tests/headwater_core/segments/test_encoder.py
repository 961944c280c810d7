"""What Headwater adds to a log reads back as what it is, checksum included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.segments.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, check_batch, read_batch_header
from headwater_core.segments.encoder import encode_batch, encode_marker
from headwater_core.segments.markers import ABORT, COMMIT, Marker, read_marker
from headwater_core.segments.records import decode_batch

FIELDS = st.none() | st.binary(max_size=40)


@given(st.integers(0, 2**62), st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=20), st.integers(0, 2**31 - 1))
def test_a_batch_reads_back(base_offset: int, rows: list[tuple[bytes | None, bytes | None]], leader_epoch: int) -> None:
    batch = encode_batch(base_offset, rows, leader_epoch=leader_epoch, timestamp_ms=1_700_000_000_000)
    check_batch(batch)
    header = read_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (base_offset, base_offset + len(rows) - 1, leader_epoch)
    assert header.size_bytes == len(batch)
    records = list(decode_batch(batch))
    assert [(record.key, record.value) for record in records] == rows
    assert [record.offset for record in records] == list(range(base_offset, base_offset + len(rows)))
    assert {record.timestamp_ms for record in records} == {1_700_000_000_000}


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_marker_reads_back(kind: int, log_append_time: bool) -> None:
    batch = encode_marker(
        7, kind, producer_id=5, producer_epoch=2, coordinator_epoch=9, leader_epoch=3, timestamp_ms=4, log_append_time=log_append_time
    )
    check_batch(batch)
    header = read_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.producer_id) == (7, 7, 3, 5)
    assert header.attributes == CONTROL | TRANSACTIONAL | (LOG_APPEND_TIME if log_append_time else 0)
    assert read_marker(batch) == Marker(kind, 9)
