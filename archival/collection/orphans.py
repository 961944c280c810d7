"""What lies below a partition's prefixes and is not listed by its head: data, indexes and pages (design §4, Collect).

Only names that this version writes are looked at. What a later one puts beside them, or a person, is left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryBag
from manifests.head import Head, may_have_streams


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of one partition. `uid` names the run with its index, or the page; `fence` is its writer's."""

    key: str
    uid: str
    fence: int
    size_bytes: int


def stored_objects(store: ObjectStore, head: Head) -> Iterator[StoredObject]:
    """The data objects, indexes and pages of the partition that `head` is of. Raises what the store raises: a listing that was cut is
    none."""
    partition = head.partition_id
    for prefix, read in ((keys.data_prefix(partition), keys.parse_data), (keys.manifest_prefix(partition), keys.parse_page)):
        for info in _directly_below(store, prefix):
            if (name := read(info.key)) is not None:
                yield StoredObject(info.key, name.uid, name.fence, info.size_bytes)
    if may_have_streams(head):
        for info in store.list(keys.stream_prefix(partition)):
            if (object_name := keys.parse_object(info.key)) is not None:
                yield StoredObject(info.key, object_name.uid, object_name.fence, info.size_bytes)


def _directly_below(store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    return (info for info in store.list(prefix) if info.key.startswith(prefix) and "/" not in info.key[len(prefix) :])


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


def packed(uid: str) -> bytes:
    """Objects of other layouts may have other names."""
    return bytes.fromhex(uid) if keys.is_uid(uid) else uid.encode()
