"""Archived topics as DataFrames: Spark's Python Data Source over the scan.

    spark.dataSource.register(HeadwaterSource)
    spark.read.format("headwater").option("store", "s3://bucket/prefix").option("topics", "orders,pay*").load()

Spark pickles these objects between short-lived Python processes: for the schema, for the plan, and for each task. So
they hold only options. docs/spark.md describes them.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headwater.pipeline.runner import processors
from headwater.pipeline.scan.archive_snapshot import describe_open
from headwater.pipeline.scan.quarantine import open_quarantine, read_snapshot
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.splits import plan_splits
from headwater.pipeline.spark.filters import push
from headwater.pipeline.spark.stream import StreamReader, parse_stream_query
from headwater.pipeline.spark.tasks import opened, read_partition, report_to_spark, spark_schema
from headwater_core.errors import UsageError

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class HeadwaterSource(DataSource):
    """`format("headwater")`. Wrong options raise a UsageError when the DataFrame is created."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        if "provider" in self.options:  # one of those that Spark adds to a table's, which it passes now and never again
            raise UsageError(
                "CREATE TABLE … USING headwater makes no table that can be read, as Spark does not pass its options to the scan: "
                "CREATE TEMPORARY VIEW … USING headwater OPTIONS (store 's3://…', topics '…')"
            )
        return spark_schema(parse_query(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        query = _checked(parse_query(self.options), schema)
        if not _filters_are_pushed():
            return BatchQuery(query)
        if not query.push_filters:
            # Spark up to 4.3 uses the plan made here for every other scan of the same DataFrame, too, whatever its filters: rows
            # would be lost silently. A plan without filters suits all scans (docs/decisions, "Filters are pushed on request").
            report_to_spark("filters_left_to_spark", reason="option pushFilters is not set")
            return BatchQuery(query)
        return PushingReader(query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_checked(parse_stream_query(self.options), schema))


class BatchQuery(DataSourceReader):
    """A batch query. It sees the archive as of the moment when it is planned. A DataFrame is planned once, even if it is used again."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> Sequence[InputPartition]:
        store = opened(self._query)
        bounds = read_snapshot(store, self._query).bounds(store, self._query)
        ranges = [bound for bound in bounds if bound.first < bound.end]
        splits = plan_splits(ranges, self._query, cores=processors())
        wanted = {entry.key for split in splits for entry in split.entries}
        report_to_spark(
            "scan_planned",
            partitions=len(ranges),
            entries_left_out=sum(each.head.entries.objects for each in ranges) - len(wanted),
            entries=len(wanted),
            splits=len(splits),
            size_bytes=sum(split.size_bytes for split in splits),
            predicate=self._query.predicate,
            open_transactions=describe_open([transaction for bound in bounds if (transaction := bound.open_transaction(self._query))]),
        )
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._query)


class PushingReader(BatchQuery):
    """A reader that takes filters over. Spark refuses it while spark.sql.python.filterPushdown.enabled is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        left = []
        for each in filters:
            pushed = push(each)
            if pushed is not None:
                self._query = self._query.where(pushed.predicate)
            if pushed is None or not pushed.complete:
                left.append(each)
        report_to_spark("filters_pushed", asked=len(filters), left_to_spark=len(left), predicate=self._query.predicate)
        return left


def _filters_are_pushed() -> bool:
    """Whether this is the process that pushes filters. Spark starts one only if pushing is on and there are filters.

    The setting itself cannot be read: there is no session where readers are created. In every other process a reader without
    pushFilters is right, whatever the setting is.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)  # without Spark's fork server it is the program itself
    return _PUSHDOWN_WORKER in sys.modules or (program is not None and program.name == _PUSHDOWN_WORKER)


def _checked(query: Query, schema: StructType) -> Query:
    """The query for the tasks. Raises UsageError for every error that shows without a request to the bucket."""
    if schema != spark_schema(query):
        raise UsageError("a schema cannot be given; name the columns instead: option('columns', 'offset,value')")
    if query.quarantine_path is not None and "://" not in query.quarantine_path and not Path(query.quarantine_path).is_absolute():
        raise UsageError(
            f"quarantinePath {query.quarantine_path!r} is not an absolute path or a URL; executors have other working directories"
        )
    opened(query)
    open_quarantine(query)
    return query
