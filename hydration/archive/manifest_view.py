"""What the bucket's manifest says of one partition, kept near: a small summary here, the entries in the index."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from headwater_core.clock import Clock
from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import PartitionId
from hydration.resumption import Resumable
from manifests.entry import Entry
from manifests.entry_tree import NO_PAGES, PageReader
from manifests.head import Head
from manifests.page import Item, PageRef
from manifests.repository import Versioned

RETRY_S = 1.0  # after a failure no request goes to the store for so long: all callers get the same error at once

_LOOK_UPS_MAX = 12  # a tree has a few levels; a head that changes again and again meanwhile ends the wait
_PAGES_HELD = 64

log = structlog.get_logger()


class Heads(Protocol):
    """Where manifests come from: the repository."""

    def load(self, partition: PartitionId) -> Versioned | None:
        """The partition's head; None when it never had one. Blocks. Raises what the store does, and CorruptData."""
        ...


class EntryIndex(Protocol):
    """Where entries are looked up: LMDB, or the head itself."""

    def replace(self, head: Head) -> object:
        """Take the head's entries for those of its partition. Raises HeadwaterError when that is not possible."""
        ...

    def floor(self, partition: PartitionId, offset: int) -> Item | None:
        """The entry that holds `offset`, or a reference to a page that is needed for the answer."""
        ...

    def floor_time(self, partition: PartitionId, timestamp_ms: int) -> Item | None:
        """The first entry whose last timestamp is at or after `timestamp_ms`, or a reference to a page that is needed for the answer."""
        ...

    def add_page(self, ref: PageRef, items: Sequence[Item]) -> None:
        """Take what the page lists. Raises HeadwaterError when that is not possible."""
        ...

    def retain(self, partitions: Collection[PartitionId]) -> None:
        """Forget all others. Raises HeadwaterError when that is not possible."""
        ...


