"""Protobuf's wire format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.layouts.protobuf import bytes_field, content, fields, signed, varint_field


@given(st.integers(1, 5000), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300))
def test_what_is_written_reads_back(number: int, value: int, raw: bytes) -> None:
    message = varint_field(number, value) + bytes_field(number + 1, raw)
    (first, found), (second, held) = fields(memoryview(message), "x")
    assert (first, signed(found, "x"), second, content(held, "x")) == (number, value, number + 1, memoryview(raw))


def test_what_protobufs_own_page_shows() -> None:
    """ "Encoding": a message with 150 in field 1, one with "testing" in field 2, and one of a negative int64."""
    assert varint_field(1, 150).hex() == "089601"
    assert bytes_field(2, b"testing").hex() == "120774657374696e67"
    assert varint_field(1, -2).hex() == "08feffffffffffffffff01"


def test_fixed_fields_are_passed_over() -> None:
    message = bytes.fromhex("0d01020304" + "110102030405060708" + "1807")
    assert [(number, bytes(value) if isinstance(value, memoryview) else value) for number, value in fields(memoryview(message), "x")] == [
        (1, bytes.fromhex("01020304")),
        (2, bytes.fromhex("0102030405060708")),
        (3, 7),
    ]


@pytest.mark.parametrize("raw", ["", "08", "0a05", "0a0561", "0d0102", "00", "0b", "0c", "0fff", "ff" * 11])
def test_what_is_no_message_is_damage(raw: str) -> None:
    if raw == "":
        assert list(fields(memoryview(b""), "x")) == []
        return
    with pytest.raises((CorruptData, TruncatedData)):
        list(fields(memoryview(bytes.fromhex(raw)), "x"))


def test_a_field_of_another_kind_is_damage() -> None:
    with pytest.raises(CorruptData):
        signed(memoryview(b"x"), "x")
    with pytest.raises(CorruptData):
        content(7, "x")
