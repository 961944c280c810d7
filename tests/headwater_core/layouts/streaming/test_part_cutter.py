"""Parts of whole entries, each block of one ledger; and their bytes, made again when they are sent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import SourceChanged
from headwater_core.layouts.streaming.offload_buffer import LedgerEntries, OffloadBudget, OffloadBuffer
from headwater_core.layouts.streaming.part_cutter import PartCutter, part_content
from headwater_core.segments.encoder import encode_batch
from headwater_core.segments.run_scan import GrowingScan


@given(
    ledgers=st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=9), min_size=1, max_size=4),
    part_bytes=st.integers(1, 3_000),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_entries_in_any_parts(ledgers: list[list[int]], part_bytes: int, data: st.DataObject) -> None:
    buffer, scan = OffloadBuffer(OffloadBudget(1 << 30)), GrowingScan((), "run")
    cutter = PartCutter(buffer, scan, part_bytes, "run")
    offset, whole, batches = 0, b"", []
    for ledger_id, sizes in enumerate(ledgers):
        entry_id = first = data.draw(st.integers(0, 5) | st.integers(118, 129))
        for size in sizes:
            batch = encode_batch(offset, [(None, bytes(size))], leader_epoch=1, timestamp_ms=1)
            offset, entry_id = offset + 1, entry_id + 1
            batches.append((ledger_id, entry_id - 1, batch))
        assert buffer.put(LedgerEntries(ledger_id, first, b"".join(batch for _, _, batch in batches[-len(sizes) :]), len(sizes)))
    while cutter.has_part or buffer.first is not None:
        is_full = cutter.has_part
        part = cutter.cut()
        content = part_content(part, "run")
        assert (part.start, part.size_bytes) == (len(whole), len(content))
        assert len(content) >= part_bytes or not is_full
        whole += content
    assert cutter.size_bytes == len(whole)
    ends = [*(block.position for block in cutter.blocks[1:]), len(whole)]
    found = []
    for block, end in zip(cutter.blocks, ends, strict=True):
        at = block.position
        assert (int.from_bytes(whole[at + 12 : at + 20], "big"), int.from_bytes(whole[at + 28 : at + 36], "big")) == (
            end - at,
            block.ledger_id,
        )
        at += 128
        while at < end:
            size, entry_id = int.from_bytes(whole[at : at + 4], "big"), int.from_bytes(whole[at + 4 : at + 12], "big")
            found.append((block.ledger_id, entry_id, whole[at + 12 : at + 12 + size]))
            at += 12 + size
    assert found == batches
    firsts = {ledger_id: first for ledger_id, first, _ in reversed(batches)}
    assert all(block.first_entry_id != 128 or firsts[block.ledger_id] == 128 for block in cutter.blocks)
    assert list(cutter.positions) == [128]


def test_a_part_waits_for_the_entry_whose_id_is_the_length_of_a_header() -> None:
    """Else it would begin the next block, if the ledger goes on."""
    batch = encode_batch(0, [(None, b"x" * 200)], leader_epoch=1, timestamp_ms=1)
    buffer = OffloadBuffer(OffloadBudget(1 << 30))
    cutter = PartCutter(buffer, GrowingScan((), "run"), 1, "run")
    assert buffer.put(LedgerEntries(5, 127, batch))
    found = [cutter.has_part]
    cutter.is_ended = True
    found.append(cutter.has_part)
    assert found == [False, True]
    cutter.is_ended = False
    assert buffer.put(LedgerEntries(5, 128, batch.replace(bytes(8), (1).to_bytes(8, "big"), 1)))
    assert cutter.has_part
    (block,) = cutter.cut().blocks
    assert (block.block.first_entry_id, buffer.first) == (127, None)


def test_another_count_than_was_offered_is_noticed() -> None:
    batch = encode_batch(0, [(None, b"x" * 200)], leader_epoch=1, timestamp_ms=1)
    buffer = OffloadBuffer(OffloadBudget(1 << 30))
    assert buffer.put(LedgerEntries(5, 0, batch, 2))
    with pytest.raises(SourceChanged):
        PartCutter(buffer, GrowingScan((), "run"), 1, "run").cut()
