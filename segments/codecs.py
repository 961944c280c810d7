"""The five codecs of record batches, decompressing only: no more output than the caller allows, whatever the input claims."""

import cramjam

from model.errors import CorruptData, UnsupportedFormat

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_BYTES = 128 << 20  # of one decompressed batch; brokers take about 1 MiB compressed unless told otherwise

_FRAMED = {GZIP: cramjam.gzip.decompress_into, LZ4: cramjam.lz4.decompress_into, ZSTD: cramjam.zstd.decompress_into}
_FIRST_GUESS_BYTES = 64 << 10
_GROWTH = 4
_NO_ROOM = "failed to write whole buffer"  # cramjam's only way to say that the output is longer
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16  # the magic and two versions
_SNAPPY_RATIO_MAX = 64  # a copy of 64 bytes takes two or three; a larger claim is a lie


def decompress(codec: int, data: bytes | bytearray | memoryview, limit: int = LIMIT_BYTES, *, where: str = "batch") -> bytes | memoryview:
    """What `data`, the body of a batch, was before its producer or broker compressed it with `codec`.

    limit   most bytes that may come out; memory stays below twice that

    Raises CorruptData when the data is damaged or ends early or would yield more than `limit`, UnsupportedFormat for
    a codec that Kafka does not have. Formats: gzip, LZ4 frame, zstd frame as they are; snappy as a raw block
    (librdkafka) or a xerial stream (Java).
    """
    if codec == NONE:
        return memoryview(data)
    try:
        if codec == SNAPPY:
            if bytes(data[: len(_XERIAL)]) == _XERIAL:
                return _xerial(memoryview(data), limit, where)
            return _snappy_block(data, limit, where)
        if codec in _FRAMED:
            return _framed(codec, data, limit, where)
    except cramjam.DecompressionError as error:
        raise CorruptData(where, 0, f"{NAMES[codec]}: {error}") from error
    raise UnsupportedFormat(f"{where}: codec {codec} is not one of {', '.join(NAMES)}")


def _framed(codec: int, data: bytes | bytearray | memoryview, limit: int, where: str) -> memoryview:
    room = min(max(_FIRST_GUESS_BYTES, len(data) * _GROWTH), limit)
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: _FRAMED[codec](data, out)]
        except cramjam.DecompressionError as error:
            if str(error) != _NO_ROOM:
                raise
        if room >= limit:
            raise CorruptData(where, 0, f"{NAMES[codec]}: more than {limit} bytes come out of {len(data)}")
        room = min(room * _GROWTH, limit)


def _snappy_block(data: bytes | bytearray | memoryview, limit: int, where: str) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > limit or size > len(data) * _SNAPPY_RATIO_MAX:
        raise CorruptData(where, 0, f"snappy: {len(data)} bytes claim to hold {size}")
    out = bytearray(size)
    if size:
        cramjam.snappy.decompress_raw_into(data, out)
    elif len(data) != 1:
        raise CorruptData(where, 0, f"snappy: {len(data)} bytes claim to hold nothing")
    return bytes(out)


def _xerial(data: memoryview, limit: int, where: str) -> bytes:
    """Blocks, each behind its length in four bytes."""
    if len(data) < _XERIAL_HEAD_BYTES:
        raise CorruptData(where, 0, "snappy: the stream ends inside its head")
    out = bytearray()
    at = _XERIAL_HEAD_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < 0 or at + size > len(data):
            raise CorruptData(where, at, f"snappy: a block of {size} bytes, {len(data) - at} are left")
        out += _snappy_block(data[at : at + size], limit - len(out), where)
        at += size
    return bytes(out)
