"""One object from many chunks, on stores that copy and stores that do not; any order of it with commits is segment_machine's."""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from headwater_core.errors import CorruptData, TransientError, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.layouts.chunks.chunk_finder import find_map
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import NO_METADATA, PLAIN, ObjectForm, ObjectInfo, ObjectRange, ObjectStore, Pace, at_once
from tests.headwater_core.layouts.chunks.segment_machine import Interrupted
from tests.headwater_core.objectstore.faulty import NO_FAULTS, Faults, FaultyStore
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
    assert delete_chunks(store, place, len(whole)).state is SegmentState.DONE
    check(store, place, whole)
    assert consolidate(store, place, len(whole)).state is SegmentState.DONE
    assert delete_chunks(store, place, len(whole)).state is SegmentState.DONE
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
        delete_chunks(store, place, len(whole))
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
        delete_chunks(store, PLACE, len(whole))
    assert len(list(store.list(""))) == 4


def test_an_object_without_metadata_is_compared_before_chunks_go() -> None:
    store = MemoryStore()
    whole = filled(store, PLACE, [10, 10, 10])
    store.delete(PLACE.chunk_key(10))
    store.create(PLACE.segment_key, whole)
    assert delete_chunks(store, PLACE, len(whole)).state is SegmentState.DONE
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
        delete_chunks(store, PLACE, len(whole))
    assert len(list(store.list(""))) == 4


class Garbling(MemoryStore):
    """A join writes other bytes than it was told to."""

    is_killed = False

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        size_bytes = sum(each.size_bytes for each in ranges)
        self.put(key, io.BytesIO(bytes(size_bytes)), size_bytes=size_bytes, form=form)
        if self.is_killed:
            raise TransientError("killed before the look at it")


@BOTH
@pytest.mark.parametrize("is_killed", [False, True])
def test_an_object_of_other_bytes_is_never_confirmed(place: SegmentPlace, is_killed: bool) -> None:
    """Not by the next call either, nor after its chunks are gone."""
    store = Garbling()
    store.is_killed = is_killed
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    with pytest.raises(TransientError if is_killed else CorruptData):
        consolidate(store, place, len(whole))
    for call in (consolidate, delete_chunks):
        with pytest.raises(CorruptData, match="seg"):
            call(store, place, len(whole))
    assert len(list(store.list(""))) == 4
    segment = ChunkSegment.open(store, place, chunk_bytes=10)
    assert (segment.found.state, segment.read0(0, len(whole))) == (SegmentState.BROKEN, whole), "the chunks are read"
    for position in (0, 10, 20):
        store.delete(place.chunk_key(position))
    with pytest.raises(CorruptData, match="seg"):
        consolidate(store, place, len(whole))
    with pytest.raises(CorruptData, match="seg"):
        ChunkSegment.open(store, place, chunk_bytes=10).read0(0, 1)


def put_object(store: ObjectStore, place: SegmentPlace, content: bytes) -> None:
    """One that says the truth of itself."""
    form = ObjectForm({"headwater-bytes": str(len(content)), "headwater-crc": digest_of(content).partition(":")[2]})
    store.put(place.segment_key, io.BytesIO(content), size_bytes=len(content), form=form)


@BOTH
def test_an_object_that_ends_before_the_segment_does_replaces_nothing(place: SegmentPlace) -> None:
    store = MemoryStore()
    whole = filled(store, place, [10, 10], chunk_bytes=10)
    put_object(store, place, whole[:15])
    assert find_map(store, place, is_full=True, end=15).state is SegmentState.LEFTOVER
    for call in (consolidate, delete_chunks):
        with pytest.raises(CorruptData, match="bytes 15 to 20"):
            call(store, place, 20)
    assert store.get(place.chunk_key(10))[0] == whole[10:]
    assert delete_chunks(store, place, 15).state is SegmentState.DONE  # what follows was never confirmed to anybody


@BOTH
def test_what_only_a_listing_shows_never_deletes_the_only_copy_of_a_byte(place: SegmentPlace) -> None:
    """Nobody knows the end: the object ends within the last chunk, and says of itself that this is right."""
    store = MemoryStore()
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    put_object(store, place, whole[:25])
    found = find_map(store, place, is_full=True)
    assert (found.state, found.end, found.leftover) == (SegmentState.BROKEN, 30, ())
    assert found.broken == "bytes 25 to 30 of the segment are not in it"
    with pytest.raises(CorruptData, match="bytes 25 to 30"):
        delete_chunks(store, place, found.end)
    assert store.get(place.chunk_key(20))[0] == whole[20:]
    assert ChunkSegment.open(store, place).read0(0, 30) == whole, "the chunks are read"


@BOTH
def test_whose_chunks_are_gone_and_whose_end_is_known_says_what_is_missing(place: SegmentPlace) -> None:
    store = MemoryStore()
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    put_object(store, place, whole[:25])
    store.delete(place.chunk_key(20))
    assert find_map(store, place, is_full=True).state is SegmentState.LEFTOVER
    found = find_map(store, place, is_full=True, end=30)
    assert (found.state, found.end) == (SegmentState.BROKEN, 25)
    segment = ChunkSegment.open(store, place, is_full=True, end=30)
    assert segment.read0(0, 25) == whole[:25]
    with pytest.raises(CorruptData, match=r"seg.*bytes 25 to 30"):
        segment.read0(20, 10)


