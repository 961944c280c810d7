"""The loops over batches and records, compiled: they look at every byte, hold no lock while they do, and never read outside
the arrays they are given.

A kernel notices that something is wrong and where; segments.batches and segments.records then say what, so that an error
reads the same in both cases. Their checks and these must agree: tests/headwater/pipeline/scan/test_decoder.py compares the two
on damaged bytes.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import structlog
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.event import Event, Listener, register
from numba.extending import intrinsic

from headwater_core.segments.batches import CRC_FROM, HEADER_BYTES, LENGTH_FROM, OFFSET_MAX

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

# The columns of a batch table, int64 each.
(
    POSITION,  # of the batch in the buffer
    END,  # where it ends
    CRC,  # what its header says; -1 when the kernel has verified it
    BASE_OFFSET,
    LAST_DELTA,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    ATTRIBUTES,
    RECORDS,  # rows it can yield at most; 0 when it is left out
    PLAN,
    BODY_FROM,  # its records: where they begin in the buffer, or in the unpacked bytes
    BODY_TO,
) = range(12)
TABLE_COLUMNS = 12

# What is to be done with a batch.
LEAVE_OUT, COUNT, PARSE, UNPACK = range(4)  # COUNT: its header has all that is wanted

# How far into a record the wanted columns reach; the rest of it is not read.
TIMES, KEY, VALUE, HEADERS = range(4)

MILLISECONDS_MAX = (2**63 - 1) // 1000  # an int64 of microseconds holds no more
NO_TIMESTAMP = -(2**63)  # marks a timestamp beyond that
RECORD_BYTES_MIN = 7  # a length, five one-byte fields and the header count
CRC_IN_KERNEL_BYTES = 1024  # from here on a call of the hardware's CRC costs less than the table's

log = structlog.get_logger()

_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_INT64_MAX = 2**63 - 1


class _Compilations(Listener):
    """Logs when the first kernel is compiled: all of them take half a minute, in which nothing else is to be seen."""

    def __init__(self) -> None:
        self._is_reported = False

    def on_start(self, event: Event) -> None:
        if not self._is_reported and event.data["dispatcher"].py_func.__module__ == __name__:
            self._is_reported = True
            log.warning("decoder_not_compiled", directory=str(event.data["dispatcher"].stats.cache_path or ""))

    def on_end(self, event: Event) -> None:
        pass


register("numba:compile", _Compilations())  # type: ignore[no-untyped-call]


def compiled(function: Kernel) -> Kernel:
    """`function` as machine code, compiled when first called. The code is kept in $NUMBA_CACHE_DIR, else in `__pycache__`,
    else in the user's cache directory; if none of them can be written, or others can write there, each process compiles it again.

    The kept code is used until this file changes, so a kernel uses no functions or constants of other modules but the
    format's own constants.
    """
    options: dict[str, Any] = {"nogil": True, "_nrt": False}  # without _nrt references to the arrays are not counted: six times as fast
    try:
        cached = njit(cache=True, **options)(function)
    except RuntimeError:  # numba's way to say that no directory will do
        cached = None
    kernel: Kernel = cached if cached is not None and _is_private(Path(cached.stats.cache_path)) else njit(**options)(function)
    return kernel


def _is_private(directory: Path) -> bool:
    """Return whether nobody but this user and root can put files there: numba unpickles what it finds, so it would run their code."""
    try:
        path = directory.resolve(strict=True)
        for number, found in enumerate(part.stat() for part in (path, *path.parents)):
            is_shared = found.st_mode & 0o022 and (number == 0 or not found.st_mode & stat.S_ISVTX)  # in a sticky one ours stays ours
            if found.st_uid not in (0, os.geteuid()) or is_shared:
                return False
    except OSError:
        return False
    return True


def _crc_tables() -> Longs:
    """Eight tables, so that eight bytes are one step. CRC-32C, reflected: polynomial 0x82F63B78."""
    tables = np.zeros((8, 256), np.int64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for slice_ in range(1, 8):
        before = tables[slice_ - 1]
        tables[slice_] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


_CRC = _crc_tables()


def _memcpy(_typing: Any, to: Any, to_at: Any, source: Any, source_at: Any, size: Any) -> Any:
    """Four times as fast as a loop over bytes at 1 KB. The caller has checked both ranges."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_at, source, source_at, size = arguments
        pointers = []
        for array, kind, at in ((to, signature.args[0], to_at), (source, signature.args[2], source_at)):
            data = context.make_array(kind)(context, builder, array).data
            pointers.append(builder.gep(data, [at]))
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], size, ir.Constant(ir.IntType(64), 1))  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), generate


