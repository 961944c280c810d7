"""Decodes record batches, as the archive holds them, to Arrow; the columns are those of Spark's own Kafka source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipeline.scan import kernels
from headwater.pipeline.scan.kernels import Bytes, Flags, Ints, Longs
from headwater.pipeline.scan.query import COLUMNS
from headwater_core.errors import CorruptData
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import HEADER_BYTES, wrong_crc
from headwater_core.segments.codecs import LIMIT_BYTES, NAMES, decompress_into
from headwater_core.segments.records import decode_batch
from headwater_core.segments.transactions import AbortedTransaction

ROWS_MAX = 1 << 18
BYTES_MAX = 8 << 20

_HEADERS = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
_FIELDS = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string()),
    "partition": pa.field("partition", pa.int32()),
    "offset": pa.field("offset", pa.int64()),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": pa.field("timestampType", pa.int32()),
    "headers": pa.field("headers", pa.list_(_HEADERS)),
}
_DEPTHS = {"key": kernels.KEY, "value": kernels.VALUE, "headers": kernels.HEADERS}
_TABLE_ROWS = 1 << 16
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Names and types as Spark's own Kafka source has them, in the order of `columns`; every one of COLUMNS may be left out."""
    return pa.schema([_FIELDS[name] for name in columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records of one partition are wanted, and which columns of them.

    columns          some of COLUMNS, in the wanted order; without any, rows are counted
    first, end       offsets in [first, end)
    first_timestamp_ms, end_timestamp_ms  timestamps in [first, end); None for no bound
    aborted          transactions whose records are left out
    """

    topic: str
    partition: int
    columns: tuple[str, ...]
    first: int
    end: int
    first_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()

    def __post_init__(self) -> None:
        if not set(self.columns) <= set(COLUMNS) or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns {self.columns}, of {COLUMNS}")
        if not 0 <= self.first <= self.end <= _INT64_MAX:
            raise ValueError(f"offsets [{self.first}, {self.end})")


def decode(
    buffer: memoryview,
    wanted: Wanted,
    *,
    where: str,
    position: int = 0,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    passed: Callable[[int], None] = lambda next_offset: None,
) -> Iterator[pa.RecordBatch]:
    """The wanted records in `buffer`, which holds whole batches, in offset order; control records are never among them.

    where, position  the object and where in it `buffer` begins, for errors
    rows_max         of one RecordBatch
    bytes_max        about as many bytes of records in one RecordBatch; one record may be larger, 2 GiB are never reached
    passed           called with an offset when every wanted record below it has been yielded

    A record without headers has null there, as in Spark. A timestamp beyond what microseconds in 64 bits hold, which no
    clock shows, is null; -1 is what a producer without a clock wrote, and stays. Bytes in a header's name that are no UTF-8
    are replaced.

    Raises CorruptData when a batch is cut off, its header impossible or its CRC wrong, when offsets do not rise, and when
    what is read of its records does not agree with itself; UnsupportedFormat for other formats and codecs. What was yielded
    before stands. What no wanted column needs is not looked at, though every CRC is: values are neither decompressed nor
    decoded to count them, and records outside the bounds are skipped, whole batches of them by their headers.
    """
    scan = _Scan(buffer, wanted, where, position, rows_max, min(bytes_max, LIMIT_BYTES))
    for table in scan.tables():
        for start, end_row in scan.groups(table):
            yield from scan.read(table, start, end_row)
            last = table[end_row - 1]
            passed(int(last[kernels.BASE_OFFSET] + last[kernels.LAST_DELTA]) + 1)


class _Scan:
    def __init__(self, buffer: memoryview, wanted: Wanted, where: str, position: int, rows_max: int, bytes_max: int) -> None:
        self._buffer, self._raw, self._wanted = buffer, _read_only(buffer), wanted
        self._where, self._position = where, position
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._depth = max((_DEPTHS.get(name, kernels.TIMES) for name in wanted.columns), default=kernels.TIMES)
        self._first_timestamp_ms = max(_INT64_MIN, min(_or(wanted.first_timestamp_ms, _INT64_MIN), _INT64_MAX))
        self._last_timestamp_ms = max(_INT64_MIN, min(_or(wanted.end_timestamp_ms, _INT64_MAX + 1) - 1, _INT64_MAX))
        self._schema = arrow_schema(wanted.columns)
        self._unpacked = memoryview(b"")

    def tables(self) -> Iterator[Longs]:
        """The batches of the buffer, some ten thousand at a time, every CRC verified."""
        wanted, aborted = self._wanted, _by_producer(self._wanted.aborted)
        timed = wanted.first_timestamp_ms is not None or wanted.end_timestamp_ms is not None
        table = np.empty((min(_TABLE_ROWS, len(self._raw) // HEADER_BYTES + 1), kernels.TABLE_COLUMNS), np.int64)
        at, last_offset, last_epoch = 0, -1, -1
        while at < len(self._raw):
            rows, at, last_offset, last_epoch, sound = kernels.scan_batches(
                self._raw, at, last_offset, last_epoch, wanted.first, wanted.end, self._first_timestamp_ms, self._last_timestamp_ms, timed,
                aborted, self._depth, "offset" in wanted.columns, "timestamp" in wanted.columns,
                LIMIT_BYTES // kernels.RECORD_BYTES_MIN, table,
            )  # fmt: skip
            found = table[:rows]
            unverified = found[found[:, kernels.CRC] >= 0][:, [kernels.POSITION, kernels.END, kernels.CRC]].tolist()
            if wrong_crc(self._buffer, unverified) is not None or not sound:
                self._refuse_batch()
            yield found

    def groups(self, table: Longs) -> Iterator[tuple[int, int]]:
        """Rows of the table that together make a RecordBatch of the requested size; their batches are decompressed."""
        plans = table[:, kernels.PLAN]
        read = np.isin(plans, (kernels.PARSE, kernels.UNPACK))
        sizes = np.cumsum(np.where(read, table[:, kernels.BODY_TO] - table[:, kernels.BODY_FROM], 0))
        counts = np.cumsum(table[:, kernels.RECORDS])
        start = 0
        while start < len(table):
            size, count = (int(sums[start - 1]) if start else 0 for sums in (sizes, counts))
            end_row = int(
                min(np.searchsorted(sizes, size + self._bytes_max, "right"), np.searchsorted(counts, count + self._rows_max, "right"))
            )
            end_row = max(end_row, start + 1)
            packed = start + np.flatnonzero(plans[start:end_row] == kernels.UNPACK)
            if len(packed):
                end_row = self._unpack(table, packed, end_row)
            yield start, end_row
            start = end_row

    def _unpack(self, table: Longs, packed: npt.NDArray[np.intp], end_row: int) -> int:
        """Decompress the batches `packed`, one after the other, as many as there is room for; returns the end of that group."""
        filled = 0
        if not len(self._unpacked):
            self._unpacked = memoryview(pa.allocate_buffer(2 * self._bytes_max))
        for row in packed.tolist():
            while True:
                if filled >= self._bytes_max:
                    return int(row)
                size = self._decompress(table[row], self._unpacked[filled:])
                if size is not None:
                    break
                if filled:
                    return int(row)
                self._unpacked = memoryview(pa.allocate_buffer(min(4 * len(self._unpacked), LIMIT_BYTES)))
            table[row, kernels.BODY_FROM], table[row, kernels.BODY_TO] = filled, filled + size
            filled += size
        return end_row

    def _decompress(self, row: Longs, out: memoryview) -> int | None:
        codec = int(row[kernels.ATTRIBUTES]) & 7
        body = self._buffer[int(row[kernels.BODY_FROM]) : int(row[kernels.BODY_TO])]
        try:
            size = decompress_into(codec, body, out, where=f"{self._where}, byte {self._position + int(row[kernels.POSITION])}")
        except CorruptData as error:
            self._refuse(row, error.reason)
        if size is None and len(out) >= LIMIT_BYTES:
            self._refuse(row, f"{NAMES[codec]}: more than {LIMIT_BYTES} bytes come out of {len(body)}")
        return size

    def read(self, table: Longs, start: int, end_row: int) -> Iterator[pa.RecordBatch]:
        wanted, columns = self._wanted, set(self._wanted.columns)
        group = table[start:end_row]
        if not group[:, kernels.PLAN].any():
            return
        bodies = group[:, kernels.BODY_TO] - group[:, kernels.BODY_FROM]
        counted = group[:, kernels.PLAN] == kernels.COUNT
        possible = np.where(counted, group[:, kernels.RECORDS], np.minimum(group[:, kernels.RECORDS], bodies // kernels.RECORD_BYTES_MIN))
        rows_most, bytes_most = int(possible.sum()), int(bodies[group[:, kernels.PLAN] > kernels.COUNT].sum())
        offsets, timestamps = (np.empty(rows_most if name in columns else 0, np.int64) for name in ("offset", "timestamp"))
        timestamp_types = np.empty(rows_most if "timestampType" in columns else 0, np.int32)
        keys, values = (_Binary(rows_most if name in columns else -1, bytes_most) for name in ("key", "value"))
        header_at = np.empty(rows_most if "headers" in columns else 0, np.int64)
        header_count = np.empty(len(header_at), np.int32)
        (malformed, rows, key_bytes, value_bytes, null_keys, null_values, headers, name_bytes, header_bytes, lost) = kernels.scan_records(
            self._raw, _read_only(self._unpacked), table, start, end_row, wanted.first, wanted.end, self._first_timestamp_ms,
            self._last_timestamp_ms, self._depth, offsets, timestamps, timestamp_types, keys.writable(), keys.ends, keys.valid,
            values.writable(), values.ends, values.valid, header_at, header_count,
        )  # fmt: skip
        if malformed >= 0:
            self._refuse_records(table[malformed])
        if not rows:
            return
        arrays: dict[str, pa.Array] = {}
        if "key" in columns:
            arrays["key"] = keys.array(rows, key_bytes, null_keys)
        if "value" in columns:
            arrays["value"] = values.array(rows, value_bytes, null_values)
        if "partition" in columns:
            arrays["partition"] = _array(pa.int32(), rows, None, np.full(rows, wanted.partition, np.int32))
        if "offset" in columns:
            arrays["offset"] = _array(pa.int64(), rows, None, _fit(offsets, rows))
        if "timestamp" in columns:
            known = timestamps[:rows] != kernels.NO_TIMESTAMP if lost else None
            arrays["timestamp"] = _array(_FIELDS["timestamp"].type, rows, known, _fit(timestamps, rows))
        if "timestampType" in columns:
            arrays["timestampType"] = _array(pa.int32(), rows, None, _fit(timestamp_types, rows))
        if "headers" in columns:
            arrays["headers"] = self._headers(header_at, header_count[:rows], headers, name_bytes, header_bytes)
        yield from self._pieces(arrays, rows, values.ends if "value" in columns else keys.ends)

    def _headers(self, header_at: Longs, counts: Ints, headers: int, name_bytes: int, value_bytes: int) -> pa.Array:
        """A list per row, null where there is none, as Spark's own source has it."""
        names, values = _Binary(headers, name_bytes), _Binary(headers, value_bytes)
        ends = np.zeros(len(counts) + 1, np.int32)
        nulls = kernels.gather_headers(
            self._raw, _read_only(self._unpacked), len(counts), header_at, counts, ends, names.writable(), names.ends, values.writable(),
            values.ends, values.valid,
        )  # fmt: skip
        contents = [names.text(headers, name_bytes), values.array(headers, value_bytes, nulls)]
        some = counts > 0
        pairs = pa.StructArray.from_arrays(contents, fields=list(_HEADERS))
        return _array(_FIELDS["headers"].type, len(counts), None if some.all() else some, ends, children=[pairs])

    def _pieces(self, arrays: dict[str, pa.Array], rows: int, ends: Ints) -> Iterator[pa.RecordBatch]:
        """One RecordBatch, or several when one large batch has become more rows or bytes than wanted. No copies. The topic is written
        out for each alone: a batch of tiny records has more rows than int32 has room for their topic's letters."""
        cuts = set(range(0, rows, self._rows_max)) | {rows}
        if len(ends):
            cuts.update(np.searchsorted(ends[: rows + 1], np.arange(self._bytes_max, ends[rows], self._bytes_max)).tolist())
        for start, end_row in pairwise(sorted(cuts)):
            columns = [
                _repeated(self._wanted.topic, end_row - start) if name == "topic" else arrays[name].slice(start, end_row - start)
                for name in self._wanted.columns
            ]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
            else:
                yield pa.RecordBatch.from_arrays([pa.nulls(end_row - start)], names=["none"]).select([])

    def _refuse_batch(self) -> NoReturn:
        """Raise what the kernel, or a CRC, noticed."""
        try:
            for _ in BatchWalk(self._buffer, 0, len(self._buffer), where=self._where):
                pass
        except CorruptData as error:
            raise type(error)(error.where, self._position + error.position, error.reason) from None
        raise CorruptData(self._where, self._position, "a malformed batch")

    def _refuse_records(self, row: Longs) -> NoReturn:
        try:
            for _ in decode_batch(self._buffer[int(row[kernels.POSITION]) : int(row[kernels.END])]):
                pass
        except CorruptData as error:
            self._refuse(row, f"{error.reason} (byte {error.position} of its records)")
        self._refuse(row, "malformed records")

    def _refuse(self, row: Longs, reason: str) -> NoReturn:
        batch = f"batch at offset {int(row[kernels.BASE_OFFSET])}"
        raise CorruptData(self._where, self._position + int(row[kernels.POSITION]), f"{batch}: {reason}") from None


class _Binary:
    """A binary column while a kernel fills it: room for `size_bytes` in `rows`; rows -1 for a column that is not wanted."""

    def __init__(self, rows: int, size_bytes: int) -> None:
        self._data = pa.allocate_buffer(size_bytes if rows >= 0 else 0, resizable=True)
        self.ends = np.zeros(rows + 1, np.int32)
        self.valid = np.empty(max(rows, 0), np.bool_)

    def writable(self) -> Bytes:
        """A view for a kernel, to be dropped before the column is finished."""
        return np.frombuffer(self._data, np.uint8)

    def array(self, rows: int, size_bytes: int, nulls: int, kind: pa.DataType = _FIELDS["value"].type) -> pa.Array:
        self._data.resize(size_bytes, shrink_to_fit=True)
        return _array(kind, rows, self.valid[:rows] if nulls else None, _fit(self.ends, rows + 1), self._data)

    def text(self, rows: int, size_bytes: int) -> pa.Array:
        """As strings. Brokers do not check them; what is no UTF-8 is replaced, as clients do."""
        if size_bytes == 0 or self.writable()[:size_bytes].max() < 0x80:
            return self.array(rows, size_bytes, 0, pa.string())
        known: dict[bytes, str] = {}
        found = []
        for name in self.array(rows, size_bytes, 0).to_pylist():
            if name not in known:
                known[name] = name.decode("utf-8", "replace")
            found.append(known[name])
        return pa.array(found, pa.string())


def _array(kind: pa.DataType, rows: int, valid: Flags | None, *buffers: object, children: list[pa.Array] | None = None) -> pa.Array:
    """An array over `buffers` as they are; pa.array would do, but imports pandas, which takes a second."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [bitmap, *map(pa.py_buffer, buffers)], children=children)


def _fit(array: npt.NDArray[Any], items: int) -> npt.NDArray[Any]:
    """The first `items`; a copy when that frees more than half: the few rows that a filter left shall not hold the room of all."""
    return array[:items] if 2 * items >= len(array) else array[:items].copy()


def _repeated(text: str, rows: int) -> pa.Array:
    data = text.encode()
    return _array(pa.string(), rows, None, np.arange(rows + 1, dtype=np.int32) * np.int32(len(data)), data * rows)


def _read_only(buffer: memoryview) -> Bytes:
    """Always of the same type, so that kernels are compiled once."""
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False
    return view


def _by_producer(aborted: Sequence[AbortedTransaction]) -> Longs:
    """Rows (producer id, first offset, last offset), sorted. The last offsets of one producer rise, so that the row before any
    offset is the one that may hold it."""
    rows = sorted((each.producer_id, each.first_offset, each.last_offset) for each in aborted)
    for at, (before, row) in enumerate(pairwise(rows), start=1):
        if before[0] == row[0]:
            rows[at] = (row[0], row[1], max(before[2], row[2]))
    return np.array(rows, np.int64).reshape(-1, 3)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
