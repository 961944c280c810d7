"""One range of offsets as Parquet files by day, with the origin of each row.

    DIR/topic=<topic>/date=<day>/<topic id>-<partition>-<first>-<end>-<n>.parquet

The day is the record's, in UTC; 1970-01-01 for a record without a time (-1 ms) or beyond year 9999. Readers guess the type
of what a path says. So a topic whose name may be taken for a number, such as 007, has `@` after it there, and the files have a column
`topicName`. A directory that an older version began keeps to what that version wrote (FileLayout).

`n` counts the files of one range and day: more than one when a range jumps between more days
than files may be open.
"""

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.pipeline.export.checkpoint import FileLayout, PlannedRange
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import Split
from headwater_core import milestones
from headwater_core.errors import UsageError
from headwater_core.files import PARTIAL, disk_errors, sync_path
from headwater_core.objectstore.store import ObjectStore

MILESTONES = ("export.written", "export.placed")
LINEAGE = pa.schema(
    [
        pa.field("topicId", pa.string()),
        pa.field("leaderEpoch", pa.int32()),
        pa.field("object", pa.string()),
        pa.field("rangeFirst", pa.int64()),
        pa.field("rangeEnd", pa.int64()),
    ]
)
TOPIC_NAME = pa.field("topicName", pa.string())  # not `topic`: readers refuse a column that the path has, too, with another type
BUFFER_BYTES = 64 << 20  # of Arrow data in one task, before it becomes row groups
DAYS_OPEN_MAX = 32  # files of one task that are written at once
_DAY_US = 24 * 3600 * 1_000_000
_NO_TIME_US = -1000  # -1 ms: what a producer without a clock wrote
_FIRST_DAY = int(np.datetime64("0001-01-01", "D").astype(np.int64))
_LAST_DAY = int(np.datetime64("9999-12-31", "D").astype(np.int64))
_NO_DAY = _FIRST_DAY - 1


@dataclass(frozen=True, slots=True)
class Files:
    """What was written."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Files") -> "Files":
        return Files(self.files + other.files, self.rows + other.rows, self.size_bytes + other.size_bytes)


def write_range(store: ObjectStore, split: Split, query: Query, pending: PlannedRange, directory: Path, layout: FileLayout) -> Files:
    """Write the range. Its files get their names when all of them are complete and on disk.

    Files of an earlier attempt are replaced or removed. Raises DiskFull, UsageError, and what read_split does.
    """
    topic = directory / layout.folder(split.topic)
    writer = _Writer(topic, pending, layout.no_day)
    with disk_errors(topic, UsageError):
        try:
            with closing(read_split(store, split, query)) as batches:
                for batch in batches:
                    rows = with_lineage(batch, split, pending)
                    writer.add(rows if layout is FileLayout.PATH_ONLY else _with_topic(rows, split.topic))
            written = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        milestones.reached("export.written")
        for partial, path in written:
            partial.rename(path)
            milestones.reached("export.placed")
        for folder in {path.parent for _, path in written}:
            sync_path(folder)
        kept = {path for _, path in written}
        for name in (f"{pending.name}-*.parquet", f".{pending.name}-*{PARTIAL}"):
            for path in topic.glob(f"date=*/{name}"):
                if path not in kept:
                    path.unlink()
        return Files(len(kept), writer.rows, sum(path.stat().st_size for path in kept))


def files_of(directory: Path, pending: PlannedRange, layout: FileLayout) -> list[Path]:
    """The range's files in the directory of an export; some may be missing."""
    return sorted((directory / layout.folder(pending.topic)).glob(f"date=*/{pending.name}-*.parquet"))


def export_schema(query: Query) -> pa.Schema:
    """The columns of every export: those of the query without the topic, and LINEAGE."""
    columns = arrow_schema([name for name in query.columns if name != "topic"])
    return pa.schema([*columns, *LINEAGE])


