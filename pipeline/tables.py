"""Topics to a table of Spark's: Iceberg's or Delta's, whose commits are atomic. The table is its own ledger.

Every row says which range of offsets it was exported with. A commit holds whole ranges, in order, so the largest `rangeEnd` of a
partition is where the next run goes on, and a run that was killed has either committed or not. Two exports into one table at
once would write the same ranges twice: let one cron entry own a table.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody who reads Spark code knows it
from pyspark.sql.pandas.types import from_arrow_schema

from manifests.head import Head
from model import steps
from model.errors import UsageError
from model.partition import TopicPartition
from objectstore.store import ObjectStore
from pipeline.catalogue import Catalogue
from pipeline.dated import dated_schema, days_of, with_lineage
from pipeline.jobs import StorePlace
from pipeline.ledger import pending_of
from pipeline.progress import Incarnation, Progress, Reached, check_progress
from pipeline.query import Bound, Query
from pipeline.reading import read_split
from pipeline.splits import Split, plan_splits

if TYPE_CHECKING:
    pass

STEPS = ("export.table_committed",)
COMMIT_BYTES = 4 << 30  # of the archive in one commit: what a killed run has to do again
PACKAGES = {  # table format: a class of it, and who brings that
    "iceberg": ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"),
    "delta": ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark_4.1_2.13:4.1.0"),
}
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))  # as Spark has it: everything may be null


@dataclass(frozen=True, slots=True)
class Committed:
    """What a run came to."""

    commits: int
    ranges: int


def check_format(spark: SparkSession, table_format: str) -> None:
    """Raises UsageError unless Spark has what the format needs."""
    name, package = PACKAGES[table_format]
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(name, True, False)  # type: ignore[union-attr]
    except Exception as error:  # Py4J's, of several classes
        raise UsageError(
            f"this Spark has no {table_format}: give it the package and a catalog, as in spark-submit --packages {package} --conf …"
            " (docs/jobs.md); the package's Spark version must be this one's"
        ) from error


class TableExport:
    """One run into `table`. Making it decides what is to be done and changes nothing; `run` does it.

    Raises as Export does.
    """

    def __init__(self, spark: SparkSession, place: StorePlace, query: Query, table: str, table_format: str) -> None:
        self._spark, self._place, self._query = spark, place, query
        self._table, self._format = table, table_format
        store = place.open()
        heads = {head.partition_id.topic_partition: head for head in Catalogue.read(store, query).heads}
        done = self._ends(heads) if spark.catalog.tableExists(table) else {}
        query = replace(query, starting=Bound(query.starting.everywhere, {**query.starting.named, **done}))
        self.splits = plan_splits(Catalogue(tuple(heads.values())).ranges(store, query), query)

    @property
    def size_bytes(self) -> int:
        return sum(split.size_bytes for split in self.splits)

    def run(self, progressed: Callable[[int, str], None] = lambda size_bytes, note: None) -> Committed:
        """Append everything, COMMIT_BYTES at a time. What was committed stays, whatever becomes of the rest."""
        commits = 0
        for splits in _commits(self.splits):
            self._append(splits)
            commits += 1
            steps.reached("export.table_committed")
            progressed(sum(split.size_bytes for split in splits), str(splits[-1].partition_id))
        return Committed(commits, len(self.splits))

    def _ends(self, heads: dict[TopicPartition, Head]) -> dict[TopicPartition, int]:
        """Where each partition goes on, by what the table holds of it."""
        found = (
            self._spark.table(self._table)
            .where(F.col("topic").isin(sorted({place.topic for place in heads})))
            .groupBy("topic", "topicId", "partition")
            .agg(F.max("rangeEnd").alias("end"), F.max("offset").alias("last"), F.max_by("leaderEpoch", "offset").alias("epoch"))
            .collect()
        )
        ends: dict[TopicPartition, int] = {}
        for row in found:
            place = TopicPartition(row["topic"], row["partition"])
            head = heads.get(place)
            if head is None:
                continue
            incarnations = {place.topic: Incarnation(head.cluster_id, row["topicId"])}
            for reached in (Reached(row["last"] + 1, row["epoch"]), Reached(row["end"])):
                progress = Progress(incarnations=incarnations, reached={place: reached})
                allowed = not self._query.fail_on_data_loss or reached.next_offset != row["end"]
                check_progress(progress, {place: head}, allow_loss=allowed)
            ends[place] = row["end"]
        return ends

    def _append(self, splits: Sequence[Split]) -> None:
        schema = table_schema(self._query)
        tasks = [(bytearray(pickle.dumps((split, pending_of(split.partition_id, split.first, split.end)))),) for split in splits]
        context = self._spark.sparkContext
        rows = self._spark.createDataFrame(context.parallelize(tasks, len(tasks)), "task binary").mapInArrow(
            _Read(self._place, self._query), from_arrow_schema(schema)
        )
        if self._spark.catalog.tableExists(self._table):
            rows.writeTo(self._table).append()
        else:
            rows.writeTo(self._table).using(self._format).partitionedBy(F.col("topic"), F.col("date")).create()


def table_schema(query: Query) -> pa.Schema:
    fields = [pa.field("topic", pa.string()), pa.field("date", pa.date32()), *dated_schema(query)]
    return pa.schema([pa.field("headers", _HEADERS) if field.name == "headers" else field for field in fields])


@dataclass(frozen=True, slots=True)
class _Read:
    """In a Spark task: ranges in, rows out."""

    place: StorePlace
    query: Query

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = table_schema(self.query)
        store: ObjectStore = self.place.open()
        for tasks in batches:
            for task in tasks.column(0).to_pylist():
                split, pending = pickle.loads(task)  # our driver's own, through Spark's authenticated socket
                for batch in read_split(store, split, self.query):
                    rows = with_lineage(batch, split, pending)
                    topic = pa.repeat(pa.scalar(split.topic), len(rows))
                    columns = [topic, days_of(rows), *rows.columns]
                    yield pa.RecordBatch.from_arrays(
                        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
                    )


def _commits(splits: Iterable[Split]) -> Iterator[list[Split]]:
    """Splits in their order, which is each partition's offset order, about COMMIT_BYTES at once."""
    group: list[Split] = []
    size_bytes = 0
    for split in splits:
        group.append(split)
        size_bytes += split.size_bytes
        if size_bytes >= COMMIT_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
