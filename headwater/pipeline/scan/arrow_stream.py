"""A scan on one machine, without Spark, as a stream of Arrow batches for pandas, Polars and DuckDB."""

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import structlog

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.query import EVERYTHING, Predicate, Query
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import HeadwaterError, UsageError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_url import open_store
from headwater_core.threads import DaemonThreads

READ_AHEAD_BYTES = 128 << 20  # of Arrow data that is decoded ahead, over all workers
ORDERED_SPLIT_BYTES = 32 << 20  # at most: while one split is consumed, the next ones should fit into READ_AHEAD_BYTES

log = structlog.get_logger()


def scan(
    store: ObjectStore | str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    where: Predicate | None = None,
    workers: int | None = None,
    **options: object,
) -> pa.RecordBatchReader:
    """Archived records as a stream of Arrow batches, by topic, partition and offset, with the columns of Spark's Kafka source.

        scan("s3://bucket/prefix", "orders,pay*", starting_timestamp=datetime(2026, 1, 1), columns=["offset", "value"]).read_pandas()

    store    the archive, its URL, or the path of its directory
    topics   names and globs; or select topics with subscribe, subscribe_pattern or assign
    where    what else a record must satisfy: headwater.Predicate.of_times(first_ms, end_ms), say, which is exact, where a bound that is a
             time becomes an offset
    workers  threads that fetch and decode; None: one for each processor
    options  those of the Spark source (docs/spark.md), as startingOffsets or starting_offsets. A time is a number of milliseconds since
             1970, a datetime, or text such as 2026-01-31T12:00:00Z; without a time zone it is UTC

    Errors in the options, and offsets that the archive does not have, are raised here; damage while reading. Memory: about
    READ_AHEAD_BYTES, and 30 MiB for each worker. The work stops when the reader is deleted, and when the program ends. A reader
    can be read once, and only in the process that made it: afterwards it has no batches, so keep the table, or scan again.
    Warnings go to stderr, unless the program has configured structlog.
    """
    if not structlog.is_configured():
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is the program's own
    if not isinstance(where, Predicate | None):
        raise UsageError(f"where: a headwater.Predicate is expected, such as headwater.Predicate.of_times(first_ms, end_ms), not {where!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers: a number from 1 on is expected, not {workers!r}")
    if isinstance(store, str | os.PathLike):
        options["store"] = _url(store)
    elif not hasattr(store, "read_into"):
        raise UsageError(f"store: s3://bucket/prefix, file:///path or a path is expected, not {store!r}")
    query = parse_query({"topics": topics, **options}).where(where or EVERYTHING)
    opened = open_query_store(query) if isinstance(store, str | os.PathLike) else store
    query = replace(query, split_bytes=min(query.split_bytes or ORDERED_SPLIT_BYTES, ORDERED_SPLIT_BYTES))
    plan = plan_scan(opened, query)
    for transaction in plan.open_transactions:
        topic, partition, offset, offsets = transaction
        log.warning("open_transaction_found", topic=topic, partition=partition, offset=offset, offsets=offsets)
    batches = _in_order(opened, plan.splits, query, workers or processors())
    return pa.RecordBatchReader.from_batches(arrow_schema(query.columns), batches)


def _url(store: str | os.PathLike[str]) -> str:
    if isinstance(store, str):
        return store
    path = Path(store)
    if path.parts and path.parts[0].endswith(":"):  # pathlib has made one slash of two
        raise UsageError(f"store: {str(path)!r} was a URL: give it as text, not as a path")
    return path.absolute().as_uri()


def open_query_store(query: Query) -> ObjectStore:
    if query.store is None:
        raise UsageError("the archive is missing: give store=s3://bucket/prefix or file:///path")
    return open_store(query.store, endpoint_url=query.endpoint_url, region=query.region)


def _in_order(store: ObjectStore, splits: Iterable[Split], query: Query, workers: int) -> Iterator[pa.RecordBatch]:
    """The splits' records, one split after the other, while the next ones are being read."""
    todo = iter(splits)
    ahead: deque[_Channel] = deque()
    pool, owner = DaemonThreads(workers, "scan"), os.getpid()

    def stop() -> None:
        if os.getpid() != owner:
            return  # a forked process has none of the threads, and perhaps a lock that one of them holds
        for channel in tuple(ahead):
            channel.close()
        pool.shutdown(cancel_futures=True)

    # A program may end while it keeps a reader, in a traceback for instance. Threads that wait for a consumer would keep it alive,
    # and daemons that still run when the interpreter goes may crash it.
    atexit.register(stop)
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
        atexit.unregister(stop)
        stop()


class _Channel:
    """One split's batches, from the thread that reads it to the one that consumes it: at most `bytes_max` at once, or one batch."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._ready: deque[pa.RecordBatch] = deque()
        self._ready_bytes = 0
        self._done = self._closed = False
        self._error: BaseException | None = None
        self._owner = os.getpid()

    def fill(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        """In the reading thread: put all batches, or those before `close`."""
        try:
            with closing(batches):
                for batch in batches:
                    if not self._put(batch):
                        break
        except BaseException as error:  # the consumer raises it
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._ready or self._ready_bytes + batch.nbytes <= self._bytes_max)
            self._ready.append(batch)
            self._ready_bytes += batch.nbytes
            self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            if os.getpid() != self._owner:
                raise UsageError("a reader can be read only in the process that made it; scan again in this one")
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._done)
                if self._closed:
                    raise HeadwaterError("the scan was stopped because the program ends")
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
            self._closed = self._done = True
            self._ready.clear()
            self._changed.notify_all()
