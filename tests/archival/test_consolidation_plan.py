"""Which live entries are all chunks of one full segment."""

import pytest
from msgspec.structs import replace

from archival.partition.run_names import ChunkNames
from archival.plan import consolidation_plan
from archival.plan.chunk_place import ChunkLimits
from archival.plan.consolidation_plan import ConsolidationPlan, open_from, plan_consolidation
from archival.plan.merge_plan import ENTRIES_MAX
from archival.plan.policy import MERGE_SPAN_MS
from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.layouts.chunks import Variant
from manifests import chunk_keys
from manifests.entry import Entry
from manifests.head import Head
from tests.archival.test_run_names import listed
from tests.manifests.builders import PARTITION, a_head

HISTORY = EpochHistory.of(((0, 0),))


def names_of(segment_bytes: int) -> ChunkNames:
    return ChunkNames(PARTITION, "node", ChunkLimits(Variant.APPEND, segment_bytes))


def chunks(names: ChunkNames, sizes: list[int]) -> list[Entry]:
    """One after the other, of one record each."""
    entries: list[Entry] = []
    for offset, size_bytes in enumerate(sizes):
        name = names.following(entries[-1] if entries else None, offset, offset, size_bytes, 1)
        entries.append(replace(listed(name.key, offset, offset, size_bytes, name.context), epochs=(EpochStart(0, offset),)))
    return entries


def head_of(*segments: tuple[int, ...]) -> tuple[ChunkNames, Head]:
    """Segments of 100 bytes."""
    names = names_of(100)
    return names, a_head(*chunks(names, [size for sizes in segments for size in sizes]))


def plan(names: ChunkNames, head: Head, *, passed: int = 0, streams: bool = False) -> ConsolidationPlan:
    end = open_from(head, names.queue(head.fence), names.limits, streams=streams)
    return plan_consolidation(head, HISTORY, end=end, span_ms=MERGE_SPAN_MS, passed=passed)


def test_one_look_ends_after_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidation_plan, "LOOKED_AT_MAX", 100)
    names = names_of(10)
    entries = chunks(names, [10] * 105)
    head = a_head(*entries)
    first = plan(names, head)
    assert (first.group, first.passed, first.is_cut_short) == ((), 99, True)
    assert plan(names, head, passed=first.passed) == ConsolidationPlan((), 105)


def test_the_last_segment_is_full_when_a_run_like_its_last_one_has_no_room() -> None:
    for sizes, expected in (((40, 30), []), ((40, 31), [0, 1]), ((50, 50), [0, 1])):
        names, head = head_of(sizes)
        assert [each.base_offset for each in plan(names, head).group] == expected, sizes


def test_as_many_chunks_as_a_streamed_segment_may_have_become_one() -> None:
    names = names_of(1 << 30)
    entries = chunks(names, [10] * ENTRIES_MAX)
    place, size_bytes = chunk_keys.named(entries[0].key).place, 10 * ENTRIES_MAX
    for offset in range(ENTRIES_MAX, ENTRIES_MAX + 24):
        entries.append(replace(listed(place.chunk_key(size_bytes), offset, offset, 10, {}), epochs=(EpochStart(0, offset),)))
        size_bytes += 10
    head = a_head(*(replace(each, first_timestamp_ms=1, last_timestamp_ms=1) for each in entries))
    assert len(plan(names, head, streams=True).group) == 1_024


def test_what_spans_too_long_keeps_its_chunks() -> None:
    names, head = head_of((50, 50), (50, 50))
    first, *others = head.entries
    late = replace(others[0], first_timestamp_ms=MERGE_SPAN_MS + 1, last_timestamp_ms=MERGE_SPAN_MS + 1)
    assert plan(names, head).group == tuple(head.entries)[:2]
    assert plan(names, a_head(first, late, *others[1:])).group == tuple(others[1:])
