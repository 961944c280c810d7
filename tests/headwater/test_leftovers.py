"""What is pending, and what streaming offload has left, is listed; what is archived is not."""

import io
from types import SimpleNamespace
from typing import Any, cast

from headwater.commands.leftovers import _rows
from headwater_core.layouts.chunks import SegmentPlace, Variant
from manifests import chunk_keys, keys
from manifests.head import with_chunks
from manifests.pending_list import FAILED, PendingObject
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, a_head, a_topic, an_entry


def put(store: MemoryStore, uid: str, *, fence: int = 1) -> None:
    for suffix, size in (("", 30), ("-index", 5)):
        key = keys.data(PARTITION, 0, 0, fence, uid, "streaming") + suffix
        store.put(key, io.BytesIO(bytes(size)), size_bytes=size)


def test_names_and_objects_are_listed_by_what_became_of_them() -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    repository.ensure_topic(a_topic())
    archived = an_entry(
        0, 9, uid="a" * 32, layout="streaming", key=keys.data(PARTITION, 0, 9, 1, "a" * 32, "streaming"), index_key="", held=(0, 9)
    )
    failed = PendingObject(uid="b" * 32, fence=1, layout="streaming", base_offset=10, status=FAILED, failed_ms=5)
    assigned = PendingObject(uid="c" * 32, fence=2, layout="streaming", base_offset=10, assigned_ms=7)
    repository.commit(None, a_head(archived, fence=2, pending=(failed, assigned)))
    for uid in "abd":
        put(store, uid * 32)
    bucket, problems = cast(Any, SimpleNamespace(manifests=repository, store=store)), list[str]()
    rows = list(_rows(bucket, "orders:3", problems))
    found = [(row["status"], row["uid"][0], row["base_offset"], row["objects"], row["size_bytes"]) for row in rows]
    assert found == [("failed", "b", 10, 2, 35), ("assigned", "c", 10, 0, 0), ("left", "d", None, 2, 35)]
    assert list(_rows(bucket, "orders:2", problems)) == []
    assert problems == []


def test_a_partition_that_never_streamed_is_not_looked_at() -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    repository.ensure_topic(a_topic())
    repository.commit(None, a_head(an_entry(0, 9)))
    put(store, "d" * 32)
    assert list(_rows(cast(Any, SimpleNamespace(manifests=repository, store=store)), None, [])) == []


def test_a_segment_of_chunks_that_is_being_written_is_listed_with_what_is_stored_of_it() -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    repository.ensure_topic(a_topic())
    queue = chunk_keys.queue(PARTITION.cluster_id, "a", 2, PARTITION.topic_partition)
    place, other = (SegmentPlace(queue, "commitLog", base, Variant.APPEND) for base in (10, 5))
    assigned = PendingObject(uid=chunk_keys.segment_uid(place), fence=2, layout="chunks", base_offset=10, assigned_ms=7)
    repository.commit(None, with_chunks(a_head(an_entry(0, 9), fence=2, pending=(assigned,)), 2))
    for key in (place.chunk_key(0), place.chunk_key(0) + ".index", place.chunk_key(30), other.chunk_key(0)):
        store.put(key, io.BytesIO(bytes(30)), size_bytes=30)
    (row,) = _rows(cast(Any, SimpleNamespace(manifests=repository, store=store)), "orders:3", [])
    assert (row["status"], row["layout"], row["objects"], row["size_bytes"]) == ("assigned", "chunks", 3, 90)
