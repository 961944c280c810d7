"""Kafka record batches, magic 2: their headers and their checksums; a walk over many of them is batch_walk's.

Whole batches are the unit of everything here: a run, an object and a chunk begin and end at one. What lies inside a batch
is segments.records' business. The layout: docs/formats/kafka-log.md.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from awscrt.checksums import crc32c

from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61, the record count included
LENGTH_FROM = 12  # batch_length counts what follows it: base offset (8) and itself (4) come before
LENGTH_MIN = HEADER_BYTES - LENGTH_FROM
CRC_FROM = 21  # the CRC covers everything after itself; base offset, length, leader epoch and magic lie before
_OLD_HEADER_BYTES = 17  # up to the magic byte, which every format has at 16
OFFSET_MAX = 2**63 - 2  # so that the next offset is still an int64

# The bits of a batch's attributes.
CODEC = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
NO_BASE_TIMESTAMP = LOG_APPEND_TIME | DELETE_HORIZON  # with either, the base timestamp is no record's


class BatchHeader(NamedTuple):
    """A batch's first 61 bytes, field by field.

    leader_epoch    -1 when the batch was written before leader epochs
    last_offset_delta  kept by compaction, even when the last records are gone
    base_timestamp_ms  the delete horizon where attributes has DELETE_HORIZON
    max_timestamp_ms  of every record when log_append_time; -1 when the batch has none
    producer_id     -1 for a producer without idempotence
    records         0 where compaction kept an empty batch for its producer's sequence
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Of the whole batch, header and all."""
        return LENGTH_FROM + self.batch_length

    @property
    def codec(self) -> int:
        return self.attributes & CODEC

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def first_timestamp_ms(self) -> int:
        """The first record's, as far as a header says; the largest where the base timestamp means something else."""
        return self.max_timestamp_ms if self.attributes & NO_BASE_TIMESTAMP else self.base_timestamp_ms


def read_batch_header(buffer: bytes | bytearray | memoryview, position: int = 0, *, where: str = "batch") -> BatchHeader:
    """The header of the batch at `position`, checked; its body may lie beyond the buffer.

    Raises TruncatedData when the buffer ends inside the header, CorruptData when a field is impossible, UnsupportedFormat for
    the formats before Kafka 0.11. The checksum is check_batch's business.
    """
    view = memoryview(buffer)
    if len(view) - position < HEADER_BYTES:
        raise too_short(view[position:], where, position)
    fields = HEADER.unpack_from(view, position)
    check_fields(fields, where, position)
    return BatchHeader(*fields)


def check_batch(buffer: bytes | bytearray | memoryview, position: int = 0, *, where: str = "batch") -> BatchHeader:
    """The header of the whole batch at `position`, its CRC-32C verified.

    Raises as read_batch_header does; TruncatedData when the batch runs past the buffer, CorruptData on a wrong CRC.
    """
    view = memoryview(buffer)
    header = read_batch_header(view, position, where=where)
    end = position + header.size_bytes
    if end > len(view):
        raise TruncatedData(where, position, f"batch of {header.size_bytes} bytes, {len(view) - position} are there")
    if crc32c(view[position + CRC_FROM : end]) != header.crc:
        raise CorruptData(where, position, f"CRC mismatch in the batch at offset {header.base_offset}")
    return header


def wrong_crc(buffer: memoryview, batches: Iterable[tuple[int, int, int]]) -> int | None:
    """Where the first of `batches` begins, each (position, end, CRC), whose bytes have another CRC; None when all are right."""
    for position, end, crc in batches:
        if crc32c(buffer[position + CRC_FROM : end]) != crc:
            return position
    return None


def check_fields(fields: tuple[int, ...], where: str, position: int, last_offset: int = -1, last_epoch: int = -1) -> None:
    """Check a header against the batch before it: its last offset and leader epoch, -1 for none.

    Raises CorruptData, TruncatedData for zeros, UnsupportedFormat for an older format.
    """
    header = BatchHeader(*fields)
    if header.magic != 2:
        raise _other_magic(header.base_offset, header.batch_length, header.magic, where, position)
    if header.batch_length < LENGTH_MIN:
        raise CorruptData(where, position, f"batch length {header.batch_length}")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > OFFSET_MAX:
        raise CorruptData(where, position, f"batch from offset {header.base_offset} on, last offset delta {header.last_offset_delta}")
    if header.base_offset <= last_offset:
        raise CorruptData(where, position, f"batch at offset {header.base_offset} follows offset {last_offset}")
    if header.leader_epoch < last_epoch:
        raise CorruptData(where, position, f"leader epoch {header.leader_epoch} follows {last_epoch} at offset {header.base_offset}")
    if not 0 <= header.records <= header.last_offset_delta + 1:
        raise CorruptData(where, position, f"{header.records} records in {header.last_offset_delta + 1} offsets")


def _other_magic(base: int, length: int, magic: int, where: str, position: int) -> CorruptData | UnsupportedFormat:
    if (base, length, magic) == (0, 0, 0):
        return TruncatedData(where, position, "zeros where a batch should begin")
    if magic in (0, 1) and base >= 0 and length >= 14:  # crc, magic, attributes and two lengths
        return UnsupportedFormat(
            f"{where}, byte {position}: a message set of magic {magic}, as brokers before Kafka 0.11 wrote; "
            "let the broker rewrite the topic (log.message.format.version) before it is archived"
        )
    return CorruptData(where, position, f"magic {magic}, batch length {length}")


def too_short(rest: memoryview, where: str, position: int) -> CorruptData | UnsupportedFormat:
    """Fewer bytes than a header: the torn tail of an open segment, or a short message of an older format."""
    if len(rest) >= _OLD_HEADER_BYTES and rest[16] in (0, 1):
        base, length = struct.unpack_from(">qi", rest)
        if length == len(rest) - LENGTH_FROM:
            return _other_magic(base, length, rest[16], where, position)
    return TruncatedData(where, position, f"{len(rest)} bytes where a batch header of {HEADER_BYTES} should be")
