"""The head of a partition's manifest: which objects make up its archive (design §3, §7).

Its newest entries are in it, older ones in pages that it refers to. A head is a value: no impossible one can be made, nor decoded. What
cannot be seen in one entry alone (that entries abut, that keys are this partition's) is `check_head`'s, when a head is written and when
it is read: a scrub wants to look at a head of which that is not true, and say where.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from headwater_core.epochs import leader_epoch_at
from headwater_core.errors import CorruptData, ForeignOwner
from headwater_core.partition import PartitionId
from manifests.document import WRONG, check_ours, check_version, prepared, seal_lines, unseal_body
from manifests.entry import EPOCH_MAX, FENCE_MAX, OFFSET_MAX, Entry, check_entry
from manifests.entry_tree import NO_PAGES, EntryTree, PageReader, SupersededEntries
from manifests.page import Item, PageRef, item_from, line_of
from manifests.pending_list import PENDING_MAX, PendingObject

HEAD_FORMAT = (2, 3)  # of partitions that may have chunks
_WITH_PENDING = (2, 2)
_WITHOUT_PENDING = (2, 1)  # for partitions of which nothing was ever written over a longer time: agents of before go on with them
NAME_CHARS_MAX = 255  # writer, commit id, layout, uid
_MAJORS = (1, 2)
_LISTS = ("entries", "superseded", "pages", "superseded_pages")


@prepared
class HeadFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a head says beside its entries.

    version       of the manifest, rises by one with every commit
    commit_id     unique to the commit, so that its author can recognise it
    fence         highest claim; writer is who holds it
    leader_epoch  highest leader epoch whose history a commit has followed; -1 before any
    start_offset, last_offset   exist without entries: an emptied log at 54 starts at 54 and ends at 53
    clean_to      the cleaner checkpoint of the log had got here whenever a live run was read; 0 when that is not known
    pending       what is being written and not listed yet
    """

    format: tuple[int, int] = _WITHOUT_PENDING
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
    pending: tuple[PendingObject, ...] = ()

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
        if len(self.pending) > PENDING_MAX or any(each.fence > self.fence for each in self.pending):
            raise ValueError(f"{len(self.pending)} are pending, of fences {[each.fence for each in self.pending][:PENDING_MAX]}")

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)


class Head(HeadFields, frozen=True, kw_only=True):
    """The manifest of one partition: `entries` are live, `superseded` are those of dead branches, listed until retention."""

    entries: EntryTree = EntryTree()
    superseded: SupersededEntries = SupersededEntries()

    def __post_init__(self) -> None:
        """Takes entries as a plain tuple too. Raises as HeadFields does."""
        super().__post_init__()
        msgspec.structs.force_setattr(self, "entries", EntryTree.of(self.entries))
        msgspec.structs.force_setattr(self, "superseded", SupersededEntries.of(self.superseded))

    def leader_epoch_at(self, offset: int) -> int | None:
        """The leader epoch of what is archived at `offset`; None for a gap, for nothing, and where the entry does not know."""
        entry = self.entries.at(offset)
        return leader_epoch_at(entry.epochs, offset) if entry else None


def check_head(head: Head) -> Head:
    """`head` when what it lists agrees with it, with each other and with its partition (I4, I9, I22); CorruptData otherwise.

    Reads no page: each is checked against its reference when it is read.
    """

    def bad(reason: str) -> CorruptData:
        return CorruptData(f"manifest of {head.topic}:{head.partition}", 0, reason)

    partition, expected = head.partition_id, None
    for item in head.entries.items:
        if expected is not None and item.base_offset != expected:
            raise bad(f"entries do not abut: {expected} expected, {item.base_offset} found")
        _check_item(head, partition, item)
        expected = item.next_offset
    if head.entries:
        if expected != head.next_offset:
            raise bad(f"entries end at {expected}, last_offset is {head.last_offset}")
        first = head.entries.items[0]
        if not first.base_offset <= head.start_offset <= first.next_offset:
            raise bad(f"start {head.start_offset} is not in the first entry at {first.base_offset}")
    elif head.start_offset != head.next_offset:
        raise bad(f"no entries, yet start {head.start_offset} and last_offset {head.last_offset}")
    for item in head.superseded.items:
        if isinstance(item, Entry) and item.gap:
            raise bad(f"the superseded entry at {item.base_offset} is a gap")
        _check_item(head, partition, item)
    return head


