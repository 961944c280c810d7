"""Brings chunks and indexes of archived runs into the cache: each once, however many readers need it, and checked before they have it."""

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from headwater_core.clock import Clock
from headwater_core.errors import TransientError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from hydration.archive.chunk_fetcher import ChunkFetcher
from hydration.archive.chunks import Chunk, ChunkPlan
from hydration.archive.damage import Damage, KnownDamage
from hydration.archive.downloads import PATIENCE_S, Downloads
from hydration.archive.plans import Plans
from hydration.archive.single_flight import Attempt, SingleFlight, Start
from hydration.cache.cache_directory import chunk_name
from hydration.cache.chunk_cache import ChunkCache
from hydration.counters import ReadCounters
from hydration.disk_threads import DiskThreads
from hydration.resumption import Resumable
from hydration.runfile import RunFile
from manifests.entry import Entry

SCAN_WORKERS = 2  # local scans of each log directory, bound by disk and CPU
HEAD_WORKERS = 8  # loads of manifests
LOOK_WORKERS = 2  # looks at partitions in each log directory
PROOF_WORKERS = 2  # cached files read again before they are served
DEMAND_WORKERS = 8  # downloads that a reader waits for, late ones not counted; more than these wait in a queue

_READ = object()  # what is not in the table of unread chunks

