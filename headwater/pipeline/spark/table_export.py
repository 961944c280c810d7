"""Topics to a table of Spark, Iceberg or Delta, whose commits are atomic. The progress is in the commits, not in the rows.

Every commit of an export carries its progress as a document (headwater/pipeline/spark/table_history.py), so rows may be deleted,
rewritten or expire without being exported again. A row has the range of offsets that it was exported with. Where rows are beyond
the document, the run reports it and continues after them. Two exports into one table at once would write the same ranges twice:
let one cron entry own a table. A run that finds another export's commit between its own ones stops.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name in Spark code
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.pipeline.export.backlog import ADVICE, Backlog, Failure, Places, decode_places, encode_places, find_backlog
from headwater.pipeline.export.checkpoint import pending_of
from headwater.pipeline.export.directory_export import check_columns
from headwater.pipeline.export.parquet import days_of, export_schema, with_lineage
from headwater.pipeline.runner import StorePlace
from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, OpenTransactionAtEnd
from headwater.pipeline.scan.progress import Reached
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import Split
from headwater.pipeline.spark.spark_errors import SPARK_ERRORS
from headwater.pipeline.spark.spark_runner import OnSpark
from headwater.pipeline.spark.table_history import Mirror, TableDocument, TableHistory, newest_document, open_history
from headwater_core import milestones
from headwater_core.errors import DiskFull, HeadwaterError, Locked, Unauthorised, UsageError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests.repository import ManifestRepository

MILESTONES = ("export.table_created", "export.table_committed", "export.table_mirrored")
COMMIT_BYTES = 4 << 30  # of the archive in one commit at least; a killed run repeats as much
ROUNDS = 3  # of tasks for each core in one commit, so that cores seldom wait for the last task
PACKAGES = {  # table format: one of its classes, and the package that has it
    "iceberg": ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    "delta": ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark_4.2_2.13:4.4.0"),
}
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))  # as in Spark: everything may be null
_COMPARED = 200  # partitions in one query of the rows


@dataclass(frozen=True, slots=True)
class TableExportResult:
    """The result of a run."""

    commits: int
    ranges: int
    failed: tuple[Failure, ...]


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
    """One run into `table`. The constructor decides what is to be done; `run` does it.

    start_anew    as in find_backlog
    commit_bytes  about this much of the archive in one commit; None: COMMIT_BYTES, or more for many cores
    read_only     change nothing at all

    A table that an older version filled, which kept no progress but the rows, is taken over: `notes` says so, and the table has a
    document from then on. Raises UsageError for a table that is no export, or has other settings, CorruptData for a damaged
    document, and what find_backlog does. Errors of one partition are in `failures`.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: StorePlace,
        query: Query,
        table: str,
        table_format: str,
        *,
        start_anew: bool = True,
        commit_bytes: int | None = None,
        read_only: bool = False,
    ) -> None:
        check_columns(query)
        self._spark, self._place, self._query = spark, place, replace(query, advice=ADVICE)
        self._table, self._format, self.notes = table, table_format, list[str]()
        split_bytes = query.split_bytes or 0
        self._commit_bytes = commit_bytes or max(COMMIT_BYTES, ROUNDS * spark.sparkContext.defaultParallelism * split_bytes)
        store = place.open()
        self._history: TableHistory | None = None
        self._document = self._new_document(store)
        if spark.catalog.tableExists(table):
            self._history = open_history(spark, table)
            self._document = self._held_document(store, self._history, read_only=read_only)
        where = f"progress of {table}"
        self._places: dict[PartitionId, Reached] = decode_places(self._document.topics, where)
        backlog = find_backlog(store, self._query, self._places, start_anew=start_anew)
        if self._history and (beyond := self._rows_beyond(backlog.splits)):
            self.notes.append(
                f"{table} has rows beyond what its commits say: of {', '.join(map(str, sorted(beyond)))}; the export continues after them"
            )
            self._places |= beyond
            backlog = find_backlog(store, self._query, self._places, start_anew=start_anew)
        self._backlog: Backlog = backlog
        for each in backlog.given_up:
            del self._places[each]

    @property
    def splits(self) -> tuple[Split, ...]:
        return self._backlog.splits

    @property
    def failures(self) -> tuple[Failure, ...]:
        return self._backlog.failures

    @property
    def open_transactions(self) -> tuple[OpenTransactionAtEnd, ...]:
        return self._backlog.open_transactions

    @property
    def size_bytes(self) -> int:
        return sum(split.size_bytes for split in self.splits)

    def run(self, progressed: Callable[[int, str], None] = lambda size_bytes, note: None) -> TableExportResult:
        """Append everything, one commit after the other. What is committed stays, even if a later commit fails.

        A partition ends before its first range that cannot be read. That range is reported, and the next run tries it again.

        progressed  called with bytes of `size_bytes` that are done, and a partition
        """
        commits, ranges, failed = 0, 0, list(self.failures)
        stopped: dict[PartitionId, int] = {}  # by partition, the first offset of the range that cannot be read
        for group in _commits(self.splits, self._commit_bytes):
            splits = [each for each in group if each.partition_id not in stopped]
            try:
                self._append(splits)
            except SPARK_ERRORS:
                bad = self._unreadable(splits)
                if not bad:
                    raise
                for split, error in sorted(bad, key=lambda each: each[0].first):
                    if split.partition_id not in stopped:
                        stopped[split.partition_id] = split.first
                        failed.append(Failure(topic=split.topic, partition=split.partition, first=split.first, end=split.end, error=error))
                splits = [each for each in splits if each.first < stopped.get(each.partition_id, each.end)]
                self._append(splits)
            commits, ranges = commits + bool(splits), ranges + len(splits)
            progressed(sum(split.size_bytes for split in group), str(group[-1].partition_id))
        return TableExportResult(commits, ranges, tuple(failed))

    # What the table holds

    def _new_document(self, store: ObjectStore) -> TableDocument:
        return TableDocument(
            store=store.url,
            read_committed=self._query.read_committed,
            columns=self._query.columns,
            sequence=0,
            commit_id=uuid4().hex,
            topics=(),
        )

    def _held_document(self, store: ObjectStore, history: TableHistory, *, read_only: bool) -> TableDocument:
        commits = history.read()
        held = newest_document(commits, history.mirror(), self._table)
        if held is None:
            held = self._taken_over(store)
            if not read_only:
                history.keep_mirror(Mirror.of(held, commits.newest))
        for what, was, now in (
            ("archive", held.store, self._document.store),
            ("isolation", _isolation(held.read_committed), _isolation(self._document.read_committed)),
            ("set of columns", ", ".join(held.columns), ", ".join(self._document.columns)),
        ):
            if was != now:
                raise UsageError(f"{self._table} holds an export of another {what}: {was}, not {now}; name another table")
        return msgspec.structs.replace(held, sequence=max(held.sequence, commits.sequence_max))

    def _taken_over(self, store: ObjectStore) -> TableDocument:
        """The progress by the rows alone, as the version before this one kept it."""
        rows = self._spark.table(self._table)
        if set(rows.columns) != set(table_schema(self._query).names):
            raise UsageError(f"{self._table} is no export, or has other columns: {', '.join(rows.columns)}; name another table")
        found = (
            rows.groupBy("topic", "topicId", "partition")
            .agg(F.max("rangeEnd").alias("end"), F.max("offset").alias("last"), F.max_by("leaderEpoch", "offset").alias("epoch"))
            .collect()
        )
        if not found:
            return self._document
        self.notes.append(
            f"{self._table} was filled by an older version, which kept no progress: its progress is taken over from its rows, once, as an"
            f" export of this archive with {_isolation(self._query.read_committed)}; ranges whose rows were all deleted are exported again"
        )
        owner = ManifestRepository(store).owner()
        cluster_id = owner.cluster_id if owner else ArchiveSnapshot.survey(store, self._query).heads[0].cluster_id
        places = {
            PartitionId(cluster_id, row["topicId"], row["partition"], row["topic"]): Reached(
                row["end"], row["epoch"] if row["last"] == row["end"] - 1 else None
            )
            for row in found
        }
        return msgspec.structs.replace(self._document, topics=encode_places(places))

    def _rows_beyond(self, splits: Sequence[Split]) -> dict[PartitionId, Reached]:
        """Partitions of which the table already holds rows of `splits`. Spark reads only the statistics of files without such rows."""
        firsts: dict[PartitionId, int] = {}
        for split in splits:
            firsts.setdefault(split.partition_id, split.first)
        found: dict[PartitionId, Reached] = {}
        partitions = sorted(firsts)
        for start in range(0, len(partitions), _COMPARED):
            some = partitions[start : start + _COMPARED]
            beyond = F.lit(False)
            for each in some:
                same = (F.col("topic") == each.topic) & (F.col("topicId") == each.topic_id) & (F.col("partition") == each.partition)
                beyond |= same & (F.col("rangeEnd") > firsts[each])
            rows = self._spark.table(self._table).where(beyond).groupBy("topicId", "partition").agg(F.max("rangeEnd").alias("end"))
            ends = {(row["topicId"], row["partition"]): row["end"] for row in rows.collect()}
            found |= {each: Reached(ends[each.topic_id, each.partition]) for each in some if (each.topic_id, each.partition) in ends}
        return found

    # What a run adds to it

    def _append(self, splits: Sequence[Split]) -> None:
        if not splits:
            return
        if self._history is None:
            self._history = self._create()
        places = self._places_after(splits)
        document = msgspec.structs.replace(
            self._document, sequence=self._document.sequence + 1, commit_id=uuid4().hex, topics=encode_places(places)
        )
        tasks = [(bytearray(pickle.dumps((split, pending_of(split.partition_id, split.first, split.end)))),) for split in splits]
        context = self._spark.sparkContext
        rows = self._spark.createDataFrame(context.parallelize(tasks, len(tasks)), "task binary").mapInArrow(
            _Read(self._place, self._query), from_arrow_schema(table_schema(self._query))
        )
        failure = None
        try:
            self._history.append(rows, document)
        except SPARK_ERRORS as error:  # the commit may have succeeded all the same
            failure = error
        commits = self._history.read()
        documents = [each.document for each in commits.commits if each.document]
        newest = documents[0] if documents else None
        if newest is None or newest.commit_id != document.commit_id:
            if failure is not None:
                raise failure
            raise Locked(
                f"{self._table}: another export appended to it meanwhile, and these rows were not appended; let one export own a table"
            )
        if len(documents) > 1 and documents[1].commit_id != self._document.commit_id:
            raise Locked(
                f"{self._table}: another export appended to it meanwhile: ranges of its commit {documents[1].commit_id} and of"
                f" {document.commit_id} may be there twice. Roll the table back to before both, and let one export own it"
            )
        self._document, self._places = document, dict(places)
        milestones.reached("export.table_committed")
        self._history.keep_mirror(Mirror.of(document, commits.newest))
        milestones.reached("export.table_mirrored")

    def _create(self) -> TableHistory:
        empty = self._spark.createDataFrame([], from_arrow_schema(table_schema(self._query)))
        writer = empty.writeTo(self._table).using(self._format).partitionedBy(F.col("topic"), F.col("date"))
        writer.tableProperty(Mirror.PROPERTY, Mirror.of(self._document, None).encode()).create()
        milestones.reached("export.table_created")
        return open_history(self._spark, self._table)

    def _places_after(self, splits: Iterable[Split]) -> Places:
        ends = {split.partition_id: split.end for split in splits}  # in the order of their offsets
        reached = {each: Reached(end, self._backlog.heads[each].leader_epoch_at(end - 1)) for each, end in ends.items()}
        return {**self._places, **reached}

    def _unreadable(self, splits: Sequence[Split]) -> list[tuple[Split, str]]:
        """The ranges that cannot be read, and why. Reads them again only to find this out."""
        work = partial(_try, query=self._query)
        return [(split, error) for split, error in OnSpark(self._place, self._spark.sparkContext).each(work, splits) if error is not None]


def _isolation(read_committed: bool) -> str:
    return "read_committed" if read_committed else "read_uncommitted"


def table_schema(query: Query) -> pa.Schema:
    fields = [pa.field("topic", pa.string()), pa.field("date", pa.date32()), *export_schema(query)]
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


def _try(store: ObjectStore, split: Split, *, query: Query) -> tuple[Split, str | None]:
    try:
        for _ in read_split(store, split, query):
            pass
    except (DiskFull, Unauthorised):
        raise  # every other range would fail, too
    except HeadwaterError as error:
        return split, str(error)
    return split, None


def _commits(splits: Iterable[Split], commit_bytes: int) -> Iterator[list[Split]]:
    """Splits in their order, in groups of about `commit_bytes`."""
    group: list[Split] = []
    size_bytes = 0
    for split in splits:
        group.append(split)
        size_bytes += split.size_bytes
        if size_bytes >= commit_bytes:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
