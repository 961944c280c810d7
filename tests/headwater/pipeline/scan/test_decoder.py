"""What the compiled decoder says is what segments.batches and segments.records say, of sound bytes and of damaged ones."""

import base64
import ctypes
import datetime
import hashlib
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.pipeline.scan import decoder, kernels
from headwater.pipeline.scan.decoder import Wanted, arrow_schema, decode
from headwater.pipeline.scan.query import COLUMNS
from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments import codecs
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import HEADER_BYTES, BatchHeader, read_batch_header
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.transactions import AbortedTransaction
from headwater_core.segments.varint import encode_varint
from tests.fixtures import Isolation, expected
from tests.headwater_core.segments import strategies
from tests.headwater_core.segments.builders import a_batch, a_commit, a_record, compress, encode_records, with_crc
from tests.headwater_core.segments.test_fixtures import logs, scans

EVERYTHING = Wanted(topic="orders", partition=7, columns=COLUMNS, first=0, end=2**63 - 1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECONDS_MAX = 2**63 - 1
each_codec = pytest.mark.parametrize("codec", range(5), ids=codecs.NAMES)

Row = dict[str, Any]


def test_a_long_topic_of_very_many_rows_is_cut_before_int32_overflows() -> None:
    """A batch that says it holds as many records as could be in one, compressed: nothing of it is opened for its topic alone."""
    records = codecs.LIMIT_BYTES // kernels.RECORD_BYTES_MIN
    batch = bytearray(a_batch(0, 1, codec=4))
    struct.pack_into(">i", batch, 23, records - 1)
    struct.pack_into(">i", batch, 57, records)
    found = decode(memoryview(with_crc(bytes(batch))), replace(EVERYTHING, topic="t" * 249, columns=("topic",)), where="run")
    first = next(found)
    first.validate(full=True)
    assert first.num_rows == 1 << 18
    assert first.column(0)[first.num_rows - 1].as_py() == "t" * 249


def rows(raw: bytes | memoryview, wanted: Wanted = EVERYTHING, **limits: Any) -> list[Row]:
    """Every row, each RecordBatch checked by Arrow itself; timestamps as microseconds."""
    found: list[Row] = []
    for batch in decode(memoryview(raw), wanted, where="run", **limits):
        batch.validate(full=True)
        assert batch.schema == arrow_schema(wanted.columns)
        assert batch.num_rows
        plain = batch
        if "timestamp" in wanted.columns:
            at = wanted.columns.index("timestamp")
            plain = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
        found.extend(plain.to_pylist() if wanted.columns else [{}] * batch.num_rows)
    return found


def wanted_rows(raw: bytes | memoryview, wanted: Wanted = EVERYTHING) -> list[Row]:
    """The same, by the decoders in plain Python."""
    found = []
    for position, fields in BatchWalk(memoryview(raw), 0, len(raw), where="run"):
        header = BatchHeader(*fields)
        if header.is_control or is_aborted(header, wanted.aborted):
            continue
        for record in decode_batch(raw[position : position + header.size_bytes]):
            if is_wanted(record, wanted):
                found.append(row(record, header.log_append_time, wanted))
    return found


def is_aborted(header: BatchHeader, aborted: Iterable[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset for each in aborted
    )


def is_wanted(record: Record, wanted: Wanted) -> bool:
    return (
        wanted.first <= record.offset < wanted.end
        and (wanted.first_timestamp_ms is None or wanted.first_timestamp_ms <= record.timestamp_ms)
        and (wanted.end_timestamp_ms is None or record.timestamp_ms < wanted.end_timestamp_ms)
    )


def row(record: Record, append_time: bool, wanted: Wanted) -> Row:
    whole = {
        "key": record.key,
        "value": record.value,
        "topic": wanted.topic,
        "partition": wanted.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000 if abs(record.timestamp_ms * 1000) <= MICROSECONDS_MAX else None,
        "timestampType": int(append_time),
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }
    return {name: whole[name] for name in wanted.columns}


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """A few batches of every kind, the offsets between them not always taken."""
    offset, raw = draw(st.integers(0, 20)), b""
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            raw += a_commit(offset, draw(st.integers(1, 3)))
            offset += 1
            continue
        dense = draw(st.booleans())
        records = [a_record(offset + n) for n in range(draw(st.integers(1, 40)))] if dense else draw(strategies.records(base_offset=offset))
        if draw(st.integers(0, 5)) == 0:
            records = []
        append_time = draw(st.none() | st.integers(0, 2**41)) if records else None
        last = max((each.offset for each in records), default=offset) + (0 if dense else draw(st.integers(0, 3)))
        raw += a_batch(
            offset,
            records,
            codec=draw(strategies.codec_numbers),
            xerial=draw(st.booleans()),
            producer=draw(st.sampled_from([None, 1, 2, 3])),
            transactional=draw(st.booleans()),
            log_append_time=append_time,
            delete_horizon=draw(st.none() | st.integers(0, 2**41)),
            last_offset=last,
        )
        offset = last + 1 + draw(st.integers(0, 3))
    return raw


offset_bounds = st.tuples(st.integers(0, 150), st.integers(0, 150)).map(sorted) | st.just([0, 2**63 - 1])
time_bounds = st.none() | st.integers(-2, 2**41) | st.just(1_700_000_000_020)


@st.composite
def transactions(draw: st.DrawFn) -> tuple[AbortedTransaction, ...]:
    """Aborted ones of up to three producers: a producer's begin after its one before has ended."""
    found: list[AbortedTransaction] = []
    for producer_id in (1, 2, 3):
        ends = sorted(draw(st.sets(st.integers(0, 100), max_size=6)))
        found += [AbortedTransaction(producer_id, first, last, 0) for first, last in zip(ends[::2], ends[1::2], strict=False)]
    return tuple(draw(st.permutations(found)))


columns = st.lists(st.sampled_from(COLUMNS), unique=True).map(tuple)


@settings(max_examples=200)
@given(
    raw=runs(),
    bounds=offset_bounds,
    first_timestamp_ms=time_bounds,
    end_timestamp_ms=time_bounds,
    aborted=transactions(),
    columns=columns | st.just(COLUMNS),
    rows_max=st.sampled_from([1, 7, 1 << 18]),
    bytes_max=st.sampled_from([1, 300, 8 << 20]),
)
def test_any_run_of_batches_decodes_as_in_plain_python(
    raw: bytes,
    bounds: Sequence[int],
    first_timestamp_ms: int | None,
    end_timestamp_ms: int | None,
    aborted: tuple[AbortedTransaction, ...],
    columns: tuple[str, ...],
    rows_max: int,
    bytes_max: int,
) -> None:
    wanted = Wanted(
        topic="orders",
        partition=7,
        columns=columns,
        first=bounds[0],
        end=bounds[1],
        first_timestamp_ms=first_timestamp_ms,
        end_timestamp_ms=end_timestamp_ms,
        aborted=aborted,
    )
    assert rows(raw, wanted, rows_max=rows_max, bytes_max=bytes_max) == wanted_rows(raw, wanted)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", ["pantry", "kitchen", "brigade"])
def test_every_record_is_what_the_java_consumer_read(name: str, isolation: Isolation) -> None:
    wanted: dict[tuple[str, int], list[Row]] = {}
    for each in expected(name, isolation):
        wanted.setdefault((each["topic"], each["partition"]), []).append({k: v for k, v in each.items() if k != "leader_epoch"})
    seen = set()
    for log in logs(name):
        place = (log.partition.topic, log.partition.partition)
        found = scans(log)
        committed = isolation == "read_committed"
        stable = found[-1][1].open_from if committed and found else None
        reads = replace(
            EVERYTHING,
            topic=place[0],
            partition=place[1],
            first=log.log_start,
            end=EVERYTHING.end if stable is None else stable,
            aborted=tuple(each for _, scan in found for each in scan.aborted) if committed else (),
        )
        lines = [line(each) for segment in log.segments for each in rows(segment.path.read_bytes(), reads)]
        if not log.partition.topic.startswith("__"):
            assert lines == wanted.get(place, []), log.directory
        seen.add(place)
    assert wanted.keys() <= seen


def line(row: Row) -> Row:
    """A row as the expected files spell it."""
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": row["timestamp"] // 1000,
        "timestamp_type": ("CreateTime", "LogAppendTime")[row["timestampType"]],
        "key": text(row["key"]),
        "value": text(row["value"]),
        "headers": [[each["key"], text(each["value"])] for each in row["headers"] or ()],
    }


def text(content: bytes | None) -> Any:
    if content is None:
        return None
    if len(content) > 2048:
        return {"len": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return base64.b64encode(content).decode()


# Damage


def either(raw: bytes | memoryview, wanted: Wanted = EVERYTHING) -> tuple[Any, Any]:
    """What the two decoders make of the same bytes: rows, or the class of the error."""
    found: list[Any] = []
    for read in (rows, wanted_rows):
        try:
            found.append(read(raw, wanted))
        except CorruptData:
            found.append(CorruptData)
        except UnsupportedFormat:
            found.append(UnsupportedFormat)
    return found[0], found[1]


def test_every_flipped_bit_is_noticed_or_means_the_same_to_both() -> None:
    """Base offsets and leader epochs are behind no checksum: a flip there that still rises cannot be seen, by anybody."""
    raw = a_batch(3, 2) + a_batch(9, 1, codec=codecs.LZ4)
    unseen = 0
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        ours, theirs = either(bytes(damaged))
        assert ours == theirs, bit
        unseen += ours not in (CorruptData, UnsupportedFormat)
    assert unseen <= 2 * 8 * (8 + 4)


@each_codec
def test_every_truncation_is_noticed(codec: int) -> None:
    raw = a_batch(0, 3, codec=codec) + a_batch(3, [bytes(2000)], codec=codec)
    whole = read_batch_header(raw).size_bytes
    for size in range(1, len(raw)):
        if size == whole:
            continue  # a run of whole batches; that there were more is for the index to say
        with pytest.raises(TruncatedData):
            rows(raw[:size])


def test_a_batch_in_wrong_order_is_refused() -> None:
    with pytest.raises(CorruptData, match="batch at offset 2 follows offset 2"):
        rows(a_batch(0, 3) + a_batch(2, 1))
    with pytest.raises(CorruptData, match="leader epoch 1 follows 2"):
        rows(a_batch(0, 3, epoch=2) + a_batch(3, 1, epoch=1))


def guarded(raw: bytes) -> memoryview:
    """`raw` at the very end of its memory: whoever reads a byte behind it dies of it."""
    pages = -(-len(raw) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    end = pages * mmap.PAGESIZE
    memory[end - len(raw) : end] = raw
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, end))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
    return memoryview(memory)[end - len(raw) : end]


def with_body(batch: bytes, body: bytes, records: int | None = None) -> bytes:
    """`batch` with other records inside, its length and CRC right; `body` as it was before compression."""
    header = read_batch_header(batch)
    raw = bytearray(batch[:HEADER_BYTES] + compress(header.codec, body))
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    if records is not None:
        struct.pack_into(">i", raw, 57, records)
    return with_crc(bytes(raw))


hostile_numbers = st.sampled_from([0, 1, -1, -2, 2**31 - 1, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63), 63, 64, 8191, 8192])
patches = (
    st.binary(max_size=4)
    | hostile_numbers.map(encode_varint)
    | st.sampled_from([b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80" * 12])
)


@settings(max_examples=300)
@given(
    records=strategies.records(base_offset=5),
    codec=st.sampled_from([codecs.NONE, codecs.NONE, codecs.ZSTD]),
    at=st.floats(0, 1),
    cut=st.integers(0, 4),
    patch=patches,
    count=st.none() | st.integers(0, 8),
    append_time=st.none() | st.integers(0, 2**41),
)
def test_damage_behind_a_right_checksum_means_the_same_to_both(
    records: list[Record], codec: int, at: float, cut: int, patch: bytes, count: int | None, append_time: int | None
) -> None:
    body = encode_records(records, 5, records[0].timestamp_ms)
    place = int(len(body) * at)
    batch = a_batch(5, records, codec=codec, log_append_time=append_time, last_offset=5 + 30)
    raw = with_body(batch, body[:place] + patch + body[place + cut :], count)
    ours, theirs = either(raw)
    assert ours == theirs
    assert either(guarded(raw))[0] == ours


@given(body=st.binary(max_size=80), count=st.integers(0, 4), codec=strategies.codec_numbers)
@example(body=b"", count=0, codec=codecs.GZIP)
@example(body=b"x", count=0, codec=codecs.NONE)
@example(body=b"x", count=0, codec=codecs.SNAPPY)
def test_any_body_means_the_same_to_both(body: bytes, count: int, codec: int) -> None:
    ours, theirs = either(with_body(a_batch(0, 1, codec=codec, last_offset=9), body, count))
    assert ours == theirs


@pytest.mark.parametrize("records", [2**31 - 1, 20_000_000, 4, 2])
@each_codec
def test_a_count_that_lies_is_refused_before_it_takes_memory(codec: int, records: int) -> None:
    batch = a_batch(0, 3, codec=codec, last_offset=2**31 - 2)
    with pytest.raises(CorruptData, match="run, byte 0: batch at offset 0: "):
        rows(with_body(batch, encode_records([a_record(n) for n in range(3)], 0, a_record(0).timestamp_ms), records))


@each_codec
def test_bytes_that_do_not_decompress_are_named(codec: int) -> None:
    sound = a_batch(0, 2)
    raw = bytearray(a_batch(2, 3, codec=codec)[:HEADER_BYTES] + b"\xff" * 40)
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    with pytest.raises(CorruptData, match=f"topic/0.log, byte {1000 + len(sound)}: batch at offset 2: ") as caught:
        list(decode(memoryview(sound + with_crc(bytes(raw))), EVERYTHING, where="topic/0.log", position=1000))
    assert (caught.value.where, caught.value.position) == ("topic/0.log", 1000 + len(sound))


def test_a_wrong_checksum_is_named_by_its_place_in_the_object() -> None:
    for value_bytes in (10, 5000):  # small batches and large ones are checked by different code
        sound = a_batch(0, 2)
        damaged = bytearray(a_batch(2, [bytes(value_bytes)]))
        damaged[-3] ^= 1
        with pytest.raises(CorruptData, match="CRC mismatch in the batch at offset 2") as caught:
            list(decode(memoryview(sound + bytes(damaged)), EVERYTHING, where="run", position=500))
        assert caught.value.position == 500 + len(sound)


def test_a_codec_that_kafka_does_not_have_is_no_damage() -> None:
    raw = bytearray(a_batch(0, 1, codec=codecs.ZSTD))
    raw[22] |= 7
    with pytest.raises(UnsupportedFormat, match="codec 7"):
        rows(with_crc(bytes(raw)))


def test_more_than_the_limit_does_not_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "LIMIT_BYTES", 1 << 16)
    raw = a_batch(0, [bytes(1 << 15)] * 3, codec=codecs.ZSTD)
    with pytest.raises(CorruptData, match="batch at offset 0: zstd: more than 65536 bytes"):
        rows(raw, bytes_max=1000)


# What is not asked for


def test_a_column_that_is_not_wanted_is_not_looked_at() -> None:
    """The value is sound, the headers are not; in the second batch not even the key is."""
    headers = b"\x00\x00\x00" + encode_varint(-1) + encode_varint(1) + b"v" + encode_varint(77)
    first = with_body(a_batch(0, 1), encode_varint(len(headers)) + headers)
    keys = b"\x00\x00\x00" + encode_varint(5000) + b"abc"
    second = with_body(a_batch(1, 1), encode_varint(len(keys)) + keys)
    assert rows(first, replace(EVERYTHING, columns=("value",))) == [{"value": b"v"}]
    assert [each["offset"] for each in rows(first + second, replace(EVERYTHING, columns=("offset", "timestamp")))] == [0, 1]
    for raw, columns in ((first, COLUMNS), (second, ("key",)), (second, ("value",))):
        with pytest.raises(CorruptData):
            rows(raw, replace(EVERYTHING, columns=columns))


@pytest.mark.parametrize(
    ("columns", "opened"),
    [((), 1), (("topic", "partition", "timestampType"), 1), (("offset",), 2), (("offset", "timestamp"), 3), (("value",), 4)],
)
def test_what_headers_tell_is_not_decompressed(columns: tuple[str, ...], opened: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dense batch, one with holes, one with holes that the end cuts and one in append time; the count is right all the same."""
    calls = []

    def counted(*arguments: Any, **more: Any) -> int | None:
        calls.append(arguments)
        return codecs.decompress_into(*arguments, **more)

    monkeypatch.setattr(decoder, "decompress_into", counted)
    raw = (
        a_batch(0, 4, codec=codecs.ZSTD)
        + a_batch(4, 4, codec=codecs.ZSTD, log_append_time=88)
        + a_batch(8, [a_record(8), a_record(11)], codec=codecs.ZSTD)
        + a_batch(12, [a_record(12), a_record(15)], codec=codecs.ZSTD)
    )
    assert len(rows(raw, replace(EVERYTHING, columns=columns, first=2, end=15))) == 2 + 4 + 2 + 1
    assert len(calls) == opened


def test_batches_outside_the_bounds_are_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(decoder, "decompress_into")
    raw = a_batch(0, 3, codec=codecs.ZSTD) + a_batch(3, 2) + a_batch(5, 3, codec=codecs.ZSTD)
    assert [each["offset"] for each in rows(raw, replace(EVERYTHING, first=3, end=5))] == [3, 4]
    later = a_batch(0, 3, codec=codecs.ZSTD) + a_batch(3, [a_record(3, timestamp=2**41)])
    assert [each["offset"] for each in rows(later, replace(EVERYTHING, first_timestamp_ms=2**41))] == [3]


# Values


def test_a_time_that_microseconds_cannot_hold_is_null_and_a_missing_one_stays() -> None:
    times = [0, -1, 2**63 - 1, (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1]
    raw = a_batch(0, [a_record(n, timestamp=time) for n, time in enumerate(times)])
    assert [each["timestamp"] for each in rows(raw)] == [0, -1000, None, (2**63 - 1) // 1000 * 1000, None]
    assert [each["offset"] for each in rows(raw, replace(EVERYTHING, first_timestamp_ms=1))] == [2, 3, 4]
    horizon = bytearray(a_batch(0, [a_record(0, timestamp=5)], delete_horizon=0))
    struct.pack_into(">q", horizon, 27, 2**63 - 1)  # and the sum is more than 64 bits hold
    assert rows(with_crc(bytes(horizon)))[0]["timestamp"] is None


def test_append_time_says_so() -> None:
    found = rows(a_batch(0, 2, log_append_time=1234) + a_batch(2, 1))
    assert [(each["timestamp"], each["timestampType"]) for each in found[:2]] == [(1_234_000, 1)] * 2
    assert found[2]["timestampType"] == 0


def test_a_header_name_that_is_no_utf8_is_replaced() -> None:
    raw = a_batch(0, [Record(0, 0, None, None, (("AB", None), ("süß", b"x")))]).replace(b"\x04AB", b"\x04\xff\xfe")
    assert rows(with_crc(raw))[0]["headers"] == [{"key": "\ufffd\ufffd", "value": None}, {"key": "süß", "value": b"x"}]


def test_null_and_empty_differ() -> None:
    raw = a_batch(0, [Record(0, 1, None, b"", (("", None), ("", b""))), Record(1, 1, b"", None, ())])
    assert [(each["key"], each["value"], each["headers"]) for each in rows(raw)] == [
        (None, b"", [{"key": "", "value": None}, {"key": "", "value": b""}]),
        (b"", None, None),
    ]


def test_times_are_utc() -> None:
    (batch,) = decode(memoryview(a_batch(0, [a_record(0, timestamp=90_000)])), EVERYTHING, where="run")
    assert batch.column("timestamp")[0].as_py() == EPOCH + datetime.timedelta(seconds=90)


# Sizes


def sizes(raw: bytes, wanted: Wanted = EVERYTHING, **limits: Any) -> list[int]:
    return [batch.num_rows for batch in decode(memoryview(raw), wanted, where="run", **limits)]


def test_small_batches_become_one_record_batch() -> None:
    assert sizes(b"".join(a_batch(n, 1) for n in range(500))) == [500]


@each_codec
def test_large_ones_are_cut_by_rows_and_by_bytes(codec: int) -> None:
    raw = b"".join(a_batch(n * 10, [b"x" * 1000] * 10, codec=codec) for n in range(10))
    assert sizes(raw, rows_max=25) == [20] * 5
    assert sizes(raw, rows_max=4) == [4, 4, 2] * 10
    assert max(sizes(raw, bytes_max=25_000)) <= 30
    assert sum(sizes(raw, bytes_max=25_000)) == 100
    assert max(sizes(raw, bytes_max=3000)) <= 4
    assert sizes(raw, replace(EVERYTHING, columns=()), rows_max=50) == [50, 50]


def test_a_value_larger_than_the_limit_still_comes() -> None:
    values = [b"a" * 10, b"b" * 5000, b"c" * 10]
    for codec in (codecs.NONE, codecs.SNAPPY):
        assert [each["value"] for each in rows(a_batch(0, values, codec=codec), bytes_max=100)] == values


def test_the_few_rows_that_a_filter_leaves_do_not_hold_the_room_of_all() -> None:
    raw = a_batch(0, [Record(n, n, b"key", b"v" * 100, (("name", b"value"),)) for n in range(20_000)])
    (batch,) = decode(memoryview(raw), replace(EVERYTHING, first=700, end=703), where="run")
    assert batch.column("value").to_pylist() == [b"v" * 100] * 3
    assert batch.get_total_buffer_size() < 2000


def test_more_batches_than_one_table_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_TABLE_ROWS", 3)
    raw = b"".join(a_batch(n * 2, 2, codec=n % 5) for n in range(10))
    assert rows(raw) == wanted_rows(raw)
    with pytest.raises(CorruptData, match="batch at offset 4 follows offset 19"):
        rows(raw + a_batch(4, 1))


def test_an_empty_buffer_is_no_rows() -> None:
    assert rows(b"") == []


def test_a_wish_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        replace(EVERYTHING, columns=("colour",))
    with pytest.raises(ValueError, match="columns"):
        replace(EVERYTHING, columns=("key", "key"))
    with pytest.raises(ValueError, match="offsets"):
        replace(EVERYTHING, first=5, end=4)
