"""Brings chunks and indexes of archived runs into the cache, each once however many ask, and checked before anyone sees it."""

import contextlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, TypeVar

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, TransientError
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import BatchWalk, check_batches
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index
from hydration.archive.chunks import Chunk, ChunkPlan, plan_chunks
from hydration.archive.downloads import PATIENCE_S, Downloads
from hydration.archive.single_flight import Errand, Flights, Start
from hydration.cache.blocks import Blocks, write_all, write_past_page_cache
from hydration.cache.chunk_cache import ChunkCache, chunk_name, index_name
from hydration.counters import ReadCounters
from hydration.disk_threads import DiskThreads
from hydration.resumption import Steps
from hydration.runfile import RunFile
from manifests.head import Entry
from manifests.keys import partition_of

SCAN_WORKERS = 2  # local scans of each log directory, bound by disk and CPU
HEAD_WORKERS = 8  # loads of manifests
LOOK_WORKERS = 2  # looks at partitions in each log directory
PROOF_WORKERS = 2  # cached files read once more before they are served
DEMAND_WORKERS = 8  # downloads that a reader waits for, late ones not counted; what more than these ask for stands in line
PIECE_BYTES = 8 << 20  # one GET of a chunk that is larger than a block, because it holds a larger batch
BLOCKS_BYTES_MAX = 64 << 20  # memory that chunks arrive in
DAMAGE_S, DAMAGE_MOST_S = 5.0, 300.0  # before a chunk that did not verify is fetched again, and after many times
DAMAGES_MAX = 1000  # remembered; the oldest is fetched again early
PLANS_BYTES_MAX = 64 << 20  # decoded indexes kept in memory

T = TypeVar("T")
log = structlog.get_logger()


