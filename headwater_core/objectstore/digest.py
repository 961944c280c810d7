"""CRC-64/NVME, the checksum that Headwater, S3 and the manifests share. 18 GB/s and more, so it is never skipped.

Written `crc64nvme:<16 hex digits>` in manifests, base64 of the same 8 bytes, big-endian, in S3's headers.
"""

import base64
import binascii
import re

from awscrt.checksums import combine_crc64nvme, crc64nvme

from headwater_core.errors import CorruptData
from headwater_core.objectstore.store import ObjectStore

_NAME = "crc64nvme:"
_READ_BYTES = 4 << 20
_TEXT = re.compile(r"crc64nvme:[0-9a-f]{16}")


class Digest:
    """The digest of bytes that arrive piece by piece."""

    __slots__ = ("size_bytes", "value")

    def __init__(self) -> None:
        self.value = 0
        self.size_bytes = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self.value = crc64nvme(data, self.value)
        self.size_bytes += len(data)

    def append(self, value: int, size_bytes: int) -> None:
        """Continue with a piece of which only the checksum is known, as a part of a multipart upload is."""
        self.value = combine_crc64nvme(self.value, value, size_bytes)
        self.size_bytes += size_bytes

    def text(self) -> str:
        """ "crc64nvme:<16 hex>" of what came so far."""
        return text_of(self.value)


def digest_in_store(store: ObjectStore, key: str, size_bytes: int) -> str:
    """The digest of the first `size_bytes` of an object, all of them read. Raises NotFound, TruncatedData when there are fewer."""
    digest = Digest()
    buffer = memoryview(bytearray(min(size_bytes, _READ_BYTES)))
    for start in range(0, size_bytes, _READ_BYTES):
        piece = buffer[: size_bytes - start]
        store.read_into(key, piece, start=start)
        digest.update(piece)
    return digest.text()


def checksum(data: bytes | bytearray | memoryview) -> int:
    """CRC-64/NVME of `data`."""
    return int(crc64nvme(data))


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """ "crc64nvme:<16 hex>" of `data`."""
    return text_of(crc64nvme(data))


def text_of(value: int) -> str:
    """A checksum as manifests write it."""
    return f"{_NAME}{value:016x}"


def value_of(text: str) -> int:
    """The checksum that manifests write so. Raises CorruptData for anything else."""
    if not is_digest(text):
        raise CorruptData("digest", 0, f"not a checksum: {text[:40]!r}")
    return int(text.removeprefix(_NAME), 16)


def is_digest(text: str) -> bool:
    """Whether `text` is a checksum as manifests write it."""
    return _TEXT.fullmatch(text) is not None


def to_s3(value: int) -> str:
    """As the header x-amz-checksum-crc64nvme wants it."""
    return base64.b64encode(value.to_bytes(8, "big")).decode()


def from_s3(header: str) -> str:
    """Our text of S3's form. Raises CorruptData when the server sent something else."""
    try:
        raw = base64.b64decode(header, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 8:
        raise CorruptData("x-amz-checksum-crc64nvme", 0, f"not a checksum: {header[:40]!r}")
    return text_of(int.from_bytes(raw, "big"))
