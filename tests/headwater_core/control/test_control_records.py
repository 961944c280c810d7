"""A command reads back as written; anything else is refused."""

import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.control.control_records import COMMAND_BYTES_MAX, RECORDS_MAX, Node, Record, RecoveryStarted, decode, encode
from headwater_core.errors import CorruptData, UsageError
from tests.headwater_core.control.builders import advanced, claim, records, retired, settings


@given(st.lists(records, min_size=1, max_size=5))
def test_what_is_written_reads_back(some: list[Record]) -> None:
    assert decode(encode(some)) == some


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_every_flipped_bit_and_every_cut_is_noticed(some: list[Record], data: st.DataObject) -> None:
    command = encode(some)
    at = data.draw(st.integers(0, len(command) - 1))
    flipped = bytearray(command)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(flipped), command[:at], command + b"\0"):
        with pytest.raises(CorruptData):
            decode(wrong)


@given(st.binary(max_size=200))
def test_noise_with_a_right_checksum_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(zlib.crc32(body).to_bytes(4, "big") + body)


STARTED = RecoveryStarted(recovery_id="r", at_ms=0, summary="")


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (advanced(1), {"topic": "../etc"}),
        (advanced(1), {"topic_id": "short"}),
        (advanced(1), {"cluster_id": "a/b"}),
        (advanced(1), {"partition": -1}),
        (advanced(1), {"version": -1}),
        (advanced(1), {"fence": -1}),
        (advanced(1), {"last_offset": -2}),
        (advanced(1), {"last_offset": 2**63 - 1}),
        (claim(1), {"start_offset": 11}),
        (claim(1), {"writer": "w" * 1001}),
        (settings(1), {"settings": {str(number): "" for number in range(101)}}),
        (settings(1), {"settings": {"key": "v" * 1001}}),
        (settings(1), {"revision": -1}),
        (retired(1), {"version": -1}),
        (retired(1), {"partition": -1}),
        (STARTED, {"recovery_id": "r" * 1001}),
        (STARTED, {"at_ms": -1}),
        (Node(node_id="n", started_ms=0, version=""), {"started_ms": -1}),
    ],
)
def test_what_goes_beyond_its_bounds_is_neither_made_nor_read(record: Record, fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, UsageError)):
        msgspec.structs.replace(record, **fields)
    with pytest.raises(CorruptData):
        decode(a_command([{**msgspec.to_builtins(record), **fields}]))


def a_command(content: object) -> bytes:
    body = msgspec.msgpack.encode(content)
    return zlib.crc32(body).to_bytes(4, "big") + body


def test_a_record_of_a_kind_that_a_later_version_brought_is_left_out_and_the_others_are_not() -> None:
    later = {"kind": "throttled", "partition": 7, "by": {"bytes": 1}}
    assert decode(a_command([advanced(1), later, claim(2)])) == [advanced(1), claim(2)]
    assert decode(a_command([later])) == []
    assert decode(a_command([{**msgspec.to_builtins(advanced(1)), "later": [1, 2]}])) == [advanced(1)]


@pytest.mark.parametrize("content", [[], [{"partition": 1}], [{"kind": 7}], [7], {"kind": "claim"}, [[]], [{"kind": "claim"}]])
def test_what_is_no_record_at_all_is_refused(content: object) -> None:
    with pytest.raises(CorruptData):
        decode(a_command(content))


def test_a_command_has_a_bound() -> None:
    with pytest.raises(UsageError):
        encode([])
    with pytest.raises(UsageError, match="limit"):
        encode([advanced(1)] * (RECORDS_MAX + 1))
    with pytest.raises(UsageError, match="limit"):
        encode([RecoveryStarted(recovery_id="r", at_ms=0, summary="s" * 1000)] * (COMMAND_BYTES_MAX // 1000))
    with pytest.raises(CorruptData):
        decode(bytes(COMMAND_BYTES_MAX + 1))