class Hydrator:
    """Safe to use from many threads; owns its workers. close() joins them, those excepted that a local disk keeps."""

    def __init__(
        self,
        store: ObjectStore,
        cache: ChunkCache,
        *,
        chunk_bytes: int = 4 << 20,
        readahead_chunks: int = 8,
        counters: ReadCounters | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """patience_s   what a download that does not get on may take before others run beside it, and what was fetched ahead is
        fetched again for a reader that waits for it"""
        self.cache = cache
        self.counters = counters or ReadCounters()
        self.flights = Flights()
        self._store = store
        self.chunk_bytes = chunk_bytes
        self._ahead_max = min(readahead_chunks, cache.limit_bytes // (2 * chunk_bytes))  # never push out what is being read
        self._scans = DiskThreads(SCAN_WORKERS, "scan")  # each kind of work its own: none waits for a store it does not need
        self._heads = ThreadPoolExecutor(HEAD_WORKERS, "heads")
        self._looks = DiskThreads(LOOK_WORKERS, "looks")
        self._proofs = ThreadPoolExecutor(PROOF_WORKERS, "proofs")
        self._downloads = Downloads(DEMAND_WORKERS, max(self._ahead_max, 1), patience_s=patience_s)
        self._blocks = Blocks(chunk_bytes, BLOCKS_BYTES_MAX)
        self._plans = _Plans()
        self._damage = _Damage(cache.clock)

    def submit(self, work: Callable[[], T], log_dir: Path | None = None) -> Future[T]:
        """For the other work that must not be done in an event loop, such as scanning local files.

        log_dir  where they are
        """
        try:
            return self._scans.submit(log_dir, work)
        except RuntimeError as error:
            raise TransientError("closing") from error

    def join(self, key: Hashable, work: Callable[[], T]) -> Future[T]:
        """For loading manifests: once for all who ask while it is under way."""
        return self.flights.join(key, self._load_head, work)

    def join_look(self, partition: PartitionId, work: Callable[[], None], log_dir: Path | None = None) -> Future[None]:
        """For a look at a partition's directory: once for all who ask while it is under way.

        log_dir  where it was when it was last seen
        """
        return self.flights.join(("look", partition), lambda errand: self._looks.submit(log_dir, errand.run), work)

    @property
    def clock(self) -> Clock:
        return self.cache.clock

    @property
    def readahead_chunks(self) -> int:
        return self._ahead_max

    def plan(self, partition: PartitionId, entry: Entry) -> Steps[ChunkPlan]:
        """How the entry's run is cut, its index fetched if need be. Raises what reading the index does."""
        plan = self.plan_now(entry)
        if plan is None:
            plan = yield self._fetch_plan(partition, entry, urgent=True)
        return plan

    def plan_now(self, entry: Entry) -> ChunkPlan | None:
        """The plan when it is in memory."""
        return self._plans.get((entry.uid, entry.live_bytes))

    def chunk(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> Steps[RunFile]:
        """The chunk's file, held for the caller, downloaded if need be.

        Raises NotFound when the object is not there, CorruptData when its bytes do not verify, and what the store raises.
        """
        file = self.chunk_now(partition, entry, chunk)
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
        if file is None and self.cache.has(name):
            future = self.flights.join(("proof", name), self._prove, partial(self.cache.prove, name), holders=1)
            try:
                file = yield future
            except GeneratorExit:
                future.add_done_callback(_release_outcome)
                raise
            self.counters.chunk_hits += file is not None
        if file is None:
            self.counters.chunk_misses += 1
            future = self.flights.join(name, self._start(partition, urgent=True), partial(self._hydrate, name, entry, chunk), holders=1)
            try:
                file = yield future
            except GeneratorExit:
                future.add_done_callback(_release_outcome)
                raise
        return file

    def chunk_now(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> RunFile | None:
        """The chunk's file, held for the caller, when nothing has to be waited for."""
        file = self.cache.get(chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes))
        if file is not None:
            self.counters.chunk_hits += 1
        return file

    def read_ahead(self, partition: PartitionId, entry: Entry, chunks: Iterable[Chunk]) -> None:
        """Get neighbouring chunks ready that a reader will probably want, with one GET if none of them is there or under way.
        Their errors are nobody's: who needs them asks again.
        """
        run: list[tuple[str, Chunk]] = []
        for chunk in chunks:
            name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
            if self.flights.is_under_way(name) or self.cache.has(name):
                self._begin_run(partition, entry, run)
                run = []
            elif self.cache.may_adopt(name) or chunk.size_bytes > self._blocks.block_bytes:
                self._begin_run(partition, entry, run)
                self._begin_run(partition, entry, [(name, chunk)])
                run = []
            else:
                run.append((name, chunk))
        self._begin_run(partition, entry, run)

    def _begin_run(self, partition: PartitionId, entry: Entry, run: list[tuple[str, Chunk]]) -> None:
        self.counters.ahead += len(run)
        start = self._start(partition, urgent=False)
        if len(run) > 1:
            self.flights.begin_each([name for name, _ in run], start, partial(self._hydrate_runs, entry, run))
        elif run:
            self.flights.join(run[0][0], start, partial(self._hydrate, run[0][0], entry, run[0][1]), urgent=False)

    def plan_ahead(self, partition: PartitionId, entry: Entry) -> None:
        if self.plan_now(entry) is None:
            self._fetch_plan(partition, entry, urgent=False)

    def _start(self, partition: PartitionId, *, urgent: bool) -> Start:
        return partial(self._downloads.submit, group=partition, urgent=urgent)

    def _prove(self, errand: Errand) -> None:
        self._proofs.submit(errand.run)

    def _load_head(self, errand: Errand) -> None:
        self._heads.submit(errand.run)

    def close(self) -> None:
        self._downloads.close()
        for executor in (self._heads, self._proofs):
            executor.shutdown(wait=True, cancel_futures=True)
        for threads in (self._looks, self._scans):
            threads.close()
        self.flights.close()
        self.cache.close()

    def _fetch_plan(self, partition: PartitionId, entry: Entry, *, urgent: bool) -> Future[ChunkPlan]:
        key, start = (entry.uid, entry.live_bytes), self._start(partition, urgent=urgent)
        return self.flights.join(key, start, lambda: self.plan_now(entry) or self._load_plan(partition, entry), urgent=urgent)

    def _load_plan(self, partition: PartitionId, entry: Entry) -> ChunkPlan:
        name = index_name(partition, entry.uid)
        found: list[RunIndex] = []

        def check(file: BinaryIO) -> None:
            raw = file.read(DOCUMENT_BYTES_MAX)
            if digest_of(raw) != entry.index_digest:
                raise CorruptData(name, 0, "not the index that the manifest names")
            found.append(decode_index(raw, where=name))

        kept = self.cache.adopt(name, entry.index_bytes, check)
        if kept is None:
            index = open_layout(entry.layout).read_index(self._store, entry.index_key, entry.index_bytes, entry.index_digest)
            found.append(index)
            raw = encode_index(index)
            kept = self.cache.put(name, len(raw), lambda file: write_all(file, memoryview(raw)))
        elif not found:
            check(io.BytesIO(kept.read(0, entry.index_bytes)))  # its descriptor's position may be another's
        kept.release()
        plan = plan_chunks(found[0], entry.live_bytes, self.chunk_bytes)
        self._plans.keep((entry.uid, entry.live_bytes), plan, entry.index_bytes)
        return plan

    def _hydrate(self, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        """In a worker: the chunk's file, with one hold."""
        found = self.cache.adopt(name, chunk.size_bytes, lambda file: check_chunk(file, entry, chunk))
        if found is not None:
            return found
        self._damage.check(name)
        block = self._blocks.take() if chunk.size_bytes <= self._blocks.block_bytes else None
        fetch = self._through_file if block is None else partial(self._through_block, block)
        try:
            try:
                file = fetch(name, entry, chunk)
            except CorruptData as error:  # once more: it may have happened on the way
                self._tell_damage(error, entry, chunk)
                file = fetch(name, entry, chunk)
        except BaseException as error:
            if block is not None:
                self._blocks.give_back(block)
            if isinstance(error, CorruptData):
                self._damage.note(name, error)
                log.error("object_damaged", partition=partition_of(entry.key), key=entry.key, position=chunk.position, reason=str(error))
            raise
        self._damage.forget(name)
        if block is not None:
            self._blocks.lend(block, file, chunk.size_bytes)
        return file

    def _hydrate_runs(self, entry: Entry, run: Sequence[tuple[str, Chunk]], names: Sequence[Hashable]) -> Iterator[RunFile | Exception]:
        """In a worker: those of `run` that are in `names`, each stretch of neighbours by one GET."""
        wanted = set(names)
        for is_wanted, stretch in groupby(run, lambda each: each[0] in wanted):
            if is_wanted:
                yield from self._hydrate_run(entry, list(stretch))

    def _hydrate_run(self, entry: Entry, run: Sequence[tuple[str, Chunk]]) -> Iterator[RunFile | Exception]:
        """In a worker: neighbouring chunks by one GET, each with one hold, or what went wrong with it."""
        answered = 0
        with contextlib.suppress(CorruptData):  # the object ends too early: each chunk is told alone whether it is there
            for outcome in self._stream_run(entry, run):
                answered += 1
                yield outcome
        for name, chunk in run[answered:]:
            yield self._hydrated(name, entry, chunk)

    def _stream_run(self, entry: Entry, run: Sequence[tuple[str, Chunk]]) -> Iterator[RunFile | Exception]:
        """As far as there are blocks. A chunk that is damaged is fetched again alone. Raises what the store does."""
        blocks = self._blocks.take_some(len(run))
        try:
            contents = [block[: chunk.size_bytes] for block, (_, chunk) in zip(blocks, run, strict=False)]
            if not contents:
                return
            self.counters.downloads += 1
            layout, start = open_layout(entry.layout), run[0][1].position
            with contextlib.closing(layout.stream_offloaded(self._store, entry.key, entry.context, contents, start)) as arriving:
                for (name, chunk), content, _ in zip(run, contents, arriving, strict=False):
                    self.counters.downloaded_bytes += len(content)
                    block = blocks.pop(0)
                    try:
                        file = self._keep_block(block, name, entry, chunk)
                    except CorruptData as error:
                        self._blocks.give_back(block)
                        self._tell_damage(error, entry, chunk)
                        yield self._hydrated(name, entry, chunk)
                    except Exception as error:
                        self._blocks.give_back(block)
                        yield error
                    else:
                        self._blocks.lend(block, file, chunk.size_bytes)
                        yield file
        finally:
            for block in blocks:
                self._blocks.give_back(block)

    def _tell_damage(self, error: CorruptData, entry: Entry, chunk: Chunk) -> None:
        self.counters.damaged += 1
        log.warning("chunk_damaged", partition=partition_of(entry.key), key=entry.key, position=chunk.position, reason=str(error))

    def _hydrated(self, name: str, entry: Entry, chunk: Chunk) -> RunFile | Exception:
        try:
            return self._hydrate(name, entry, chunk)
        except Exception as error:
            return error

    def _through_block(self, block: memoryview, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        """Verified in memory, then written."""
        self._download(block[: chunk.size_bytes], entry, chunk.position)
        return self._keep_block(block, name, entry, chunk)

    def _keep_block(self, block: memoryview, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        check_chunk(block[: chunk.size_bytes], entry, chunk)
        content = block[: chunk.size_bytes]
        return self.cache.put(name, chunk.size_bytes, lambda file: write_past_page_cache(file, block, chunk.size_bytes), content)

    def _through_file(self, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        """Piece by piece, then read back and verified: a chunk for which there is no block."""

        def fill(file: BinaryIO) -> None:
            piece = memoryview(bytearray(min(chunk.size_bytes, PIECE_BYTES)))
            for start in range(0, chunk.size_bytes, PIECE_BYTES):
                some = piece[: chunk.size_bytes - start]
                self._download(some, entry, chunk.position + start)
                write_all(file, some)
            check_chunk(file, entry, chunk)

        return self.cache.put(name, chunk.size_bytes, fill)

    def _download(self, into: memoryview, entry: Entry, position: int) -> None:
        self.counters.downloads += 1
        open_layout(entry.layout).read_offloaded(self._store, entry.key, entry.context, into, position)
        self.counters.downloaded_bytes += len(into)


def check_chunk(source: BinaryIO | memoryview, entry: Entry, chunk: Chunk) -> None:
    """Raises CorruptData unless `source` holds what the plan says: whole batches, every CRC right, the offsets it should have."""
    where = f"{entry.key} from byte {chunk.position} on"
    first = last = -1
    try:
        if isinstance(source, memoryview):
            first, last = check_batches(source, where=where)
        else:
            for _, fields in BatchWalk(source, 0, chunk.size_bytes, where=where):
                if first < 0:
                    first = fields[0]
                last = fields[0] + fields[6]
    except TransientError as error:  # what would be a file in change is a file cut short here
        raise CorruptData(where, 0, str(error)) from error
    if first != chunk.first_offset or last > entry.last_offset:
        expected = f"from {chunk.first_offset} on by the index, up to {entry.last_offset} by the manifest"
        raise CorruptData(where, 0, f"offsets {first} to {last}, expected {expected}")


class _Plans:
    """The most recently used plans, bounded by the bytes of their indexes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[str, int], tuple[ChunkPlan, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, int]) -> ChunkPlan | None:
        with self._lock:
            kept = self._plans.get(key)
            if kept is None:
                return None
            self._plans.move_to_end(key)
            return kept[0]

    def keep(self, key: tuple[str, int], plan: ChunkPlan, size_bytes: int) -> None:
        with self._lock:
            self._bytes -= self._plans.pop(key, (None, 0))[1]
            self._plans[key] = (plan, size_bytes)
            self._bytes += size_bytes
            while self._bytes > PLANS_BYTES_MAX and len(self._plans) > 1:
                self._bytes -= self._plans.popitem(last=False)[1][1]


class _Damage:
    """What did not verify, so that not every retry of every client fetches it twice again: first after a pause, then after longer
    ones. It may be mended meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[CorruptData, float, float]] = OrderedDict()  # what was wrong, since when, for how long

    def check(self, name: str) -> None:
        """Raises CorruptData while it is not worth another try."""
        with self._lock:
            error, since_s, pause_s = self._found.get(name, (None, 0.0, 0.0))
        if error is not None and self._clock.monotonic_s() - since_s < pause_s:
            raise CorruptData(error.where, error.position, error.reason)

    def note(self, name: str, error: CorruptData) -> None:
        with self._lock:
            pause_s = min(2 * self._found.pop(name, (None, 0.0, DAMAGE_S / 2))[2], DAMAGE_MOST_S)
            self._found[name] = (error, self._clock.monotonic_s(), pause_s)
            while len(self._found) > DAMAGES_MAX:
                self._found.popitem(last=False)

    def forget(self, name: str) -> None:
        if name in self._found:
            with self._lock:
                self._found.pop(name, None)


def _release_outcome(future: Future[RunFile | None]) -> None:
    if future.exception() is None and (file := future.result()) is not None:
        file.release()