_copy: Any = intrinsic(_memcpy)


@compiled
def _number(raw: Bytes, at: int, size: int) -> Any:
    """A big-endian signed integer of `size` bytes."""
    value = np.int64(np.int8(raw[at]))
    for n in range(1, size):
        value = value << 8 | raw[at + n]
    return value


@compiled
def _varint(source: Bytes, at: int, end: int) -> tuple[Any, int]:
    """(value, position after it); the position is -1 when `end` or the 64 bits are passed. Most are one or two bytes long."""
    if at < end:
        value = np.int64(source[at])
        if value < 0x80:
            return value >> 1 ^ -(value & 1), at + 1
        if at + 1 < end and source[at + 1] < 0x80:
            value = value & 0x7F | np.int64(source[at + 1]) << 7
            return value >> 1 ^ -(value & 1), at + 2
    return _long_varint(source, at, end)


@compiled
def _long_varint(source: Bytes, at: int, end: int) -> tuple[Any, int]:
    value = np.int64(0)
    shift = 0
    while at < end and shift < 70:
        byte = np.int64(source[at])
        if shift == 63 and byte > 1:
            break
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value >> 1 & _INT64_MAX ^ -(value & 1), at
        shift += 7
    return np.int64(0), -1


@compiled
def crc32c(raw: Bytes, at: int, end: int) -> int:
    """For batches so small that a call into awscrt costs more: 1.3 GB/s."""
    crc = 0xFFFFFFFF
    while end - at >= 8:
        low = crc ^ (np.int64(raw[at]) | np.int64(raw[at + 1]) << 8 | np.int64(raw[at + 2]) << 16 | np.int64(raw[at + 3]) << 24)
        crc = _CRC[7, low & 0xFF] ^ _CRC[6, low >> 8 & 0xFF] ^ _CRC[5, low >> 16 & 0xFF] ^ _CRC[4, low >> 24]
        crc ^= _CRC[3, raw[at + 4]] ^ _CRC[2, raw[at + 5]] ^ _CRC[1, raw[at + 6]] ^ _CRC[0, raw[at + 7]]
        at += 8
    while at < end:
        crc = crc >> 8 ^ _CRC[0, (crc ^ raw[at]) & 0xFF]
        at += 1
    return crc ^ 0xFFFFFFFF


@compiled
def _is_aborted(aborted: Longs, producer_id: int, offset: int) -> bool:
    """Whether the last row of `aborted` at or before (producer_id, offset) is of that producer and reaches the offset."""
    low, high = 0, len(aborted)
    while low < high:
        middle = (low + high) // 2
        if (aborted[middle, 0], aborted[middle, 1]) <= (producer_id, offset):
            low = middle + 1
        else:
            high = middle
    return low > 0 and aborted[low - 1, 0] == producer_id and aborted[low - 1, 2] >= offset