class GapSpan(NamedTuple):
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A head without its entries.

    epochs      which leadership wrote which offsets, over all entries
    open_from   first offset of the oldest transaction still open at the end; None when there is none
    gaps        what it lacks: `epochs` has nothing there, and entries after it know only transactions that began after it
    """

    version: int
    commit_id: str
    start_offset: int
    last_offset: int
    leader_epoch: int
    epochs: EpochHistory
    open_from: int | None
    gaps: tuple[GapSpan, ...] = ()

    def __post_init__(self) -> None:
        if self.version < 1 or not 0 <= self.start_offset <= self.next_offset or self.leader_epoch < -1:
            raise ValueError(f"impossible extent: {self}")

    @property
    def commit(self) -> tuple[int, str]:
        return self.version, self.commit_id

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    def __contains__(self, offset: int) -> bool:
        return self.start_offset <= offset <= self.last_offset

    def lists(self, offset: int) -> bool:
        """Whether an entry with data holds `offset`."""
        return offset in self and not any(gap.start <= offset < gap.end for gap in self.gaps)

    def knows_from(self, offset: int) -> int:
        """From where on entries know of the transactions that are open at `offset`: the last gap before it, or the start."""
        at = bisect_right(self.gaps, offset, key=lambda gap: gap.end)
        return max(self.gaps[at - 1].end, self.start_offset) if at else self.start_offset


def extent_of(head: Head) -> Extent:
    """May read pages: those whose references do not say their epochs, or their gaps."""
    steps: list[EpochStart] = []
    for span in head.entries.spans():
        if not steps or span.epoch > steps[-1].epoch:
            steps.append(EpochStart(span.epoch, span.first_offset))
    last = head.entries[-1] if head.entries else None
    return Extent(
        version=head.version,
        commit_id=head.commit_id,
        start_offset=head.start_offset,
        last_offset=head.last_offset,
        leader_epoch=head.leader_epoch,
        epochs=EpochHistory(tuple(steps)),
        open_from=last.open_from if last else None,
        gaps=tuple(GapSpan(base_offset, last_offset + 1) for base_offset, last_offset in head.entries.gap_spans()),
    )


class HeldEntries:
    """An EntryIndex in memory, where there is no LMDB or no room for it. Of pages it keeps those that were wanted last."""

    def __init__(self) -> None:
        self._heads: dict[PartitionId, tuple[Item, ...]] = {}
        self._pages: OrderedDict[str, tuple[Item, ...]] = OrderedDict()  # by uid
        self._lock = threading.Lock()

    def replace(self, head: Head) -> None:
        self._heads[head.partition_id] = head.entries.items

    def add_page(self, ref: PageRef, items: Sequence[Item]) -> None:
        with self._lock:
            self._pages[ref.uid] = tuple(items)
            while len(self._pages) > _PAGES_HELD:
                self._pages.popitem(last=False)

    def retain(self, partitions: Collection[PartitionId]) -> None:
        for gone in [each for each in list(self._heads) if each not in partitions]:
            self._heads.pop(gone, None)

    def floor(self, partition: PartitionId, offset: int) -> Item | None:
        return self._descend(partition, lambda items: _holding(items, offset))

    def floor_time(self, partition: PartitionId, timestamp_ms: int) -> Item | None:
        def found(items: Sequence[Item]) -> Item | None:
            return next((each for each in items if each.last_timestamp_ms is not None and each.last_timestamp_ms >= timestamp_ms), None)

        return self._descend(partition, found)

    def _descend(self, partition: PartitionId, choose: Callable[[Sequence[Item]], Item | None]) -> Item | None:
        item = choose(self._heads.get(partition, ()))
        while isinstance(item, PageRef) and (below := self._pages.get(item.uid)) is not None:
            item = choose(below)
        return item


def _follows(extent: Extent, known: Extent | None) -> bool:
    """Whether it is the later one. Of two commits of one version the later one came after a head was restored."""
    return known is None or extent.version > known.version or (extent.version == known.version and extent.commit != known.commit)


def _holding(items: Sequence[Item], offset: int) -> Item | None:
    at = bisect_right(items, offset, key=lambda item: item.base_offset) - 1
    return items[at] if at >= 0 and offset <= items[at].last_offset else None


class ManifestView:
    """One partition's archive as last seen. `extent` is None while nothing is known, or known not to be there: see `is_known`."""

    def __init__(
        self,
        partition: PartitionId,
        heads: Heads,
        index: EntryIndex,
        clock: Clock,
        run: Callable[[str, Callable[[], None]], Future[None]],
    ) -> None:
        """run   does blocking work elsewhere, one at a time under each name; all callers share its future while it is in flight"""
        self.partition = partition
        self.extent: Extent | None = None
        self._heads, self._index, self._clock, self._run = heads, index, clock, run
        self._seen_s: float | None = None
        self._failure: tuple[float, HeadwaterError] | None = None
        self._pages: PageReader = NO_PAGES
        self._updating = threading.Lock()  # heads come from loads and from commits
        self._recent: tuple[Extent, Entry] | None = None  # the entry looked up last: most reads continue where the last one ended

    @property
    def is_known(self) -> bool:
        """Whether the head is known, or that there is none."""
        return self._seen_s is not None

    def age_s(self) -> float:
        """Seconds since what is known was requested; infinite while nothing is."""
        return float("inf") if self._seen_s is None else self._clock.monotonic_s() - self._seen_s

    def refresh(self, max_age_s: float) -> Resumable[None]:
        """Load the head unless what is known is younger than that. Raises what the store does, or did a moment ago."""
        if self.age_s() >= max_age_s:
            if self._failure is not None and self._clock.monotonic_s() - self._failure[0] < RETRY_S:
                raise self._failure[1].with_traceback(None)  # raised again and again, it would gather frames
            yield self._run("head", self.load)

    def was_seen_since(self, moment_s: float) -> bool:
        """Whether what is known was requested at that moment of the monotonic clock or later."""
        return self._seen_s is not None and self._seen_s >= moment_s

    def refresh_since(self, moment_s: float) -> Resumable[None]:
        """Load the head unless what is known was requested since then; a load that was in flight before does not count."""
        while not self.was_seen_since(moment_s):
            yield from self.refresh(0.0)

    def refresh_soon(self, max_age_s: float) -> None:
        """The same as refresh without waiting for it."""
        if self.age_s() >= max_age_s and (self._failure is None or self._clock.monotonic_s() - self._failure[0] >= RETRY_S):
            self._run("head", self.load)

    def load(self) -> None:
        """Load the head; blocks. Raises what the store does, and TransientError when a manifest that was there is gone."""
        known, requested_s = self.extent, self._clock.monotonic_s()
        try:
            found = self._heads.load(self.partition)
            if found is None and known is not None:  # it is never deleted: the archive is not mounted any more, most likely
                raise TransientError(f"{self.partition}: its manifest was there and is gone")
        except HeadwaterError as error:
            self._failure = (self._clock.monotonic_s(), error)
            raise
        self._failure = None
        head = found.head if found else None
        extent = extent_of(head) if head is not None else None  # may read pages: another head may come meanwhile
        with self._updating:
            # unless another head came meanwhile, this one is the newest, also where its version is lower: an operator has restored it
            if self.extent is known or (extent is not None and _follows(extent, self.extent)):
                self._take(head, extent)
            self._seen_s = requested_s  # the answer may be as old as the request

    def update(self, head: Head) -> None:
        """Take over a head that was committed just now. One older than the known changes nothing, nor what is known to be fresh."""
        extent = extent_of(head)
        with self._updating:
            if _follows(extent, self.extent):
                self._take(head, extent)
                self._seen_s = self._clock.monotonic_s()

    def _take(self, head: Head | None, extent: Extent | None) -> None:
        if head is None or extent is None:
            self.extent = None
        elif self.extent is None or extent.commit != self.extent.commit:
            try:
                self._index.replace(head)
            except HeadwaterError as error:
                self._bypass_index(error)
                self._index.replace(head)
            self._pages, self.extent = head.entries.pages, extent
        self._recent = None

    def entry_at(self, offset: int) -> Resumable[Entry | None]:
        """The live entry that holds `offset`, gap entries included; waits where its page is not here. Raises what reading that does."""
        found = self.entry_now(offset)
        if found is None and self.extent is not None:
            found = yield from self._entry(lambda: self._index.floor(self.partition, offset))
            if found is not None and self.extent is not None:
                self._recent = self.extent, found
        return found

    def entry_now(self, offset: int) -> Entry | None:
        """As entry_at, without waiting: None where its page is not here too."""
        extent, recent = self.extent, self._recent
        if extent is None:
            return None
        if recent is not None and recent[0] is extent and offset in recent[1]:
            return recent[1]
        found = self._index.floor(self.partition, offset)
        if not isinstance(found, Entry):
            return None
        self._recent = extent, found
        return found

    def next_held(self, offset: int, end: int) -> int:
        """The first offset in [offset, end) for which the manifest lists data; `end` when there is none."""
        for gap in self.extent.gaps if self.extent is not None else ():
            if gap.start <= offset < gap.end:
                offset = gap.end
        return min(offset, end)

    def first_gap(self, offset: int, end: int) -> int:
        """The first offset in [offset, end) for which the manifest lists no data; `end` when there is none."""
        extent = self.extent
        if extent is None or not extent.lists(offset):
            return min(offset, end)
        return min(next((max(gap.start, offset) for gap in extent.gaps if gap.end > offset), extent.next_offset), end)

    def entry_for_time(self, timestamp_ms: int) -> Resumable[Entry | None]:
        """The first entry that lists a timestamp at or after `timestamp_ms`; waits as entry_at does."""
        if self.extent is None:
            return None
        return (yield from self._entry(lambda: self._index.floor_time(self.partition, timestamp_ms)))

    def _entry(self, look_up: Callable[[], Item | None]) -> Resumable[Entry | None]:
        """What `look_up` finds once all pages that it needs are here."""
        for attempt in range(_LOOK_UPS_MAX):
            found = look_up()
            if not isinstance(found, PageRef):
                return found
            try:
                yield self._run(found.uid, partial(self._load_page, found))
            except TransientError:
                if attempt:
                    raise
                yield from self.refresh(0.0)  # another head may have replaced the page
        raise TransientError(f"{self.partition}: its manifest changes while it is read; ask again")

    def _load_page(self, ref: PageRef) -> None:
        items = self._pages.read(ref)
        try:
            self._index.add_page(ref, items)
        except HeadwaterError as error:
            self._bypass_index(error)

    def _bypass_index(self, error: HeadwaterError) -> None:
        """Continue in memory, without what the index knew; the next head, or look-up, fills it again."""
        log.warning("manifest_index_bypassed", partition=str(self.partition), reason=str(error))
        self._index = HeldEntries()
        self.extent, self._seen_s = None, None
