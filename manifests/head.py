"""The head of a partition's manifest: which objects make up its archive (design §3).

A head is a value. It is checked when it is read and when it is made; whoever holds one may trust it.
"""

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from headwater_core.errors import CorruptData, ForeignOwner, ManifestFull, UnsupportedFormat
from headwater_core.objectstore.digest import is_digest
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal

OFFSET_MAX = 2**63 - 2  # so that the next offset is still an int64
OBJECT_BYTES_MAX = 1 << 40
HEAD_BYTES_MAX = DOCUMENT_BYTES_MAX // 2  # from here on nothing is archived; what is committed must be readable for ever
HEAD_RESERVE_BYTES = 1 << 20  # beyond it, for the last entry, and for claims and cuts, which must always fit
FENCE_MAX = 10**10 - 1  # ten digits in an object's key
EPOCH_MAX = 2**31 - 1
NAME_CHARS_MAX = 255  # writer, commit id, layout, uid


class EpochOffset(NamedTuple):
    """A place in a partition's history: an epoch has one leader, so the offset is of its log or of none."""

    leader_epoch: int
    offset: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One live or superseded run, or a gap that is known to be one. Both offsets are inclusive.

    epochs        (leader epoch, its first offset in this entry), rising
    first/last_timestamp  ms, user data only; None when there is none
    size_bytes    of the whole object; live_bytes is where its live part ends: a dead branch may cut it inside
    digest        "crc64nvme:<16 hex>" of the whole object, computed by us; "" for adopted objects until verified
    context       the layout's own words, opaque to everyone else
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
    epochs: tuple[tuple[int, int], ...] = ()
    first_timestamp: int | None = None
    last_timestamp: int | None = None
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

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def is_cut(self) -> bool:
        """The object holds more than this entry lists."""
        return self.live_bytes < self.size_bytes

    def __contains__(self, offset: int) -> bool:
        return self.base_offset <= offset <= self.last_offset


class PageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A page of older entries. Listed from the first format version on; written by a later one."""

    key: str
    base_offset: int
    last_offset: int
    entries: int
    digest: str


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


def check_head(head: Head) -> Head:
    """`head` when everything in it agrees (I4, I9, I22); CorruptData otherwise, UsageError for names that nobody may have."""
    partition = head.partition_id  # before anything is said in its name

    def bad(reason: str) -> CorruptData:
        return CorruptData(f"manifest of {head.topic}:{head.partition}", 0, reason)

    if not 1 <= head.version <= OFFSET_MAX or not 0 <= head.fence <= FENCE_MAX or not -1 <= head.leader_epoch <= EPOCH_MAX:
        raise bad(f"version {head.version}, fence {head.fence}, leader epoch {head.leader_epoch}")
    if not 0 < len(head.commit_id) <= NAME_CHARS_MAX or not 0 < len(head.writer) <= NAME_CHARS_MAX:
        raise bad(f"commit id {head.commit_id[:40]!r}, writer {head.writer[:40]!r}")
    if not 0 <= head.start_offset <= OFFSET_MAX:
        raise bad(f"start {head.start_offset}")
    if not -1 <= head.last_offset <= OFFSET_MAX or head.start_offset > head.next_offset:
        raise bad(f"start {head.start_offset} beyond the end {head.last_offset}")
    if not 0 <= head.clean_to <= OFFSET_MAX:
        raise bad(f"clean to {head.clean_to}")
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
    """`entry` when its fields agree with each other and its keys are the ones we would have written."""

    def bad(reason: str) -> CorruptData:
        return CorruptData(f"manifest entry of {partition} at {entry.base_offset}", 0, reason)

    if not 0 <= entry.base_offset <= entry.last_offset <= OFFSET_MAX:
        raise bad(f"offsets out of order: {entry.base_offset} to {entry.last_offset}")
    if entry.gap:
        if entry != Entry(base_offset=entry.base_offset, last_offset=entry.last_offset, gap=True):
            raise bad("a gap says more than its offsets")
        return entry
    if not 0 < entry.live_bytes <= entry.size_bytes <= OBJECT_BYTES_MAX or not 0 <= entry.index_bytes <= OBJECT_BYTES_MAX:
        raise bad(f"impossible lengths: {entry.live_bytes} of {entry.size_bytes}, index {entry.index_bytes}")
    if not 0 <= entry.records <= OFFSET_MAX or not 0 <= entry.aborted <= OFFSET_MAX:
        raise bad(f"impossible counts: {entry.records} records, {entry.aborted} aborted")
    if not all(-(2**63) <= number < 2**63 for number in (entry.first_timestamp or 0, entry.last_timestamp or 0, entry.max_producer_id)):
        raise bad(f"impossible timestamps or producer id: {entry.first_timestamp}, {entry.last_timestamp}, {entry.max_producer_id}")
    if not all(digest == "" or is_digest(digest) for digest in (entry.digest, entry.index_digest)):
        raise bad(f"no digests: {entry.digest[:40]!r}, {entry.index_digest[:40]!r}")
    if entry.open_from is not None and not 0 <= entry.open_from <= entry.last_offset:
        raise bad(f"open transaction at {entry.open_from}")
    if entry.aborted_from is not None and not (entry.aborted and 0 <= entry.aborted_from <= entry.last_offset):
        raise bad(f"{entry.aborted} aborted transactions from {entry.aborted_from} on")
    by = entry.displaced_by
    if by is not None and not (0 <= by.leader_epoch <= EPOCH_MAX and 0 <= by.offset <= OFFSET_MAX):
        raise bad(f"displaced by what is at {by.offset}, in leader epoch {by.leader_epoch}")
    previous = (-1, -1)
    for step in entry.epochs:
        if not previous[0] < step[0] <= EPOCH_MAX or step[1] <= previous[1] or step[1] not in entry:
            raise bad(f"epochs out of order: {entry.epochs}")
        previous = step
    if entry.layout == "segment":
        name = keys.parse_data(entry.key)
        if (
            name is None
            or entry.key != keys.data(partition, name.base_offset, name.last_offset, entry.fence, entry.uid)
            or entry.index_key != keys.index(entry.key)
            or not name.base_offset <= entry.base_offset <= entry.last_offset <= name.last_offset
        ):
            raise bad(f"not a key of this partition: {entry.key[:200]!r}")
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
    head = unseal(raw, Head, check_head, where)
    if head.partition_id != partition or head.topic != partition.topic:
        raise ForeignOwner(f"{where} belongs to {head.cluster_id} {head.topic} {head.topic_id}:{head.partition}")
    return head