@compiled
def scan_batches(
    raw: Bytes, position: int, last_offset: int, last_epoch: int, first: int, end: int, first_timestamp_ms: int, last_timestamp_ms: int,
    timed: bool, aborted: Longs, depth: int, offsets: bool, timestamps: bool, records_max: int, table: Longs,
) -> tuple[int, int, int, int, bool]:  # fmt: skip
    """Fill `table` with the batches of `raw` from `position` on, checked as segments.batch_walk.BatchWalk does, and plan each.

    last_offset, last_epoch          of the batch before; -1 at the start
    first, end                       offsets wanted, [first, end)
    first_timestamp_ms, last_timestamp_ms  both inclusive; `timed` when they leave anything out
    aborted                          rows (producer id, first offset, last offset), sorted, the last offsets of a producer rising
    depth, offsets, timestamps       how far into records the wanted columns reach, and whether those two are among them
    records_max                      of a compressed batch: more cannot come out

    Returns (rows filled, position after them, last offset, last epoch, sound). When not sound, the batch at that position is
    malformed or its CRC is wrong. A CRC that is not -1 in the table is still to be verified.
    """
    rows = 0
    while position < len(raw) and rows < len(table):
        if len(raw) - position < HEADER_BYTES:
            return rows, position, last_offset, last_epoch, False
        base, length, epoch = _number(raw, position, 8), _number(raw, position + 8, 4), _number(raw, position + 12, 4)
        crc = _number(raw, position + 17, 4) & 0xFFFFFFFF
        delta, records = _number(raw, position + 23, 4), _number(raw, position + 57, 4)
        batch_end = position + LENGTH_FROM + length
        if raw[position + 16] != 2 or length < HEADER_BYTES - LENGTH_FROM or batch_end > len(raw):
            return rows, position, last_offset, last_epoch, False
        if base <= last_offset or not 0 <= delta <= OFFSET_MAX - base or epoch < last_epoch or not 0 <= records <= delta + 1:
            return rows, position, last_offset, last_epoch, False
        if length < CRC_IN_KERNEL_BYTES:
            if crc32c(raw, position + CRC_FROM, batch_end) != crc:
                return rows, position, last_offset, last_epoch, False
            crc = -1
        attributes, body_bytes = _number(raw, position + 21, 2), batch_end - position - HEADER_BYTES
        max_timestamp_ms, producer_id = _number(raw, position + 35, 8), _number(raw, position + 43, 8)
        append_time = attributes & _LOG_APPEND_TIME != 0
        last_offset, last_epoch = base + delta, epoch

        codec = attributes & _CODEC
        plan = PARSE if codec == 0 else UNPACK
        if (
            attributes & _CONTROL
            or (records == 0 and body_bytes == 0)
            or last_offset < first
            or base >= end
            or (timed and (max_timestamp_ms < first_timestamp_ms or (append_time and max_timestamp_ms > last_timestamp_ms)))
            or (attributes & _TRANSACTIONAL and _is_aborted(aborted, producer_id, base))
        ):
            plan = LEAVE_OUT
        elif depth == TIMES and (append_time or not (timestamps or timed)):
            dense = records == delta + 1  # then its offsets are known: they rise and none is beyond the delta
            whole = first <= base and last_offset < end
            possible = records_max if codec else body_bytes // RECORD_BYTES_MIN
            if (dense or (whole and not offsets)) and 0 < records <= possible:
                plan = COUNT

        row = table[rows]
        row[POSITION], row[END], row[CRC], row[BASE_OFFSET], row[LAST_DELTA] = position, batch_end, crc, base, delta
        row[BASE_TIMESTAMP], row[MAX_TIMESTAMP], row[ATTRIBUTES] = _number(raw, position + 27, 8), max_timestamp_ms, attributes
        row[RECORDS], row[PLAN] = 0 if plan == LEAVE_OUT else records, plan
        row[BODY_FROM], row[BODY_TO] = position + HEADER_BYTES, batch_end
        rows += 1
        position = batch_end
    return rows, position, last_offset, last_epoch, True


