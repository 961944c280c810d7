"""A tree of pages answers as the flat list does, and reads no page that it need not."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.epochs import EpochStart
from manifests.entry import OFFSET_MAX, Entry
from manifests.entry_tree import NO_PAGES, EntryTree, SupersededEntries, refers_to
from manifests.epoch_spans import join_spans, spans_of_entry
from manifests.page import Item, PageRef
from tests.manifests.builders import DIGEST, a_gap, an_entry
from tests.manifests.trees import Pages, grown


@st.composite
def listed(draw: st.DrawFn, max_size: int = 60, branch: int = 0) -> list[Entry]:
    """Entries that abut, of rising epochs, with gaps in between."""
    entries: list[Entry] = []
    at, epoch = draw(st.integers(0, 50)), 0
    for length in draw(st.lists(st.integers(1, 9), max_size=max_size)):
        if draw(st.integers(0, 6)) == 0 and entries and not entries[-1].gap:
            entries.append(a_gap(at, at + length - 1))
        else:
            epochs = [EpochStart(epoch, at)]
            if length > 1 and draw(st.integers(0, 4)) == 0:
                epoch += draw(st.integers(1, 3))
                epochs.append(EpochStart(epoch, at + length // 2))
            stamp = draw(st.none() | st.integers(0, 1000))
            entries.append(
                an_entry(
                    at, at + length - 1, epochs=epochs, first_timestamp_ms=stamp, last_timestamp_ms=stamp, uid=f"{branch:016x}{at:016x}"
                )
            )
        at += length
    return entries


class Counted:
    """A reader that counts."""

    def __init__(self, pages: Pages) -> None:
        self.reader, self.reads = pages.reader, 0

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        self.reads += 1
        return self.reader.read(ref)


def depth(tree: EntryTree) -> int:
    return max((ref.level + 1 for ref in tree.references), default=0)


@settings(max_examples=150, deadline=None)
@given(listed(), st.data())
def test_a_tree_answers_as_the_flat_list(entries: list[Entry], data: st.DataObject) -> None:
    tree = grown(Pages(), entries)
    assert list(tree) == entries
    assert list(reversed(tree)) == entries[::-1]
    assert (len(tree), bool(tree), tree.gaps) == (len(entries), bool(entries), sum(each.gap for each in entries))
    assert (tree.objects, tree.records, tree.live_bytes) == tuple(
        sum(values) for values in ([not e.gap for e in entries], [e.records for e in entries], [e.live_bytes for e in entries])
    )
    assert list(tree.spans()) == join_spans(span for each in entries for span in spans_of_entry(each))
    assert list(tree.gap_spans()) == [(each.base_offset, each.last_offset) for each in entries if each.gap]
    offset = data.draw(st.integers(0, 600))
    assert tree.at(offset) == next((each for each in entries if offset in each), None)
    before, after = tree.split_at(offset)
    assert list(before) == [each for each in entries if each.base_offset < offset]
    assert list(after) == [each for each in entries if each.base_offset >= offset]
    assert list(before + after) == entries
    end = offset + data.draw(st.integers(0, 100))
    within = [each for each in entries if each.base_offset < end and each.next_offset > offset]
    assert list(tree.within(offset, end)) == within
    assert tree.objects_within(offset, end) == sum(not each.gap for each in within)
    if entries:
        place = data.draw(st.integers(-len(entries), len(entries) - 1))
        assert tree[place] == entries[place]
        assert list(tree.without_last()) == entries[:-1]
        assert (tree.base_offset, tree.next_offset) == (entries[0].base_offset, entries[-1].next_offset)
    for outside in (len(entries), -len(entries) - 1):
        with pytest.raises(IndexError):
            tree[outside]


@settings(max_examples=60, deadline=None)
@given(listed(), listed(8, 1), st.data())
def test_a_bag_answers_as_the_flat_list(branch: list[Entry], more: list[Entry], data: st.DataObject) -> None:
    pages = Pages()
    left = pages.packed_superseded(SupersededEntries().with_branch(grown(pages, branch)).with_branch(more))
    expected = [each for each in (*branch, *more) if not each.gap]
    assert sorted(left, key=repr) == sorted(expected, key=repr)
    assert len(left) == len(expected)
    for _ in range(data.draw(st.integers(0, len(expected)))):
        gone = data.draw(st.sampled_from(expected))
        assert gone in left.at_base(gone.base_offset)
        left = pages.packed_superseded(left.without(gone))
        expected = [each for each in expected if each != gone]
        assert sorted(left, key=repr) == sorted(expected, key=repr)
        assert left.at_base(gone.base_offset) == [each for each in expected if each.base_offset == gone.base_offset]


@settings(max_examples=60, deadline=None)
@given(listed(), listed(8, 1), st.data())
def test_some_of_a_bag_stay(branch: list[Entry], more: list[Entry], data: st.DataObject) -> None:
    pages = Pages()
    bag = pages.packed_superseded(SupersededEntries().with_branch(grown(pages, branch)).with_branch(more))
    gone = {each.uid for each in bag if data.draw(st.booleans())}
    written = pages.written
    left = pages.packed_superseded(bag.filtered(lambda entry: entry.uid not in gone))
    assert sorted(left, key=repr) == sorted((each for each in bag if each.uid not in gone), key=repr)
    if not gone:
        assert (left, pages.written) == (bag, written), "nothing is written again"


def test_a_bag_is_in_order_however_its_pages_came() -> None:
    """A page is written after others that begin behind it: a filter that drops nothing must not move it."""
    early, late = (
        PageRef(uid=f"{at:032x}", level=0, fence=1, base_offset=at, last_offset=9, entries=1, size_bytes=1, digest=DIGEST) for at in (0, 1)
    )
    entries = [an_entry(3, 3), an_entry(9, 9)]
    assert SupersededEntries([entries[1], late, entries[0], early]).items == (early, late, *entries)


def a_deep_tree(pages: Pages, count: int = 60) -> EntryTree:
    tree = grown(pages, [an_entry(at * 10, at * 10 + 9) for at in range(count)])
    assert depth(tree) >= 3
    return tree


def test_a_look_up_reads_a_page_a_level() -> None:
    pages = Pages()
    tree = a_deep_tree(pages)
    for offset in range(0, 600, 7):
        counted = Counted(pages)
        assert offset in (EntryTree(tree.items, counted).at(offset) or ())
        assert counted.reads <= depth(tree)


def test_sums_spans_and_gaps_of_a_quiet_partition_read_nothing() -> None:
    pages = Pages()
    tree = EntryTree(a_deep_tree(pages).items, counted := Counted(pages))
    assert [tuple(each) for each in tree.spans()] == [(0, 0, 599, True)]
    assert (len(tree), tree.objects, tree.records, list(tree.gap_spans())) == (60, 60, 600, [])
    assert counted.reads == 0


def test_what_references_exclude_is_not_read() -> None:
    pages = Pages()
    tree = EntryTree(a_deep_tree(pages).items, counted := Counted(pages))
    assert [each.base_offset for each in tree.within(100, 130)] == [100, 110, 120]
    few = counted.reads
    assert list(tree.within(0, OFFSET_MAX, lambda ref: ref.gaps > 0)) == list(tree.newest)
    assert counted.reads == few <= 6


def test_a_page_is_found_below_those_that_refer_to_it() -> None:
    pages = Pages()
    tree = a_deep_tree(pages)

    def below(items: Sequence[Item]) -> list[PageRef]:
        refs = [each for each in items if isinstance(each, PageRef)]
        return refs + [lower for each in refs for lower in below(pages.reader.read(each))]

    refs = below(tree.items)
    assert len(refs) > 10
    assert all(refers_to(tree, ref) for ref in refs)
    shorter = pages.packed(tree.split_at(300)[0])
    assert not all(refers_to(shorter, ref) for ref in refs)


def test_entries_at_hand_need_no_pages() -> None:
    tree = EntryTree((an_entry(0, 9),))
    assert tree == (an_entry(0, 9),)
    assert tree != EntryTree()
    assert tree.pages is NO_PAGES
    with pytest.raises(LookupError):
        NO_PAGES.read(Pages().packed([an_entry(at, at) for at in range(9)]).references[0])
