"""How the entries of a partition are packed, so that its head stays small (design §7, Pages).

The newest entries stay in the head. When they are too many, the older half goes to the newest leaf, which is written again until
it is full; when the references in the head are too many, they go to pages of the next level likewise. So a commit costs amortised O(1),
and an entry is found through two pages at most, up to sixteen million. What an edit left open in the middle becomes pages again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from manifests.entry import Entry
from manifests.entry_tree import EntryTree, PageReader, SupersededEntries
from manifests.page import LEVEL_MAX, Item, PageRef, line_of

WritePage = Callable[[int, Sequence[Item]], PageRef]
"""Stores a page of that level which lists these items, and returns its reference once the store has confirmed it."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many items fit, and how many bytes they may take."""

    items: int
    size_bytes: int

    def holds(self, items: Iterable[Item]) -> bool:
        return self.newest(items) is None

    def newest(self, items: Iterable[Item]) -> int | None:
        """How many of the last of `items` fit; None when all do."""
        size_bytes = 0
        for fit, item in enumerate(reversed(list(items))):
            size_bytes += len(line_of(item)) + 4  # white space around it, and a comma
            if fit == self.items or size_bytes > self.size_bytes:
                return fit
        return None

    def divided_by(self, divisor: int) -> "Room":
        return Room(self.items // divisor, self.size_bytes // divisor)


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The room in a head for each of its lists, and in pages.

    entries, references                        of what is live
    superseded, superseded_references          of what is not
    leaf, node                                 how much one page of entries, and one of references, holds
    """

    entries: Room = Room(96, 34_000)
    references: Room = Room(32, 12_000)
    superseded: Room = Room(16, 5_000)
    superseded_references: Room = Room(8, 4_000)
    leaf: Room = Room(1_000, 4 << 20)
    node: Room = Room(256, 4 << 20)


LIMITS = PageLimits()


def pack(entries: EntryTree, limits: PageLimits, write: WritePage) -> EntryTree:
    """The same entries in as many pages as it takes for the rest to fit into a head: references first, then the newest entries.

    Writes pages only; the caller commits what refers to them. Raises what reading and writing pages does.
    """
    return entries.in_items(_Packing(entries.pages, limits, write).packed(entries.items), entries.pages)


def pack_superseded(entries: SupersededEntries, limits: PageLimits, write: WritePage) -> SupersededEntries:
    """As `pack`, for entries that are never looked up by offset: what does not fit goes to a page of its own, whatever it overlaps."""
    loose, references = list(entries.newest), list(entries.references)
    if not limits.superseded.holds(loose):
        references += [write(0, run) for run in _filled(loose, limits.leaf)]
        loose = []
    while not limits.superseded_references.holds(references):
        level = min(each.level for each in references)
        lowest = [each for each in references if each.level == level]
        if len(lowest) == 1:  # then it goes with those of the next level
            level = min(each.level for each in references if each.level > level)
            lowest = [each for each in references if each.level <= level]
        references = [each for each in references if each not in lowest] + [write(level + 1, run) for run in _filled(lowest, limits.node)]
    return SupersededEntries((*references, *loose), entries.pages)


class _Packing:
    def __init__(self, pages: PageReader, limits: PageLimits, write: WritePage) -> None:
        self._pages, self._limits, self._write = pages, limits, write

    def packed(self, items: Sequence[Item]) -> list[Item]:
        references, newest = self._leaves(items)
        for keep in (self._limits.references.divided_by(2), Room(0, 0)):
            for level in range(LEVEL_MAX):
                if self._limits.references.holds(references):
                    break
                references = self._nodes(references, level, keep)
        return [*references, *newest]

    def _leaves(self, items: Sequence[Item]) -> tuple[list[PageRef], list[Item]]:
        """References to pages with all but the newest entries; and those."""
        at = len(items)
        while at and isinstance(items[at - 1], Entry):
            at -= 1
        newest = list(items[at:])
        if not self._limits.entries.holds(newest):
            fit = self._limits.entries.divided_by(2).newest(newest) or 0
            at = len(items) - fit
            newest = newest[len(newest) - fit :]
        references: list[PageRef] = []
        for is_entry, run in groupby(items[:at], key=lambda each: isinstance(each, Entry)):
            if is_entry:
                self._append(references, list(run), 0, self._limits.leaf)
            else:
                references += run  # type: ignore[arg-type]
        return references, newest

    def _nodes(self, references: Sequence[PageRef], level: int, keep: Room) -> list[PageRef]:
        """The same with the references of `level` in pages of the next one, but for the newest that fit into `keep`."""
        nodes: list[PageRef] = []
        runs = [(each_level, list(run)) for each_level, run in groupby(references, key=lambda each: each.level)]
        for number, (each_level, run) in enumerate(runs):
            stays = len(run) if each_level != level else 0
            if each_level == level and number == len(runs) - 1:
                fit = keep.newest(run)
                stays = len(run) if fit is None else fit
            below = run[: len(run) - stays]
            if below:
                self._append(nodes, below, level + 1, self._limits.node)
            nodes += run[len(below) :]
        return nodes

    def _append(self, references: list[PageRef], run: Sequence[Item], level: int, room: Room) -> None:
        """Add pages that list `run` to `references`, after what the last page of that level lists if that is not full."""
        if references and references[-1].level == level:
            last = self._pages.read(references[-1])
            if len(last) < room.items and room.holds(last):
                run = (*last, *run)
                references.pop()
        references += (self._write(level, page) for page in _filled(run, room))


def _filled(items: Iterable[Item], room: Room) -> Iterator[list[Item]]:
    """`items` in pages, each as full as it gets."""
    page: list[Item] = []
    size_bytes = 0
    for item in items:
        length = len(line_of(item)) + 1
        if page and (len(page) == room.items or size_bytes + length > room.size_bytes):
            yield page
            page, size_bytes = [], 0
        page.append(item)
        size_bytes += length
    if page:
        yield page
