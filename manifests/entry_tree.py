"""The entries that a head lists, in memory: some at hand, the others below references to pages, which are read when they are wanted.

Both kinds are values. Editing one gives another and writes nothing: what was below a page and is touched lies open among the items,
until a commit packs it into new pages (manifests.page_limits). What is not touched stays behind its reference.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self

from manifests.entry import Entry
from manifests.epoch_spans import EpochSpan, join_spans, spans_of_entry
from manifests.page import Item, PageRef


class PageReader(Protocol):
    """Reads the pages of one partition."""

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        """What the page lists, verified. Blocks. Raises CorruptData when it is damaged or missing, ManifestChanged when the head that
        refers to it was replaced meanwhile, and what the store raises."""
        ...


class NoPages:
    """For entries that are all at hand."""

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        raise LookupError(f"no pages, and no {ref.uid}")


NO_PAGES = NoPages()


class EntryBag:
    """Entries in any order. Whatever reads a page raises what PageReader.read does.

    items  entries and references to pages, as given
    """

    __slots__ = ("items", "pages")

    def __init__(self, items: Iterable[Item] = (), pages: PageReader = NO_PAGES) -> None:
        self.items = tuple(items)
        self.pages = pages

    @classmethod
    def of(cls, entries: "Iterable[Entry] | EntryBag") -> Self:
        """`entries` as one of these; itself when it is."""
        return entries if isinstance(entries, cls) else cls(entries)

    def __eq__(self, other: object) -> bool:
        """Whether the items are the same; with a tuple too."""
        return self.items == (other.items if isinstance(other, EntryBag) else other)

    def __hash__(self) -> int:
        return hash(tuple((each.base_offset, each.uid) for each in self.items))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.items)!r})"

    def __bool__(self) -> bool:
        return bool(self.items)

    def __len__(self) -> int:
        """How many entries there are. Reads nothing."""
        return sum(1 if isinstance(each, Entry) else each.entries for each in self.items)

    def __iter__(self) -> Iterator[Entry]:
        """All of them, pages read one after the other."""
        return self.where(lambda ref: True)

    def __getitem__(self, at: int) -> Entry:
        """The entry at that place, from the end when `at` is negative. Raises IndexError when there are fewer."""
        place = at + len(self) if at < 0 else at
        for item in self.items if place >= 0 else ():
            count = 1 if isinstance(item, Entry) else item.entries
            if place < count:
                return item if isinstance(item, Entry) else type(self)(self.pages.read(item), self.pages)[place]
            place -= count
        raise IndexError(f"no entry {at} of {len(self)}")

    def where(self, may_hold: Callable[[PageRef], bool]) -> Iterator[Entry]:
        """The entries, without reading pages below a reference that `may_hold` nothing wanted."""
        for item in self.items:
            if isinstance(item, Entry):
                yield item
            elif may_hold(item):
                yield from type(self)(self.pages.read(item), self.pages).where(may_hold)

    @property
    def newest(self) -> tuple[Entry, ...]:
        """The entries that are at hand."""
        return tuple(each for each in self.items if isinstance(each, Entry))

    @property
    def references(self) -> tuple[PageRef, ...]:
        return tuple(each for each in self.items if isinstance(each, PageRef))

    @property
    def gaps(self) -> int:
        """How many of the entries are gaps."""
        return sum(int(each.gap) if isinstance(each, Entry) else each.gaps for each in self.items)

    @property
    def objects(self) -> int:
        """How many of the entries are not gaps."""
        return sum(int(not each.gap) if isinstance(each, Entry) else each.entries - each.gaps for each in self.items)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.items)

    @property
    def live_bytes(self) -> int:
        return sum(each.live_bytes for each in self.items)


class EntryTree(EntryBag):
    """Live entries, in offset order."""

    __slots__ = ("_joined",)

    def __init__(self, items: Iterable[Item] = (), pages: PageReader = NO_PAGES) -> None:
        super().__init__(items, pages)
        self._joined: tuple[EpochSpan, ...] | None = None  # what `spans` has found: a plan asks for it more than once

    def __add__(self, other: "EntryTree") -> "EntryTree":
        """These, and `other` after them."""
        return EntryTree(self.items + other.items, other.pages if self.pages is NO_PAGES else self.pages)

    def followed_by(self, *entries: Entry) -> "EntryTree":
        """These, and `entries` after them."""
        tree = EntryTree((*self.items, *entries), self.pages)
        if self._joined is not None:
            tree._joined = tuple(join_spans((*self._joined, *(span for entry in entries for span in spans_of_entry(entry)))))
        return tree

    def in_items(self, items: Iterable[Item], pages: PageReader) -> "EntryTree":
        """The same entries, otherwise divided into pages."""
        tree = EntryTree(items, pages)
        tree._joined = self._joined
        return tree

    def __reversed__(self) -> Iterator[Entry]:
        for item in reversed(self.items):
            if isinstance(item, Entry):
                yield item
            else:
                yield from reversed(self._below(item))

    @property
    def base_offset(self) -> int:
        """Of the first entry. Reads nothing; raises IndexError when there is none."""
        return self.items[0].base_offset

    @property
    def next_offset(self) -> int:
        """Of the last entry. Reads nothing; raises IndexError when there is none."""
        return self.items[-1].next_offset

    def at(self, offset: int) -> Entry | None:
        """The entry that holds `offset`, gap entries included."""
        at = bisect_right(self.items, offset, key=lambda each: each.base_offset) - 1
        if at < 0 or offset > self.items[at].last_offset:
            return None
        item = self.items[at]
        return item if isinstance(item, Entry) else self._below(item).at(offset)

    def split_at(self, offset: int) -> "tuple[EntryTree, EntryTree]":
        """The entries that begin before `offset`, and the others."""
        at = bisect_right(self.items, offset - 1, key=lambda each: each.base_offset)
        before, after = self.items[:at], self.items[at:]
        if before and isinstance(before[-1], PageRef) and before[-1].last_offset >= offset:
            left, right = self._below(before[-1]).split_at(offset)
            before, after = before[:-1] + left.items, right.items + after
        return EntryTree(before, self.pages), EntryTree(after, self.pages)

    def without_last(self) -> "EntryTree":
        """Raises IndexError when there is none."""
        return self.split_at(self[-1].base_offset)[0]

    def within(self, first: int, end: int, may_hold: Callable[[PageRef], bool] = lambda ref: True) -> Iterator[Entry]:
        """The entries that hold an offset in [first, end), without reading pages that hold none, or nothing wanted."""
        wanted = self.where(lambda ref: ref.base_offset < end and ref.next_offset > first and may_hold(ref))
        return (each for each in wanted if each.base_offset < end and each.next_offset > first)

    def objects_within(self, first: int, end: int) -> int:
        """How many entries that are not gaps hold an offset in [first, end). Reads the pages across its ends alone."""
        count = 0
        for item in self.items:
            if item.base_offset >= end or item.next_offset <= first:
                continue
            if isinstance(item, Entry):
                count += not item.gap
            elif first <= item.base_offset and item.next_offset <= end:
                count += item.entries - item.gaps
            else:
                count += self._below(item).objects_within(first, end)
        return count

    def spans(self) -> tuple[EpochSpan, ...]:
        """What each leader epoch wrote, in offset order. Reads the pages whose references do not say it."""
        if self._joined is None:
            self._joined = tuple(join_spans(span for item in self.items for span in self._spans(item)))
        return self._joined

    def gap_spans(self) -> Iterator[tuple[int, int]]:
        """Base and last offset of each gap. Reads the pages whose references do not say it."""
        for item in self.items:
            if isinstance(item, Entry):
                if item.gap:
                    yield item.base_offset, item.last_offset
            elif item.gap_spans is not None:
                yield from item.gap_spans
            else:
                yield from self._below(item).gap_spans()

    def _spans(self, item: Item) -> Iterable[EpochSpan]:
        if isinstance(item, Entry):
            return spans_of_entry(item)
        return self._below(item).spans() if item.spans is None else item.spans

    def _below(self, ref: PageRef) -> "EntryTree":
        return EntryTree(self.pages.read(ref), self.pages)


class SupersededEntries(EntryBag):
    """The entries of dead branches. Pages that left the live list as a whole may hold gaps, which say nothing here.

    items  references first, then entries, each by offset: the same set is always written the same way
    """

    __slots__ = ()

    def __init__(self, items: Iterable[Item] = (), pages: PageReader = NO_PAGES) -> None:
        super().__init__(sorted(items, key=lambda each: (isinstance(each, Entry), each.base_offset, each.uid)), pages)

    def __iter__(self) -> Iterator[Entry]:
        return (each for each in super().__iter__() if not each.gap)

    def __len__(self) -> int:
        return super().__len__() - self.gaps

    def at_base(self, base_offset: int) -> list[Entry]:
        """Those that begin at `base_offset`."""
        found = self.where(lambda ref: ref.base_offset <= base_offset <= ref.last_offset)
        return [each for each in found if each.base_offset == base_offset and not each.gap]

    def with_branch(self, dead: Iterable[Entry] | EntryTree) -> "SupersededEntries":
        """These, and what has left the live list; of a tree, pages as a whole."""
        more = dead.items if isinstance(dead, EntryTree) else tuple(dead)
        pages = dead.pages if isinstance(dead, EntryTree) and self.pages is NO_PAGES else self.pages
        return SupersededEntries([*self.items, *_without_gaps(more)], pages)

    def without(self, entry: Entry) -> "SupersededEntries":
        """These but for `entry`, which is one of them."""
        return SupersededEntries(self._without(self.items, entry), self.pages)

    def filtered(self, stays: Callable[[Entry], bool]) -> "SupersededEntries":
        """Those that stay. Reads every page; one of which all stay is not written again."""
        return SupersededEntries(self._filtered(self.items, stays), self.pages)

    def _filtered(self, items: Iterable[Item], stays: Callable[[Entry], bool]) -> list[Item]:
        kept: list[Item] = []
        for item in items:
            if isinstance(item, Entry):
                kept += [item] if item.gap or stays(item) else []
            else:
                below = self.pages.read(item)
                left = self._filtered(below, stays)
                left_over = _without_gaps(left)
                kept += [item] if left_over and left == list(below) else left_over
        return kept

    def _without(self, items: Iterable[Item], entry: Entry) -> list[Item]:
        kept: list[Item] = []
        for item in items:
            if isinstance(item, Entry):
                kept += [] if item == entry else [item]
            elif not item.base_offset <= entry.base_offset <= item.last_offset:
                kept.append(item)
            else:
                below = self.pages.read(item)
                left = self._without(below, entry)
                kept += [item] if left == list(below) else _without_gaps(left)
        return kept


def _without_gaps(items: Iterable[Item]) -> list[Item]:
    return [each for each in items if isinstance(each, PageRef) or not each.gap]


def refers_to(entries: EntryBag, ref: PageRef) -> bool:
    """Whether that very page is below `entries`. Reads the pages on the way to it."""
    for item in entries.items:
        if not isinstance(item, PageRef) or not item.base_offset <= ref.base_offset <= ref.last_offset <= item.last_offset:
            continue
        if item.uid == ref.uid or (item.level > ref.level and refers_to(type(entries)(entries.pages.read(item), entries.pages), ref)):
            return True
    return False
