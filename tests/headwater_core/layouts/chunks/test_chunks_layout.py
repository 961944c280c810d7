"""The layout `chunks` over the contract of all layouts, in both variants, and what is its own."""

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from headwater_core.errors import CorruptData, NotFound, SourceChanged, TransientError, TruncatedData, UnsupportedFormat, UsageError
from headwater_core.layouts import Offloaded, Offloader
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate
from headwater_core.layouts.chunks.chunk_handle import ChunkHandle, CommitLimits
from headwater_core.layouts.chunks.chunks_layout import CUT_MAX, ChunksLayout, chunk_form
from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import LedgerEntries, OfferResult, OffloadBudget
from headwater_core.layouts.testing import EXTRA, PARTITION, a_run, refused, scanned
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import OpenTransaction, RunScan
from tests.headwater_core.layouts.contract import OffloaderOnBadNetwork, new_run, stored
from tests.headwater_core.layouts.test_testing import Handles, OnDirectory, OnS3
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.s3server import S3Server

SUFFIXES = ("/chunk-0", "/chunk-0.index")


class Append:
    KEY, INDEX_KEY = "data/commitLog/seg-5/chunk-0", "data/commitLog/seg-5/chunk-0.index"

    @pytest.fixture
    def layout(self) -> Offloader:
        return ChunksLayout()


class Fixed:
    KEY, INDEX_KEY = "data/commitLog-5/chunk-0", "data/commitLog-5/chunk-0.index"

    @pytest.fixture(params=[4 << 20, 30_000])
    def layout(self, request: pytest.FixtureRequest) -> Offloader:
        return ChunksLayout(Variant.FIXED, request.param)

    def test_what_is_recorded_of_the_object_is_what_the_store_has(self, layout: Offloader, store: ObjectStore) -> None:
        """Of all chunks together, in the order of their positions."""
        archived = self.offload(layout, store)  # type: ignore[attr-defined]
        place = SegmentPlace("data", "commitLog", 5, Variant.FIXED)
        chunks = sorted((number, info.key) for info in store.list(place.prefix) if (number := place.position_of(info.key)) is not None)
        content = b"".join(store.get(key)[0] for _, key in chunks)
        assert (archived.done.size_bytes, archived.done.digest) == (len(content), digest_of(content))


class TestAppendOnDirectory(Append, OnDirectory):
    pass


class TestFixedOnDirectory(Fixed, OnDirectory):
    pass


class ChunkHandles(Handles):
    variant: Variant
    limits: CommitLimits

    def write(self, layout: Offloader, store: ObjectStore, ledgers: Sequence[LedgerEntries], scan: RunScan) -> Offloaded:
        place, share = SegmentPlace("data", "commitLog", 5, self.variant), UploadPool().share(FlushLimits(1, 1000), lambda: 0)
        form, open_before = chunk_form(PARTITION, EXTRA), (OpenTransaction(6, 2),)
        handle = ChunkHandle(store, place, OffloadBudget(64 << 20), share, limits=self.limits, open_before=open_before, form=form)
        for each in ledgers:
            assert handle.offer(each) is OfferResult.SUCCESS
            while self.variant is Variant.FIXED and handle.flush():
                pass
        handle.close()
        (run,) = handle.finish()
        return run.offloaded


class TestAppendHandleOnDirectory(ChunkHandles, TestAppendOnDirectory):
    """One commit: one chunk, one run."""

    variant, limits = Variant.APPEND, CommitLimits(commit_bytes=64 << 20)


class FixedHandles(ChunkHandles):
    """Of several commits, which rewrite the chunk that is not full."""

    variant, limits = Variant.FIXED, CommitLimits(commit_bytes=50_000, chunk_bytes=30_000)

    @pytest.fixture
    def layout(self) -> Offloader:
        return ChunksLayout(self.variant)

    def test_offloading_the_same_run_again_is_fine(self, layout: Offloader, store: ObjectStore) -> None:
        """No: what is there may be another one's, and a handle has a place of its own."""
        self.offload(layout, store)  # type: ignore[attr-defined]
        refused(lambda: self.offload(layout, store), SourceChanged)  # type: ignore[attr-defined]

    def test_extra_metadata_is_there_for_people(self, layout: Offloader, store: ObjectStore) -> None:
        """Not in chunks that are rewritten."""
        assert layout.preserves_batches
        archived = self.offload(layout, store)  # type: ignore[attr-defined]
        assert dict(store.read_into(archived.stored.key, memoryview(bytearray(1)), start=0)) == {}


