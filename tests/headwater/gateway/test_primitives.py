"""Primitive types at their edges; that whole messages are what kio reads and writes is tested in test_messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.primitives import FIXED, primitive, read_tag_count, read_varint, skip_tags, write_varint
from headwater.gateway.response import Response


def written(value: Any, kind: str, *, flexible: bool = True, nullable: bool = True) -> bytes:
    response = Response()
    primitive(kind, flexible, nullable)[1](response, value)
    return bytes(response.buffer)


@given(st.integers(0, 2**32 - 1))
def test_a_varint_reads_back_and_no_cut_one_does(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(bytes(out), 0) == (value, len(out))
    with pytest.raises(MalformedRequest):
        read_varint(bytes(out[:-1]), 0)


def test_a_varint_takes_five_bytes_at_most() -> None:
    with pytest.raises(MalformedRequest):
        read_varint(b"\x80" * 5 + b"\x01", 0)


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize(("kind", "value"), [("string", "Gemüse"), ("bytes", b"\x00\xff"), ("string", ""), ("string", None)])
def test_what_is_written_reads_back(kind: str, value: Any, flexible: bool) -> None:
    raw = written(value, kind, flexible=flexible)
    read, _ = primitive(kind, flexible, True)
    assert read(b"." + raw, 1) == (value, 1 + len(raw))


@pytest.mark.parametrize("flexible", [False, True])
def test_no_more_is_read_than_is_there(flexible: bool) -> None:
    raw = written(b"longer", "bytes", flexible=flexible)
    read, _ = primitive("bytes", flexible, True)
    with pytest.raises(MalformedRequest):
        read(raw[:-1], 0)


@pytest.mark.parametrize("flexible", [False, True])
def test_null_is_refused_where_there_must_be_a_value(flexible: bool) -> None:
    read, _ = primitive("string", flexible, False)
    with pytest.raises(MalformedRequest):
        read(written(None, "string", flexible=flexible), 0)


@pytest.mark.parametrize("kind", sorted(set(FIXED) - {"bool", "float64", "uint16", "uint32"}))
def test_none_is_written_as_minus_one_or_a_zero_id(kind: str) -> None:
    raw = written(None, kind)
    assert raw == (bytes(16) if kind == "uuid" else b"\xff" * len(raw))


def test_unknown_tagged_fields_are_skipped() -> None:
    assert skip_tags(b"\x00...", 0) == 1
    assert skip_tags(b"\x02\x07\x01a\x09\x02bb...", 0) == 8
    for broken in (b"\x01\x07\x09a", b"\x7f\x00"):
        with pytest.raises(MalformedRequest):
            skip_tags(broken, 0)
    with pytest.raises(MalformedRequest):
        read_tag_count(b"\x05\x00", 0)