def _check_item(head: Head, partition: PartitionId, item: Item) -> None:
    if isinstance(item, Entry):
        check_entry(partition, item)
    if item.fence > head.fence:
        reason = f"the entry at {item.base_offset} has fence {item.fence}, the head {head.fence}"
        raise CorruptData(f"manifest of {head.topic}:{head.partition}", 0, reason)


def format_after(before: Head | None, after: Head) -> tuple[int, int]:
    """The format of `after`, which succeeds `before`. From the first pending object on, which comes before anything that is written over a
    longer time, a head says so for good: agents of before leave the partition alone, and a collection looks for such objects. So it does
    from before the first chunk on: see with_chunks."""
    if may_have_chunks(after) or (before is not None and may_have_chunks(before)):
        return HEAD_FORMAT
    has_pending = bool(after.pending) or (before is not None and may_have_streams(before))
    return _WITH_PENDING if has_pending else _WITHOUT_PENDING


def may_have_streams(head: Head) -> bool:
    """May the partition have objects that were written over a longer time?"""
    return head.format >= _WITH_PENDING


def may_have_chunks(head: Head) -> bool:
    """May the partition have objects below chunks/, where keys name no incarnation?"""
    return head.format >= HEAD_FORMAT


def with_chunks(head: Head, fence: int) -> Head:
    """`head` as it has to be committed before the first chunk is written. fence: no other incarnation of the name has reached it"""
    return msgspec.structs.replace(head, format=HEAD_FORMAT, fence=max(head.fence, fence))


def check_writable(head: Head) -> None:
    """Raises NeedsUpgrade for a head that this version must not write over."""
    check_ours(head.format, f"manifest of {head.partition_id}", HEAD_FORMAT)


def encode_head(head: Head) -> bytes:
    """As UTF-8 JSON, an item a line. Raises CorruptData for a head that no reader would take."""
    check_head(head)
    lists: dict[str, list[bytes]] = {
        "entries": [line_of(each) for each in head.entries.newest],
        "superseded": [line_of(each) for each in head.superseded.newest],
        "pages": [line_of(each) for each in head.entries.references],
        "superseded_pages": [line_of(each) for each in head.superseded.references],
    }
    body = {name: getattr(head, name) for name in HeadFields.__struct_fields__ if name != "pending" or head.pending}
    return seal_lines(body, {name: lines for name, lines in lists.items() if lines or not name.endswith("pages")})


def decode_head(raw: bytes, partition: PartitionId, pages: PageReader = NO_PAGES) -> Head:
    """The head of `partition` from bytes.

    pages  reads what it refers to, when that is wanted

    Raises CorruptData when they are no valid head, UnsupportedFormat for an unknown major version, ForeignOwner when
    they are another partition's or another cluster's.
    """
    where = f"manifest of {partition}"
    head = check_head(parse_head(raw, where, lambda _: pages))
    if head.cluster_id != partition.cluster_id:
        raise ForeignOwner(
            f"{where} belongs to cluster {head.cluster_id}, this is {partition.cluster_id}: a recovered cluster has taken the archive "
            "over, or the bucket is another one's"
        )
    if head.partition_id != partition or head.topic != partition.topic:
        raise ForeignOwner(f"{where} belongs to {head.cluster_id} {head.topic} {head.topic_id}:{head.partition}")
    return head


def parse_head(raw: bytes, where: str, pages_of: Callable[[PartitionId], PageReader]) -> Head:
    """As decode_head, whatever partition it is of and whatever it lists: see `check_head`."""
    body = unseal_body(raw, where, _MAJORS)
    try:
        check_version(body)
        partition = PartitionId(body["cluster_id"], body["topic_id"], body["partition"], body["topic"])
        lists = {name: [_item(each, partition, name.endswith("pages")) for each in body.pop(name, ())] for name in _LISTS}
        fields = msgspec.structs.asdict(msgspec.convert(body, HeadFields))
        pages = pages_of(partition)
        return Head(
            **fields,
            entries=EntryTree((*lists["pages"], *lists["entries"]), pages),
            superseded=SupersededEntries((*lists["superseded_pages"], *lists["superseded"]), pages),
        )
    except WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error


def _item(body: dict[str, Any], partition: PartitionId, is_page: bool) -> Item:
    item = item_from(body, partition)
    if isinstance(item, PageRef) is not is_page:
        raise ValueError(f"the item at {item.base_offset} is in another list than it belongs to")
    return item
