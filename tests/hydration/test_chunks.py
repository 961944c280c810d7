"""Cutting runs into chunks."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.segments.runindex import RunIndex
from hydration.archive.chunks import ChunkPlan, plan_chunks
from tests.headwater_core.segments.builders import points_of


def an_index(sizes: list[int], *, stride: int = 10) -> RunIndex:
    """Points after so many bytes each, `stride` offsets apart; the last size is what lies after the last point."""
    positions = [sum(sizes[:at]) for at in range(len(sizes))]
    points = points_of((at * stride, position, 0) for at, position in enumerate(positions))
    return RunIndex(base_offset=0, last_offset=len(sizes) * stride - 1, size_bytes=sum(sizes), points=points)


def spans(plan: ChunkPlan) -> list[tuple[int, int, int]]:
    return [(chunk.position, chunk.size_bytes, chunk.first_offset) for chunk in plan.chunks]


def test_chunks_end_at_the_last_point_that_fits() -> None:
    assert spans(plan_chunks(an_index([70, 70, 70, 70, 30]), 310, 150)) == [(0, 140, 0), (140, 140, 20), (280, 30, 40)]


def test_a_run_that_fits_is_one_chunk() -> None:
    assert spans(plan_chunks(an_index([70, 70]), 140, 140)) == [(0, 140, 0)]


def test_a_batch_larger_than_a_chunk_makes_a_larger_chunk() -> None:
    assert spans(plan_chunks(an_index([500, 70, 70]), 640, 150)) == [(0, 500, 0), (500, 140, 10)]


@pytest.mark.parametrize(
    ("live_bytes", "expected"), [(70, [(0, 70, 0)]), (210, [(0, 140, 0), (140, 70, 20)]), (180, [(0, 140, 0), (140, 40, 20)])]
)
def test_what_a_dead_branch_cut_off_is_in_no_chunk(live_bytes: int, expected: list[tuple[int, int, int]]) -> None:
    assert spans(plan_chunks(an_index([70, 70, 70, 70]), live_bytes, 150)) == expected


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 500), st.data())
def test_chunks_abut_cover_the_live_part_and_find_every_offset(sizes: list[int], chunk_bytes: int, data: st.DataObject) -> None:
    index = an_index(sizes)
    live = data.draw(st.integers(1, index.size_bytes))
    plan = plan_chunks(index, live, chunk_bytes)
    assert plan.chunks[0].position == 0
    assert plan.chunks[-1].end == live
    for number, chunk in enumerate(plan.chunks):
        assert chunk.number == number
        assert chunk.position in index.points.positions
        following = plan.after(chunk)
        assert following is None or following.position == chunk.end
        inside = [size for size, at in zip(sizes, index.points.positions, strict=True) if chunk.position <= at < chunk.end]
        assert chunk.size_bytes <= max(chunk_bytes, inside[0])
    for offset in range(index.last_offset + 1):
        chunk = plan.chunk_for(offset)
        after = plan.after(chunk)
        assert chunk.first_offset <= offset
        assert after is None or offset < after.first_offset
        start = plan.start_for(chunk, offset)
        assert start.offset <= offset
        assert start.position >= 0
        assert chunk.position + start.position == index.points.positions[bisect_right(index.points.offsets, offset) - 1] or after is None
