"""A segment that is written while it fills: what was offered is there once, byte for byte, whatever failed in between."""

import gc
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import SourceChanged, TransientError, UploadStopped, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant
from headwater_core.layouts.chunks.chunk_handle import ChunkHandle, CommitLimits, CommittedRun
from headwater_core.layouts.chunks.chunks_layout import CUT_MAX, ChunksLayout
from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.offloader import StoredRun
from headwater_core.layouts.streaming.offload_buffer import EXTENT_BYTES, FileExtent, LedgerEntries, OfferResult, OffloadBudget
from headwater_core.layouts.testing import a_run
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import decode_index, encode_index
from tests.headwater_core.objectstore.faulty import NO_FAULTS, Faults, FaultyStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

QUEUE = "chunks/cluster/node.7/orders/0"
RUN = a_run(30, value_bytes=300)
BATCHES = [(at, header.size_bytes) for at, header in headers(io.BytesIO(RUN), 0, len(RUN), where="run")]
VARIANTS = pytest.mark.parametrize("variant", list(Variant))
LIMITS = CommitLimits(commit_bytes=3_000, chunk_bytes=1_000, threads=1)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """Of a file with the run in it, from byte 10 on."""
    (tmp_path / "log").write_bytes(bytes(10) + RUN)
    fd = os.open(tmp_path / "log", os.O_RDONLY)
    yield fd
    os.close(fd)


def a_handle(
    store: ObjectStore,
    variant: Variant,
    *,
    budget: OffloadBudget | None = None,
    pool: UploadPool | None = None,
    size_bytes: int = 1,
    pace: Callable[[int], object] = lambda size_bytes: None,
) -> ChunkHandle:
    share = (pool or UploadPool()).share(FlushLimits(size_bytes, 1000), lambda: 0)
    place = SegmentPlace(QUEUE, "commitLog", 5, variant)
    return ChunkHandle(store, place, budget or OffloadBudget(1 << 20), share, limits=LIMITS, pace=pace)


def entries(fd: int, first: int, count: int) -> LedgerEntries:
    """Batches `first` and those after it."""
    start, size_bytes = BATCHES[first][0], sum(size for _, size in BATCHES[first : first + count])
    return LedgerEntries(5, first, FileExtent(fd, 10 + start, size_bytes), count)


def stored_run(store: ObjectStore, runs: Sequence[CommittedRun]) -> bytes:
    """What the objects hold, each held against what was said of it."""
    whole = b""
    for key, scan, offloaded in runs:
        index = store.get(f"{key}.index")[0]
        assert (len(index), digest_of(index)) == (offloaded.index_bytes, offloaded.index_digest)
        assert decode_index(index).points == scan.index.points
        if "chunk_bytes" in offloaded.context:
            segment = ChunkSegment.open(store, SegmentPlace(QUEUE, "commitLog", 5, Variant.FIXED), chunk_bytes=LIMITS.chunk_bytes)
            held = segment.read0(0, segment.end)
        else:
            held = store.get(key)[0]
        assert (len(held), digest_of(held)) == (offloaded.size_bytes, offloaded.digest)
        whole += held
    return whole


@VARIANTS
def test_each_flush_is_one_commit_and_the_end_says_what_the_segment_holds(fd: int, variant: Variant) -> None:
    store = MemoryStore()
    metered = MeteredStore(store)
    handle = a_handle(metered, variant)
    for first in range(0, len(BATCHES), 10):
        assert handle.offer(entries(fd, first, min(10, len(BATCHES) - first))) is OfferResult.SUCCESS
        before, calls = handle.committed_bytes, metered.calls.total()
        assert handle.flush()
        assert handle.committed_bytes > before
        assert metered.calls.total() > calls
    handle.close()
    runs = handle.finish()
    assert stored_run(store, runs) == RUN
    if variant is Variant.FIXED:
        (run,) = runs
        scan = scan_run(io.BytesIO(RUN), start=0, end=len(RUN), where="run")
        assert scan is not None
        assert encode_index(run.scan.index) == encode_index(scan.index)
        assert run.key == f"{QUEUE}/commitLog-5/chunk-0"
    else:
        assert [run.key.rpartition("-")[2] for run in runs][:1] == ["0"]
        assert len(runs) > 3, "one for each flush, at least"
        assert handle.finish() is runs