def with_lineage(batch: pa.RecordBatch, split: Split, pending: PlannedRange) -> pa.RecordBatch:
    """The rows with the columns of LINEAGE: topic id, leader epoch, object, and the range that they are exported with."""
    offsets = batch.column("offset").to_numpy()
    bases, keys = zip(*((entry.base_offset, entry.key) for entry in split.entries), strict=True)
    objects = pa.DictionaryArray.from_arrays(pa.array(np.searchsorted(bases, offsets, "right") - 1, pa.int32()), list(keys))
    firsts, epochs = _epochs(split)
    written = epochs[np.searchsorted(firsts, offsets, "right") - 1]
    columns = [
        pa.repeat(pa.scalar(split.topic_id), len(batch)),
        pa.array(written, pa.int32(), mask=written < 0),
        objects.cast(pa.string()),
        pa.repeat(pa.scalar(pending.first, pa.int64()), len(batch)),
        pa.repeat(pa.scalar(pending.end, pa.int64()), len(batch)),
    ]
    names = [name for name in batch.schema.names if name != "topic"]
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in names), *columns],
        schema=pa.schema([*(batch.schema.field(name) for name in names), *LINEAGE]),
    )


def _with_topic(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    columns = [*rows.columns, pa.repeat(pa.scalar(topic), len(rows))]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*rows.schema, TOPIC_NAME]))


def _epochs(split: Split) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First offsets, rising, and the leader epoch from each on; -1 where it is unknown."""
    steps_of: dict[int, int] = {-1: -1}
    for entry in split.entries:
        steps_of.setdefault(entry.base_offset, -1)
        steps_of.update((first, epoch) for epoch, first in entry.epochs)
    firsts = sorted(steps_of)
    return np.array(firsts, np.int64), np.array([steps_of[first] for first in firsts], np.int64)


class _Writer:
    """The files of one range, by day. Holds BUFFER_BYTES of rows and DAYS_OPEN_MAX open files."""

    def __init__(self, topic: Path, pending: PlannedRange, no_day: str) -> None:
        self._topic, self._name, self._no_day = topic, pending.name, no_day
        self._buffered: dict[int, list[pa.RecordBatch]] = {}
        self._buffered_bytes = 0
        self._open: dict[int, tuple[pq.ParquetWriter, Path]] = {}
        self._written: list[tuple[Path, Path]] = []
        self._numbers: dict[int, int] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += len(batch)
        for day, rows in _by_day(batch):
            self._buffered.setdefault(day, []).append(rows)
            self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= BUFFER_BYTES:
            self._flush()

    def finish(self) -> list[tuple[Path, Path]]:
        """(present name, final name) of each file, complete and on disk."""
        self._flush()
        self._close()
        return self._written

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._close()
        for partial, _ in self._written:
            partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        for day, rows in sorted(self._buffered.items()):
            if day not in self._open and len(self._open) == DAYS_OPEN_MAX:
                self._close()
            if day not in self._open:
                self._open[day] = self._create(day, rows[0].schema)
            self._open[day][0].write_table(pa.Table.from_batches(rows))
        self._buffered.clear()
        self._buffered_bytes = 0

    def _create(self, day: int, schema: pa.Schema) -> tuple[pq.ParquetWriter, Path]:
        number = self._numbers[day] = self._numbers.get(day, -1) + 1
        folder = self._topic / f"date={self._no_day if day == _NO_DAY else _day_text(day)}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._name}-{number}.parquet"
        partial = folder / f".{path.name}.{secrets.token_hex(4)}{PARTIAL}"  # of this attempt alone: a task of a killed run may still write
        self._written.append((partial, path))
        repeated = [name for name in ("partition", "timestampType", *LINEAGE.names, TOPIC_NAME.name) if name in schema.names]
        return pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=repeated), partial

    def _close(self) -> None:
        for writer, partial in self._open.values():
            writer.close()
            sync_path(partial)
        self._open.clear()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day, in their order; days are counted from 1970-01-01."""
    days = _days(batch)
    for day in np.unique(days):
        wanted = days == day
        yield int(day), batch if wanted.all() else batch.filter(pa.array(wanted))


def days_of(batch: pa.RecordBatch) -> pa.Array:
    """The day of each row, in UTC; null without a time."""
    days = _days(batch)
    return pa.array(days.astype(np.int32), pa.date32(), mask=days == _NO_DAY)


def _days(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    times: npt.NDArray[np.int64] = batch.column("timestamp").cast(pa.int64()).fill_null(_NO_TIME_US).to_numpy()
    days = np.floor_divide(times, _DAY_US)
    days[(times == _NO_TIME_US) | (days < _FIRST_DAY) | (days > _LAST_DAY)] = _NO_DAY
    return days


def _day_text(day: int) -> str:
    return str(np.datetime64(day, "D"))