class TestFixedHandleOnDirectory(FixedHandles, TestFixedOnDirectory):
    pass


@pytest.mark.slow
class TestAppendOnS3(Append, OnS3):
    pass


@pytest.mark.slow
class TestFixedOnS3(Fixed, OnS3):
    pass


@pytest.mark.slow
class TestAppendHandleOnS3(ChunkHandles, TestAppendOnS3):
    variant, limits = Variant.APPEND, CommitLimits(commit_bytes=64 << 20)


@pytest.mark.slow
class TestFixedHandleOnS3(FixedHandles, TestFixedOnS3):
    pass


class TestOnBadNetwork(OffloaderOnBadNetwork):
    suffixes = SUFFIXES

    @pytest.fixture(params=[ChunksLayout(), ChunksLayout(Variant.FIXED), ChunksLayout(Variant.FIXED, 20_000)])
    def layout(self, request: pytest.FixtureRequest) -> Offloader:
        return request.param  # type: ignore[no-any-return]


def archived(layout: Offloader, store: ObjectStore, run: bytes) -> Any:
    new = new_run(0, SUFFIXES)._replace(source=io.BytesIO(run), scan=scanned(run))
    return stored(layout, new, layout.offload(store, [new], {})[0])


def test_what_is_written_is_a_segment_that_can_be_read_by_position() -> None:
    run = a_run(20)
    for layout, variant, place in (
        (ChunksLayout(), Variant.APPEND, SegmentPlace("data/q", "commitLog", 5, Variant.APPEND)),
        (ChunksLayout(Variant.FIXED, 30_000), Variant.FIXED, SegmentPlace("data/q", "commitLog", 5, Variant.FIXED)),
    ):
        store = MemoryStore()
        key = place.chunk_key(0)
        new = new_run(0, SUFFIXES)._replace(key=key, index_key=key + ".index", source=io.BytesIO(run), scan=scanned(run))
        layout.offload(store, [new], {})
        segment = ChunkSegment.open(store, place, chunk_bytes=30_000)
        assert (segment.found.state, segment.read0(0, len(run))) == (SegmentState.OPEN, run), variant


def test_a_run_is_read_from_the_consolidated_object_as_from_its_chunks() -> None:
    run, store = a_run(20), MemoryStore()
    place = SegmentPlace("data/q", "commitLog", 5, Variant.FIXED)
    layout, key = ChunksLayout(Variant.FIXED, 30_000), place.chunk_key(0)
    new = new_run(0, SUFFIXES)._replace(key=key, index_key=key + ".index", source=io.BytesIO(run), scan=scanned(run))
    entry = stored(layout, new, layout.offload(store, [new], {})[0])
    consolidate(store, place, len(run))
    entry.key, entry.context = place.segment_key, {"version": "1"}
    metered = MeteredStore(store)
    buffer = bytearray(len(run))
    reader = layout.read_offloaded(metered, entry)
    reader.read_into(memoryview(buffer), 0)
    reader.check_rest()
    assert buffer == run
    assert metered.calls["read_into"] == 1


def test_each_chunk_that_a_stream_touches_is_one_request() -> None:
    run, store = a_run(40), MemoryStore()
    entry = archived(ChunksLayout(Variant.FIXED, 30_000), store, run)
    metered = MeteredStore(store)
    buffers = [bytearray(size) for size in (5_000, 0, 30_000, 20_000, 40_000)]
    streamed = ChunksLayout().read_offloaded(metered, entry).stream_into([memoryview(each) for each in buffers], 29_000)
    assert len(list(streamed)) == len(buffers)
    assert b"".join(buffers) == run[29_000 : 29_000 + 95_000]
    assert metered.calls["read_into"] == 5


def test_what_a_failure_has_left_is_not_sent_again() -> None:
    class Failing(MemoryStore):
        fails = True

        def put(self, key: str, *args: Any, **kwargs: Any) -> str:
            if self.fails and key.endswith("chunk-60000"):
                raise TransientError("slow down")
            return super().put(key, *args, **kwargs)

    run, store, layout = a_run(40), Failing(), ChunksLayout(Variant.FIXED, 30_000)
    with pytest.raises(TransientError):
        archived(layout, store, run)
    assert not [info.key for info in store.list("") if info.key.endswith(".index")]
    store.fails = False
    entry = archived(layout, store, run)
    buffer = bytearray(len(run))
    layout.read_offloaded(store, entry).read_into(memoryview(buffer), 0)
    assert buffer == run