@VARIANTS
def test_the_pace_counts_what_is_sent_again(fd: int, variant: Variant) -> None:
    """Each commit of the fixed variant sends all of its last chunk that is there already."""
    metered, paced = MeteredStore(MemoryStore()), list[int]()
    handle = a_handle(metered, variant, pace=paced.append)
    for first in range(0, len(BATCHES), 5):
        assert handle.offer(entries(fd, first, min(5, len(BATCHES) - first))) is OfferResult.SUCCESS
        before, reached = metered.bytes_written, handle.committed_bytes
        assert handle.flush()
        added = handle.committed_bytes - reached
        again = reached % LIMITS.chunk_bytes if variant is Variant.FIXED else 0
        assert paced == [added + again]
        sent = paced.pop()
        assert variant is Variant.APPEND or metered.bytes_written - before == sent, "beside a chunk that is appended goes its index"


@VARIANTS
def test_places_in_the_log_take_next_to_no_memory(fd: int, variant: Variant) -> None:
    budget = OffloadBudget(1 << 20)
    handle = a_handle(MemoryStore(), variant, budget=budget)
    for first in range(len(BATCHES)):
        handle.offer(entries(fd, first, 1))
    assert budget.used_bytes == EXTENT_BYTES, "they follow each other in one file"
    while handle.flush():
        assert budget.used_bytes <= 2 * EXTENT_BYTES
    handle.close()
    handle.finish()
    assert budget.used_bytes == 0


@VARIANTS
def test_without_room_nothing_is_taken_and_what_is_there_goes(fd: int, variant: Variant) -> None:
    budget = OffloadBudget(2 * EXTENT_BYTES)
    assert budget.take(EXTENT_BYTES)
    handle = a_handle(MemoryStore(), variant, budget=budget, size_bytes=1 << 30)
    assert handle.offer(entries(fd, 0, 2)) is OfferResult.SUCCESS
    far = LedgerEntries(9, 0, entries(fd, 2, 1).content, 1)
    assert handle.offer(far) is OfferResult.FAIL_BUFFER_FULL
    assert handle.send_part(), "though it is not due"
    assert handle.committed_bytes == handle.offered_bytes
    budget.give_back(EXTENT_BYTES)
    assert not handle.send_part()
    handle.abort()
    assert budget.used_bytes == 0
    assert handle.offer(far) is OfferResult.FAIL_SEGMENT_CLOSED


@VARIANTS
def test_of_many_queues_few_have_their_bytes_in_memory(fd: int, variant: Variant) -> None:
    """The next one waits until there is room, and may be told to stop meanwhile; nothing has failed then."""
    may_end, begun = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def put(self, *args: Any, **kwargs: Any) -> str:
            begun.set()
            assert may_end.wait(60)
            return super().put(*args, **kwargs)

        def create(self, key: str, document: bytes) -> str:
            begun.set()
            assert may_end.wait(60)
            return super().create(key, document)

    pool, asked = UploadPool(sent_bytes_max=1), list[int]()

    def pace(size_bytes: int) -> None:
        asked.append(size_bytes)
        if asked == [0]:
            raise UploadStopped("the agent ends")
        may_end.set()  # the second time: the other one goes on, and ends

    slow, other = a_handle(Slow(), variant, pool=pool), a_handle(MemoryStore(), variant, pool=pool, pace=pace)
    for handle in (slow, other):
        assert handle.offer(entries(fd, 0, 5)) is OfferResult.SUCCESS
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(slow.flush)
        assert begun.wait(60)
        with pytest.raises(UploadStopped):
            other.flush()
        assert (other.committed_bytes, other.failed, may_end.is_set()) == (0, "", False)
        assert other.flush()
        assert first.result()
    assert asked[1] == 0, "it has waited"
    assert other.committed_bytes > 0
    assert pool.failed == 0


