"""One object from many chunks, on stores that copy and stores that do not; any order of it with commits is segment_machine's."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from headwater_core.errors import CorruptData, TransientError, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.layouts.chunks.chunk_finder import find_map
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import NO_METADATA, ObjectInfo, ObjectStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.s3server import S3Server

_MIB = 1 << 20
PLACE = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.APPEND)
FIXED = SegmentPlace("chunks/cluster/node.7/orders/0", "commitLog", 5, Variant.FIXED)
BOTH = pytest.mark.parametrize("place", [PLACE, FIXED], ids=["append", "fixed"])


def filled(store: ObjectStore, place: SegmentPlace, sizes: list[int], *, chunk_bytes: int = 4 * _MIB) -> bytes:
    segment, whole = ChunkSegment.open(store, place, chunk_bytes=chunk_bytes), b""
    for number, size_bytes in enumerate(sizes):
        data = Random(number).randbytes(size_bytes)
        segment.commit0(len(whole), data)
        whole += data
    return whole


def check(store: ObjectStore, place: SegmentPlace, whole: bytes) -> None:
    """That the object alone is the segment, and says so."""
    assert [info.key for info in store.list("")] == [place.segment_key]
    assert ChunkSegment.open(store, place).read0(0, len(whole)) == whole
    metadata = store.read_into(place.segment_key, memoryview(bytearray(1)), start=0)
    assert metadata["headwater-chunks-version"] == "1"
    assert metadata["headwater-partition"] == "orders:0"
    assert (metadata["headwater-bytes"], metadata["headwater-crc"]) == (str(len(whole)), digest_of(whole).partition(":")[2])


@pytest.fixture(params=["memory", "directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "directory":
        yield DirectoryStore(tmp_path)
    else:
        server: S3Server = request.getfixturevalue("s3_environ")
        with closing(S3Store(server.bucket(), "archive", endpoint_url=server.endpoint_url)) as store:
            yield store


@BOTH
def test_chunks_of_all_sizes_become_one_object(store: ObjectStore, place: SegmentPlace) -> None:
    """4 MiB are less than S3 takes for a part."""
    whole = filled(store, place, [10, 300_000, 6 * _MIB, 5 * _MIB, 1, 7 * _MIB, 100_000])
    found = consolidate(store, place, len(whole), {"headwater-partition": "orders:0"})
    assert found.state is SegmentState.LEFTOVER
    assert delete_chunks(store, place).state is SegmentState.DONE
    check(store, place, whole)
    assert consolidate(store, place, len(whole)).state is SegmentState.DONE
    assert delete_chunks(store, place).state is SegmentState.DONE
    assert list(store.unfinished("")) == []


def test_what_can_be_copied_is_not_downloaded(s3_environ: S3Server) -> None:
    with closing(S3Store(s3_environ.bucket(), "archive", endpoint_url=s3_environ.endpoint_url)) as server:
        whole = filled(server, PLACE, [6 * _MIB, 5 * _MIB, 8 * _MIB, 1000])
        metered = MeteredStore(server)
        consolidate(metered, PLACE, len(whole))
        assert metered.calls["join"] == 1
        assert metered.bytes_read < 1000
        assert server.stat(PLACE.segment_key).digest == digest_of(whole)


@BOTH
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_segment_that_lacks_a_chunk_is_never_consolidated_nor_deleted(place: SegmentPlace, missing: int) -> None:
    """The last one, too, which no listing shows."""
    store = MemoryStore()
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    store.delete(place.chunk_key(missing * 10))
    before = [info.key for info in store.list("")]
    with pytest.raises(CorruptData, match=f"chunk-{missing * 10}"):
        consolidate(store, place, len(whole))
    with pytest.raises(UsageError):
        delete_chunks(store, place)
    assert [info.key for info in store.list("")] == before


def test_a_segment_of_nothing_is_not_consolidated() -> None:
    with pytest.raises(UsageError):
        consolidate(MemoryStore(), PLACE, 0)


class Losing(MemoryStore):
    """A chunk is gone between the look at it and its copy."""

    gone = ""

    def stat(self, key: str) -> ObjectInfo:
        info = super().stat(key)
        if key == self.gone:
            self.delete(key)
        return info


def test_a_chunk_that_goes_meanwhile_ends_it() -> None:
    store = Losing()
    whole = filled(store, PLACE, [10, 10, 10])
    store.gone = PLACE.chunk_key(10)
    with pytest.raises(Exception, match="chunk-10"):
        consolidate(store, PLACE, len(whole))
    assert PLACE.segment_key not in [info.key for info in store.list("")]


def test_an_object_that_is_not_what_the_chunks_are_is_not_trusted() -> None:
    store = MemoryStore()
    whole = filled(store, PLACE, [10, 10, 10])
    store.create(PLACE.segment_key, whole[:-1] + b"?")  # with no metadata
    assert find_map(store, PLACE, is_full=True).state is SegmentState.LEFTOVER
    with pytest.raises(CorruptData):
        delete_chunks(store, PLACE)
    assert len(list(store.list(""))) == 4


def test_an_object_without_metadata_is_compared_before_chunks_go() -> None:
    store = MemoryStore()
    whole = filled(store, PLACE, [10, 10, 10])
    store.delete(PLACE.chunk_key(10))
    store.create(PLACE.segment_key, whole)
    assert delete_chunks(store, PLACE).state is SegmentState.DONE
    assert ChunkSegment.open(store, PLACE).read0(0, 30) == whole


def test_a_damaged_object_keeps_its_chunks() -> None:
    class Damaging(MemoryStore):
        def stat(self, key: str) -> ObjectInfo:
            info = super().stat(key)
            return ObjectInfo(info.key, info.size_bytes, info.tag)  # of a store that keeps no digests

    store = Damaging()
    whole = filled(store, PLACE, [10, 10, 10])
    consolidate(store, PLACE, len(whole))
    metadata = dict(store.read_into(PLACE.segment_key, memoryview(bytearray(1)), start=0))
    store.delete(PLACE.segment_key)
    store.create(PLACE.segment_key, whole[:-1] + b"?")
    store._metadata[PLACE.segment_key] = metadata
    with pytest.raises(CorruptData):
        delete_chunks(store, PLACE)
    assert len(list(store.list(""))) == 4


def test_an_attempt_that_was_killed_is_taken_up_again() -> None:
    store = MemoryStore()
    whole = filled(store, PLACE, [10, 10, 10])
    store.begin(PLACE.segment_key)
    other = store.begin(PLACE.segment_key + "s")
    consolidate(store, PLACE, len(whole))
    assert list(store.unfinished("")) == [other]


def test_a_deletion_that_fails_is_taken_up_again() -> None:
    store, left = MemoryStore(), [2]
    whole = filled(store, PLACE, [10, 10, 10])
    consolidate(store, PLACE, len(whole), NO_METADATA)
    delete = store.delete

    def fail_once(key: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise TransientError("slow down")
        delete(key)

    store.delete = fail_once  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        delete_chunks(store, PLACE)
    assert ChunkSegment.open(store, PLACE).read0(0, 30) == whole
    assert delete_chunks(store, PLACE).state is SegmentState.DONE
    assert [info.key for info in store.list("")] == [PLACE.segment_key]