def test_what_is_confirmed_after_the_consolidation_is_not_deleted() -> None:
    store = MemoryStore()
    whole = filled(store, FIXED, [8, 4], chunk_bytes=8)
    writer = ChunkSegment.open(store, FIXED, chunk_bytes=8)
    consolidate(store, FIXED, 12)
    assert writer.commit0(12, b"more") == 16
    with pytest.raises(CorruptData, match="bytes 12 to 16"):
        delete_chunks(store, FIXED, 16)
    assert writer.read0(0, 16) == whole + b"more"


@BOTH
@pytest.mark.parametrize("gone", [None, 0, 10, 20])
def test_an_object_that_only_agrees_with_itself_replaces_nothing(place: SegmentPlace, gone: int | None) -> None:
    store = MemoryStore()
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    put_object(store, place, bytes(len(whole)))
    if gone is not None:
        store.delete(place.chunk_key(gone))
    before = [info.key for info in store.list("")]
    for call in (consolidate, delete_chunks):
        with pytest.raises(CorruptData, match="seg"):
            call(store, place, len(whole))
    assert [info.key for info in store.list("")] == before


def test_chunks_that_are_all_there_are_compared_without_reading_them() -> None:
    store = MeteredStore(MemoryStore())
    whole = filled(store, PLACE, [1000, 1000, 1000])
    consolidate(store, PLACE, len(whole))
    before = store.bytes_read
    consolidate(store, PLACE, len(whole))
    assert delete_chunks(store, PLACE, len(whole)).state is SegmentState.DONE
    assert store.bytes_read - before < 10


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
        delete_chunks(store, PLACE, len(whole))
    assert ChunkSegment.open(store, PLACE).read0(0, 30) == whole
    assert delete_chunks(store, PLACE, len(whole)).state is SegmentState.DONE
    assert [info.key for info in store.list("")] == [PLACE.segment_key]


@BOTH
@pytest.mark.parametrize("meant", ["9" * 2000, "-1", "²", "1e3", " 30", "", "0x1e", "30" * 20])
def test_a_length_that_nobody_wrote_is_as_none(place: SegmentPlace, meant: str) -> None:
    store = MemoryStore()
    whole = filled(store, place, [10, 10, 10], chunk_bytes=10)
    store.put(place.segment_key, io.BytesIO(whole), size_bytes=30)
    store._metadata[place.segment_key] = {"headwater-bytes": meant}
    assert delete_chunks(store, place, 30).state is SegmentState.DONE
    assert ChunkSegment.open(store, place).read0(0, 30) == whole


FATES = [Faults(refused=1), Faults(lost_request=1), Faults(lost_reply=1), Faults(delayed=1), Faults(echoed=1)]


@BOTH
@pytest.mark.parametrize("faults", FATES, ids=["refused", "lost request", "lost reply", "delayed", "echoed"])
@pytest.mark.parametrize("lands", ["before", "after"])
def test_whatever_call_it_ends_at_it_is_taken_up_again(place: SegmentPlace, faults: Faults, lands: str) -> None:
    """Both halves, one after the other; what was on its way arrives before the next process looks, or after all that it does."""
    for calls in count():
        inner = MemoryStore()
        whole = filled(inner, place, [10, 10, 4], chunk_bytes=10)
        network = FaultyStore(inner, Random(calls), NO_FAULTS)
        first = Interrupted(network, calls, faults)
        with suppress(TransientError):
            consolidate(first, place, 24)
            delete_chunks(first, place, 24)
        if lands == "before":
            network.land()
        assert ChunkSegment.open(network, place, chunk_bytes=10).read0(0, 24) == whole
        assert consolidate(network, place, 24).state in (SegmentState.DONE, SegmentState.LEFTOVER)
        network.land()
        assert delete_chunks(network, place, 24).state is SegmentState.DONE
        network.land()
        assert [info.key for info in inner.list("")] == [place.segment_key]
        assert ChunkSegment.open(inner, place).read0(0, 24) == whole
        if first.left >= 0:  # it was not interrupted
            assert calls > 20
            return


@BOTH
def test_two_that_consolidate_at_the_same_time_do_not_harm_each_other(place: SegmentPlace) -> None:
    """One whose lease ended, and who does not know. Each takes turns with the other, call by call, in any order."""
    for seed in range(60):
        inner, random = MemoryStore(), Random(seed)
        whole = filled(inner, place, [10, 10, 4], chunk_bytes=10)
        done = in_turns(random, [lambda store: work(store, place) for _ in range(2)], inner)
        assert done == [SegmentState.DONE, SegmentState.DONE]
        assert [info.key for info in inner.list("")] == [place.segment_key]
        assert ChunkSegment.open(inner, place).read0(0, 24) == whole


def work(store: ObjectStore, place: SegmentPlace) -> SegmentState:
    consolidate(store, place, 24)
    return delete_chunks(store, place, 24).state


def in_turns(random: Random, works: list[Callable[[ObjectStore], SegmentState]], inner: ObjectStore) -> list[SegmentState]:
    """Each in a thread; before each call to the store one of them is drawn, and only that one moves."""
    turn, running = threading.Condition(), set(range(len(works)))
    drawn = [random.choice(sorted(running))]

    class Turned(FaultyStore):
        me = 0

        def _fault(self) -> str:
            with turn:
                drawn[0] = random.choice(sorted(running))
                turn.notify_all()
                assert turn.wait_for(lambda: drawn[0] == self.me, 60)
            return ""

    def run(number: int) -> SegmentState:
        store = Turned(inner, Random(0), NO_FAULTS)
        store.me = number
        try:
            return works[number](store)
        finally:
            with turn:
                running.discard(number)
                if running:
                    drawn[0] = random.choice(sorted(running))
                turn.notify_all()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, number) for number in range(len(works))]]
