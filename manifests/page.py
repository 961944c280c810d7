"""A page: older entries of one partition, or references to such pages, in an object that is written once (design §7, Pages).

Gzip'd JSON Lines: a first line that says what the page is, then one item a line, as the head writes them. A reference says enough of
what lies below it that most questions are answered without reading the page: see PageRef.
"""

import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.objectstore.digest import digest_of, is_digest
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.document import WRONG, prepared
from manifests.entry import EPOCH_MAX, FENCE_MAX, OFFSET_MAX, Entry, EpochOffset, check_entry, from_listed, newest_time
from manifests.epoch_spans import EpochSpan, join_spans, spans_of_entry

PAGE_MAJOR = 2
PAGE_FORMAT = (PAGE_MAJOR, 2)
LEVEL_MAX = 9
ENTRIES_MAX = 1 << 40  # below one page: the sum over a head can be counted still
PAGE_BYTES_MAX = 64 << 20  # of one page, unpacked: a thousand entries take a hundredth of it
SPANS_MAX = 64  # of leader epochs that a leaf's reference spells out; one of a higher page, which stays in the head, an eighth
GAPS_MAX = 8
DISPLACED_MAX = 8

T = TypeVar("T")
_WRONG: tuple[type[Exception], ...] = (zlib.error, *WRONG)


class DisplacedSpan(msgspec.Struct, frozen=True, array_like=True):
    """The least and the greatest `Entry.displaced_by` of one leader epoch below a reference."""

    leader_epoch: int
    least: int
    greatest: int


