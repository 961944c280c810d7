"""A task of a Spark query: its schema, its rows, and what it logs."""

import functools
import gc
import logging
from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.pipeline.runner import StorePlace
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import UsageError
from headwater_core.objectstore import ObjectStore

TYPES: dict[str, DataType] = {  # as in Spark's own Kafka source; all are nullable
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

# Spark's Python workers have no configured logging: INFO is lost there, unless spark.sql.pyspark.worker.logging.enabled is on.
# Then events are rows of spark.tvf.python_worker_logs(), with their fields in `context`.
_log = logging.getLogger("headwater")
_log.setLevel(logging.INFO)


def spark_schema(query: Query) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in query.columns])


def opened(query: Query) -> ObjectStore:
    """The query's archive. One client serves all tasks of a worker process."""
    if query.store is None:
        raise UsageError('the archive is missing: give option("store", "s3://bucket/prefix") or file:///path')
    return StorePlace(query.store, query.endpoint_url, query.region).open()


def read_partition(partition: InputPartition, query: Query) -> Iterator[pa.RecordBatch]:
    """The rows of one task, with exactly the types of `spark_schema`. For a scan without splits, Spark makes a task without one."""
    split: Split | None = partition.value
    if split is None:
        return
    from headwater.pipeline.scan.split_reader import read_split  # with numba, which planning does without: a second for each process

    counters = ScanCounters()
    try:
        for batch in read_split(opened(query), split, query, counters):
            yield _conform(batch)
    finally:
        report_to_spark("split_read", split=split, **asdict(counters))
        _freeze()


@functools.cache
def _freeze() -> None:
    """Once in each process, exclude the loaded modules from garbage collection: Spark's worker collects garbage after every task,
    which with the modules of numba and pyarrow takes longer than reading a split.
    """
    gc.collect()
    gc.freeze()


def report_to_spark(event: str, **facts: object) -> None:
    _log.info(event, extra={"context": {name: str(fact) for name, fact in facts.items()}})


def _conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark compares nested nullability too; for it a header's name may be null."""
    at = batch.schema.get_field_index("headers")
    return batch if at < 0 else batch.set_column(at, pa.field("headers", _HEADERS), batch.column(at).cast(_HEADERS))
