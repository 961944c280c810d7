"""The scan on one machine, without Spark: an Arrow stream for pandas, Polars and DuckDB, or a directory of Parquet files."""

import itertools
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.archive_snapshot import LostDocument, OffsetRange
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.quarantine import read_catalogue
from headwater.pipeline.scan.query import EVERYTHING, Predicate, Query, parse_query
from headwater.pipeline.scan.split_reader import ReadCounters, read_split
from headwater.pipeline.scan.splits import Split, entries_left_out, plan_splits
from headwater_core.errors import UsageError
from headwater_core.files import PARTIAL, disk_errors, rename_synced, sync_path
from headwater_core.objectstore.open import open_store
from headwater_core.objectstore.store import ObjectStore

READ_AHEAD_BYTES = 128 << 20  # of Arrow data that is ready before anybody asks, over all workers
ORDERED_SPLIT_BYTES = 32 << 20  # at most: while one is consumed, the next ones should fit into what may be read ahead
ROW_GROUP_BYTES = 64 << 20  # of Arrow data in one row group; each worker holds as much
_REPEATED = ("topic", "partition", "timestampType")  # columns with few values: Parquet keeps each once
_RANGED = ("topic", "partition", "offset", "timestamp")  # columns whose least and largest values help a reader to skip


def scan(
    store: ObjectStore | str,
    topics: str | Sequence[str] | None = None,
    *,
    where: Predicate = EVERYTHING,
    workers: int | None = None,
    **options: object,
) -> pa.RecordBatchReader:
    """Archived records as a stream of Arrow batches, by topic, partition and offset; columns as Spark's Kafka source has them.

        scan("s3://bucket/prefix", "orders,pay*", starting_timestamp=datetime(2026, 1, 1), columns=["offset", "value"]).read_pandas()

    store    the archive, or its URL
    topics   names and globs; or say which with subscribe, subscribe_pattern or assign
    where    what else a record must satisfy
    workers  threads that fetch and decode, as many as there are processors by default
    options  as the Spark source has them (docs/spark.md), spelled either way: startingOffsets, starting_offsets

    What is wrong with the options, and what the archive does not have, is raised here; damage while reading. Memory: some
    READ_AHEAD_BYTES, and 30 MiB for each worker. Let go of the reader, or close it, and the work stops.
    """
    if isinstance(store, str):
        options["store"] = store
    query = parse_query({"topics": topics, **options}).where(where)
    opened = open_query_store(query) if isinstance(store, str) else store
    query = replace(query, split_bytes=min(query.split_bytes or ORDERED_SPLIT_BYTES, ORDERED_SPLIT_BYTES))
    batches = _in_order(opened, plan_scan(opened, query).splits, query, workers or processors())
    return pa.RecordBatchReader.from_batches(arrow_schema(query.columns), batches)


def open_query_store(query: Query) -> ObjectStore:
    if query.store is None:
        raise UsageError("which archive? store=file:///path or s3://bucket/prefix")
    return open_store(query.store, endpoint_url=query.endpoint_url, region=query.region)


