import resource
import zlib
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.segments import codecs
from headwater_core.segments.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, decompress, decompress_into
from headwater_core.segments.varint import encode_uvarint
from tests.headwater_core.segments.builders import compress

COMPRESSED = [(GZIP, False), (SNAPPY, False), (SNAPPY, True), (LZ4, False), (ZSTD, False)]
each_codec = pytest.mark.parametrize(("codec", "xerial"), COMPRESSED, ids=["gzip", "snappy", "xerial", "lz4", "zstd"])
contents = st.binary(max_size=3000) | st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 20_000))


@each_codec
@given(data=contents)
def test_what_was_compressed_comes_out_again(codec: int, xerial: bool, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data, xerial=xerial))) == data


@each_codec
@given(data=contents, room=st.integers(0, 5000))
def test_what_fits_a_buffer_goes_there_and_what_does_not_is_no_damage(codec: int, xerial: bool, data: bytes, room: int) -> None:
    buffer = bytearray(b"." * (room + 8))
    size = decompress_into(codec, compress(codec, data, xerial=xerial), memoryview(buffer)[:room])
    assert buffer[room:] == b"." * 8
    if len(data) > room:
        assert size is None
    else:
        assert size is not None
        assert buffer[:size] == data


def test_no_codec_is_no_copy() -> None:
    data = bytearray(b"soup")
    out = decompress(NONE, data)
    data[0] = ord("S")
    assert bytes(out) == b"Soup"


@each_codec
@given(data=st.binary(min_size=1, max_size=2000), cut=st.floats(0, 0.999))
def test_a_truncation_is_noticed(codec: int, xerial: bool, data: bytes, cut: float) -> None:
    whole = compress(codec, data, xerial=xerial)
    short = whole[: int(len(whole) * cut)]
    if xerial and len(short) == 16:
        return  # a stream of no blocks; the batch's record count disagrees
    with pytest.raises(CorruptData):
        decompress(codec, short)


@each_codec
@given(data=st.binary(min_size=1, max_size=500), at=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_a_flipped_bit_is_a_typed_error_or_within_the_limit(codec: int, xerial: bool, data: bytes, at: float, bit: int) -> None:
    """Some formats carry no checksum; the batch's CRC is what detects damage. Here nothing may crash or grow."""
    damaged = bytearray(compress(codec, data, xerial=xerial))
    damaged[int(len(damaged) * at)] ^= 1 << bit
    with suppress(CorruptData):
        assert len(decompress(codec, bytes(damaged), 10_000)) <= 10_000


@each_codec
def test_output_stops_at_the_limit(codec: int, xerial: bool) -> None:
    bomb = compress(codec, bytes(3 << 20), xerial=xerial)
    assert len(decompress(codec, bomb, 3 << 20)) == 3 << 20
    with pytest.raises(CorruptData, match=NAMES[codec]):
        decompress(codec, bomb, (3 << 20) - 1)


def test_a_bomb_takes_no_more_memory_than_its_limit() -> None:
    bomb = bytes(cramjam.zstd.compress(bytes(1 << 20))) * 4000  # 4 GiB in 200 KiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptData):
        decompress(ZSTD, bomb, 16 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.parametrize("claim", [2**32 - 1, 2**31, 10**6])
def test_a_snappy_block_that_claims_too_much_is_refused_unread(claim: int) -> None:
    with pytest.raises(CorruptData, match="claim to hold"):
        decompress(SNAPPY, encode_uvarint(claim) + b"\x00x")


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x09", b"\x00"])
def test_hostile_xerial_block_sizes(size: bytes) -> None:
    with pytest.raises(CorruptData):
        decompress(SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + size)


def test_gzip_members_may_follow_each_other() -> None:
    assert bytes(decompress(GZIP, compress(GZIP, b"so") + compress(GZIP, b"up"))) == b"soup"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_no_damage(codec: int) -> None:
    with pytest.raises(UnsupportedFormat):
        decompress(codec, b"")


def test_zlib_is_not_gzip() -> None:
    with pytest.raises(CorruptData):
        decompress(GZIP, zlib.compress(b"soup"))


def test_the_names_are_kafkas() -> None:
    assert codecs.NAMES[codecs.ZSTD] == "zstd"
