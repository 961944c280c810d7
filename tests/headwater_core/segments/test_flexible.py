"""Whatever is written reads back; any cut is noticed, and no length is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.partition import topic_id_text
from headwater_core.segments import flexible
from headwater_core.segments.flexible import Reader
from headwater_core.segments.varint import encode_uvarint

WHERE = "a record"
I8, I16, I32, I64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64))


@given(I8, I16, I32, I64, st.binary(min_size=16, max_size=16), st.none() | st.text(), st.lists(I16))
def test_what_is_written_reads_back_and_a_cut_is_noticed(
    byte: int, short: int, number: int, long: int, raw_uuid: bytes, text: str | None, items: list[int]
) -> None:
    uuid = topic_id_text(raw_uuid)
    fields = [flexible.i8(byte), flexible.i16(short), flexible.i32(number), flexible.i64(long), flexible.uuid(uuid), flexible.string(text)]
    encoded = b"".join([*fields, flexible.array(map(flexible.i16, items))])

    def read(data: bytes) -> tuple[object, ...]:
        reader = Reader(data, WHERE)
        scalars = reader.i8(), reader.i16(), reader.i32(), reader.i64(), reader.uuid(), reader.nullable_string()
        return *scalars, reader.array(reader.i16)

    assert read(encoded) == (byte, short, number, long, uuid, text, tuple(items))
    for end in range(len(encoded)):
        with pytest.raises(CorruptData):  # TruncatedData is one
            read(encoded[:end])


def test_tagged_fields_come_in_the_order_of_their_tags_each_with_a_reader_of_its_own() -> None:
    encoded = flexible.tags({7: flexible.i16(-3), 2: flexible.string("soup")})
    assert encoded.index(b"soup") < encoded.index(flexible.i16(-3))
    fields = Reader(encoded, WHERE).tags()
    assert (list(fields), fields[2].string(), fields[7].i16()) == ([2, 7], "soup", -3)
    with pytest.raises(TruncatedData):
        fields[7].i8()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (flexible.string(None), "null where a string must be"),
        (encode_uvarint(3) + b"\xff\xff", "not UTF-8"),
        (encode_uvarint(1 << 40) + b"soup", "field of"),
    ],
)
def test_what_is_no_string_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        Reader(data, WHERE).string()


@pytest.mark.parametrize("count", [0, 1 << 30])
def test_an_array_is_no_longer_than_its_bytes(count: int) -> None:
    """0: null, which no array that is read here may be."""
    reader = Reader(encode_uvarint(count) + b"ab", WHERE)
    with pytest.raises(CorruptData, match="array of"):
        reader.array(reader.i8)