def _in_order(store: ObjectStore, splits: Iterable[Split], query: Query, workers: int) -> Iterator[pa.RecordBatch]:
    """The splits' records, one split after the other, while the next ones are being read."""
    todo = iter(splits)
    ahead: deque[_Channel] = deque()
    with ThreadPoolExecutor(workers, "scan") as pool:
        try:
            while True:
                while len(ahead) <= workers and (split := next(todo, None)) is not None:
                    ahead.append(_Channel(READ_AHEAD_BYTES // (workers + 1)))
                    pool.submit(ahead[-1].fill, read_split(store, split, query))
                if not ahead:
                    return
                yield from ahead[0]
                ahead.popleft()
        finally:
            for channel in ahead:
                channel.close()


class _Channel:
    """One split's batches on their way from the thread that reads it to the one that consumes it: at most `limit_bytes`, or one batch."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._ready: deque[pa.RecordBatch] = deque()
        self._ready_bytes = 0
        self._done = self._closed = False
        self._error: BaseException | None = None

    def fill(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        """In the reading thread: everything, or until nobody wants it any more."""
        try:
            with closing(batches):
                for batch in batches:
                    if not self._put(batch):
                        break
        except BaseException as error:  # the consumer's to raise
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._ready or self._ready_bytes + batch.nbytes <= self._limit_bytes)
            self._ready.append(batch)
            self._ready_bytes += batch.nbytes
            self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._done)
                if not self._ready:
                    break
                batch = self._ready.popleft()
                self._ready_bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scan is going to read; `lost` is what it cannot."""

    ranges: list[OffsetRange]
    splits: list[Split]
    entries_left_out: int
    lost: tuple[LostDocument, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the archive, about."""
        return sum(split.size_bytes for split in self.splits)


def plan_scan(store: ObjectStore, query: Query, *, workers: int | None = None) -> Plan:
    """From heads alone, but for bounds that are times; so that all `workers`, or processors, have work. Raises what read_catalogue,
    Catalogue.ranges and plan_splits do.
    """
    catalogue = read_catalogue(store, query)
    ranges = catalogue.ranges(store, query)
    splits = plan_splits(ranges, query, cores=workers or processors())
    return Plan(ranges, splits, entries_left_out(ranges, query), catalogue.lost)


@dataclass(slots=True)
class Written:
    """What scan_to_parquet has done."""

    files: int = 0
    size_bytes: int = 0
    counters: ReadCounters = field(default_factory=ReadCounters)

    def add(self, other: "Written") -> None:
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.counters.add(other.counters)


def scan_to_parquet(
    store: ObjectStore,
    plan: Plan,
    query: Query,
    directory: Path,
    *,
    workers: int | None = None,
    progressed: Callable[[int, str], None] = lambda size_bytes, note: None,
) -> Written:
    """Write part-00000.parquet and so on below `directory`, a file for each split that has records, in the order of the plan.

    directory   not there yet, or empty. It appears when everything in it is complete and on disk; until then the files lie in
                a directory beside it, which is removed when the scan fails.
    progressed  told how much of plan.size_bytes has been done, and where

    Raises UsageError when the directory is in use, DiskFull, and what reading raises.
    """
    check_unused(directory)
    stop = threading.Event()
    written = Written()
    with _staging(directory) as staging, ThreadPoolExecutor(workers or processors(), "scan") as pool:
        under_way = {
            pool.submit(_write_split, store, split, query, staging / f"part-{number:05}.parquet", stop): split
            for number, split in enumerate(plan.splits)
        }
        try:
            for future in as_completed(under_way):
                written.add(future.result())
                progressed(under_way[future].size_bytes, str(under_way[future].partition_id))
        finally:
            stop.set()
            for future in under_way:
                future.cancel()
        if not written.files:  # a file without rows, so that readers find the columns
            written.add(_write_file(staging / "part-00000.parquet", iter([arrow_schema(query.columns).empty_table()])))
    return written


def check_unused(directory: Path) -> None:
    """Raises UsageError when something is there already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is in use: name a directory that is empty or not there yet")


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A directory beside `directory` that becomes it, synced, when all went well, and else goes away."""
    with disk_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{directory.name}{PARTIAL}-", dir=directory.parent))
        try:
            yield staging
            sync_path(staging)
            staging.chmod(0o777 & ~_umask())
            rename_synced(staging, directory)  # over an empty one at most
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _write_split(store: ObjectStore, split: Split, query: Query, path: Path, stop: threading.Event) -> Written:
    counters = ReadCounters()
    with closing(read_split(store, split, query, counters)) as batches:
        groups = _row_groups(itertools.takewhile(lambda _: not stop.is_set(), batches))
        first = next(groups, None)
        written = _write_file(path, itertools.chain([first], groups)) if first is not None else Written()
    written.counters = counters
    return written


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group = []
    if group:
        yield pa.Table.from_batches(group)


def _write_file(path: Path, groups: Iterator[pa.Table]) -> Written:
    first = next(groups)
    names = set(first.schema.names)
    with pq.ParquetWriter(
        path,
        first.schema,
        compression="zstd",
        use_dictionary=[name for name in _REPEATED if name in names],
        write_statistics=[name for name in _RANGED if name in names],
    ) as writer:
        for table in itertools.chain([first], groups):
            writer.write_table(table)
    sync_path(path)
    return Written(files=1, size_bytes=path.stat().st_size)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
