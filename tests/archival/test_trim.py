"""What retention and a person let go of an archive: whole entries, the oldest first, never the newest run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace as dataclass_replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from archival.config import ArchivalConfig
from archival.plan.trim import delete_to, expired_to, next_expiry_ms, trimmed
from headwater_core.errors import UsageError
from manifests.entry import Entry
from manifests.head import Head, check_head
from tests.manifests.builders import a_head, an_entry
from tests.manifests.trees import TINY, Pages, grown

NOW_MS = 1_000_000_000
DAY_MS = 24 * 3600 * 1000


def aged(*days: int | None, size_bytes: int = 100) -> list[Entry]:
    """Runs of ten offsets whose newest record is so many days old; None: no record has a time."""
    times = [None if each is None else NOW_MS - each * DAY_MS for each in days]
    return [
        replace(
            an_entry(10 * at, 10 * at + 9),
            first_timestamp_ms=time_ms,
            last_timestamp_ms=time_ms,
            records=10,
            size_bytes=size_bytes,
            live_bytes=size_bytes,
        )
        for at, time_ms in enumerate(times)
    ]


def a_gap(base: int, last: int) -> Entry:
    return Entry(base_offset=base, last_offset=last, gap=True)


def head_of(entries: Iterable[Entry], start: int | None = None) -> Head:
    listed = tuple(entries)
    return a_head(*listed, start_offset=listed[0].base_offset if start is None else start)


def kept(head: Head, settings: ArchivalConfig, modified_days: int = 0) -> Sequence[tuple[int, int]]:
    start = expired_to(head, settings, NOW_MS, lambda _: NOW_MS - modified_days * DAY_MS)
    after = check_head(trimmed(head, start))
    return [(entry.base_offset, entry.last_offset) for entry in after.entries]


def by_days(days: int) -> ArchivalConfig:
    return ArchivalConfig(retention_s=days * DAY_MS // 1000)


def test_without_a_setting_nothing_leaves() -> None:
    head = head_of(aged(900, 800, 0))
    assert trimmed(head, expired_to(head, ArchivalConfig(), NOW_MS, lambda _: 0)) is head


def test_what_is_older_leaves_in_whole_entries() -> None:
    head = head_of(aged(9, 8, 7, 6, 0))
    assert kept(head, by_days(7)) == [(20, 29), (30, 39), (40, 49)]


def test_a_young_entry_keeps_all_that_follows_it() -> None:
    assert kept(head_of(aged(9, 1, 9, 9, 0)), by_days(7)) == [(10, 19), (20, 29), (30, 39), (40, 49)]


def test_the_newest_run_stays_however_old_it_is_and_gaps_after_it_too() -> None:
    entries = [*aged(90, 80, 70), a_gap(30, 39)]
    for settings in (by_days(1), ArchivalConfig(retention_bytes=1), ArchivalConfig(retention_s=1, retention_bytes=1)):
        assert kept(head_of(entries), settings) == [(20, 29), (30, 39)]
        assert kept(head_of(entries[:1]), settings) == [(0, 9)]
        assert kept(head_of([a_gap(0, 9)]), settings) == [(0, 9)]


def test_a_gap_leaves_with_the_run_after_it() -> None:
    entries = aged(90, 80, 70, 0)
    with_gap = [a_gap(0, 9), *entries[1:]]
    assert kept(head_of(with_gap), by_days(75)) == [(20, 29), (30, 39)]
    assert kept(head_of(with_gap), by_days(85)) == [(0, 9), (10, 19), (20, 29), (30, 39)]


def test_by_size_as_much_as_is_set_stays_at_least() -> None:
    head = head_of(aged(0, 0, 0, 0, 0))
    for least, bases in ((500, 0), (499, 0), (401, 0), (400, 10), (399, 10), (300, 20), (101, 30), (100, 40), (1, 40)):
        assert kept(head, ArchivalConfig(retention_bytes=least))[0][0] == bases


def test_records_without_a_time_are_as_old_as_their_object() -> None:
    head = head_of(aged(None, None, 0))
    assert kept(head, by_days(7), modified_days=6) == [(0, 9), (10, 19), (20, 29)]
    assert kept(head, by_days(7), modified_days=8) == [(20, 29)]


def test_an_object_is_asked_for_its_time_at_the_border_only() -> None:
    asked: list[int] = []

    def modified_ms(entry: Entry) -> int:
        asked.append(entry.base_offset)
        return NOW_MS

    expired_to(head_of(aged(9, None, None, None, 0)), by_days(7), NOW_MS, modified_ms)
    assert asked == [10]


def test_the_start_inside_an_entry_stays_until_the_entry_leaves() -> None:
    head = head_of(aged(9, 8, 0), start=5)
    assert trimmed(head, expired_to(head, by_days(20), NOW_MS, lambda _: 0)).start_offset == 5
    assert trimmed(head, expired_to(head, by_days(7), NOW_MS, lambda _: 0)).start_offset == 20


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=40), st.integers(1, 15), st.integers(1, 4000))
def test_a_deep_tree_is_trimmed_as_a_flat_list_is(days: list[int | None], keep_days: int, least_bytes: int) -> None:
    pages, entries = Pages(TINY), aged(*days)
    flat = head_of(entries)
    deep = replace(flat, entries=grown(pages, entries))
    for settings in (
        by_days(keep_days),
        ArchivalConfig(retention_bytes=least_bytes),
        dataclass_replace(by_days(keep_days), retention_bytes=least_bytes),
    ):
        assert kept(deep, settings, modified_days=9) == kept(flat, settings, modified_days=9)
        assert kept(flat, settings, modified_days=9)[-1] == (entries[-1].base_offset, entries[-1].last_offset)


def test_whole_pages_leave_by_their_reference() -> None:
    pages = Pages(TINY)
    head = replace(head_of(aged(*range(200, 0, -1))), entries=grown(pages, aged(*range(200, 0, -1))))
    read: list[str] = []
    real = head.entries.pages.read

    class Counting:
        def read(self, ref: object) -> object:
            read.append(ref.uid)  # type: ignore[attr-defined]
            return real(ref)  # type: ignore[arg-type]

    counted = replace(head, entries=type(head.entries)(head.entries.items, Counting()))  # type: ignore[arg-type]
    assert expired_to(counted, by_days(50), NOW_MS, lambda _: 0) == 1500
    assert len(set(read)) <= 12, "three levels of pages, and those of the newest entry"


# By a person


def test_the_start_moves_into_an_entry_which_stays() -> None:
    after = check_head(trimmed(head_of(aged(0, 0, 0)), delete_to(head_of(aged(0, 0, 0)), 14)))
    assert after.start_offset == 14
    assert [entry.base_offset for entry in after.entries] == [10, 20]


def test_deleting_everything_leaves_the_newest_run_listed_and_nothing_to_read() -> None:
    head = head_of(aged(0, 0, 0))
    after = check_head(trimmed(head, delete_to(head, 30)))
    assert (after.start_offset, after.next_offset, [entry.base_offset for entry in after.entries]) == (30, 30, [20])
    assert trimmed(after, 30) is after
    behind_a_gap = check_head(trimmed(head_of([*aged(0, 0), a_gap(20, 29)]), 30))
    assert (behind_a_gap.start_offset, [entry.base_offset for entry in behind_a_gap.entries]) == (20, [10, 20])


def test_the_start_never_goes_back() -> None:
    head = head_of(aged(0, 0, 0), start=7)
    assert trimmed(head, delete_to(head, 3)) is head


def test_what_is_not_archived_cannot_be_deleted() -> None:
    with pytest.raises(UsageError, match="archived up to 30"):
        delete_to(head_of(aged(0, 0, 0)), 31)


def test_an_empty_archive_has_nothing_to_trim() -> None:
    head = a_head(start_offset=54, last_offset=53)
    assert trimmed(head, expired_to(head, by_days(1), NOW_MS, lambda _: 0)) is head
    assert trimmed(head, delete_to(head, 54)) is head


def test_when_time_lets_something_go_next() -> None:
    assert next_expiry_ms(head_of(aged(3, 0)), by_days(7), NOW_MS) == NOW_MS + 4 * DAY_MS
    assert next_expiry_ms(head_of(aged(3)), by_days(7), NOW_MS) is None
    assert next_expiry_ms(head_of(aged(3, 0)), ArchivalConfig(retention_bytes=1), NOW_MS) is None
    assert next_expiry_ms(head_of(aged(None, 0)), by_days(7), NOW_MS) == 0


FAR_MS = 1000 * NOW_MS + 7  # in microseconds


def dated(entry: Entry, last_ms: int, published_days: int | None) -> Entry:
    published_ms = None if published_days is None else NOW_MS - published_days * DAY_MS
    return replace(entry, last_timestamp_ms=last_ms, published_ms=published_ms)


def test_a_record_that_is_dated_far_ahead_does_not_keep_its_run_for_longer_than_others() -> None:
    first, *others = aged(9, 8, 6, 0)
    head = head_of([dated(first, FAR_MS, 9), *others])
    assert kept(head, by_days(7), modified_days=9) == [(20, 29), (30, 39)]
    assert next_expiry_ms(head, by_days(7), NOW_MS) == NOW_MS - 2 * DAY_MS
    assert kept(head_of([dated(first, FAR_MS, 5), *others]), by_days(7), modified_days=9)[0] == (0, 9), "it was published within seven days"


def test_a_run_of_an_older_version_is_kept_by_what_its_records_say() -> None:
    first, *others = aged(9, 8, 6, 0)
    head = head_of([dated(first, FAR_MS, None), *others])
    assert kept(head, by_days(7), modified_days=9)[0] == (0, 9)
    assert next_expiry_ms(head, by_days(7), NOW_MS) == NOW_MS + 7 * DAY_MS


def test_a_clock_that_was_behind_lets_nothing_go_that_is_young() -> None:
    first, *others = aged(1, 0)
    assert kept(head_of([dated(first, NOW_MS - DAY_MS, 900), *others]), by_days(7), modified_days=900) == [(0, 9), (10, 19)]
    ahead = head_of([dated(first, FAR_MS, 900), *others])
    assert kept(ahead, by_days(7), modified_days=1) == [(0, 9), (10, 19)], "the store has the object since yesterday"


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from([0, 0, 0, 1, FAR_MS]), st.none() | st.integers(-900, 900), st.integers(0, 5)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 15),
    st.booleans(),
)
def test_whatever_one_date_says_what_is_young_stays_and_what_is_old_goes(
    runs: list[tuple[int, int, int | None, int]], days: int, paged: bool
) -> None:
    """Runs that were written so many days ago; some have a record dated ahead, and the agent's clock was behind or ahead when they were."""
    runs = sorted(runs, key=lambda each: -each[0])
    entries = [
        dated(entry, NOW_MS - written * DAY_MS + ahead_ms, None if skew is None else written - skew)
        for entry, (written, ahead_ms, skew, _) in zip(aged(*(written for written, *_ in runs)), runs, strict=True)
    ]
    written_days = {entry.base_offset: run[0] for entry, run in zip(entries, runs, strict=True)}
    merged_days = {entry.base_offset: max(0, run[0] - run[3]) for entry, run in zip(entries, runs, strict=True)}
    head = head_of(entries)
    head = replace(head, entries=grown(Pages(TINY), entries)) if paged else head
    start = expired_to(head, by_days(days), NOW_MS, lambda entry: NOW_MS - merged_days[entry.base_offset] * DAY_MS)
    gone = [entry for entry in entries if entry.next_offset <= start]
    assert all(written_days[entry.base_offset] >= days for entry in gone), "nothing young is deleted, wherever the clock was"
    if all(skew == 0 for _, _, skew, _ in runs):  # and one bad date keeps nothing for long
        assert len(gone) >= len(list(takewhile(lambda entry: merged_days[entry.base_offset] > days, entries[:-1])))
