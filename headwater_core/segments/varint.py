"""Kafka's variable-length integers, zigzag (records) and unsigned (flexible messages)."""

from headwater_core.errors import CorruptData, TruncatedData

_BYTES_MAX = 10  # of 64 bits, seven at a time


def read_uvarint(buffer: bytes | bytearray | memoryview, position: int, where: str) -> tuple[int, int]:
    """(value, position after it). Raises TruncatedData at the end of `buffer`, CorruptData beyond 64 bits."""
    value = shift = 0
    for at in range(position, min(position + _BYTES_MAX, len(buffer))):
        byte = buffer[at]
        if byte < 0x80:
            value |= byte << shift
            if value >> 64:
                break
            return value, at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    else:
        if len(buffer) - position < _BYTES_MAX:
            raise TruncatedData(where, position, "the bytes end inside a variable-length integer")
    raise CorruptData(where, position, "a variable-length integer of more than 64 bits")


def read_varint(buffer: bytes | bytearray | memoryview, position: int, where: str) -> tuple[int, int]:
    """As read_uvarint, for signed values. One and two bytes, -8192 to 8191, are most of what records hold: no loop for them."""
    try:
        value = buffer[position]
        if value < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        second = buffer[position + 1]
        if second < 0x80:
            value = value & 0x7F | second << 7
            return (value >> 1) ^ -(value & 1), position + 2
    except IndexError:
        pass  # read_uvarint says what is missing
    value, at = read_uvarint(buffer, position, where)
    return (value >> 1) ^ -(value & 1), at


def encode_uvarint(value: int) -> bytes:
    """`value` is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    return encode_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
