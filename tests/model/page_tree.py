"""Pages: how a head's lists are laid out over immutable pages, copied on write, and read back. Pure, like `lineage`."""

from collections.abc import Callable, Iterator
from functools import cache
from zlib import crc32

from tests.model.cases import Left
from tests.model.state import Entry, Head, Item, Page, Ref, View, on

Naming = Callable[[int, tuple[Item, ...]], Ref]


class PageNeeded(Exception):
    """This page has to be in the bucket before a head can name it."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        super().__init__(items)
        self.items = items


@cache
def digest(items: tuple[Item, ...]) -> int:
    return crc32(repr(items).encode())


def find(pages: tuple[Page, ...], ref: Ref) -> Page | None:
    """The page as its reference describes it; None when it is missing or holds something else."""
    return next((page for page in pages if page.uid == ref.page and digest(page.items) == ref.digest), None)


def walk(items: tuple[Item, ...], pages: tuple[Page, ...]) -> Iterator[tuple[Ref, Page | None]]:
    """Every reference below `items`, and its page."""
    for x in items:
        if isinstance(x, Ref):
            page = find(pages, x)
            if page:
                yield from walk(page.items, pages)
            yield x, page


def entries(items: tuple[Item, ...], pages: tuple[Page, ...]) -> tuple[Entry, ...] | None:
    """What `items` list, pages included; None when one of them is not found."""
    out: list[Entry] = []
    for x in items:
        if isinstance(x, Entry):
            out.append(x)
            continue
        page = find(pages, x)
        below = entries(page.items, pages) if page else None
        if below is None:
            return None
        out += below
    return tuple(out)


def listed(items: tuple[Item, ...]) -> tuple[Entry, ...]:
    """Without pages."""
    return tuple(x for x in items if isinstance(x, Entry))


def view(head: Head, pages: tuple[Page, ...]) -> View | None:
    """What `head` says once its pages have been read; None when one of them is not found."""
    live, dead = entries(head.live, pages), entries(head.dead, pages)
    if live is None or dead is None:
        return None
    inline = max((x.end for x in head.live if isinstance(x, Ref)), default=0)
    return View(head.epoch, live, dead, inline, head.start, head.trimmed)


def layout(before: Head, pages: tuple[Page, ...], after: View, spare: tuple[Page, ...], left: Left) -> Head:
    """The lists of `before`'s successor. What did not change stays in the pages it lies in.

    spare  pages that are in the bucket and that no head names yet

    Raises PageNeeded for the first page that is not there yet.
    """
    live, dead = list(walk(before.live, pages)), list(walk(before.dead, pages))
    known = {page.items: page.uid for _, page in [*live, *dead] if page} | {page.items: page.uid for page in spare}

    def name(level: int, items: tuple[Item, ...]) -> Ref:
        if items not in known:
            raise PageNeeded(items)
        return Ref(items[0].base, items[-1].end, known[items], level, digest(items))

    laid = before._replace(
        live=_live(after.live, [ref for ref, _ in live], left, name),
        dead=_dead(after.dead, [page.items for _, page in dead if page], [page.items for _, page in live if page], left, name),
    )
    paged = any(isinstance(x, Ref) for x in laid.live + laid.dead)
    return laid._replace(format=2 if paged and not on("pages_without_format") else before.format)


def _live(live: tuple[Entry, ...], refs: list[Ref], left: Left, name: Naming) -> tuple[Item, ...]:
    """A tree: references to nodes, then to leaves, then the newest entries, each as many as the head may list."""
    items: tuple[Item, ...] = live
    tail: tuple[Item, ...] = ()
    for level, room in ((1, left.inline), (2, left.refs)):
        if not room:
            break
        groups = []
        for ref in refs:
            if ref.level == level:
                groups.append(tuple(x for x in items if ref.base <= x.base < ref.end))
                items = tuple(x for x in items if x not in groups[-1])
        groups = [group for group in groups if group]
        while len(items) > room:
            if groups and len(groups[-1]) < left.leaf:
                groups[-1] += items[:1]
            else:
                groups.append(items[:1])
            items = items[1:]
        items, tail = tuple(name(level, group) for group in groups), items + tail
    return items + tail


def _dead(
    dead: tuple[Entry, ...], held: list[tuple[Item, ...]], leaving: list[tuple[Item, ...]], left: Left, name: Naming
) -> tuple[Item, ...]:
    """Superseded entries overlap: no tree, but runs of pages. A whole page that leaves the live list comes by its reference."""
    rest, groups = dead, []
    for page in [*held, *(each for each in leaving if set(each) <= set(dead))]:
        groups.append(tuple(x for x in page if x in rest))
        rest = tuple(x for x in rest if x not in groups[-1])
    while len(rest) > left.inline:
        groups.append(rest[: left.leaf])
        rest = rest[left.leaf :]
    return (*(name(1, group) for group in groups if group), *rest)


def show(items: tuple[Item, ...]) -> str:
    return "[" + " ".join(f"{x.base}-{x.end - 1}" + (f" in page {x.page}" if isinstance(x, Ref) else "") for x in items) + "]"
