"""What a head lists, and whether what lies below chunks/ may be another incarnation's: those keys name a topic, and not its id.

A topic that was deleted and created again has another id and other heads. Each of them may list objects under one name, and whoever writes
it may be about to list what it has uploaded under its head's fence.
"""

from collections.abc import Iterator

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, UnsupportedFormat, UsageError
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, check_topic_id
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.entry_tree import EntryBag
from manifests.head import Head, may_have_chunks
from manifests.repository import ManifestRepository

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


class Namesakes:
    """The partition of this number in the other incarnations of its topic's name. Reads their heads when it is first asked: ask after the
    objects were listed, so that what was committed in between is in them."""

    def __init__(self, repository: ManifestRepository, partition: PartitionId) -> None:
        self._repository, self._partition = repository, partition
        self._found: tuple[list[int], set[bytes], bool] | None = None  # fences, what is listed, is one without a head

    def may_have(self, uid: str, fence: int) -> bool:
        """May one of them list the object, now or later? What it has uploaded and not listed yet has its head's fence. One whose head is
        not there may have anything.

        Raises what reading a manifest and its pages does.
        """
        if self._found is None:
            self._found = self._look()
        fences, listed, is_lost = self._found
        return is_lost or fence in fences or packed(uid) in listed

    def _look(self) -> tuple[list[int], set[bytes], bool]:
        fences, listed, is_lost = list[int](), set[bytes](), False
        for each in self._others():
            try:
                head = self._repository.load_unchecked(keys.head(each))
            except NotFound:
                is_lost = is_lost or self._has_partition(each)
                continue
            fences.append(head.fence)
            listed |= listed_uids(head)
        return fences, listed, is_lost

    def _has_partition(self, each: PartitionId) -> bool:
        manifest = self._repository.load_topic(each.topic, each.topic_id)
        return manifest is None or each.partition < manifest.partitions

    def _others(self) -> Iterator[PartitionId]:
        mine = self._partition
        for topic_id in _incarnations(self._repository.store, mine.topic):
            if topic_id != mine.topic_id:
                yield PartitionId(mine.cluster_id, topic_id, mine.partition, mine.topic)

    def highest_fence(self) -> int:
        """Of their heads, as far as these can be read; 0 where there is none. Objects of a higher fence meet none of theirs."""
        highest = 0
        for each in self._others():
            try:
                highest = max(highest, self._repository.load_unchecked(keys.head(each)).fence)
            except NotFound:
                continue
            except (CorruptData, ForeignOwner, UnsupportedFormat):
                continue  # what is damaged there stops nothing here: a key that is taken is noticed when it is written
        return highest


def next_fence(head: Head, namesakes: Namesakes) -> int:
    """The one to take after that of `head`: where a partition has chunks, one that no namesake has, so that the fence in a chunk's key says
    whose it is."""
    return 1 + max(head.fence, namesakes.highest_fence() if may_have_chunks(head) else 0)


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
