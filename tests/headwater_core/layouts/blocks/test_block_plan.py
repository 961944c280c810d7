"""Where runs are cut into blocks, against a cut that looks at every batch."""

import io
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import SourceChanged
from headwater_core.layouts.blocks.block_plan import plan_blocks
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.testing import a_run, scanned
from headwater_core.segments import run_scan, runindex, stretch
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.stretch import batch_lengths, pass_batches
from tests.headwater_core.segments.builders import a_batch

BEFORE = a_run(2, value_bytes=50, base_offset=0)


def lengths(run: bytes) -> list[int]:
    return [header.size_bytes for _, header in headers(io.BytesIO(run), 0, len(run), where="run")]


def cut(batches: Sequence[int], block_bytes: int) -> list[tuple[int, int, int, int]]:
    """Of each block the first entry's id, position, length and count of entries, as the format page has it."""
    blocks: list[list[int]] = []
    for batch in batches:
        if not blocks or 20 + sum(blocks[-1]) + 4 * len(blocks[-1]) + 4 + batch > block_bytes:
            blocks.append([])
        blocks[-1].append(batch)
    found, first, position = [], 0, 0
    for number, block in enumerate(blocks):
        used = 20 + sum(block) + 4 * len(block)
        size_bytes = used if number + 1 == len(blocks) else max(used, block_bytes)
        found.append((first, position, size_bytes, len(block)))
        first, position = first + len(block), position + size_bytes
    return found


@given(
    sizes=st.lists(st.sampled_from([0, 0, 1, 50, 400, 3_000]), min_size=1, max_size=60),
    block_bytes=st.sampled_from([30, 150, 151, 152, 1_000, 5_000, 1 << 20]),
    spacing_bytes=st.sampled_from([1, 500, 64 << 10]),
    is_compiled=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_blocks_are_those_that_a_look_at_every_batch_makes(
    sizes: list[int], block_bytes: int, spacing_bytes: int, is_compiled: bool
) -> None:
    run = b"".join(a_batch(offset, [bytes(size)]) for offset, size in enumerate(sizes))
    with (
        patch.object(runindex, "POINT_SPACING_BYTES", spacing_bytes),
        patch.object(run_scan, "pass_batches", pass_batches if is_compiled else None),
    ):
        scan = scanned(BEFORE + run, start=len(BEFORE))
    with patch.object(stretch, "batch_lengths", batch_lengths if is_compiled else None):
        plan = plan_blocks(RunSource(io.BytesIO(BEFORE + run)), scan, block_bytes, "run")
    batches = lengths(run)
    assert [(*each.block[:3], each.entries) for each in plan.blocks] == cut(batches, block_bytes)
    starts, frames = {}, []
    for each in plan.blocks:
        assert each.start == len(BEFORE) + sum(batches[: each.block.first_entry_id])
        assert each.run_bytes == sum(batches[each.block.first_entry_id :][: each.entries])
        at = each.block.position + 20
        for entry_id in range(each.block.first_entry_id, each.block.first_entry_id + each.entries):
            starts[entry_id] = at
            at += 4 + batches[entry_id]
    position = 0
    by_position = {}
    for entry_id, batch in enumerate(batches):
        by_position[position] = entry_id
        position += batch
    for position, entry_id in zip(scan.index.points.positions, scan.batches_before, strict=True):
        assert by_position[position] == entry_id
        frames.append(starts[entry_id])
    assert list(plan.frames) == frames


def test_only_what_lies_around_cuts_is_read(tmp_path: Path) -> None:
    """Not the run: a scan has read it, and it is read again when it is sent."""
    run = b"".join(a_batch(offset, [bytes(1_000)]) for offset in range(5_000))
    read: list[int] = []

    class Counted(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            read.append(len(buffer))
            return super().readinto(buffer)

    plan = plan_blocks(RunSource(Counted(run)), scanned(run), 1 << 20, "run")
    assert len(plan.blocks) == 6
    assert sum(read) <= 6 * (65 << 10)


def test_a_batch_around_a_cut_that_is_not_what_it_was_is_noticed() -> None:
    run = a_run(20)
    scan = scanned(run)
    for content in (run[:8] + b"\x7f" + run[9:], run[:8] + bytes(4) + run[12:], run[:11] + bytes([run[11] ^ 1]) + run[12:], b""):
        with pytest.raises(SourceChanged):
            plan_blocks(RunSource(io.BytesIO(content)), scan, 1_000, "run")
