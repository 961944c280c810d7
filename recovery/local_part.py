"""Which part of an archived partition comes back to the disk: everything live, the newest runs alone, or none. Pure.

The head, its pages' sums and the options decide; a page is read only where an entry of it is wanted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError
from manifests.entry import Entry
from manifests.entry_tree import EntryBag, EntryTree, PageReader
from manifests.head import Head
from manifests.page import Item, PageRef
from recovery.entry_list import EntryList
from recovery.recovery_plan import PRODUCER_ID_MAX, LeftInArchive, LostPage, Mode, Options, RequestedEnd

OPEN_RUNS_MAX = 1000  # that are looked through for where an open transaction began; one that hangs may have begun any number of runs ago


class PartBounds(NamedTuple):
    """What of a partition is wanted.

    before_ms, retention_bytes  retention: runs whose newest record is older are left out, from the oldest on; at least so many bytes
                     are kept
    mode             `partial`: the newest runs that hold keep_bytes, and those with a record of the keep_ms before the newest one,
                     whichever is less; `instant`: none
    now_ms           when that is; runs that are dated later count as Entry.retained_from_ms has it
    end              where the log is to end, before the archive's end; None: with it
    """

    before_ms: int | None = None
    retention_bytes: int | None = None
    mode: Mode = "full"
    keep_bytes: int | None = None
    keep_ms: int | None = None
    now_ms: int = 2**63 - 1
    end: RequestedEnd | None = None


WHOLE = PartBounds()


class LocalPart(NamedTuple):
    """
    entries          in offset order, without gaps before the first record
    next_offset      where the last entry ends, which may have to be cut; the log's end when there is none
    below_retention  how many runs retention leaves out
    left             what a gateway serves, below the entries; None in `full`
    beneath          runs below the entries, in offset order, from where the oldest transaction began that is open where one of these ends
    lost_pages       of what was wanted; gaps among the entries
    """

    entries: EntryList
    next_offset: int
    below_retention: int
    left: LeftInArchive | None = None
    beneath: tuple[Entry, ...] = ()
    lost_pages: tuple[LostPage, ...] = ()


class ReadablePages:
    """The pages of one partition, with a gap in place of each that is missing or damaged. lost: those, by base offset"""

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages
        self.lost: dict[int, LostPage] = {}

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        """Raises what PageReader.read does, but CorruptData and UnsupportedFormat."""
        try:
            return self._pages.read(ref)
        except (CorruptData, UnsupportedFormat) as error:
            self.lost[ref.base_offset] = LostPage(base_offset=ref.base_offset, last_offset=ref.last_offset, reason=str(error))
            return (Entry(base_offset=ref.base_offset, last_offset=ref.last_offset, gap=True),)


def readable(tree: EntryTree) -> EntryTree:
    """`tree`, with gaps where it cannot be read."""
    return EntryTree(tree.items, ReadablePages(tree.pages))


def is_internal(topic: str) -> bool:
    """Kafka's own, or somebody's who names it like that: its readers take it as a whole, whatever its cleanup policy is."""
    return topic.startswith("__")


def bounds_of(topic: str, policy: str, configs: Mapping[str, str], options: Options, now_ms: int) -> PartBounds:
    """Of a topic with this cleanup policy and these settings. Raises UsageError for settings that are none.

    A compacted topic comes back whole in every mode: its state is the last record of each key, wherever that lies, and a cleaner that sees
    what is new alone would drop a tombstone while the value that it deletes is read from the archive for good. So does an internal one, and
    given retention is not for it: share groups keep their places in a topic that is not compacted.
    """
    if is_internal(topic):
        options = replace(options, retention_ms=None, retention_bytes=None)
    before_ms, size_bytes = retention_of(policy, configs, options, now_ms)
    if "compact" in policy or is_internal(topic):
        return PartBounds(before_ms, size_bytes, now_ms=now_ms)
    return PartBounds(before_ms, size_bytes, options.mode, options.keep_bytes, options.keep_ms, now_ms)


def retention_of(policy: str, configs: Mapping[str, str], options: Options, now_ms: int) -> tuple[int | None, int | None]:
    """The oldest timestamp and the bytes that each partition of a topic with these settings keeps; None without a bound. Raises
    UsageError."""
    if "delete" not in policy:
        return None, None
    ms, size = options.retention_ms, options.retention_bytes
    if options.apply_retention:
        ms, size = own_limit(configs, "retention.ms"), own_limit(configs, "retention.bytes")
    return None if ms is None else now_ms - ms, size


def own_limit(configs: Mapping[str, str], name: str) -> int | None:
    """A topic's own limit; None when it has none of its own: the lost broker's default is not known."""
    try:
        value = int(configs.get(name, "-1"))
    except ValueError as error:
        raise UsageError(f"{name} is {configs[name][:40]!r}") from error
    return value if value >= 0 else None


def select_part(head: Head, bounds: PartBounds) -> LocalPart:
    """The part of what `head` lists that `bounds` want. Raises what the store raises when it does not answer for a page."""
    pages = ReadablePages(head.entries.pages)
    tree, end = EntryTree(head.entries.items, pages), head.next_offset
    if bounds.end is not None:
        tree, end = tree.split_at(bounds.end.offset)[0], max(bounds.end.offset, head.start_offset)
    if bounds.mode == "full":
        candidates = EntryList.of(entry for entry in tree if entry.next_offset > head.start_offset)
    else:
        candidates = EntryList() if bounds.mode == "instant" else _newest(tree, pages, bounds, head.start_offset)
    dropped = _expired(candidates, bounds)
    young = candidates[dropped:]
    lost = tuple(pages.lost[each.base_offset] for each in young.gaps if each.base_offset in pages.lost)
    kept = without_first_gaps(young)
    if bounds.end is not None and kept:
        end = kept[-1].next_offset
    left = None if bounds.mode == "full" else _left(tree, kept, head.start_offset)
    return LocalPart(kept, end, dropped if left is None else 0, left, _beneath(tree, kept, head.start_offset), lost)


def without_first_gaps(entries: EntryList) -> EntryList:
    """A log begins with its first record."""
    return entries[sum(1 for _ in takewhile(lambda entry: entry.gap, entries)) :]


def _newest(tree: EntryTree, pages: ReadablePages, bounds: PartBounds, start_offset: int) -> EntryList:
    """The newest entries, as far back as both limits reach."""
    first = start_offset if bounds.keep_ms is None else _first_young(tree, pages, bounds.keep_ms)

    def backwards() -> Iterator[Entry]:
        size_bytes = 0
        for entry in reversed(tree):
            if entry.next_offset <= start_offset or entry.next_offset <= first:
                return
            if bounds.keep_bytes is not None and size_bytes >= bounds.keep_bytes:
                return
            yield entry
            size_bytes += entry.live_bytes

    return EntryList.of_reversed(backwards())


def _first_young(tree: EntryTree, pages: ReadablePages, keep_ms: int) -> int:
    """The base offset of the oldest entry with a record of the last `keep_ms` before the newest one, or of a lost page that has one; the
    end when no record has a time. A record that is dated later than it was published counts as published then."""
    newest_ms = max((item.newest_ms for item in tree.items if item.newest_ms is not None), default=None)
    if newest_ms is None:
        return tree.next_offset if tree else 0
    since_ms = newest_ms - keep_ms

    def is_young(item: Item) -> bool:
        return item.newest_ms is not None and item.newest_ms >= since_ms

    young = (each.base_offset for each in tree.where(is_young) if is_young(each) or each.base_offset in pages.lost)
    return next(young, tree.next_offset)


def _left(tree: EntryTree, kept: EntryList, start_offset: int) -> LeftInArchive | None:
    """What lies below `kept`, by the sums of the pages; None when that is nothing."""
    runs = tree.objects - len(kept.runs)
    if runs <= 0:
        return None
    base_offset = max(start_offset, tree.base_offset)
    last_offset = (kept[0].base_offset if kept else tree.next_offset) - 1
    if base_offset > last_offset:
        return None
    return LeftInArchive(
        base_offset=base_offset,
        last_offset=last_offset,
        runs=runs,
        records=tree.records - kept.records,
        size_bytes=tree.live_bytes - kept.live_bytes,
    )


def _beneath(tree: EntryTree, kept: Sequence[Entry], start_offset: int) -> tuple[Entry, ...]:
    """The newest runs below `kept`, from where the oldest transaction began that is open at the end, or where a kept run ends: the next one
    may turn out to be lost."""
    first = kept[0].base_offset if kept else tree.next_offset if tree else 0
    if first <= start_offset:
        return ()
    ends = kept or islice((entry for entry in reversed(tree) if not entry.gap), 1)
    open_from = min((entry.open_from for entry in ends if entry.open_from is not None), default=first)
    if open_from >= first:
        return ()
    found: list[Entry] = []
    for entry in reversed(tree.split_at(first)[0]):
        if entry.next_offset <= start_offset or len(found) == OPEN_RUNS_MAX:
            break
        found.append(entry)
        if entry.base_offset <= open_from:
            break
    return tuple(reversed(found))


def _expired(entries: EntryList, bounds: PartBounds) -> int:
    """How many of the oldest entries retention leaves out. Control records and gaps are no reason to keep anything."""
    by_age = by_size = 0
    if (before_ms := bounds.before_ms) is not None:
        times = (entry.retained_from_ms(bounds.now_ms) for entry in entries)
        by_age = next((at for at, time_ms in enumerate(times) if time_ms is not None and time_ms >= before_ms), len(entries))
    if bounds.retention_bytes is not None:
        spare = entries.live_bytes - bounds.retention_bytes
        for entry in entries:
            spare -= entry.live_bytes
            if spare < 0:
                break
            by_size += 1
    return max(by_age, by_size)


def items_of(entries: EntryBag) -> Iterator[Item]:
    """What says the leader epochs and producer ids of `entries`: the sums of pages where they say them, entries elsewhere. A page of dead
    branches that is damaged is passed over where its sums suffice."""
    for item in entries.items:
        if isinstance(item, Entry) or (item.spans is not None and not is_made_up(item)):
            yield item
        else:
            yield from _below(entries, item)


def _below(entries: EntryBag, ref: PageRef) -> Iterable[Item]:
    try:
        return list(type(entries)((ref,), entries.pages))
    except CorruptData:
        if ref.spans is None and not isinstance(entries, EntryTree):
            raise  # a dead branch; a head has followed the epochs of what is live
        return (ref,)


def newest_epoch(item: Item) -> int:
    epochs = [epoch for epoch, _ in item.epochs] if isinstance(item, Entry) else [span.epoch for span in item.spans or ()]
    return max(epochs, default=0)


def is_made_up(item: Item) -> bool:
    """It holds a producer id that no coordinator gave: new ids do not begin above it."""
    return item.max_producer_id > PRODUCER_ID_MAX
