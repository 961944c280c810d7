"""What is pending, and what streaming offload has left, is listed; what is archived is not."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headwater.commands.leftovers import _rows
from headwater_core.layouts.chunks import SegmentPlace, Variant
from manifests import chunk_keys, keys
from manifests.head import with_chunks
from manifests.pending_list import FAILED, PendingObject
from manifests.repository import ManifestRepository
from tests.headwater.conftest import Stage
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


def test_a_page_that_is_lost_hides_its_own_partition_alone() -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    repository.ensure_topic(a_topic())
    other, uid = replace(PARTITION, partition=2), "c" * 32
    pending = (PendingObject(uid=uid, fence=1, layout="streaming", base_offset=4000),)
    for partition in (other, PARTITION):
        runs = [an_entry(10 * n, 10 * n + 9, uid=f"{n:032x}", partition=partition) for n in range(400)]  # more than a head itself holds
        repository.commit(None, a_head(*runs, partition=partition, pending=pending))
    page = next(info.key for info in store.list(keys.name_prefix("orders")) if "/3/" in info.key and info.key.endswith(".jsonl.gz"))
    store.delete(page)
    problems = list[str]()
    bucket = cast(Any, SimpleNamespace(manifests=ManifestRepository(store), store=store))
    assert [(row["partition"], row["uid"]) for row in _rows(bucket, None, problems)] == [(2, uid)]
    assert [each.split(": ")[0] for each in problems] == ["orders:3"]


STREAMING = ("--set", "archival.offload=streaming")
NO_LEASE = ("--set", "archival.reader_lease=0s")


def an_attempt_that_failed(stage: Stage, selection: str) -> list[Path]:
    """What one would have left of that partition: data and index that nothing lists."""
    run = next(row for row in stage.run("topics", "entries", selection, "-o", "jsonl").rows if not row["gap"])
    data = (stage.bucket / run["key"]).with_name(str(UUID("e" * 32)))
    paths = [data, data.with_name(data.name + "-index")]
    for path in paths:
        path.write_bytes(bytes(20))
    return paths


def test_what_is_left_is_removed_once_its_lease_is_over_and_what_is_archived_is_spared(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", *STREAMING, log=log).code == 0
    archived = {path for path in (stage.bucket / "stream").rglob("*") if path.is_file()}
    first, other = (an_attempt_that_failed(stage, each) for each in ("table-4:0", "till.sales:1"))
    listed = [row for row in stage.run("topics", "pending", "table-4", "-o", "jsonl").rows if row["status"] == "left"]
    assert [(row["uid"], row["objects"], row["size_bytes"]) for row in listed] == [("e" * 32, 2, 40)]

    unconfirmed = stage.run("topics", "pending", "table-4", "--remove", log=log)
    assert (unconfirmed.code, "--yes" in unconfirmed.err, first[0].exists()) == (2, True, True)
    noted = stage.run("topics", "pending", "table-4", "--remove", "--yes", "-o", "jsonl", log=log)
    assert (noted.code, first[0].exists()) == (0, True), "it has been seen once only"
    done = stage.run("topics", "pending", "table-4", "--remove", "--yes", "-o", "jsonl", *NO_LEASE, log=log)
    assert done.code == 0, done.err
    assert [row["deleted"] for row in done.rows if "deleted" in row] == [2]
    assert not any(path.exists() for path in first)
    assert all(path.exists() for path in other), "it was not selected"
    assert {path for path in (stage.bucket / "stream").rglob("*") if path.is_file()} - set(other) == archived
    assert "left" not in stage.run("topics", "pending", "table-4", "-o", "jsonl").out


@pytest.mark.parametrize("damaged", ["topic.json", "head"])
def test_a_manifest_that_cannot_be_read_is_in_no_other_partitions_way(stage: Stage, damaged: str) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", *STREAMING, log=log).code == 0
    spared, left = (an_attempt_that_failed(stage, each) for each in ("table-4:0", "till.sales:1"))
    found = [
        path for path in (stage.bucket / "meta" / "table-4").rglob("*.json") if (path.name == "topic.json") == (damaged == "topic.json")
    ]
    for path in found:
        if path.name != "current.json":
            path.chmod(0o644)
            path.write_bytes(b"{]")
    listed = stage.run("topics", "pending", "-o", "jsonl")
    assert (listed.code, "table-4" in listed.err) == (3, True)
    topics = {row["topic"] for row in listed.rows if row["status"] == "left"}
    assert topics == {"till.sales"}
    for lease in ((), NO_LEASE):
        ran = stage.run("topics", "pending", "--remove", "--yes", "-o", "jsonl", *lease, log=log)
        assert (ran.code, "table-4" in ran.err) == (3, True), ran.err
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in spared)
