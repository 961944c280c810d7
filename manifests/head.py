"""The head of a partition's manifest: which objects make up its archive (design §3).

Heads and entries are values: no impossible one can be made, nor decoded. What cannot be seen in one of them alone (that entries
abut, that keys are this partition's) is `check_head`'s, when a head is written and when it is read: a scrub wants to look at a head
of which that is not true, and say where.
"""

from bisect import bisect_right
from typing import Any, NamedTuple

import msgspec

from headwater_core.epochs import EpochStart, leader_epoch_at
from headwater_core.errors import CorruptData, ForeignOwner, ManifestFull, UnsupportedFormat
from headwater_core.objectstore.digest import is_digest
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal

OFFSET_MAX = 2**63 - 2  # so that the next offset is still an int64
OBJECT_BYTES_MAX = 1 << 40
HEAD_BYTES_MAX = DOCUMENT_BYTES_MAX // 2  # from here on nothing is archived; what is committed must stay readable
HEAD_RESERVE_BYTES = 1 << 20  # beyond it, for the last entry, and for claims and cuts, which must always fit
FENCE_MAX = 10**10 - 1  # ten digits in an object's key
EPOCH_MAX = 2**31 - 1
NAME_CHARS_MAX = 255  # writer, commit id, layout, uid


class EpochOffset(NamedTuple):
    """A record's place in a partition's history (an EpochStart is where an epoch's records begin): an epoch has one leader, so the offset
    is in that one's log, or in none."""

    leader_epoch: int
    offset: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One live or superseded run, or a gap that is known to be one. Both offsets are inclusive.

    epochs        where each leader epoch begins in this entry
    first/last_timestamp_ms  user data only; None when there is none
    size_bytes    of the whole object; live_bytes is where its live part ends: a dead branch may cut it inside
    digest        "crc64nvme:<16 hex>" of the whole object, computed by us; "" for adopted objects until verified
    context       the layout's own words, opaque to all others
    open_from     first offset of the oldest transaction still open after last_offset; None when there is none
    aborted       how many aborted transactions end in this entry
    aborted_from  least first offset of those; None when there are none, or when an older version wrote the entry
    cleaned       it and all that was live before it lay below the cleaner checkpoint whenever one of them was read: together they
                  hold one record of a key; what was never proven is not cleaned
    displaced_by  compaction had removed records from the run when it was read: for later ones, all of them up to here; None when it
                  lacks none, or when an older version wrote the entry
    """

    base_offset: int
    last_offset: int
    gap: bool = False
    epochs: tuple[EpochStart, ...] = ()
    first_timestamp_ms: int | None = msgspec.field(default=None, name="first_timestamp")
    last_timestamp_ms: int | None = msgspec.field(default=None, name="last_timestamp")
    records: int = 0
    uid: str = ""
    fence: int = 0
    key: str = ""
    size_bytes: int = 0
    live_bytes: int = 0
    digest: str = ""
    index_key: str = ""
    index_bytes: int = 0
    index_digest: str = ""
    layout: str = "segment"
    context: dict[str, str] = {}
    open_from: int | None = None
    aborted: int = 0
    aborted_from: int | None = None
    cleaned: bool = False
    displaced_by: EpochOffset | None = None
    max_producer_id: int = -1

    def __post_init__(self) -> None:
        """Raises ValueError for what no run, or no gap, can be."""
        if not 0 <= self.base_offset <= self.last_offset <= OFFSET_MAX:
            raise ValueError(f"offsets out of order: {self.base_offset} to {self.last_offset}")
        if self.gap:
            if any(getattr(self, name) != nothing for name, nothing in _OF_RUNS):
                raise ValueError(f"the gap from {self.base_offset} to {self.last_offset} says more than its offsets")
            return
        if not 0 < self.live_bytes <= self.size_bytes <= OBJECT_BYTES_MAX or not 0 <= self.index_bytes <= OBJECT_BYTES_MAX:
            raise ValueError(f"impossible lengths: {self.live_bytes} of {self.size_bytes}, index {self.index_bytes}")
        if not 0 <= self.fence <= FENCE_MAX or not 0 <= self.records <= OFFSET_MAX or not 0 <= self.aborted <= OFFSET_MAX:
            raise ValueError(f"impossible counts: fence {self.fence}, {self.records} records, {self.aborted} aborted")
        if not all(-(2**63) <= number < 2**63 for number in (self.first_timestamp_ms or 0, self.last_timestamp_ms or 0)):
            raise ValueError(f"impossible timestamps: {self.first_timestamp_ms}, {self.last_timestamp_ms}")
        if not -1 <= self.max_producer_id < 2**63:
            raise ValueError(f"impossible producer id: {self.max_producer_id}")
        if not all(digest == "" or is_digest(digest) for digest in (self.digest, self.index_digest)):
            raise ValueError(f"no digests: {self.digest[:40]!r}, {self.index_digest[:40]!r}")
        if self.open_from is not None and not 0 <= self.open_from <= self.last_offset:
            raise ValueError(f"open transaction at {self.open_from}")
        if self.aborted_from is not None and not (self.aborted and 0 <= self.aborted_from <= self.last_offset):
            raise ValueError(f"{self.aborted} aborted transactions from {self.aborted_from} on")
        by = self.displaced_by
        if by is not None and not (0 <= by.leader_epoch <= EPOCH_MAX and 0 <= by.offset <= OFFSET_MAX):
            raise ValueError(f"displaced by what is at {by.offset}, in leader epoch {by.leader_epoch}")
        before, below = -1, self.base_offset - 1
        for epoch, first_offset in self.epochs:
            if not before < epoch <= EPOCH_MAX or not below < first_offset <= self.last_offset:
                raise ValueError(f"epochs out of order: {[tuple(each) for each in self.epochs]}")
            before, below = epoch, first_offset

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    def fields(self) -> dict[str, Any]:
        """Every field under its name in the document, the omitted ones too: plain values, as JSON has them."""
        omitted = {
            field.encode_name: None if field.default is msgspec.NODEFAULT else field.default for field in msgspec.structs.fields(self)
        }
        return msgspec.to_builtins(omitted | {"context": {}} | msgspec.to_builtins(self))  # type: ignore[no-any-return]

    @property
    def is_cut(self) -> bool:
        """The object holds more than this entry lists."""
        return self.live_bytes < self.size_bytes

    def __contains__(self, offset: int) -> bool:
        return self.base_offset <= offset <= self.last_offset


_OF_RUNS: tuple[tuple[str, Any], ...] = tuple(
    (field.name, {} if field.default is msgspec.NODEFAULT else field.default)  # the context's default is a new dict each time
    for field in msgspec.structs.fields(Entry)
    if field.name not in ("base_offset", "last_offset", "gap")
)


class PageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A page of older entries. Listed from the first format version on; written by a later one."""

    key: str
    base_offset: int
    last_offset: int
    entries: int
    digest: str

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.last_offset <= OFFSET_MAX or self.entries < 1:
            raise ValueError(f"{self.entries} entries from {self.base_offset} to {self.last_offset}")


