"""Archived topics as a stream: micro-batches that follow the heads. scan/progress.py decides what has been read and what comes next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, LostDocument, OffsetRange, latest
from headwater.pipeline.scan.progress import Progress, advance, begin_of, check_progress, decode_progress, place_at
from headwater.pipeline.scan.quarantine import read_snapshot
from headwater.pipeline.scan.query import Bound, Edge, Query
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.splits import plan_splits
from headwater.pipeline.spark.tasks import opened, read_partition, report_to_spark
from headwater_core.errors import TransientError, UsageError
from headwater_core.partition import TopicPartition
from manifests.head import Head
from manifests.repository import ManifestRepository

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which does not look for it

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


log = structlog.get_logger()


def parse_stream_query(options: Mapping[str, object]) -> Query:
    """The query of a stream: without an end and, as in Spark's own Kafka source, from the latest offsets by default."""
    query = parse_query(options)
    if query.ending != Bound(Edge.LATEST):
        raise UsageError("a stream has no end: remove endingOffsets and endingTimestamp")
    if not _STARTS & {name.replace("_", "").lower() for name in options}:
        query = replace(query, starting=Bound(Edge.LATEST))
    return query


_STARTS = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the archive for a streaming query. One object in one process finds offsets and plans batches; others read them.

    The heads that decide the end of a batch are also used to plan it, so each batch reads them once.
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        self._heads: dict[TopicPartition, Head] = {}
        self._lost: tuple[LostDocument, ...] = ()
        self._target: dict[TopicPartition, int] | None = None  # the end of Trigger.AvailableNow
        self._last: Progress | None = None  # Spark 4.1 does not pass it

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are those that follow
        """Spark calls it once in the life of a checkpoint."""
        store = opened(self._query)
        snapshot = self._read_snapshot()
        begins = {each.head.partition_id.topic_partition: each.first for each in snapshot.ranges(store, self._query)}
        self._last = place_at(self._heads, {**self._ends(), **begins})  # the others have nothing to read yet
        return self._last.encode()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing new, or when the bucket does not answer.

        Spark 4.1 passes neither `start` nor `limit`. There the progress of a query is known only when it plans a batch, so that
        its first batch may hold all that has accumulated.
        """
        begin = self._last if start is None else decode_progress(start)
        try:
            self._read_snapshot()
        except TransientError as error:
            if start is None or self._target is not None:  # there is no `start` to return, or it would end the query
                raise
            log.warning("look_postponed", reason=str(error))
            return start
        ends = self._ends()
        if self._target is not None:
            ends = {partition: min(end, self._target[partition]) for partition, end in ends.items() if partition in self._target}
        if begin is None:
            return place_at(self._heads, ends).encode()
        self._check(begin)
        max_offsets, max_bytes = _limits(limit, self._query)
        return advance(begin, self._heads, ends, max_offsets=max_offsets, max_bytes=max_bytes).encode()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Spark takes one limit only; when both are set, `latestOffset` applies the other one as well."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        if self._query.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._query.max_bytes_per_trigger)
        if self._query.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._query.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._read_snapshot()
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress report: what can be read, by the last snapshot, and the open transactions that end it."""
        if not self._heads:
            return None
        bounds = (OffsetRange(self._heads[partition], end, end) for partition, end in self._ends().items())
        hiding = {str(bound.head.partition_id): bound.end for bound in bounds if bound.open_transaction(self._query)}
        return place_at(self._heads, self._ends()).encode() | ({"openTransactions": hiding} if hiding else {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between two offsets. The batch may have been planned before the query was restarted."""
        begin, finish = decode_progress(start), decode_progress(end)
        if not all(
            partition in self._heads and reached.next_offset <= self._heads[partition].next_offset
            for partition, reached in finish.reached.items()
        ):
            self._read_snapshot()
        for place in (begin, finish):
            self._check(place)
        for partition, reached in finish.reached.items():
            lost = self._lost_by(partition)
            if lost and reached != begin.reached.get(partition):  # the checkpoint has it in this batch
                raise lost.error
        self._last = finish
        ranges = [
            OffsetRange(head, begin_of(begin, head), finish.reached[partition].next_offset)
            for partition, head in self._heads.items()
            if partition in finish.reached and begin_of(begin, head) < finish.reached[partition].next_offset
        ]
        splits = plan_splits(ranges, self._query)
        report_to_spark("batch_planned", partitions=len(ranges), splits=len(splits), offsets=sum(each.end - each.first for each in ranges))
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._query)

    def _read_snapshot(self) -> ArchiveSnapshot:
        snapshot = read_snapshot(opened(self._query), self._query)
        self._heads, self._lost = _by_name(snapshot), snapshot.lost
        return snapshot

    def _lost_by(self, place: TopicPartition) -> LostDocument | None:
        return next((each for each in self._lost if each.covers(place)), None)

    def _check(self, place: Progress) -> None:
        """Like check_progress, without partitions whose document is damaged: they keep their progress."""
        known = {each: reached for each, reached in place.reached.items() if not self._lost_by(each)}
        check_progress(
            replace(place, reached=known),
            self._heads,
            allow_loss=not self._query.fail_on_data_loss,
            advice=self._query.advice,
            is_selected=self._query.selection.includes,
            is_former=self._is_former,
        )

    def _is_former(self, cluster_id: str) -> bool:
        owner = ManifestRepository(opened(self._query)).owner()
        return owner is not None and cluster_id in owner.former

    def _ends(self) -> dict[TopicPartition, int]:
        return {partition: latest(head, read_committed=self._query.read_committed) for partition, head in self._heads.items()}


def _by_name(snapshot: ArchiveSnapshot) -> dict[TopicPartition, Head]:
    return {head.partition_id.topic_partition: head for head in snapshot.heads}


def _limits(limit: object, query: Query) -> tuple[int | None, int | None]:
    """(offsets, bytes) of a batch: the query's limits, except when Spark requests everything, as for Trigger.Once."""
    if type(limit).__name__ == "ReadAllAvailable":
        return None, None
    return query.max_offsets_per_trigger, query.max_bytes_per_trigger
