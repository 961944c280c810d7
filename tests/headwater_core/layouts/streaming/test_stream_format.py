"""The index of a streaming object, damaged and described the impossible way."""

import struct
from uuid import UUID

import pytest

from headwater_core.errors import CorruptData, HeadwaterError, UnsupportedFormat
from headwater_core.layouts.streaming.stream_format import (
    GROUP,
    INDEX_HEADER,
    LedgerInfo,
    SegmentContext,
    StreamBlock,
    block_header,
    decode_stream_index,
    encode_stream_index,
)

UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
LEDGERS = (LedgerInfo(5, 13, 1000, 1_700_000_000_000), LedgerInfo(99, 4))
BLOCKS = (StreamBlock(5, 3, 0), StreamBlock(5, 9, 500), StreamBlock(99, 0, 900))


def an_index() -> bytes:
    return encode_stream_index(LEDGERS, [SegmentContext(UID, end) for end in (12, 3)], BLOCKS, 1200)


def test_what_is_written_reads_back() -> None:
    assert decode_stream_index(an_index(), "x") == (1200, 128, LEDGERS, BLOCKS)


def test_groups_may_come_in_any_order() -> None:
    raw = an_index()
    at = INDEX_HEADER.size
    _, count, metadata_bytes = GROUP.unpack_from(raw, at)
    end = at + GROUP.size + metadata_bytes + 20 * count
    found = decode_stream_index(raw[:at] + raw[end:] + raw[at:end], "x")
    assert (found.ledgers, found.blocks) == (LEDGERS[::-1], BLOCKS)


def test_an_index_of_another_kind_is_refused() -> None:
    with pytest.raises(UnsupportedFormat):
        decode_stream_index(bytes.fromhex("DE47DE47") + an_index()[4:], "x")


def test_an_index_that_was_cut_is_noticed() -> None:
    raw = an_index()
    for end in range(len(raw)):
        with pytest.raises(CorruptData):
            decode_stream_index(raw[:end], "x")
        cut = raw[:4] + struct.pack(">I", end) + raw[8:end]  # by somebody who says so
        if end >= INDEX_HEADER.size and end not in (INDEX_HEADER.size, raw.index(struct.pack(">QI", 99, 1))):
            with pytest.raises(CorruptData):
                decode_stream_index(cut, "x")


def test_every_value_of_an_index_may_be_anything() -> None:
    raw = an_index()
    for at in range(len(raw)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            try:
                decode_stream_index(raw[:at] + bytes([value]) + raw[at + 1 :], "x")
            except HeadwaterError:
                continue


def test_a_block_s_header_is_what_the_page_says() -> None:
    header = block_header(StreamBlock(99, 7, 900), 300)
    assert header == bytes.fromhex("26A66D32") + struct.pack(">QQQQ", 128, 300, 7, 99) + bytes(92)