@prepared
class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The live manifest of one partition.

    version       of the manifest, rises by one with every commit
    commit_id     unique to the commit, so that its author can recognise it
    fence         highest claim; writer is who holds it
    leader_epoch  highest leader epoch whose history a commit has followed; -1 before any
    start_offset, last_offset   exist without entries: an emptied log at 54 starts at 54 and ends at 53
    clean_to      the cleaner checkpoint of the log had got here whenever a live run was read; 0 when that is not known
    """

    format: tuple[int, int] = FORMAT
    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    version: int
    commit_id: str
    fence: int
    writer: str
    leader_epoch: int = -1
    start_offset: int
    last_offset: int
    clean_to: int = 0
    entries: tuple[Entry, ...] = ()
    superseded: tuple[Entry, ...] = ()
    pages: tuple[PageRef, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that no manifest has, UsageError for impossible names."""
        self.partition_id  # noqa: B018  before anything is said in its name
        if not 1 <= self.version <= OFFSET_MAX or not 0 <= self.fence <= FENCE_MAX or not -1 <= self.leader_epoch <= EPOCH_MAX:
            raise ValueError(f"version {self.version}, fence {self.fence}, leader epoch {self.leader_epoch}")
        if not 0 < len(self.commit_id) <= NAME_CHARS_MAX or not 0 < len(self.writer) <= NAME_CHARS_MAX:
            raise ValueError(f"commit id {self.commit_id[:40]!r}, writer {self.writer[:40]!r}")
        if not 0 <= self.start_offset <= OFFSET_MAX:
            raise ValueError(f"start {self.start_offset}")
        if not -1 <= self.last_offset <= OFFSET_MAX or self.start_offset > self.next_offset:
            raise ValueError(f"start {self.start_offset} beyond the end {self.last_offset}")
        if not 0 <= self.clean_to <= OFFSET_MAX:
            raise ValueError(f"clean to {self.clean_to}")

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)

    def entry_at(self, offset: int) -> Entry | None:
        """The live entry that holds `offset`, gap entries included."""
        at = bisect_right(self.entries, offset, key=lambda entry: entry.base_offset)
        return self.entries[at - 1] if at and offset in self.entries[at - 1] else None

    def leader_epoch_at(self, offset: int) -> int | None:
        """The leader epoch of what is archived at `offset`; None for a gap, for nothing, and where the entry does not know."""
        entry = self.entry_at(offset)
        return leader_epoch_at(entry.epochs, offset) if entry else None