def test_the_pool_says_whose_turn_it_is(fd: int) -> None:
    pool = UploadPool(len(RUN))
    large, small = (a_handle(MemoryStore(), Variant.APPEND, pool=pool, size_bytes=1 << 30) for _ in range(2))
    large.offer(entries(fd, 0, 20))
    assert not large.send_part()
    small.offer(entries(fd, 20, 5))
    assert not large.send_part()
    assert not small.send_part()
    small.offer(entries(fd, 25, len(BATCHES) - 25))
    assert (large.send_part(), small.send_part()) == (True, False)


@VARIANTS
def test_a_log_that_has_changed_is_not_sent(fd: int, variant: Variant, tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(), Random(0), Faults(refused=1))
    handle = a_handle(store, variant)
    handle.offer(entries(fd, 0, 8))
    with pytest.raises(TransientError):
        handle.flush()
    assert handle.failed
    store.faults = NO_FAULTS
    (tmp_path / "log").write_bytes(bytes(10) + a_run(30, value_bytes=301))
    with pytest.raises(SourceChanged):
        handle.flush()
    with pytest.raises(SourceChanged):
        handle.flush()
    handle.abort()


def test_the_unfinished_chunk_of_a_log_that_has_changed_is_not_rewritten(fd: int, tmp_path: Path) -> None:
    handle = a_handle(MemoryStore(), Variant.FIXED)
    handle.offer(entries(fd, 0, 1))
    handle.flush()
    start, size_bytes = BATCHES[1]
    changed = bytearray(bytes(10) + RUN)
    changed[12] ^= 1
    (tmp_path / "log").write_bytes(changed)
    assert handle.committed_bytes % LIMITS.chunk_bytes, "there is one"
    handle.offer(LedgerEntries(5, 1, FileExtent(fd, 10 + start, size_bytes), 1))
    with pytest.raises(SourceChanged, match="not what its source holds"):
        handle.flush()


@VARIANTS
def test_a_place_that_is_taken_by_other_bytes_is_left_alone(fd: int, variant: Variant) -> None:
    store = MemoryStore()
    key = SegmentPlace(QUEUE, "commitLog", 5, variant).chunk_key(0)
    store.create(key, b"other")
    handle = a_handle(store, variant)
    handle.offer(entries(fd, 0, 3))
    with pytest.raises(SourceChanged):
        handle.flush()
    assert store.get(key)[0] == b"other"


@VARIANTS
def test_a_place_that_holds_more_of_the_same_bytes_is_left_alone(fd: int, variant: Variant) -> None:
    """As a run that was archived as a whole may have left it: what is listed must be all that its objects hold."""
    store = MemoryStore()
    store.create(SegmentPlace(QUEUE, "commitLog", 5, variant).chunk_key(0), RUN[:900])
    handle = a_handle(store, variant)
    handle.offer(entries(fd, 0, 1))
    assert handle.offered_bytes < 900
    with pytest.raises(SourceChanged):
        handle.flush()


@VARIANTS
def test_a_handle_that_is_dropped_returns_what_it_held(fd: int, variant: Variant) -> None:
    store, budget, pool = MemoryStore(), OffloadBudget(1 << 20), UploadPool(1 << 20)
    kept, dropped = (a_handle(store, variant, budget=budget, pool=pool) for _ in range(2))
    for each in (kept, dropped):
        assert each.offer(entries(fd, 0, 3)) is OfferResult.SUCCESS
    assert (budget.used_bytes, pool.queues) == (2 * EXTENT_BYTES, 2)
    pool.set_failed(dropped._share, is_failed=True)
    del dropped, each
    gc.collect()
    assert (budget.used_bytes, pool.queues, pool.size_bytes, pool.failed) == (EXTENT_BYTES, 1, kept.offered_bytes, 0)
    kept.abort()
    del kept
    gc.collect()
    assert (budget.used_bytes, pool.queues, pool.size_bytes) == (0, 0, 0)


