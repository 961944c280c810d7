"""The bytes of block objects, by a reader that was written from the format's page alone."""

import hashlib
import io
import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.layouts import NewRun
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.blocks.block_format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    decode_block_index,
    encode_block_index,
    pad,
)
from headwater_core.layouts.run_maps import Block
from headwater_core.layouts.segment_metadata import RunFacts
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.encoder import encode_batch
from tests.headwater_core.layouts.blocks.page_reader import Seen, is_padding, read_object
from tests.headwater_core.objectstore.memory import MemoryStore

MIB = 1 << 20


class PartStore(MemoryStore):
    """Takes parts of 300 bytes and more."""

    part_bytes_min = 300


def offloaded(run: bytes, *, block_bytes: int, store: MemoryStore | None = None, base_offset: int = 3) -> tuple[bytes, Seen]:
    """The object that `run` becomes, and what the page's reader finds in it."""
    store, scan = store or MemoryStore(), scanned(run)
    new = NewRun(PARTITION, base_offset, scan.last_offset + 2, "data/run.blocks", "", io.BytesIO(run), scan)
    (done,) = BlocksLayout(block_bytes).offload(store, [new], {})
    raw, _ = store.get("data/run.blocks")
    seen = read_object(raw)
    assert done.context["index_bytes"] == str(seen.index_bytes)
    metadata = store.read_into("data/run.blocks", memoryview(bytearray(1)), start=0)
    assert metadata["headwater-blocks-version"] == "1"
    assert metadata["headwater-index-bytes"] == str(seen.index_bytes)
    assert metadata["headwater-partition"] == "orders:3"
    assert metadata["headwater-software"]
    return raw, seen


def check_against_source(seen: Seen, run: bytes, block_bytes: int) -> None:
    """Every entry, block and point, by the run itself."""
    batches = list(headers(io.BytesIO(run), 0, len(run), where="run"))
    assert b"".join(entry for _, entry in seen.entries) == run
    assert [len(entry) for _, entry in seen.entries] == [header.size_bytes for _, header in batches]
    ends = [*(first for first, _, _ in seen.blocks[1:]), len(seen.entries)]
    for (first, position, length), end in zip(seen.blocks, ends, strict=True):
        used = 20 + sum(4 + len(entry) for _, entry in seen.entries[first:end])
        is_last, is_large = position + length == seen.blocks[-1][1] + seen.blocks[-1][2], end - first == 1 and used > block_bytes
        assert length == (used if is_last or is_large else block_bytes)
        if not is_last and not is_large:
            assert used + 4 + len(seen.entries[end][1]) > block_bytes, "no block ends while there is room"
    for offset, entry_id, position in seen.points:
        assert (offset, position) == (batches[entry_id][1].base_offset, seen.entries[entry_id][0])
    assert seen.points[0][1] == 0
    assert seen.length == len(run)


@pytest.mark.parametrize("block_bytes", [400, 1_000, 30_000, 1 << 20])
@pytest.mark.parametrize("store", [MemoryStore(), PartStore()], ids=["any", "parts"])
def test_the_page_says_what_is_written(block_bytes: int, store: MemoryStore) -> None:
    store.delete("data/run.blocks")
    run = a_run()
    _, seen = offloaded(run, block_bytes=block_bytes, store=store)
    check_against_source(seen, run, block_bytes)
    scan = scanned(run)
    assert (seen.topic, seen.topic_id, seen.partition) == ("orders", PARTITION.topic_id, 3)
    assert (seen.base_offset, seen.last_offset) == (3, scan.last_offset + 2), "the manifest's, not the first and last batch's"
    assert seen.epochs == [tuple(each) for each in scan.epochs]
    assert seen.aborted == [each[:3] for each in scan.aborted]
    assert seen.open_from == scan.open_from
    if len(seen.blocks) == 1:
        assert seen.padded_index_bytes == seen.index_bytes
    else:
        assert seen.padded_index_bytes == max(seen.index_bytes, store.part_bytes_min)


@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=30),
    block_bytes=st.integers(120, 1_500),
)
@settings(max_examples=150, deadline=None)
def test_any_run_in_any_blocks(sizes: list[int], block_bytes: int) -> None:
    run = b"".join(encode_batch(at, [(None, bytes(size))], leader_epoch=1, timestamp_ms=at) for at, size in enumerate(sizes, 5))
    _, seen = offloaded(run, block_bytes=block_bytes)
    check_against_source(seen, run, block_bytes)


