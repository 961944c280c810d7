"""The five codecs of record batches, decompressing only: no more output than the caller allows, whatever the input claims."""

import cramjam

from headwater_core.errors import CorruptData, UnsupportedFormat

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_BYTES = 128 << 20  # of one decompressed batch; brokers take about 1 MiB compressed unless configured otherwise

_FRAMED = {GZIP: cramjam.gzip.decompress_into, LZ4: cramjam.lz4.decompress_into, ZSTD: cramjam.zstd.decompress_into}
_FIRST_GUESS_BYTES = 64 << 10
_GROWTH = 4
_NO_ROOM = "failed to write whole buffer"  # cramjam's only way to say that the output is longer
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16  # the magic and two versions
_SNAPPY_RATIO_MAX = 64  # a copy of 64 bytes takes two or three; a larger claim is a lie


def decompress(codec: int, data: bytes | bytearray | memoryview, limit_bytes: int = LIMIT_BYTES, *, where: str = "batch") -> memoryview:
    """What `data`, the body of a batch, was before its producer or broker compressed it with `codec`.

    limit_bytes   most bytes that may come out; memory stays below twice that

    Raises CorruptData when the data is damaged or ends early or would yield more than `limit_bytes`, UnsupportedFormat for
    a codec that Kafka does not have. Formats: gzip, LZ4 frame, zstd frame as they are; snappy as a raw block
    (librdkafka) or a xerial stream (Java).
    """
    if codec == NONE:
        return memoryview(data)
    room = min(max(_FIRST_GUESS_BYTES, len(data) * _GROWTH), limit_bytes)
    while True:
        out = memoryview(bytearray(room))
        size = decompress_into(codec, data, out, where=where)
        if size is not None:
            return out[:size]
        if room >= limit_bytes:
            raise CorruptData(where, 0, f"{NAMES[codec]}: more than {limit_bytes} bytes come out of {len(data)}")
        room = min(room * _GROWTH, limit_bytes)


def decompress_into(codec: int, data: bytes | bytearray | memoryview, out: memoryview, *, where: str = "batch") -> int | None:
    """As decompress, to the front of `out`: how many bytes there are, or None when they are more than it holds.

    Raises CorruptData, UnsupportedFormat.
    """
    try:
        if codec == SNAPPY:
            if bytes(data[: len(_XERIAL)]) == _XERIAL:
                return _xerial(memoryview(data), out, where)
            return _snappy_block(data, out, where)
        if codec in _FRAMED:
            return int(_FRAMED[codec](data, out))
    except cramjam.DecompressionError as error:
        if str(error) == _NO_ROOM:
            return None
        raise CorruptData(where, 0, f"{NAMES[codec]}: {error}") from error
    raise UnsupportedFormat(f"{where}: codec {codec} is not one of {', '.join(NAMES[1:])}")


def _snappy_block(data: bytes | bytearray | memoryview, out: memoryview, where: str) -> int | None:
    size: int = cramjam.snappy.decompress_raw_len(data)
    if size > len(data) * _SNAPPY_RATIO_MAX:
        raise CorruptData(where, 0, f"snappy: {len(data)} bytes claim to hold {size}")
    if size > len(out):
        return None
    if size:
        cramjam.snappy.decompress_raw_into(data, out[:size])
    elif len(data) != 1:
        raise CorruptData(where, 0, f"snappy: {len(data)} bytes claim to hold nothing")
    return size


def _xerial(data: memoryview, out: memoryview, where: str) -> int | None:
    """Blocks, each after its length in four bytes."""
    if len(data) < _XERIAL_HEAD_BYTES:
        raise CorruptData(where, 0, "snappy: the stream ends inside its head")
    filled, at = 0, _XERIAL_HEAD_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or at + size > len(data):
            raise CorruptData(where, at, f"snappy: a block of {size} bytes, {len(data) - at} are left")
        block = _snappy_block(data[at : at + size], out[filled:], where)
        if block is None:
            return None
        filled += block
        at += size
    return filled