def test_what_was_not_offered_has_no_end() -> None:
    handle = a_handle(MemoryStore(), Variant.APPEND)
    with pytest.raises(UsageError, match="not closed"):
        handle.finish()
    assert not handle.flush()
    handle.close()
    with pytest.raises(UsageError, match="nothing was offered"):
        handle.finish()


def test_chunks_that_came_through_behind_one_that_failed_are_not_sent_again(fd: int) -> None:
    class OneFails(FaultyStore):
        def create(self, key: str, document: bytes) -> str:
            self.faults = Faults(refused=1) if key.endswith("-1000") else NO_FAULTS
            try:
                return super().create(key, document)
            finally:
                self.faults = NO_FAULTS

    store = MemoryStore()
    handle = a_handle(OneFails(store, Random(0), NO_FAULTS), Variant.FIXED)
    handle.offer(entries(fd, 0, len(BATCHES)))
    with pytest.raises(TransientError):
        handle.flush()
    assert handle.committed_bytes == 1_000, "up to the one that failed"
    assert {2_000} < {int(info.key.rpartition("-")[2]) for info in store.list("")}
    metered = MeteredStore(store)
    handle._segment._store = metered
    handle.flush()
    assert (handle.committed_bytes >= 3_000, metered.calls["create"]) == (True, 1)
    handle.close()
    assert stored_run(store, handle.finish()) == RUN


@VARIANTS
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), sizes=st.lists(st.integers(1, 9), min_size=1), faults=st.lists(st.booleans(), min_size=1))
def test_whatever_fails_all_of_it_is_there_once(
    variant: Variant, tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], faults: list[bool]
) -> None:
    """Any division into offers; each flush may fail, in any way, several times."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(bytes(10) + RUN)
    store, budget = FaultyStore(MemoryStore(), Random(seed), NO_FAULTS), OffloadBudget(1 << 20)
    fd = os.open(path, os.O_RDONLY)
    handle, first, turn = a_handle(store, variant, budget=budget), 0, 0
    confirmed = 0
    while True:
        if first < len(BATCHES):
            count = min(sizes[turn % len(sizes)], len(BATCHES) - first)
            assert handle.offer(entries(fd, first, count)) is OfferResult.SUCCESS
            first += count
        else:
            handle.close()
        is_bad = faults[turn % len(faults)] and turn < 60
        store.faults = Faults(refused=0.15, lost_request=0.15, lost_reply=0.15, delayed=0.1, echoed=0.15) if is_bad else NO_FAULTS
        turn += 1
        try:
            runs = handle.finish() if handle.is_closed else handle.flush()
        except TransientError as error:
            if not is_bad or isinstance(error, SourceChanged):  # only what the network has done
                raise
        else:
            if isinstance(runs, list):
                break
        assert confirmed <= handle.committed_bytes <= handle.offered_bytes
        confirmed = handle.committed_bytes
    store.faults = NO_FAULTS
    store.land()
    os.close(fd)
    assert stored_run(store.inner, runs) == RUN
    assert budget.used_bytes == 0
    place = SegmentPlace(QUEUE, "commitLog", 5, variant)
    found = ChunkSegment.open(store.inner, place, chunk_bytes=LIMITS.chunk_bytes)
    assert (found.found.state, found.read0(0, found.end)) == (SegmentState.OPEN, RUN), "the chunks alone say it, too"


def test_a_cut_segment_holds_no_more_chunks_than_are_read() -> None:
    appended, cut = a_handle(MemoryStore(), Variant.APPEND), a_handle(MemoryStore(), Variant.FIXED)
    context = {"version": "1", "chunk_bytes": str(LIMITS.chunk_bytes)}
    run = cast(StoredRun, SimpleNamespace(key=cut.place.chunk_key(0), run_bytes=cut.run_bytes_max, context=context))
    assert len(ChunksLayout().data_objects(run)) == CUT_MAX
    assert cut.run_bytes_max < appended.run_bytes_max, "each chunk of which is a run of its own"