def test_points_are_about_a_mib_apart() -> None:
    run = b"".join(encode_batch(at, [(None, bytes(40_000))], leader_epoch=1, timestamp_ms=at) for at in range(200))
    _, seen = offloaded(run, block_bytes=3 * MIB)
    gaps = [after[2] - before[2] for before, after in zip(seen.points, seen.points[1:], strict=False)]
    assert all(MIB // 2 < gap <= 2 * MIB for gap in gaps)
    assert seen.entries[-1][0] - seen.points[-1][2] < 2 * MIB


def test_an_entry_that_is_larger_than_a_block_has_one_of_its_own() -> None:
    run = b"".join(encode_batch(at, [(None, bytes(size))], leader_epoch=1, timestamp_ms=1) for at, size in enumerate((10, 5_000, 10, 10)))
    _, seen = offloaded(run, block_bytes=1_000)
    assert [first for first, _, _ in seen.blocks] == [0, 1, 2]
    check_against_source(seen, run, 1_000)


def test_batches_from_before_leader_epochs_are_said_to_be() -> None:
    run = encode_batch(7, [(None, b"x")], leader_epoch=-1, timestamp_ms=1) + encode_batch(8, [(None, b"x")], leader_epoch=3, timestamp_ms=1)
    _, seen = offloaded(run, block_bytes=1_000)
    assert seen.epochs == [(-1, 7), (3, 8)]


def test_the_first_version_is_read_for_ever() -> None:
    """Byte for byte what the first version of this layout wrote."""
    raw, _ = offloaded(a_run(6, value_bytes=300), block_bytes=900)
    assert hashlib.sha256(raw).hexdigest()[:16] == "dbee25ea709bea27"


@pytest.mark.parametrize("phase", range(5))
def test_padding_goes_on_where_it_was(phase: int) -> None:
    whole = pad(50)
    assert is_padding(whole)
    assert pad(20, phase) == whole[phase : phase + 20]


def an_index() -> tuple[bytes, int, int]:
    """An encoded index, its real length, and the length of an object that it fits."""
    scan = scanned(a_run(3, value_bytes=40))
    blocks = [Block(0, 0, 500), Block(2, 500, 10_000)]
    frames = array("q", [20])
    raw, real = encode_block_index(RunFacts(PARTITION, 0, scan.last_offset, scan.index), blocks, [0], frames, 0)
    return raw, real, len(raw) + 10_500


def test_an_index_of_another_version_is_refused() -> None:
    raw, real, size_bytes = an_index()
    assert decode_block_index(memoryview(raw)[:real], size_bytes, "x").blocks[1].first_entry_id == 2
    with pytest.raises(UnsupportedFormat):
        decode_block_index(memoryview(b"HWI2" + raw[4:real]), size_bytes, "x")
    with pytest.raises(CorruptData):
        decode_block_index(memoryview(b"HWXX" + raw[4:real]), size_bytes, "x")


def test_an_index_that_was_cut_or_describes_the_impossible_is_noticed() -> None:
    raw, real, size_bytes = an_index()
    view = memoryview(raw)[:real]
    for end in range(real):
        with pytest.raises(CorruptData):
            decode_block_index(view[:end], size_bytes, "x")
    table = real - 40
    for at, value in ((table, 1), (table + 8, 3), (table + 12, 5), (table + 20, 0), (table + 32, 10), (table + 32, size_bytes)):
        width = 4 if at == table + 8 else 8
        wrong = raw[:at] + struct.pack(">I" if width == 4 else ">Q", value) + raw[at + width : real]
        with pytest.raises(CorruptData):
            decode_block_index(memoryview(wrong), size_bytes, "x")
    with pytest.raises(CorruptData):
        decode_block_index(view, real, "x")


def test_more_blocks_than_an_upload_can_have_are_refused_before_they_are_looked_at() -> None:
    raw, real, _ = an_index()
    table, count = real - 40, 10_000
    rows = b"".join(INDEX_ENTRY.pack(at, 2 + at, (1 << 20) + 100 * at) for at in range(count))
    spoilt = INDEX_HEADER.pack(raw[:4], 1 << 20, count, table - INDEX_HEADER.size) + raw[INDEX_HEADER.size : table] + rows
    with pytest.raises(CorruptData, match="for 10000 blocks"):
        decode_block_index(memoryview(spoilt), 1 << 30, "x")


def test_the_page_names_what_the_code_has() -> None:
    page = (Path(__file__).parents[4] / "docs/formats/blocks.md").read_text()
    for word in ("48 57 49 31", "48 57 42 31", "DE AD 12 34", "run_index = 1000", "positions = 1001"):
        assert word in page


def test_a_position_that_no_object_reaches_is_corrupt() -> None:
    scan = scanned(a_run(3, value_bytes=40))
    facts = RunFacts(PARTITION, 0, scan.last_offset, scan.index)
    raw, real = encode_block_index(facts, [Block(0, 0, 500)], [0], array("q", [2**63 - 1]), 0)
    with pytest.raises(CorruptData):
        decode_block_index(memoryview(raw)[:real], len(raw) + 500, "x")
