import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from archival.plan.lineage import branches_at
from archival.plan.merge_plan import ENTRIES_MAX, GROWTH, MergePlan, merged_displacement, plan_merge, with_merged
from archival.plan.policy import MERGE_SPAN_MS
from headwater_core.epochs import EpochHistory
from manifests.entry import Entry, EpochOffset
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import Item, PageRef
from tests.manifests.builders import a_gap, a_head, an_entry
from tests.manifests.trees import TINY, Pages, grown

TARGET = 1_000
ONE_EPOCH = EpochHistory.of(((0, 0),))


def plan(head: Head, history: EpochHistory = ONE_EPOCH, *, target_bytes: int = TARGET, passed: int = 0) -> MergePlan:
    return plan_merge(head, history, target_bytes=target_bytes, span_ms=MERGE_SPAN_MS, passed=passed)


def tails(*sizes: int, base: int = 0, **fields: Any) -> list[Entry]:
    """Neighbours of ten offsets each, of one epoch."""
    return [
        an_entry(base + at * 10, base + at * 10 + 9, size_bytes=size, epochs=((0, base + at * 10),), **fields)
        for at, size in enumerate(sizes)
    ]


def test_tails_that_are_followed_by_a_large_entry_become_one() -> None:
    entries = tails(700, 10, 20, 30, 600, 10)
    assert plan(a_head(*entries)) == MergePlan(tuple(entries[1:4]), 10)


def test_no_object_gets_larger_than_the_target() -> None:
    entries = tails(400, 400, 400)
    assert plan(a_head(*entries)).group == tuple(entries[:2])


def test_at_the_end_a_merge_waits_until_it_makes_a_much_larger_one() -> None:
    entries = tails(40, 10, 10, 10)
    assert plan(a_head(*entries)).group == ()
    assert plan(a_head(*entries, *tails(10, base=40))).group == (*entries[1:], *tails(10, base=40))


def test_what_is_large_or_alone_is_passed_for_good() -> None:
    assert plan(a_head(*tails(700, 10, 700, 700))) == MergePlan((), 40)
    assert plan(a_head(*tails(700, 10, 700, 10, 20))) == MergePlan((), 30)


@pytest.mark.parametrize(
    "between",
    [
        [a_gap(20, 29)],
        tails(10, base=20, digest=""),
        tails(10, base=20, layout="blocks"),
        tails(10, base=20, cleaned=True),
        [an_entry(20, 29, epochs=())],
    ],
)
def test_neighbours_are_not_merged_across(between: list[Entry]) -> None:
    before, after = tails(10, 10), tails(10, 10, 10, 10, base=30)
    head = a_head(*before, *between, *after)
    found = plan(head)
    assert found.group == tuple(before)
    assert plan(head, passed=20).group == tuple(after)


def test_a_part_that_was_cut_off_and_may_live_again_keeps_its_object() -> None:
    cut, others = an_entry(0, 9, size_bytes=200, live_bytes=100, epochs=((0, 0),)), tails(10, 10, 700, base=10)
    rest = an_entry(10, 19, uid=cut.uid, key=cut.key, size_bytes=200)
    assert plan(a_head(cut, *others, superseded=(rest,))).group == tuple(others[:2])
    assert plan(a_head(cut, *others)).group == (cut, *others[:2])


def test_entries_of_two_epochs_are_merged_only_where_the_history_shows_that_they_are_of_one_log() -> None:
    entries = [an_entry(0, 9), an_entry(10, 19, epochs=((3, 10),)), an_entry(20, 29, size_bytes=900, epochs=((3, 20),))]
    head = a_head(*entries)
    assert plan(head, EpochHistory.of(((0, 0), (3, 10)))).group == tuple(entries[:2])
    assert plan(head, EpochHistory.of(((3, 10),))).group == (), "the history is silent about the first one"
    # What it was silent about turns out to be a dead branch from 5 on. One entry of both would call that a gap of compaction.
    later = EpochHistory.of(((0, 0), (1, 5), (3, 10)))
    assert branches_at(later, EntryTree(entries)) == 5
    assert branches_at(later, EntryTree((an_entry(0, 19, epochs=((0, 0), (3, 10))),))) is None