@compiled
def scan_records(
    raw: Bytes, unpacked: Bytes, table: Longs, start: int, end_row: int, first: int, end: int, first_timestamp_ms: int,
    last_timestamp_ms: int,
    depth: int, offsets: Longs, timestamps: Longs, timestamp_types: Ints, keys: Bytes, key_ends: Ints, key_valid: Flags, values: Bytes,
    value_ends: Ints, value_valid: Flags, header_at: Longs, header_count: Ints,
) -> tuple[int, int, int, int, int, int, int, int, int, int]:  # fmt: skip
    """Write the wanted records of table[start:end_row] into the columns; an unwanted column is an empty array.

    raw, unpacked            where the bodies lie; UNPACK says which
    offsets ... header_count   one item per row, as many as the batches can have; *_ends one more, its first is 0
    keys, values             the bytes one after the other, with room for all of the bodies
    header_at, header_count  where a row's headers begin (in `unpacked`: ~position) and how many there are

    Returns (malformed, rows, key bytes, value bytes, null keys, null values, headers, bytes of their names, of their values,
    timestamps that are NO_TIMESTAMP); `malformed` is the row of the table whose records do not agree with themselves or with
    their header, as segments.records sees it, else -1.
    """
    rows = key_bytes = value_bytes = null_keys = null_values = headers = name_bytes = header_bytes = lost = 0
    malformed = -1
    for batch in range(start, end_row):
        plan, records, base = table[batch, PLAN], table[batch, RECORDS], table[batch, BASE_OFFSET]
        append_time = table[batch, ATTRIBUTES] & _LOG_APPEND_TIME != 0
        if plan == LEAVE_OUT:
            continue
        if plan == COUNT:
            time = table[batch, MAX_TIMESTAMP]
            for delta in range(max(first - base, 0), min(end - base, records)):
                if len(offsets):
                    offsets[rows] = base + delta
                if len(timestamps):
                    timestamps[rows] = _microseconds(time)
                    lost += timestamps[rows] == NO_TIMESTAMP
                if len(timestamp_types):
                    timestamp_types[rows] = append_time
                rows += 1
            continue
        source = unpacked if plan == UNPACK else raw
        at, body_end = table[batch, BODY_FROM], table[batch, BODY_TO]
        malformed = batch  # until its last record has been read
        if records * RECORD_BYTES_MIN > body_end - at:
            break
        done, previous = 0, -1
        while done < records:
            length, at = _varint(source, at, body_end)
            if at < 0 or length < RECORD_BYTES_MIN - 1 or length > body_end - at:
                break
            record_end = at + length
            time_delta, at = _varint(source, at + 1, record_end)  # one byte of attributes, unused
            if at < 0:
                break
            delta, at = _varint(source, at, record_end)
            if at < 0 or not previous < delta <= table[batch, LAST_DELTA]:
                break
            previous = delta
            time = table[batch, MAX_TIMESTAMP] if append_time else _later(table[batch, BASE_TIMESTAMP], time_delta)
            if not (first <= base + delta < end and first_timestamp_ms <= time <= last_timestamp_ms):
                at = record_end
                done += 1
                continue
            if depth >= KEY:
                size, at = _varint(source, at, record_end)
                if at < 0 or size < -1 or size > record_end - at:
                    break
                if len(key_ends):
                    if size > 0:
                        _copy(keys, key_bytes, source, at, size)
                        key_bytes += size
                    key_ends[rows + 1] = key_bytes
                    key_valid[rows] = size >= 0
                    null_keys += size < 0
                at += max(size, 0)
            if depth >= VALUE:
                size, at = _varint(source, at, record_end)
                if at < 0 or size < -1 or size > record_end - at:
                    break
                if len(value_ends):
                    if size > 0:
                        _copy(values, value_bytes, source, at, size)
                        value_bytes += size
                    value_ends[rows + 1] = value_bytes
                    value_valid[rows] = size >= 0
                    null_values += size < 0
                at += max(size, 0)
            if depth >= HEADERS:
                count, at = _varint(source, at, record_end)
                if at < 0 or not 0 <= count <= (record_end - at) // 2:  # a header takes two bytes or more
                    break
                header_at[rows] = ~at if plan == UNPACK else at
                header_count[rows] = count
                headers += count
                while count > 0:
                    size, at = _varint(source, at, record_end)
                    if at < 0 or not 0 <= size <= record_end - at:
                        break
                    name_bytes += size
                    at += size
                    size, at = _varint(source, at, record_end)
                    if at < 0 or size < -1 or size > record_end - at:
                        break
                    header_bytes += max(size, 0)
                    at += max(size, 0)
                    count -= 1
                if count > 0 or at != record_end:
                    break
            if len(offsets):
                offsets[rows] = base + delta
            if len(timestamps):
                timestamps[rows] = _microseconds(time)
                lost += timestamps[rows] == NO_TIMESTAMP
            if len(timestamp_types):
                timestamp_types[rows] = append_time
            rows += 1
            at = record_end
            done += 1
        if done < records or at != body_end:
            break
        malformed = -1
    return malformed, rows, key_bytes, value_bytes, null_keys, null_values, headers, name_bytes, header_bytes, lost


@compiled
def gather_headers(
    raw: Bytes, unpacked: Bytes, rows: int, header_at: Longs, header_count: Ints, list_ends: Ints, names: Bytes, name_ends: Ints,
    values: Bytes, value_ends: Ints, value_valid: Flags,
) -> int:  # fmt: skip
    """Write the headers that scan_records found and checked; returns how many have a null value."""
    headers = name_bytes = value_bytes = nulls = 0
    for row in range(rows):
        at = header_at[row]
        source = unpacked if at < 0 else raw
        if at < 0:
            at = ~at
        for _ in range(header_count[row]):
            size, at = _varint(source, at, len(source))
            _copy(names, name_bytes, source, at, size)
            name_bytes += size
            name_ends[headers + 1] = name_bytes
            size, at = _varint(source, at + size, len(source))
            if size > 0:
                _copy(values, value_bytes, source, at, size)
                value_bytes += size
                at += size
            value_ends[headers + 1] = value_bytes
            value_valid[headers] = size >= 0
            nulls += size < 0
            headers += 1
        list_ends[row + 1] = headers
    return nulls


@compiled
def _later(time: int, delta: int) -> int:
    """time + delta, held at the ends of an int64."""
    if delta >= 0:
        return time + delta if time <= _INT64_MAX - delta else _INT64_MAX
    return time + delta if time >= -_INT64_MAX - 1 - delta else -_INT64_MAX - 1


@compiled
def _microseconds(time: int) -> int:
    """Of milliseconds; NO_TIMESTAMP when they are more than an int64 holds."""
    return time * 1000 if -MILLISECONDS_MAX <= time <= MILLISECONDS_MAX else NO_TIMESTAMP
