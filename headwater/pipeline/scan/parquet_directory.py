"""A scan on one machine, without Spark, into a directory of Parquet files."""

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.scan_plan import ScanPlan
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import UsageError
from headwater_core.files import PARTIAL, disk_errors, rename_synced, sync_path
from headwater_core.objectstore.store import ObjectStore
from headwater_core.threads import ContextThreads

ROW_GROUP_BYTES = 64 << 20  # of Arrow data in one row group; each worker holds as much
_REPEATED = ("topic", "partition", "timestampType")  # columns with few values: Parquet keeps each once
_RANGED = ("topic", "partition", "offset", "timestamp")  # columns whose smallest and largest values help readers to skip


@dataclass(slots=True)
class ParquetResult:
    """What scan_to_parquet has done."""

    files: int = 0
    size_bytes: int = 0
    counters: ScanCounters = field(default_factory=ScanCounters)

    def add(self, other: "ParquetResult") -> None:
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.counters.add(other.counters)


def scan_to_parquet(
    store: ObjectStore,
    plan: ScanPlan,
    query: Query,
    directory: Path,
    *,
    workers: int | None = None,
    progressed: Callable[[int, str], None] = lambda size_bytes, note: None,
) -> ParquetResult:
    """Write part-00000.parquet and so on below `directory`, a file for each split that has records, in the order of the plan.

    directory   new or empty. It appears when everything in it is complete and on disk. Before, the files are in a directory
                beside it, which is removed when the scan fails.
    progressed  called with bytes of plan.size_bytes that are done, and the partition

    Raises UsageError when the directory is in use, DiskFull, and what reading raises.
    """
    check_unused(directory)
    stop = threading.Event()
    written = ParquetResult()
    with _staging(directory) as staging, ContextThreads(workers or processors(), "scan") as pool:
        in_flight = {
            pool.submit(_write_split, store, split, query, staging / f"part-{number:05}.parquet", stop): split
            for number, split in enumerate(plan.splits)
        }
        try:
            for future in as_completed(in_flight):
                written.add(future.result())
                progressed(in_flight[future].size_bytes, str(in_flight[future].partition_id))
        finally:
            stop.set()
            for future in in_flight:
                future.cancel()
        if not written.files:  # one file without rows, so that readers find the columns
            written.add(_write_file(staging / "part-00000.parquet", iter([arrow_schema(query.columns).empty_table()])))
    return written


def check_unused(directory: Path) -> None:
    """Raises UsageError unless the directory is empty or does not exist."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty; name an empty or a new directory")


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A directory beside `directory`, which in the end is synced and renamed to it, or removed after an error."""
    with disk_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{directory.name}{PARTIAL}-", dir=directory.parent))
        try:
            yield staging
            sync_path(staging)
            staging.chmod(0o777 & ~_umask())
            rename_synced(staging, directory)  # an empty directory may be in its place
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _write_split(store: ObjectStore, split: Split, query: Query, path: Path, stop: threading.Event) -> ParquetResult:
    counters = ScanCounters()
    with closing(read_split(store, split, query, counters)) as batches:
        groups = _row_groups(itertools.takewhile(lambda _: not stop.is_set(), batches))
        first = next(groups, None)
        written = _write_file(path, itertools.chain([first], groups)) if first is not None else ParquetResult()
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


def _write_file(path: Path, groups: Iterator[pa.Table]) -> ParquetResult:
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
    return ParquetResult(files=1, size_bytes=path.stat().st_size)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
