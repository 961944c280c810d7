"""How live entries change, value by value: nothing but what is said of offsets is looked at here."""

from hypothesis import given
from hypothesis import strategies as st

from archival.plan.entries import entries_before, first_published_ms, merged_publication, place, rest_of, with_gap
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from tests.manifests.builders import a_gap, an_entry

FIRST, GAP, LAST = an_entry(0, 9), a_gap(10, 29), an_entry(30, 39)
LIST = EntryTree((FIRST, GAP, LAST))


def trees(before: tuple[Entry, ...], following: tuple[Entry, ...]) -> tuple[EntryTree, EntryTree]:
    return EntryTree(before), EntryTree(following)


def test_a_run_that_follows_the_last_entry_comes_after_it() -> None:
    new = an_entry(40, 49)
    assert place(LIST, new, None) == trees((*LIST, new), ())
    assert entries_before(LIST, None, 40) == LIST


def test_a_run_that_fills_a_gap_takes_its_place() -> None:
    new = an_entry(10, 29)
    assert place(LIST, new, GAP) == trees((FIRST, new), (LAST,))
    assert entries_before(LIST, GAP, 10) == (FIRST,)


def test_what_a_run_leaves_of_a_gap_stays_one_on_both_sides() -> None:
    new = an_entry(15, 19)
    assert place(LIST, new, GAP) == trees((FIRST, a_gap(10, 14), new), (a_gap(20, 29), LAST))
    assert entries_before(LIST, GAP, 15) == (FIRST, GAP)


def test_what_a_run_leaves_of_a_gap_at_the_end_goes() -> None:
    """The log holds those offsets, or will."""
    new = an_entry(10, 19)
    assert place(EntryTree((FIRST, GAP)), new, GAP) == trees((FIRST, new), ())


def test_a_gap_whose_end_moves_stays_one_gap() -> None:
    once = with_gap(EntryTree((FIRST,)), 10, 19)
    assert once == (FIRST, a_gap(10, 19))
    assert with_gap(once, 10, 29) == (FIRST, a_gap(10, 29))


def test_the_rest_of_an_entry_has_its_epochs_from_there_on_and_nothing_of_its_records() -> None:
    whole = an_entry(0, 9, epochs=((1, 0), (2, 6)), aborted=1, aborted_from=0)
    rest = rest_of(whole, 4)
    assert (rest.base_offset, rest.last_offset, rest.epochs) == (4, 9, ((1, 4), (2, 6)))
    assert (rest.records, rest.first_timestamp_ms, rest.last_timestamp_ms, rest.aborted, rest.aborted_from) == (0, None, None, 0, None)
    assert (rest.key, rest.live_bytes) == (whole.key, whole.live_bytes)
    assert rest_of(whole, 0) is whole


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6))
def test_what_is_made_of_several_entries_was_published_when_the_last_of_them_was(times: list[int | None]) -> None:
    merged = merged_publication([an_entry(10 * at, 10 * at + 9, published_ms=time) for at, time in enumerate(times)])
    if merged is None:
        assert None in times
    else:
        assert all(time is not None and time <= merged for time in times)
        assert merged in times


def test_a_run_is_published_now_unless_each_of_its_offsets_was() -> None:
    listed = EntryTree((an_entry(0, 9, published_ms=1), an_entry(10, 19, published_ms=2), a_gap(20, 29), an_entry(30, 39)))
    found = [first_published_ms(an_entry(*ends), listed, 99) for ends in ((0, 9), (5, 12), (0, 25), (10, 29), (25, 35), (30, 39), (35, 45))]
    assert found == [1, 2, 99, 99, 99, None, 99]
    assert first_published_ms(an_entry(0, 9), EntryTree(), 99) == 99