def test_entries_that_lack_what_was_displaced_by_records_of_two_logs_stay_apart() -> None:
    by = EpochOffset(0, 40), EpochOffset(3, 45)
    entries = [an_entry(0, 9, displaced_by=by[0]), an_entry(10, 19, epochs=((0, 10),), displaced_by=by[1]), *tails(900, base=20)]
    head = a_head(*entries)
    assert plan(head, EpochHistory.of(((0, 0), (3, 42)))).group == tuple(entries[:2])
    assert plan(head, EpochHistory.of(((0, 0), (3, 38)))).group == (), "the first one may lack a record"
    assert plan(head, EpochHistory.of(((0, 41), (3, 42)))).group == (), "that is not known"
    assert merged_displacement(tuple(entries[:2])) == by[1]


def test_what_is_merged_is_not_kept_much_longer_for_its_newest_record() -> None:
    day = MERGE_SPAN_MS // 7
    entries = [
        an_entry(at * 10, at * 10 + 9, epochs=((0, at * 10),), size_bytes=10, first_timestamp_ms=at * day, last_timestamp_ms=(at + 1) * day)
        for at in range(10)
    ]
    assert plan(a_head(*entries)).group == tuple(entries[:7])


def test_the_neighbours_of_one_merge_are_limited() -> None:
    entries = [
        an_entry(at, at, size_bytes=1, epochs=((0, at),), first_timestamp_ms=None, last_timestamp_ms=None) for at in range(ENTRIES_MAX + 5)
    ]
    assert plan(a_head(*entries), target_bytes=1 << 20).group == tuple(entries[:ENTRIES_MAX])


def test_pages_of_what_was_passed_are_not_read() -> None:
    pages = Pages(TINY)
    entries = grown(pages, tails(*(700 for _ in range(20)), 10, 10, 10, 10))
    reads: list[PageRef] = []

    class Reader:
        def read(self, ref: PageRef) -> tuple[Item, ...]:
            reads.append(ref)
            return pages.reader.read(ref)

    head = structs.replace(a_head(last_offset=239, start_offset=240), entries=EntryTree(entries.items, Reader()))
    first = plan(head)
    assert [entry.size_bytes for entry in first.group] == [10, 10, 10, 10]
    assert len(reads) > 8
    reads.clear()
    assert plan(head, passed=first.passed) == first
    assert all(ref.last_offset >= 200 for ref in reads)


def test_a_merge_takes_the_place_of_entries_in_pages() -> None:
    entries = tails(10, 10, 10, 700, 10, 10, 700, 700)
    head = structs.replace(a_head(last_offset=79, start_offset=80), entries=grown(Pages(TINY), entries))
    group = plan(head).group
    assert group == tuple(entries[:3])
    merged = merge(group)
    after = with_merged(head.entries, group, merged)
    assert list(after) == [merged, *entries[3:]]
    with pytest.raises(ValueError, match="not what was merged"):
        with_merged(head.entries, group[:2], merged)


def merge(group: tuple[Entry, ...]) -> Entry:
    base, last = group[0].base_offset, group[-1].last_offset
    epochs = [epoch for entry in group for epoch in entry.epochs]
    joined = [each for at, each in enumerate(epochs) if at == 0 or each.epoch != epochs[at - 1].epoch]
    size = sum(entry.live_bytes for entry in group)
    return an_entry(base, last, size_bytes=size, epochs=joined, first_timestamp_ms=None, last_timestamp_ms=None)


@given(st.lists(st.integers(1, 1_200), min_size=1, max_size=150), st.integers(1, 12))
def test_no_byte_is_merged_often_and_few_small_entries_remain(sizes: list[int], at_once: int) -> None:
    written: dict[int, int] = defaultdict(int)  # offset: how often
    entries: list[Entry] = []
    passed = 0
    for count, size in enumerate(sizes, 1):
        base = entries[-1].next_offset if entries else 0
        entries.append(an_entry(base, base, size_bytes=size, epochs=((0, base),), first_timestamp_ms=None, last_timestamp_ms=None))
        if count % at_once and count < len(sizes):
            continue
        while (found := plan(a_head(*entries), passed=passed)).group:
            for offset in range(found.group[0].base_offset, found.group[-1].next_offset):
                written[offset] += 1
            assert sum(entry.live_bytes for entry in found.group) <= TARGET
            entries = list(with_merged(EntryTree(entries), found.group, merge(found.group)))
            passed = found.passed
        passed = found.passed
        assert plan(a_head(*entries)) == found, "what was passed is passed for good"
    assert max(written.values(), default=0) <= 2 + math.log(TARGET, GROWTH)
    large = sum(2 * entry.live_bytes >= TARGET for entry in entries)
    assert len(entries) <= 2 * large + 1 + GROWTH * GROWTH * (1 + math.log(TARGET, GROWTH))
