import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments import codecs
from headwater_core.segments.batches import HEADER_BYTES, check_batch
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.varint import encode_varint
from tests.headwater_core.segments import strategies
from tests.headwater_core.segments.builders import Producer, a_batch, a_record, with_crc


@given(
    records=strategies.records(),
    codec=strategies.codec_numbers,
    xerial=st.booleans(),
    epoch=st.integers(-1, 2**31 - 1),
    producer=strategies.producers,
    transactional=st.booleans(),
)
def test_a_batch_decodes_to_what_was_encoded(
    records: list[Record], codec: int, xerial: bool, epoch: int, producer: Producer | None, transactional: bool
) -> None:
    raw = a_batch(records[0].offset, records, codec=codec, xerial=xerial, epoch=epoch, producer=producer, transactional=transactional)
    header = check_batch(raw)
    assert list(decode_batch(memoryview(raw))) == records
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (records[0].offset, records[-1].offset, epoch)
    assert (header.codec, header.producer_id) == (codec, producer.id if producer else -1)


def test_offsets_count_from_the_batch_even_when_its_first_records_are_gone() -> None:
    assert [each.offset for each in decode_batch(a_batch(100, [a_record(103), a_record(107)], last_offset=120))] == [103, 107]


def test_append_time_is_every_records_timestamp() -> None:
    assert {each.timestamp_ms for each in decode_batch(a_batch(0, 3, log_append_time=42))} == {42}


def test_a_delete_horizon_is_still_what_timestamps_count_from() -> None:
    (record,) = decode_batch(a_batch(0, [a_record(0, timestamp=5000)], delete_horizon=9000))
    assert record.timestamp_ms == 5000


def test_null_and_empty_differ_everywhere() -> None:
    record = Record(0, 1, None, b"", (("", None), ("a", b""), ("a", b"x"), ("süß", b"\xff")))
    assert list(decode_batch(a_batch(0, [record]))) == [record]
    record = Record(0, 1, b"", None, ())
    assert list(decode_batch(a_batch(0, [record]))) == [record]


def test_a_header_name_that_is_no_utf8_does_not_stop_a_reader() -> None:
    raw = a_batch(0, [Record(0, 0, None, None, (("AB", None),))]).replace(b"\x04AB", b"\x04\xff\xfe")
    (record,) = decode_batch(with_crc(raw))
    assert record.headers == (("\ufffd\ufffd", None),)


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_may_be_empty(codec: int) -> None:
    assert list(decode_batch(a_batch(0, 0, codec=codec, last_offset=9))) == []


@pytest.mark.parametrize("change", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_wrong_record_count_is_noticed(change: int) -> None:
    raw = bytearray(a_batch(0, 3, last_offset=2**31 - 1))
    struct.pack_into(">i", raw, 57, 3 + change if abs(change) == 1 else change)
    with pytest.raises(CorruptData):
        list(decode_batch(with_crc(bytes(raw))))


@pytest.mark.parametrize("hostile", [2**31 - 1, -2, -(2**31), 2**62, -(2**62), 1000])
@pytest.mark.parametrize("field", ["record", "key", "value", "headers", "header name", "header value", "offset"])
def test_hostile_lengths_and_counts_are_typed_errors(field: str, hostile: int) -> None:
    def sized(name: str, content: bytes) -> bytes:
        return encode_varint(hostile if field == name else len(content)) + content

    headers = encode_varint(hostile if field == "headers" else 1) + sized("header name", b"n") + sized("header value", b"v")
    offset = encode_varint(hostile if field == "offset" else 0)
    fields = b"\x00" + encode_varint(0) + offset + sized("key", b"k") + sized("value", b"v") + headers
    with pytest.raises(CorruptData):
        list(decode_batch(batch_with(encode_varint(hostile if field == "record" else len(fields)) + fields)))


def test_a_varint_longer_than_64_bits_is_refused() -> None:
    for body in (b"\xff" * 11, b"\xff" * 9 + b"\x7f", b"\x80" * 5):
        with pytest.raises(CorruptData):
            list(decode_batch(batch_with(body)))


def batch_with(body: bytes) -> bytes:
    """A batch of one record whose body is `body`."""
    raw = bytearray(a_batch(0, 1)[:HEADER_BYTES] + body)
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    return with_crc(bytes(raw))


@given(body=st.binary(max_size=60), count=st.integers(0, 3))
def test_any_body_is_records_or_a_typed_error(body: bytes, count: int) -> None:
    raw = bytearray(batch_with(body))
    struct.pack_into(">i", raw, 57, count)
    with suppress(CorruptData):
        assert len(list(decode_batch(with_crc(bytes(raw))))) == count


@given(records=strategies.records(base_offset=5), codec=strategies.codec_numbers, cut=st.floats(0, 0.999))
def test_any_truncation_is_noticed(records: list[Record], codec: int, cut: float) -> None:
    raw = a_batch(5, records, codec=codec)
    short = raw[: int(len(raw) * cut)]
    with pytest.raises(TruncatedData):
        check_batch(short)
    with pytest.raises(TruncatedData):
        list(decode_batch(short))


def test_a_batch_that_decompresses_beyond_the_limit_is_refused() -> None:
    raw = a_batch(0, [bytes(100_000)], codec=codecs.ZSTD)
    with pytest.raises(CorruptData, match="more than 50000"):
        list(decode_batch(raw, limit_bytes=50_000))


def test_a_long_body_is_in_memory_once_more_at_most() -> None:
    batch = a_batch(0, [bytes(16 << 20)])
    tracemalloc.start()
    try:
        [record] = decode_batch(batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert record.value == bytes(16 << 20)
    assert peak_bytes < 20 << 20
