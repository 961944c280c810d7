"""Trees that get deep with a few entries, over a store in memory."""

from collections.abc import Iterable

from manifests.entry import Entry
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.page_limits import PageLimits, Room, pack, pack_superseded
from manifests.page_store import PageStore, PartitionPages
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION

PLENTY = 1 << 20


def limits_of(head: int, page: int) -> PageLimits:
    """At most so many items in each list of a head, and in a page."""
    lists, pages = Room(head, PLENTY), Room(page, PLENTY)
    return PageLimits(lists, lists, lists, lists, pages, pages)


SMALL = limits_of(3, 4)
TINY = limits_of(2, 3)
DEEP = limits_of(1, 2)


class Pages:
    """The pages of one partition; every write is counted."""

    def __init__(self, limits: PageLimits = SMALL, store: MemoryStore | None = None) -> None:
        self.limits, self.store = limits, store or MemoryStore()
        self.names = iter(range(1 << 30))
        self.pages = PageStore(self.store, lambda: f"{next(self.names):032x}", lambda partition, ref: True)
        self.reader = PartitionPages(self.pages, PARTITION)

    def packed(self, entries: Iterable[Entry] | EntryTree, fence: int = 1) -> EntryTree:
        items = entries.items if isinstance(entries, EntryTree) else tuple(entries)
        return pack(EntryTree(items, self.reader), self.limits, lambda level, page: self.pages.write(PARTITION, fence, level, page))

    def packed_superseded(self, entries: SupersededEntries, fence: int = 1) -> SupersededEntries:
        bag = SupersededEntries(entries.items, self.reader)
        return pack_superseded(bag, self.limits, lambda level, page: self.pages.write(PARTITION, fence, level, page))

    @property
    def written(self) -> int:
        return sum(1 for _ in self.store.list("meta/"))


def grown(pages: Pages, entries: Iterable[Entry]) -> EntryTree:
    """A tree as commits make it, an entry at a time."""
    tree = EntryTree()
    for entry in entries:
        tree = pages.packed(tree.followed_by(entry))
    return tree
