"""What a head lists, and whether what lies below chunks/ may be another incarnation's: those keys name a topic, and not its id.

A topic that was deleted and created again has another id and other heads. Each of them may list objects under one name, and who writes it
may be about to list what it has uploaded under its head's fence.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, UnsupportedFormat, UsageError
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, check_topic_id
from manifests import chunk_keys, keys
from manifests.entry import FENCE_MAX, Entry
from manifests.entry_tree import EntryBag
from manifests.head import Head, may_have_chunks
from manifests.repository import ManifestRepository

REACHED_MAX = FENCE_MAX // 2  # a claim takes the next one: none of an honest head is higher
_AFTER = "~"  # sorts after everything of one incarnation


def listed_uids(head: Head) -> set[bytes]:
    """What `head` lists, live and superseded, and the pages that it refers to; and what its writer may list yet: what is pending, unless
    that has failed. Reads every page, and raises what that does.

    Sixteen bytes each, since a partition may have millions.
    """
    found = {packed(each.uid) for each in head.pending if each.is_assigned}
    for bag in (head.entries, head.superseded):
        _add_listed(found, bag)
    return found


def _add_listed(found: set[bytes], bag: EntryBag) -> None:
    for item in bag.items:
        found.add(packed(item.uid))
        if not isinstance(item, Entry):
            _add_listed(found, EntryBag(bag.pages.read(item), bag.pages))
        elif item.layout == chunk_keys.LAYOUT:
            found.update(packed(chunk_keys.named(key).uid) for key, _ in open_layout(item.layout).data_objects(item))


def packed(uid: str) -> bytes:
    """Objects of other layouts may have other names."""
    return bytes.fromhex(uid) if keys.is_uid(uid) else uid.encode()


@dataclass(frozen=True, slots=True)
class _Look:
    """What the other incarnations say of themselves.

    fences  of their heads
    listed  see listed_uids
    below   by topic id, of what cannot be read: it may list anything below this fence; None: of any fence
    lost    those of them that have no head, or a damaged one
    trouble  what that is, for people
    """

    fences: list[int] = field(default_factory=list)
    listed: set[bytes] = field(default_factory=set)
    below: dict[str, int | None] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    trouble: list[str] = field(default_factory=list)


class Namesakes:
    """The partition of this number in the other incarnations of its topic's name. Reads their heads when it is first asked: ask after the
    objects were listed, so that what was committed in between is in them.

    An incarnation without a readable head commits nothing, but may have listed anything that was there when it was lost. What lies under a
    fence that was taken since then, above all that was there, is not its.

    clear_from  by topic id: the fence that was taken so for one which is lost; others may list anything
    """

    def __init__(self, repository: ManifestRepository, partition: PartitionId, clear_from: Mapping[str, int] | None = None) -> None:
        self._repository, self._partition, self._clear_from = repository, partition, clear_from or {}
        self._found: _Look | None = None

    def may_have(self, uid: str, fence: int) -> bool:
        """May one of them list the object, now or later? What it has uploaded and not listed yet has its head's fence.

        Raises what the store does.
        """
        found = self._look()
        return fence in found.fences or packed(uid) in found.listed or self.is_unclear(fence)

    def is_unclear(self, fence: int) -> bool:
        """May what lies under it be listed by one that cannot be read?"""
        return any(below is None or fence < below for below in self._look().below.values())

    @property
    def lost(self) -> Set[str]:
        """The topic ids of those that have no head, or a damaged one."""
        return self._look().lost

    @property
    def trouble(self) -> str:
        """What keeps objects from being told apart, and what to do, for people; "" where nothing does."""
        return "; ".join(self._look().trouble)

    def _look(self) -> _Look:
        if self._found is None:
            found = _Look()
            for each in self._others():
                self._look_at(each, found)
            self._found = found
        return self._found

    def _look_at(self, each: PartitionId, found: _Look) -> None:
        topic_id, key = each.topic_id, keys.head(each)
        try:
            head = self._repository.load_unchecked(key)
        except UnsupportedFormat as error:
            found.below[topic_id] = None  # its writer may be at work
            found.trouble.append(f"{error}: upgrade")
        except (NotFound, CorruptData) as error:
            if isinstance(error, CorruptData) or self._has_partition(each):
                found.below[topic_id] = self._clear_from.get(topic_id)
                found.lost.add(topic_id)
                found.trouble.append(
                    f"{key} is {'not there' if isinstance(error, NotFound) else 'damaged'}: restore it, or remove "
                    f"{keys.topic_prefix(each.topic, topic_id)} where nobody wants what was archived of that topic id"
                )
        else:
            found.fences.append(head.fence)
            try:
                found.listed.update(listed_uids(head))
            except CorruptData as error:
                found.below[topic_id] = head.fence + 1
                found.trouble.append(f"{error}: restore it")

    def _has_partition(self, each: PartitionId) -> bool:
        try:
            manifest = self._repository.load_topic(each.topic, each.topic_id)
        except (CorruptData, UnsupportedFormat, ForeignOwner):
            return True
        return manifest is None or each.partition < manifest.partitions

    def _others(self) -> Iterator[PartitionId]:
        mine = self._partition
        for topic_id in _incarnations(self._repository.store, mine.topic):
            if topic_id != mine.topic_id:
                yield PartitionId(mine.cluster_id, topic_id, mine.partition, mine.topic)

    def highest_fence(self) -> int:
        """Of their heads, as far as these can be read; 0 where there is none."""
        return self._highest()[0]

    def free_fence(self) -> int:
        """One that none of them has. Where a head cannot be read, nothing lies under it either: what is damaged stops nothing here.

        No claims come to what is above REACHED_MAX: it leaves the fences below to others.
        """
        highest, is_known = self._highest(REACHED_MAX)
        if not is_known:
            highest = max(highest, chunk_keys.highest_fence(self._repository.store, self._partition.topic_partition, REACHED_MAX))
        return highest + 1

    def _highest(self, limit: int = FENCE_MAX) -> tuple[int, bool]:
        """Of the heads that can be read, up to `limit`; and are these all?"""
        highest, is_known = 0, True
        for each in self._others():
            try:
                fence = self._repository.load_unchecked(keys.head(each)).fence
                highest = max(highest, fence if fence <= limit else 0)
            except NotFound:
                is_known = is_known and not self._has_partition(each)
            except (CorruptData, ForeignOwner, UnsupportedFormat):
                is_known = False
        return highest, is_known


def next_fence(head: Head, namesakes: Namesakes) -> int:
    """The one to take after that of `head`: where a partition has chunks, one that no namesake has, so that the fence in a chunk's key says
    whose it is. Raises CorruptData for a head after whose fence there is none."""
    if head.fence >= FENCE_MAX:
        reason = f"fence {head.fence} is the highest there can be, and nobody can claim the partition; restore an earlier head"
        raise CorruptData(f"manifest of {head.partition_id}", 0, reason)
    return max(head.fence + 1, namesakes.free_fence() if may_have_chunks(head) else 0)


def _incarnations(store: ObjectStore, topic: str) -> Iterator[str]:
    """The ids of all incarnations of a name, a request for each."""
    prefix, after = keys.name_prefix(topic), ""
    while (info := next(iter(store.list(prefix, start_after=after)), None)) is not None:
        topic_id, slash, _ = info.key.removeprefix(prefix).partition("/")
        after = f"{prefix}{topic_id}/{_AFTER}" if slash else info.key
        if slash:
            try:
                yield check_topic_id(topic_id)
            except UsageError:
                continue
