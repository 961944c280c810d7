"""What share coordinators write. A real broker reads and writes it in tests/peers/test_share_groups.py."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import UnknownRecord
from headwater_core.segments.share_records import (
    SNAPSHOT,
    UPDATE,
    ShareKey,
    ShareState,
    ShareUpdate,
    StateBatch,
    combined,
    decode_share_key,
    decode_share_state,
    decode_share_update,
)
from tests.recovery.written_archive import TOPIC_ID, share_key, share_update

STATE = ShareState(
    snapshot_epoch=3,
    state_epoch=2,
    leader_epoch=7,
    start_offset=10,
    created_ms=1_700_000_000_000,
    written_ms=1_700_000_000_001,
    batches=(StateBatch(10, 14, 2, 1), StateBatch(15, 15, 0, 3), StateBatch(18, 20, 4, 5)),
)
BATCHES = st.lists(
    st.builds(lambda first, size, *rest: StateBatch(first, first + size, *rest), *[st.integers(0, 5)] * 2, *[st.integers(0, 4)] * 2)
)


def test_a_key_is_of_a_snapshot_or_an_update_and_later_kinds_are_unknown() -> None:
    key = ShareKey("cooks", TOPIC_ID, 3)
    assert decode_share_key(key.encode(), "key") == (SNAPSHOT, key)
    assert decode_share_key(share_key("cooks", 3, kind=UPDATE), "key") == (UPDATE, key)
    with pytest.raises(UnknownRecord, match="record type 2"):
        decode_share_key(share_key("cooks", 3, kind=2), "key")


def test_a_snapshot_is_read_as_it_is_written_whether_it_counts_what_is_done_or_not() -> None:
    raw = STATE.encode()
    assert decode_share_state(raw, "value") == STATE
    assert raw.endswith(b"\x01\x00\x04" + flexible.i32(8))  # since 4.2
    assert decode_share_state(raw[:-7] + b"\x00", "value") == STATE
    assert (STATE.done, STATE.next_offset) == (8, 21)
    with pytest.raises(UnknownRecord, match="version 1"):
        decode_share_state(flexible.i16(1) + raw[2:], "value")
    for size in range(len(raw) - 7):
        with pytest.raises((CorruptData, TruncatedData)):
            decode_share_state(raw[:size], "value")


def test_impossible_offsets_are_corrupt() -> None:
    for batch in (StateBatch(5, 4, 0, 1), StateBatch(-1, 4, 0, 1)):
        with pytest.raises(CorruptData):
            decode_share_state(replace(STATE, batches=(batch,)).encode(), "value")


def test_updates_change_what_they_name() -> None:
    updates = [
        decode_share_update(share_update(-1, (16, 17, 2, 1), leader_epoch=8), "value"),
        ShareUpdate(3, -1, 15, (StateBatch(15, 15, 2, 4),)),
    ]
    after = STATE.updated(updates)
    assert (after.start_offset, after.leader_epoch, after.state_epoch) == (15, 8, 2)
    assert after.batches == (StateBatch(15, 15, 2, 4), StateBatch(16, 17, 2, 1), StateBatch(18, 20, 4, 5))


def test_what_lies_beyond_the_end_of_a_log_is_taken_off() -> None:
    assert STATE.within(21) == replace(STATE, snapshot_epoch=4)
    assert STATE.within(13).batches == (StateBatch(10, 12, 2, 1),)
    assert (STATE.within(4).start_offset, STATE.within(4).batches) == (4, ())
    assert STATE.within(19).done == 6


@given(BATCHES, st.integers(0, 6))
def test_of_each_offset_the_most_often_delivered_batch_counts(batches: list[StateBatch], start: int) -> None:
    found = combined(batches, start)
    said: dict[int, tuple[int, int]] = {}
    for each in batches:
        for offset in range(max(start, each.first_offset), each.last_offset + 1):
            said[offset] = max(said.get(offset, (-1, -1)), (each.deliveries, each.state))
    assert {offset: (each.deliveries, each.state) for each in found for offset in range(each.first_offset, each.last_offset + 1)} == said
    assert all(one.last_offset < other.first_offset for one, other in pairwise(found))
    assert not [one for one, other in pairwise(found) if one.last_offset + 1 == other.first_offset and one[2:] == other[2:]]