T = TypeVar("T")


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
        damage_path: Path | None = None,
    ) -> None:
        """damage_path  of the list of objects that are known to be damaged; None: it ends with the process
        patience_s   seconds without progress before a download counts as late: then others run beside it, and what was fetched ahead is
        fetched again for a reader that waits for it"""
        self.cache = cache
        self.counters = counters or ReadCounters()
        self.flights = SingleFlight()
        self.chunk_bytes = chunk_bytes
        self._ahead_max = min(readahead_chunks, cache.limit_bytes // (2 * chunk_bytes))  # never evict what is being read
        self._scans = DiskThreads(SCAN_WORKERS, "scan")  # each kind of work its own: none waits for a store it does not need
        self._heads = ThreadPoolExecutor(HEAD_WORKERS, "heads")
        self._looks = DiskThreads(LOOK_WORKERS, "looks")
        self._proofs = ThreadPoolExecutor(PROOF_WORKERS, "proofs")
        self._downloads = Downloads(DEMAND_WORKERS, max(self._ahead_max, 1), patience_s=patience_s)
        self.damage = KnownDamage(cache.clock, damage_path)
        self._plans = Plans(store, cache, chunk_bytes, self.damage)
        self._fetcher = ChunkFetcher(store, cache, chunk_bytes, self.counters, self.damage)
        self._unread: dict[str, None] = {}  # chunks requested ahead that no reader came to: in flight, or in the cache
        self._awaited: dict[str, float] = {}  # chunks in flight that a reader came to, and when the first did
        self._counting = threading.Lock()  # of waits, which end in many threads
        cache.on_drop = self._never_read

    def submit(self, work: Callable[[], T], log_dir: Path | None = None) -> Future[T]:
        """For other work that must not be done in an event loop, such as scanning local files. Raises TransientError when closed.

        log_dir  where they are
        """
        try:
            return self._scans.submit(log_dir, work)
        except RuntimeError as error:
            raise TransientError("closing") from error

    def join(self, key: Hashable, work: Callable[[], T]) -> Future[T]:
        """For loading manifests: once for all callers while it is in flight."""
        return self.flights.join(key, self._load_head, work)

    def join_look(self, partition: PartitionId, work: Callable[[], None], log_dir: Path | None = None) -> Future[None]:
        """For a look at a partition's directory: once for all callers while it is in flight.

        log_dir  where it was when it was last seen
        """
        return self.flights.join(("look", partition), lambda attempt: self._looks.submit(log_dir, attempt.run), work)

    def damaged(self) -> dict[str, set[str]]:
        """Return the keys of objects that are known to be damaged, by the partition's folder of the cache, until one is read well again."""
        return self.damage.keys()

    @property
    def clock(self) -> Clock:
        return self.cache.clock

    @property
    def readahead_chunks(self) -> int:
        return self._ahead_max

    def plan(self, partition: PartitionId, entry: Entry) -> Resumable[ChunkPlan]:
        """How the entry's run is cut, its index fetched if need be. Raises what reading the index does."""
        plan = self.plan_now(entry)
        if plan is None:
            plan = yield self._fetch_plan(partition, entry, urgent=True)
        return plan

    def plan_now(self, entry: Entry) -> ChunkPlan | None:
        """The plan when it is in memory."""
        return self._plans.get(entry)

    def chunk(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> Resumable[RunFile]:
        """The chunk's file, held for the caller, downloaded if need be.

        Raises NotFound when the object is not there, CorruptData when its bytes do not verify, and what the store raises.
        """
        file = self.chunk_now(partition, entry, chunk)
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
        self._came_to(name)
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
            came_s = self.clock.monotonic_s()
            future = self.flights.join(
                name, self._start(partition, urgent=True), partial(self._fetcher.fetch, partition, entry, chunk), holders=1
            )
            if name not in self._awaited:
                self._awaited[name] = came_s
                future.add_done_callback(lambda _: self._arrived(name))
            try:
                file = yield future
            except GeneratorExit:
                future.add_done_callback(_release_outcome)
                raise
        return file

    def read_damaged(self, damage: Damage, entry: Entry) -> Resumable[None]:
        """Read again what was damaged in `entry`, after what readers wait for, and forget the damage where it is well. Raises as `chunk`
        and `plan`."""
        partition, chunk = damage.partition, damage.chunk
        if chunk is None:
            plan = self.plan_now(entry) or (yield self._fetch_plan(partition, entry, urgent=False))
            chunk = plan.chunk_for(damage.offset)
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
        fetch = partial(self._fetcher.fetch, partition, entry, chunk)
        yield self.flights.join(name, self._start(partition, urgent=False), fetch, urgent=False)
        self.damage.forget(damage.name)

    def chunk_now(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> RunFile | None:
        """The chunk's file, held for the caller, when nothing has to be waited for."""
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
        file = self.cache.get(name)
        if file is not None:
            self.counters.chunk_hits += 1
            self._came_to(name)
        return file

    def read_ahead(self, partition: PartitionId, entry: Entry, chunks: Iterable[Chunk]) -> None:
        """Get neighbouring chunks ready that a reader will probably need, with one GET if none of them is there or in flight.
        Errors are dropped: a reader that needs them retries.
        """
        run: list[tuple[str, Chunk]] = []
        for chunk in chunks:
            name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
            if self._is_at_hand(name):
                self._begin_run(partition, entry, run)
                run = []
            elif self.cache.may_adopt(name) or chunk.size_bytes > self._fetcher.block_bytes:
                self._begin_run(partition, entry, run)
                self._begin_run(partition, entry, [(name, chunk)])
                run = []
            else:
                run.append((name, chunk))
        self._begin_run(partition, entry, run)

    def _begin_run(self, partition: PartitionId, entry: Entry, run: list[tuple[str, Chunk]]) -> None:
        start, names = self._start(partition, urgent=False), [name for name, _ in run]
        self._unread.update(dict.fromkeys(names))  # before they start: a reader may come at once
        futures: list[Future[RunFile]] = []
        if len(run) > 1:
            futures = self.flights.start_each(names, start, partial(self._fetcher.fetch_each, partition, entry, run))
        elif run:
            futures = [self.flights.join(names[0], start, partial(self._fetcher.fetch, partition, entry, run[0][1]), urgent=False)]
        if not futures:  # one of them has been started meanwhile
            for name in names:
                if not self._is_at_hand(name):
                    self._unread.pop(name, None)
        self.counters.ahead += len(futures)
        for name, future in zip(names, futures, strict=False):
            future.add_done_callback(partial(self._ended_ahead, name))

    def _is_at_hand(self, name: str) -> bool:
        return self.flights.is_in_flight(name) or self.cache.has(name)

    def _came_to(self, name: str) -> None:
        """A reader needs the chunk now."""
        if self._unread and self._unread.pop(name, _READ) is None:
            self.counters.ahead_used += 1

    def _arrived(self, name: str) -> None:
        """The chunk that a reader came to is there, or its download has failed."""
        with self._counting:
            if (began_s := self._awaited.pop(name, None)) is not None:  # two readers may have come as the first
                self.counters.waits.add(self.clock.monotonic_s() - began_s)

    def _never_read(self, name: str) -> None:
        """The chunk is not in the cache, or will not come."""
        if self._unread.pop(name, _READ) is None:
            self.counters.ahead_wasted += 1

    def _ended_ahead(self, name: str, future: Future[RunFile]) -> None:
        if future.exception() is not None:
            self._never_read(name)

    def plan_ahead(self, partition: PartitionId, entry: Entry) -> None:
        """Have the entry's index fetched; errors are dropped."""
        if self.plan_now(entry) is None:
            self._fetch_plan(partition, entry, urgent=False)

    def _start(self, partition: PartitionId, *, urgent: bool) -> Start:
        return partial(self._downloads.submit, group=partition, urgent=urgent)

    def _prove(self, attempt: Attempt) -> None:
        self._proofs.submit(attempt.run)

    def _load_head(self, attempt: Attempt) -> None:
        self._heads.submit(attempt.run)

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
        return self.flights.join(key, start, lambda: self.plan_now(entry) or self._plans.load(partition, entry), urgent=urgent)


def _release_outcome(future: Future[RunFile | None]) -> None:
    if future.exception() is None and (file := future.result()) is not None:
        file.release()