@pytest.mark.parametrize("senders", [1, 2])
def test_after_a_failure_nothing_more_is_begun(senders: int) -> None:
    class Failing(MemoryStore):
        begun = 0

        def put(self, key: str, *args: Any, **kwargs: Any) -> str:
            self.begun += 1
            raise TransientError("slow down")

    store = Failing()
    with pytest.raises(TransientError):
        archived(ChunksLayout(Variant.FIXED, 1_000, senders=senders), store, a_run(40))
    assert store.begun <= senders


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_chunk_that_is_missing_cut_or_longer_is_noticed(number: int) -> None:
    run, layout = a_run(20), ChunksLayout(Variant.FIXED, 30_000)
    for change, error in ((None, NotFound), (bytes(10), TruncatedData), (bytes(30_001), CorruptData)):
        store = MemoryStore()
        entry = archived(layout, store, run)
        key = f"data/0/chunk-{number * 30_000}"
        store.delete(key)
        if change is not None:
            store.create(key, change)
        reader = layout.read_offloaded(store, entry)
        with pytest.raises((CorruptData, NotFound)):
            reader.check_rest()
        if error is not CorruptData:
            with pytest.raises(error):
                reader.read_into(memoryview(bytearray(len(run))), 0)


@pytest.mark.parametrize("context", [{"version": "1", "chunk_bytes": each} for each in ("0", "-1", "x", "", "²")])
def test_a_context_that_no_version_wrote_is_damage(context: dict[str, str]) -> None:
    store = MemoryStore()
    entry = archived(ChunksLayout(), store, a_run(4))
    entry.context = context
    with pytest.raises(CorruptData):
        ChunksLayout().read_offloaded(store, entry)


@pytest.mark.parametrize("context", [{}, {"version": "2"}])
def test_another_version_is_refused(context: dict[str, str]) -> None:
    store = MemoryStore()
    entry = archived(ChunksLayout(), store, a_run(4))
    entry.context = context
    with pytest.raises(UnsupportedFormat):
        ChunksLayout().read_offloaded(store, entry)


def test_a_fixed_run_begins_with_the_chunk_of_position_0() -> None:
    run = a_run(4)
    new = new_run(0, ("/chunk-7", "/chunk-7.index"))._replace(source=io.BytesIO(run), scan=scanned(run))
    with pytest.raises(UsageError):
        ChunksLayout(Variant.FIXED).offload(MemoryStore(), [new], {})


def test_a_run_of_more_chunks_than_are_read_is_not_begun() -> None:
    run, store = scanned(a_run(4)), MemoryStore()
    new = new_run(0, ("/chunk-0", "/chunk-0.index"))._replace(scan=replace(run, end_position=run.start_position + 4096 * CUT_MAX + 1))
    with pytest.raises(UsageError, match="make them longer"):
        ChunksLayout(Variant.FIXED, 4096).offload(store, [new], {})
    assert not list(store.list(""))


@pytest.fixture
def server_store(s3_environ: S3Server) -> Iterator[S3Store]:
    with closing(S3Store(s3_environ.bucket(), "archive", endpoint_url=s3_environ.endpoint_url)) as store:
        yield store


def test_chunks_below_the_least_part_are_consolidated_and_read(server_store: S3Store) -> None:
    """4 MiB, as the proposal has it, on a server that takes no parts below 5."""
    run = a_run(60, value_bytes=400_000)
    place = SegmentPlace("chunks/c/n.1/orders/0", "commitLog", 5, Variant.FIXED)
    layout, key = ChunksLayout(Variant.FIXED), place.chunk_key(0)
    new = new_run(0, SUFFIXES)._replace(key=key, index_key=key + ".index", source=io.BytesIO(run), scan=scanned(run))
    entry = stored(layout, new, layout.offload(server_store, [new], {})[0])
    before, after = bytearray(len(run)), bytearray(len(run))
    layout.read_offloaded(server_store, entry).read_into(memoryview(before), 0)
    consolidate(server_store, place, len(run))
    entry.key, entry.context = place.segment_key, {"version": "1"}
    layout.read_offloaded(server_store, entry).read_into(memoryview(after), 0)
    assert before == after == run
