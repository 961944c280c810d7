"""What lies below a partition's prefixes: data, indexes and pages (design §4, Collect).

Only names that this version writes are looked at. What a later one puts beside them, or a person, is left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from manifests import chunk_keys, keys
from manifests.head import Head, may_have_chunks, may_have_streams


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of one partition. `uid` names the run with its index, or the page; `fence` is its writer's.

    is_shared  its key names no incarnation, so that it may be another one's
    segment    a chunk's, as what is pending names it; "" for what is none
    """

    key: str
    uid: str
    fence: int
    size_bytes: int
    is_shared: bool = False
    segment: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """One of them is listed as long as it is wanted."""
        return (self.uid, self.segment) if self.segment else (self.uid,)


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
    if may_have_chunks(head):
        for info, chunk in chunk_keys.stored_chunks(store, partition.topic_partition):
            segment = chunk_keys.segment_uid(chunk.place)
            yield StoredObject(info.key, chunk.uid, chunk.fence, info.size_bytes, is_shared=True, segment=segment)


def _directly_below(store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    return (info for info in store.list(prefix) if info.key.startswith(prefix) and "/" not in info.key[len(prefix) :])
