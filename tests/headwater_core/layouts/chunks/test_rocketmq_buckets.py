"""Segments of a real queue in every state, against what their manifests say of them."""

import atexit
import functools
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater_core.errors import CorruptData, TruncatedData, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate, delete_chunks, find_bases
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.s3server import S3Server

CASES = (
    *("A1-open", "A2-full", "A3-leftover", "A4-done", "A5-queue", "A6-gap", "A7-short-segment"),
    *("B1-open", "B2-full", "B3-leftover", "B4-done", "B5-queue", "B6-gap", "B8-kib-names"),
)
STATES = {
    "open": SegmentState.OPEN,
    "full": SegmentState.FULL,
    "done": SegmentState.DONE,
    "leftover": SegmentState.LEFTOVER,
    "open-with-gap": SegmentState.LOST,
    "bad-consolidation": SegmentState.BROKEN,
}


@functools.cache
def unpacked() -> Path:
    root = Path(tempfile.mkdtemp(prefix="headwater-rocketmq-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with tarfile.open(Path(__file__).parents[3] / "fixtures/rocketmq/buckets.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    return root / "buckets"


def manifest(case: str) -> Any:
    return json.loads((unpacked() / case / "manifest.json").read_bytes())


def filled(case: str, store: ObjectStore | None = None) -> ObjectStore:
    """`store`, or one in memory, with the objects of the case."""
    store = store or MemoryStore()
    for each in manifest(case)["objects"]:
        raw = (unpacked() / case / "objects" / each["key"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == each["sha256"]
        store.put(each["key"], io.BytesIO(raw), size_bytes=len(raw))
    return store


def queue_of(case: str) -> str:
    said = manifest(case)
    return f"lab-cluster/broker-a/{said['topic']}/{said['queue_id']}"


def place_of(case: str, segment: Any) -> SegmentPlace:
    place = SegmentPlace(queue_of(case), segment["type"], segment["base"], Variant.APPEND if case[0] == "A" else Variant.FIXED)
    assert (place.prefix, place.segment_key) == (segment["prefix"] + "/", segment["key_of_segment"])
    return place


def segments() -> list[Any]:
    return [pytest.param(case, each, id=f"{case}-{each['type']}-{each['base']}") for case in CASES for each in manifest(case)["segments"]]


@pytest.mark.parametrize(("case", "said"), segments())
def test_a_segment_in_any_state_is_what_its_manifest_says(case: str, said: Any) -> None:
    check(filled(case), case, said)


def test_so_it_is_on_an_s3_server(s3_environ: S3Server) -> None:
    """All cases in one bucket, each below a prefix of its own."""
    bucket = s3_environ.bucket()
    for case in CASES:
        with closing(S3Store(bucket, f"archive/{case}", endpoint_url=s3_environ.endpoint_url)) as store:
            filled(case, store)
            for said in manifest(case)["segments"]:
                check(store, case, said)


def check(store: ObjectStore, case: str, said: Any) -> None:
    place = place_of(case, said)
    segment = ChunkSegment.open(store, place, chunk_bytes=16384, is_full=said["state"] == "full")
    assert segment.found.state is STATES[said["state"]]
    readable = said.get("readable_prefix", said["size"])
    assert segment.end == readable
    content = segment.read0(0, readable)
    if readable == said["size"]:
        assert hashlib.sha256(content).hexdigest() == said["sha256"]
    for start in {min(each, readable) for each in (0, 1, 16383, 16384, readable - 1)}:
        assert segment.read0(start, (readable - start) // 2) == content[start : start + (readable - start) // 2]
    with pytest.raises(CorruptData if "missing_chunk" in said else TruncatedData) as caught:
        segment.read0(readable - 1, 2)
    assert said.get("missing_chunk", "") in str(caught.value)


@pytest.mark.parametrize("case", ["A6-gap", "B6-gap"])
def test_what_was_lost_may_be_brought_back_and_nothing_else(case: str) -> None:
    [said] = manifest(case)["segments"]
    whole = ChunkSegment.open(filled("A4-done"), place_of("A4-done", manifest("A4-done")["segments"][0])).read0(0, said["size"])
    store, at = filled(case), said["readable_prefix"]
    segment = ChunkSegment.open(store, place_of(case, said), chunk_bytes=16384)
    assert segment.found.beyond
    assert segment.commit0(at, whole[at:]) == len(whole)
    assert segment.found.state is SegmentState.OPEN
    assert segment.read0(0, len(whole)) == whole
    assert hashlib.sha256(whole).hexdigest() == said["sha256"]
    assert [info.key for info in store.list("") if info.key not in [each["key"] for each in manifest(case)["objects"]]] == [
        said["missing_chunk"]
    ]


@pytest.mark.parametrize("case", ["A2-full", "A3-leftover", "A4-done", "A7-short-segment", "B8-kib-names"])
def test_nothing_is_added_to_what_is_full_broken_or_named_otherwise(case: str) -> None:
    said, store = manifest(case)["segments"][0], filled(case)
    segment = ChunkSegment.open(store, place_of(case, said), chunk_bytes=16384, is_full=case == "A2-full")
    before = [info.key for info in store.list("")]
    with pytest.raises((UsageError, CorruptData)):
        segment.commit0(segment.end, b"more")
    assert [info.key for info in store.list("")] == before


@pytest.mark.parametrize("case", ["A5-queue", "B5-queue"])
def test_the_segments_of_a_queue_are_found(case: str) -> None:
    store, said = filled(case), manifest(case)["segments"]
    variant = Variant.APPEND if case[0] == "A" else Variant.FIXED
    for file_type in ("commitLog", "consumeQueue"):
        bases = find_bases(store, queue_of(case), file_type, variant)
        assert bases == [each["base"] for each in said if each["type"] == file_type]
    assert find_bases(store, queue_of(case), "index", variant) == []


@pytest.mark.parametrize("case", ["A2-full", "A5-queue", "B2-full", "B5-queue"])
def test_a_full_segment_of_rocketmqs_is_consolidated(case: str) -> None:
    store = filled(case)
    for said in manifest(case)["segments"]:
        if said["state"] == "full":
            place = place_of(case, said)
            consolidate(store, place, said["size"])
            assert delete_chunks(store, place, said["size"]).state is SegmentState.DONE
            assert hashlib.sha256(store.get(place.segment_key)[0]).hexdigest() == said["sha256"]


@pytest.mark.parametrize("case", ["C1-open", "C5-queue"])
def test_the_community_providers_names_are_of_no_segment_here(case: str) -> None:
    """`seg-<base>/chunk/<position>` and `seg-<base>/segment/0`: neither variant, and taken for neither."""
    store = filled(case)
    listed = [info.key for info in store.list("")]
    assert any("/seg-" in key for key in listed)
    for key in listed:
        queue, _, file_type = key.partition("/seg-")[0].rpartition("/")
        for variant in Variant:
            assert find_bases(store, queue, file_type, variant) == []
            place = SegmentPlace(queue, file_type, int(key.partition("/seg-")[2].partition("/")[0]), variant)
            assert ChunkSegment.open(store, place).found.state is SegmentState.NEW