def check_head(head: Head) -> Head:
    """`head` when what it lists agrees with it, with each other and with its partition (I4, I9, I22); CorruptData otherwise."""
    partition = head.partition_id

    def bad(reason: str) -> CorruptData:
        return CorruptData(f"manifest of {head.topic}:{head.partition}", 0, reason)

    if head.pages:
        raise UnsupportedFormat(f"manifest of {head.topic}:{head.partition} lists pages, which this version cannot read")
    expected = None
    for entry in head.entries:
        if expected is not None and entry.base_offset != expected:
            raise bad(f"entries do not abut: {expected} expected, {entry.base_offset} found")
        check_entry(partition, entry)
        if entry.fence > head.fence:
            raise bad(f"the entry at {entry.base_offset} has fence {entry.fence}, the head {head.fence}")
        expected = entry.next_offset
    if head.entries:
        if expected != head.next_offset:
            raise bad(f"entries end at {expected}, last_offset is {head.last_offset}")
        first = head.entries[0]
        if not first.base_offset <= head.start_offset <= first.next_offset:
            raise bad(f"start {head.start_offset} is not in the first entry at {first.base_offset}")
    elif head.start_offset != head.next_offset:
        raise bad(f"no entries, yet start {head.start_offset} and last_offset {head.last_offset}")
    for entry in head.superseded:
        if entry.gap or entry.fence > head.fence:
            raise bad(f"the superseded entry at {entry.base_offset} is a gap, or its fence {entry.fence} is above {head.fence}")
        check_entry(partition, entry)
    return head


def check_entry(partition: PartitionId, entry: Entry) -> Entry:
    """`entry` when its keys are the ones we would have written for it; CorruptData otherwise."""
    if entry.gap or entry.layout != "segment":
        return entry
    name = keys.parse_data(entry.key)
    if (
        name is None
        or entry.key != keys.data(partition, name.base_offset, name.last_offset, entry.fence, entry.uid)
        or entry.index_key != keys.index(entry.key)
        or not name.base_offset <= entry.base_offset <= entry.last_offset <= name.last_offset
    ):
        raise CorruptData(f"manifest entry of {partition} at {entry.base_offset}", 0, f"not a key of this partition: {entry.key[:200]!r}")
    return entry


def encode_head(head: Head) -> bytes:
    """Raises ManifestFull for a head that would be too long to be read again; the one that is there stays as it is."""
    document = seal(check_head(head))
    if len(document) > HEAD_BYTES_MAX + HEAD_RESERVE_BYTES:
        raise _full(head, len(document))
    return document


def fullness(size_bytes: int) -> float:
    """How much of what entries may take a head of this length takes: 1.0 is the end."""
    return size_bytes / HEAD_BYTES_MAX


def check_room(head: Head, size_bytes: int) -> None:
    """Raises ManifestFull when `head`, a document of this length, takes no more entries."""
    if size_bytes >= HEAD_BYTES_MAX:
        raise _full(head, size_bytes)


def _full(head: Head, size_bytes: int) -> ManifestFull:
    return ManifestFull(
        f"manifest of {head.topic}:{head.partition} is full: {len(head.entries)} entries and {len(head.superseded)} superseded ones take "
        f"{size_bytes} bytes, limit {HEAD_BYTES_MAX}. What is archived stays readable; nothing more of the partition is archived until a "
        "version that keeps older entries in pages of their own. Larger segments (segment.bytes, segment.ms) and a longer "
        "archival.seal_timeout let other partitions get here later"
    )


def decode_head(raw: bytes, partition: PartitionId) -> Head:
    """The head of `partition` from bytes.

    Raises CorruptData when they are no valid head, UnsupportedFormat for an unknown major version, ForeignOwner when
    they are another partition's or another cluster's.
    """
    where = f"manifest of {partition}"
    head = unseal(raw, Head, where, check_head)
    if head.partition_id != partition or head.topic != partition.topic:
        raise ForeignOwner(f"{where} belongs to {head.cluster_id} {head.topic} {head.topic_id}:{head.partition}")
    return head
