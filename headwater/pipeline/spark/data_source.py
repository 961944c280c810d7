"""Archived topics as DataFrames: Spark's Python Data Source over the scan.

    spark.dataSource.register(HeadwaterSource)
    spark.read.format("headwater").option("store", "s3://bucket/prefix").option("topics", "orders,pay*").load()

Spark pickles these objects between short-lived Python processes: one asks for the schema, one plans, one runs each task. So
nothing is kept here but options. docs/spark.md says what they do.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headwater.pipeline.runner import processors
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
    """`format("headwater")`. What is wrong with the options is said when the DataFrame is made, by a UsageError."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        return spark_schema(parse_query(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        query = _checked(parse_query(self.options), schema)
        if not _filters_are_pushed():
            return Reader(query)
        if not query.push_filters:
            # What is planned here, Spark up to 4.3 uses for every other scan of the same DataFrame, too, whatever its filters: it
            # would lose rows in silence. A plan without filters suits them all (docs/decisions, "Filters are pushed on request").
            report_to_spark("filters_left_to_spark", reason="option pushFilters is not set")
            return Reader(query)
        return PushingReader(query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_checked(parse_stream_query(self.options), schema))


class Reader(DataSourceReader):
    """A batch query. It sees the archive as of the moment it is planned; a DataFrame that is used again is planned once."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> Sequence[InputPartition]:
        store = opened(self._query)
        ranges = read_snapshot(store, self._query).ranges(store, self._query)
        splits = plan_splits(ranges, self._query, cores=processors())
        listed = {entry.key for each in ranges for entry in each.head.entries if not entry.gap}
        wanted = {entry.key for split in splits for entry in split.entries}
        report_to_spark(
            "scan_planned",
            partitions=len(ranges),
            entries_left_out=len(listed - wanted),
            entries=len(wanted),
            splits=len(splits),
            size_bytes=sum(split.size_bytes for split in splits),
            predicate=self._query.predicate,
        )
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._query)


class PushingReader(Reader):
    """One that takes filters over. Spark refuses it while spark.sql.python.filterPushdown.enabled is off."""

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
    """Is this the process that pushes filters? Spark has one for it, used only while pushing is on and there are some.

    The setting itself cannot be seen: no session is in reach where readers are made. Everywhere else a reader without
    pushFilters is right, whatever the setting says.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)  # without Spark's fork server it is the program itself
    return _PUSHDOWN_WORKER in sys.modules or (program is not None and program.name == _PUSHDOWN_WORKER)


def _checked(query: Query, schema: StructType) -> Query:
    """The query that the tasks get. Raises UsageError for what can be told before the bucket is asked."""
    if schema != spark_schema(query):
        raise UsageError("a schema cannot be given: name the columns you want, as in option('columns', 'offset,value')")
    if query.quarantine_path is not None and "://" not in query.quarantine_path and not Path(query.quarantine_path).is_absolute():
        raise UsageError(f"quarantinePath {query.quarantine_path!r}: an absolute path or a URL; executors have directories of their own")
    opened(query)
    open_quarantine(query)
    return query
