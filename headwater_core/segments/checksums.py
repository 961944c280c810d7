"""Sums over pieces of bytes, to find out later whether they are still the same."""

from array import array
from collections.abc import Callable

from awscrt.checksums import crc32c

SUM_BYTES = 64 << 10  # what one checksum covers: 4 bytes
_READ_BYTES = 1 << 20  # at once


def sums_of(read: Callable[[int, int], bytes | memoryview], size_bytes: int) -> bytes:
    """A CRC-32C for every SUM_BYTES of what `read` gives for a position and a length; the last piece may be shorter."""
    sums = array("I")
    for start in range(0, size_bytes, _READ_BYTES):
        piece = memoryview(read(start, min(_READ_BYTES, size_bytes - start)))
        sums.extend(crc32c(piece[at : at + SUM_BYTES]) for at in range(0, len(piece), SUM_BYTES))
    return sums.tobytes()