@prepared
class PageRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a page, and what lies below it. Offsets are inclusive.

    level        0: the page holds entries; else references to pages of lower levels
    fence        of the commit that wrote the page; no entry below it has a higher one
    entries      below it, on all levels; `gaps` of them are gaps
    spans        what each leader epoch wrote, merged; None: too many, read the page
    gap_spans    [base offset, last offset] of the gaps; None: too many, read the page
    displaced    of the entries with displaced_by; None: too many, read the page
    first/last_timestamp_ms  least and greatest; None when there is none
    records, live_bytes, aborted   sums
    published_ms the latest of all; None where one of them that is no gap does not know it
    untimed      how many entries have records and no timestamp; unverified: how many have no digest yet
    open_from    least of all
    aborted_from least of all; None when there are none, or where one is not known
    size_bytes, digest   of the page
    """

    uid: str
    level: int
    fence: int
    base_offset: int
    last_offset: int
    entries: int
    gaps: int = 0
    spans: tuple[EpochSpan, ...] | None = ()
    gap_spans: tuple[tuple[int, int], ...] | None = ()
    displaced: tuple[DisplacedSpan, ...] | None = ()
    first_timestamp_ms: int | None = msgspec.field(default=None, name="first_timestamp")
    last_timestamp_ms: int | None = msgspec.field(default=None, name="last_timestamp")
    records: int = 0
    untimed: int = 0
    live_bytes: int = 0
    unverified: int = 0
    open_from: int | None = None
    aborted: int = 0
    aborted_from: int | None = None
    max_producer_id: int = -1
    published_ms: int | None = msgspec.field(default=None, name="published")
    size_bytes: int
    digest: str

    def __post_init__(self) -> None:
        """Raises ValueError for what no page can be."""
        if not 0 <= self.base_offset <= self.last_offset <= OFFSET_MAX or not 0 <= self.level <= LEVEL_MAX:
            raise ValueError(f"page of level {self.level} from {self.base_offset} to {self.last_offset}")
        if not 0 <= self.fence <= FENCE_MAX or not 0 <= self.gaps <= self.entries <= ENTRIES_MAX or self.entries < 1:
            raise ValueError(f"page of fence {self.fence} with {self.entries} entries, {self.gaps} gaps")
        if not 0 < self.size_bytes <= PAGE_BYTES_MAX or not is_digest(self.digest) or not keys.is_uid(self.uid):
            raise ValueError(f"page {self.uid[:40]!r} of {self.size_bytes} bytes, digest {self.digest[:40]!r}")
        spans = [span[:3] for span in self.spans or ()] + [(each.leader_epoch, each.least, each.greatest) for each in self.displaced or ()]
        if not all(0 <= epoch <= EPOCH_MAX and 0 <= least <= greatest <= OFFSET_MAX for epoch, least, greatest in spans):
            raise ValueError(f"leader epochs, first and last offsets: {spans}")
        if self.spans and not self.spans[-1].ends_entry:
            raise ValueError(f"the last leader epoch, {self.spans[-1].epoch}, goes on behind the page")
        if any(not self.base_offset <= base <= last <= self.last_offset for base, last in self.gap_spans or ()):
            raise ValueError(f"gaps outside of {self.base_offset} to {self.last_offset}")
        counts = self.records, self.untimed, self.live_bytes, self.unverified, self.aborted, self.max_producer_id + 1
        if not all(0 <= count < 2**63 for count in counts):
            raise ValueError(f"impossible counts: {counts}")
        times = self.first_timestamp_ms, self.last_timestamp_ms, self.published_ms
        if not all(-(2**63) <= number < 2**63 for number in times if number is not None):
            raise ValueError(f"impossible timestamps: {times}")
        if not all(0 <= offset <= self.last_offset for offset in (self.open_from, self.aborted_from) if offset is not None):
            raise ValueError(f"transactions from {self.open_from}, {self.aborted_from}")

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def newest_ms(self) -> int | None:
        """No entry below it has a later `newest_ms`."""
        return newest_time(self.last_timestamp_ms, self.published_ms)


Item = Entry | PageRef
"""What a head or a page lists."""


def is_ahead(item: Item, now_ms: int) -> bool:
    """Return whether a record in it is dated later than now, where an older version did not list when it was published: its time is taken
    as it is."""
    return item.published_ms is None and item.last_timestamp_ms is not None and item.last_timestamp_ms > now_ms


def page_key(partition: PartitionId, ref: PageRef) -> str:
    return keys.page(partition, ref.base_offset, ref.last_offset, ref.level, ref.fence, ref.uid)


def line_of(item: Item) -> bytes:
    """How head and pages write one item: JSON without white space."""
    return item.line if isinstance(item, Entry) else msgspec.json.encode(item)


def item_from(body: Mapping[str, Any], partition: PartitionId) -> Item:
    """What `line_of` wrote. Raises what `manifests.document.WRONG` lists for what is none."""
    return msgspec.convert(body, PageRef) if "level" in body else from_listed(body, partition)


def encode_page(partition: PartitionId, level: int, lines: Iterable[bytes]) -> bytes:
    """The bytes of a page; the same items give the same bytes."""
    first = {
        "format": PAGE_FORMAT,
        "cluster_id": partition.cluster_id,
        "topic": partition.topic,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "level": level,
    }
    return gzip.compress(b"\n".join((msgspec.json.encode(first), *lines)) + b"\n", 9, mtime=0)


def decode_page(raw: bytes, partition: PartitionId, ref: PageRef) -> tuple[Item, ...]:
    """The items of the page that `ref` means.

    Raises CorruptData when these are not its bytes or say something else than `ref`, UnsupportedFormat for an unknown major version.
    """
    where = page_key(partition, ref)
    if len(raw) != ref.size_bytes or digest_of(raw) != ref.digest:
        raise CorruptData(where, 0, f"{len(raw)} bytes, digest {digest_of(raw)}; the manifest says {ref.size_bytes}, {ref.digest}")
    try:
        unpack = zlib.decompressobj(31)
        first, *lines = unpack.decompress(raw, PAGE_BYTES_MAX).splitlines()
        if not unpack.eof:
            raise ValueError(f"longer than {PAGE_BYTES_MAX} bytes, or cut short")
        begins = msgspec.json.decode(first)
        if begins["format"][0] != PAGE_MAJOR:
            raise UnsupportedFormat(f"{where} has format {str(begins['format'])[:40]}; this version reads {PAGE_MAJOR}.x")
        identity = (begins["topic"], begins["topic_id"], begins["partition"], begins["level"])  # a head may have changed hands since
        if identity != (partition.topic, partition.topic_id, partition.partition, ref.level):
            raise ValueError(f"a page of {identity}")
        items = tuple(item_from(msgspec.json.decode(line), partition) for line in lines)
        _check_items(partition, ref, items)
    except _WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error
    return items


def _check_items(partition: PartitionId, ref: PageRef, items: Sequence[Item]) -> None:
    for item in items:
        if isinstance(item, Entry):
            check_entry(partition, item)
            is_of_level = ref.level == 0
        else:
            is_of_level = item.level < ref.level
        if not is_of_level or item.fence > ref.fence:
            raise ValueError(f"the item at {item.base_offset} does not belong in a page of level {ref.level}, fence {ref.fence}")
    found = (
        min(each.base_offset for each in items),
        max(each.last_offset for each in items),
        sum(1 if isinstance(each, Entry) else each.entries for each in items),
    )
    if found != (ref.base_offset, ref.last_offset, ref.entries):
        raise ValueError(f"it lists {found[2]} entries from {found[0]} to {found[1]}, its reference says otherwise")


def reference(items: Sequence[Item], *, uid: str, level: int, fence: int, size_bytes: int, digest: str) -> PageRef:
    """The reference to a page of `items`, at least one. Of superseded ones, which may overlap, it does not say what an epoch wrote."""
    abut = all(before.next_offset == after.base_offset for before, after in pairwise(items))
    spans = _all_or_none(spans_of_entry(each) if isinstance(each, Entry) else each.spans for each in items) if abut else None
    merged = None if spans is None else tuple(join_spans(spans))
    gaps = _all_or_none(_gaps_of(each) if isinstance(each, Entry) else each.gap_spans for each in items)
    displaced = _all_or_none(_displaced_of(each) if isinstance(each, Entry) else each.displaced for each in items)
    by_epoch = None if displaced is None else _by_epoch(displaced)
    spans_max = SPANS_MAX if level == 0 else SPANS_MAX // 8
    entries = [each for each in items if isinstance(each, Entry)]
    pages = [each for each in items if not isinstance(each, Entry)]
    runs = [item for item in items if not (isinstance(item, Entry) and item.gap)]
    aborting = [each for each in items if each.aborted]
    try:
        return PageRef(
            uid=uid,
            level=level,
            fence=fence,
            base_offset=min(each.base_offset for each in items),
            last_offset=max(each.last_offset for each in items),
            entries=len(entries) + sum(each.entries for each in pages),
            gaps=sum(each.gap for each in entries) + sum(each.gaps for each in pages),
            spans=None if merged is None or len(merged) > spans_max else merged,
            gap_spans=None if gaps is None or len(gaps) > GAPS_MAX else gaps,
            displaced=None if by_epoch is None or len(by_epoch) > DISPLACED_MAX else by_epoch,
            first_timestamp_ms=min((each.first_timestamp_ms for each in items if each.first_timestamp_ms is not None), default=None),
            last_timestamp_ms=max((each.last_timestamp_ms for each in items if each.last_timestamp_ms is not None), default=None),
            records=sum(each.records for each in items),
            untimed=sum(each.last_timestamp_ms is None and each.records > 0 for each in entries) + sum(each.untimed for each in pages),
            live_bytes=sum(each.live_bytes for each in items),
            unverified=sum(not each.gap and not each.digest for each in entries) + sum(each.unverified for each in pages),
            open_from=min((each.open_from for each in items if each.open_from is not None), default=None),
            aborted=sum(each.aborted for each in items),
            aborted_from=None
            if any(each.aborted_from is None for each in aborting)
            else min((each.aborted_from for each in aborting if each.aborted_from is not None), default=None),
            max_producer_id=max(each.max_producer_id for each in items),
            published_ms=None
            if any(run.published_ms is None for run in runs)
            else max((run.published_ms for run in runs if run.published_ms is not None), default=None),
            size_bytes=size_bytes,
            digest=digest,
        )
    except ValueError as error:  # an item claims more than a page can have
        raise CorruptData(f"page of level {level}", 0, str(error)[:200]) from error


def _all_or_none(parts: Iterable[Sequence[T] | None]) -> tuple[T, ...] | None:
    found: list[T] = []
    for part in parts:
        if part is None:
            return None
        found.extend(part)
    return tuple(found)


def _gaps_of(entry: Entry) -> tuple[tuple[int, int], ...]:
    return ((entry.base_offset, entry.last_offset),) if entry.gap else ()


def _displaced_of(entry: Entry) -> tuple[DisplacedSpan, ...]:
    by: EpochOffset | None = entry.displaced_by
    return (DisplacedSpan(by.leader_epoch, by.offset, by.offset),) if by is not None else ()


def _by_epoch(displaced: Iterable[DisplacedSpan]) -> tuple[DisplacedSpan, ...]:
    found: dict[int, DisplacedSpan] = {}
    for each in displaced:
        known = found.get(each.leader_epoch, each)
        found[each.leader_epoch] = DisplacedSpan(each.leader_epoch, min(known.least, each.least), max(known.greatest, each.greatest))
    return tuple(found[epoch] for epoch in sorted(found))
