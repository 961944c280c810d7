"""Kafka record batches, magic 2: their headers, their checksums, and a walk over many of them.

Whole batches are the unit of everything here: a run, an object and a chunk begin and end at one. What lies inside a batch
is segments.records' business. The layout: docs/formats/kafka-log.md.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from awscrt.checksums import crc32c, crc64nvme

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData, UnsupportedFormat

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED = struct.Struct(">qiibI2xi30xi")  # the fields that a check needs
HEADER_BYTES = _HEADER.size  # 61, up to and with the record count
LENGTH_FROM = 12  # batch_length counts what follows it: base offset (8) and itself (4) come before
CRC_FROM = 21  # the CRC covers everything behind itself; base offset, length, leader epoch and magic lie before
_OLD_HEADER_BYTES = 17  # up to the magic byte, which every format has at 16
OFFSET_MAX = 2**63 - 2  # so that the next offset is still an int64
WINDOW_BYTES = 1 << 20

_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class BatchHeader(NamedTuple):
    """A batch's first 61 bytes, field by field.

    leader_epoch    -1 when the batch was written before leader epochs
    last_offset_delta  kept by compaction, even when the last records are gone
    base_timestamp_ms  the delete horizon where attributes has its bit
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
        return self.attributes & _CODEC

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def first_timestamp_ms(self) -> int:
        """The first record's, as far as a header tells: where the base timestamp means something else, the largest."""
        return self.max_timestamp_ms if self.attributes & (_LOG_APPEND_TIME | _DELETE_HORIZON) else self.base_timestamp_ms


def read_batch_header(buffer: bytes | bytearray | memoryview, position: int = 0, *, where: str = "batch") -> BatchHeader:
    """The header of the batch at `position`, checked; its body may lie beyond the buffer.

    Raises TruncatedData when the header itself does, CorruptData when a field is impossible, UnsupportedFormat for
    the formats before Kafka 0.11. The checksum is check_batch's business.
    """
    view = memoryview(buffer)
    if len(view) - position < HEADER_BYTES:
        raise _short(view[position:], where, position)
    fields = _HEADER.unpack_from(view, position)
    _check_fields(fields, where, position)
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


def walk(file: BinaryIO, start: int, end: int, *, where: str, up_to: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in file[start:end], CRC, offset order and epoch order verified; see BatchWalk."""
    for position, fields in BatchWalk(file, start, end, where=where, up_to=up_to):
        yield position, BatchHeader(*fields)


def headers(file: BinaryIO, start: int, end: int, *, where: str) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in file[start:end] from headers alone: bodies are skipped, no CRC is verified.

    For finding a place, never for trusting one. Raises as walk does. A batch that runs past `end` is still yielded; the
    walk ends with TruncatedData behind it, when its successor is asked for.
    """
    window = _Window(file, end, where)
    view, unpack = window.view, _HEADER.unpack_from
    position, last_offset = start, -1
    while position < end:
        at = position - window.start
        if not 0 <= at <= window.filled - HEADER_BYTES:
            at = window.header(position)
        header = BatchHeader(*unpack(view, at))
        base, length, _, magic, _, _, delta, _, _, _, _, _, records = header
        if magic != 2 or length < 49 or base <= last_offset or not 0 <= delta <= OFFSET_MAX - base or not 0 <= records <= delta + 1:
            _check_fields(header, where, position, last_offset)
        yield position, header
        if position + LENGTH_FROM + length > end:
            raise TruncatedData(where, position, f"batch of {LENGTH_FROM + length} bytes, {end - position} are there")
        position, last_offset = position + LENGTH_FROM + length, base + delta


def locate(file: BinaryIO, offset: int, start: int, end: int, *, where: str) -> int:
    """The position of the first batch in file[start:end] that reaches `offset`; `end` when none does. Headers only."""
    for position, header in headers(file, start, end, where=where):
        if header.last_offset >= offset:
            return position
    return end


def wrong_crc(buffer: memoryview, batches: Iterable[tuple[int, int, int]]) -> int | None:
    """Where the first of `batches` begins, each (position, end, CRC), whose bytes have another CRC; None when all are right."""
    for position, end, crc in batches:
        if crc32c(buffer[position + CRC_FROM : end]) != crc:
            return position
    return None


def check_batches(content: memoryview, *, where: str) -> tuple[int, int]:
    """(first offset, last offset) of the whole batches that `content` consists of; (-1, -1) for none. What BatchWalk verifies
    is verified, in two thirds of the time for small batches, and raised as it does.
    """
    unpack, position, end = _CHECKED.unpack_from, 0, len(content)
    first = last_offset = last_epoch = -1
    while position + HEADER_BYTES <= end:
        base, length, epoch, magic, crc, delta, records = unpack(content, position)
        stop = position + LENGTH_FROM + length
        if (
            magic != 2
            or length < 49
            or stop > end
            or base <= last_offset
            or not 0 <= delta <= OFFSET_MAX - base
            or epoch < last_epoch
            or not 0 <= records <= delta + 1
            or crc32c(content[position + CRC_FROM : stop]) != crc
        ):
            break
        if first < 0:
            first = base
        last_offset, last_epoch, position = base + delta, epoch, stop
    if position < end:  # something is wrong: let the walk say what
        for _ in BatchWalk(content, 0, end, where=where):
            pass
    return first, last_offset


class BatchWalk:
    """One verifying pass over the batches in source[start:end]. A file is read through one window of 1 MiB: a larger
    batch is checksummed in pieces, never held whole.

    where   names the source in errors
    up_to   stop before the first batch that reaches this offset. What lies behind the batch that ends right below
            `up_to` is not read: the tail of an active segment may be torn.

    Yields (position, header fields in BatchHeader's order); plain tuples, because this loop meets every 200 bytes of
    some logs. Raises TruncatedData when the last batch runs past `end` or zeros begin there (preallocated or torn),
    CorruptData for a wrong CRC, impossible fields, offsets that do not rise or leader epochs that fall, SourceChanged
    when the file ends before `end`.
    """

    def __init__(self, source: BinaryIO | memoryview, start: int, end: int, *, where: str, up_to: int | None = None) -> None:
        self._window = _Whole(source, end, where) if isinstance(source, memoryview) else _Window(source, end, where)
        self._start, self._end, self._where = start, end, where
        self._up_to = OFFSET_MAX + 2 if up_to is None else up_to  # beyond any offset that fits its field
        self._digest = 0
        self._digested_to = start

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        window, where, position, end, up_to = self._window, self._where, self._start, self._end, self._up_to
        view, unpack = window.view, _HEADER.unpack_from
        last_offset = last_epoch = -1
        while position < end and last_offset + 1 < self._up_to:
            at = position - window.start
            if at + HEADER_BYTES > window.filled:
                self._digest_to(position)
                at = window.header(position)
            fields = unpack(view, at)
            base, length, epoch, magic, crc, _, delta, _, _, _, _, _, records = fields
            if base >= up_to:
                return
            if (
                magic != 2
                or length < 49
                or base <= last_offset
                or not 0 <= delta <= OFFSET_MAX - base
                or epoch < last_epoch
                or not 0 <= records <= delta + 1
            ):
                _check_fields(fields, where, position, last_offset, last_epoch)
            stop = at + 12 + length
            if stop <= window.filled:
                if crc32c(view[at + 21 : stop]) != crc:
                    raise CorruptData(where, position, f"CRC mismatch in the batch at offset {base}")
            else:
                self._check_far_batch(position, length + 12, crc, base, counts=base + delta < up_to)
            if base + delta >= up_to:
                return
            last_offset, last_epoch = base + delta, epoch
            yield position, fields
            position += 12 + length

    def finish(self) -> None:
        """Let the batch just yielded be the last."""
        self._up_to = 0

    def batch(self, position: int, size_bytes: int) -> memoryview:
        """The bytes of the batch just yielded, valid until the next; only for batches that fit the window, such as markers."""
        at = position - self._window.start
        if at < 0 or at + size_bytes > self._window.filled:
            raise CorruptData(self._where, position, f"control batch of {size_bytes} bytes")
        return self._window.view[at : at + size_bytes]

    def digest_to(self, position: int) -> str:
        """The digest of file[start:position], the very bytes that were verified; `position` is the end of the batch just yielded."""
        self._digest_to(position)
        return f"crc64nvme:{self._digest:016x}"

    def _digest_to(self, position: int) -> None:
        if position > self._digested_to:
            window = self._window
            self._digest = crc64nvme(window.view[self._digested_to - window.start : position - window.start], self._digest)
            self._digested_to = position

    def _check_far_batch(self, position: int, size_bytes: int, crc: int, base: int, *, counts: bool) -> None:
        """Verify a batch that reaches past the window: move the window, and when it is larger than that, go piece by piece."""
        window, end = self._window, position + size_bytes
        if end > self._end:
            raise TruncatedData(self._where, position, f"batch of {size_bytes} bytes, {self._end - position} are there")
        self._digest_to(position)
        window.fill(position)
        found, at = 0, position + CRC_FROM
        while True:
            stop = min(end, window.start + window.filled)
            found = crc32c(window.view[at - window.start : stop - window.start], found)
            if stop == end:
                break
            if counts:
                self._digest_to(stop)
            window.fill(stop)
            at = stop
        if found != crc:
            raise CorruptData(self._where, position, f"CRC mismatch in the batch at offset {base}")


class _Window:
    """The bytes of `file` from `start` on, as many as `filled` says, in one buffer that is used again and again."""

    def __init__(self, file: BinaryIO, end: int, where: str) -> None:
        self._file, self._end, self._where = file, end, where
        self.view = memoryview(bytearray(WINDOW_BYTES))
        self.start = self.filled = 0

    def fill(self, position: int) -> None:
        self.start, self.filled = position, 0
        wanted = min(WINDOW_BYTES, self._end - position)
        self._file.seek(position)
        while self.filled < wanted:
            got = self._file.readinto(self.view[self.filled : wanted])  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
            if not got:
                raise SourceChanged(f"{self._where} ends at byte {position + self.filled}, {self._end} were there")
            self.filled += got

    def header(self, position: int) -> int:
        """Where in `view` the header at `position` of the file lies, read if need be."""
        if not self.start <= position <= self.start + self.filled - HEADER_BYTES:
            self.fill(position)
            if self.filled < HEADER_BYTES:
                raise _short(self.view[: self.filled], self._where, position)
        return position - self.start


class _Whole(_Window):
    """The same for bytes that are all in memory: nothing is ever read."""

    def __init__(self, content: memoryview, end: int, where: str) -> None:
        self._where = where
        self.view = content[:end]
        self.start, self.filled = 0, len(self.view)
        if self.filled < end:
            raise SourceChanged(f"{where} ends at byte {self.filled}, {end} were there")

    def fill(self, position: int) -> None:
        raise _short(self.view[position:], self._where, position)


def _check_fields(fields: tuple[int, ...], where: str, position: int, last_offset: int = -1, last_epoch: int = -1) -> None:
    header = BatchHeader(*fields)
    if header.magic != 2:
        raise _other_magic(header.base_offset, header.batch_length, header.magic, where, position)
    if header.batch_length < HEADER_BYTES - LENGTH_FROM:
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


def _short(rest: memoryview, where: str, position: int) -> CorruptData | UnsupportedFormat:
    """Fewer bytes than a header: the torn tail of an open segment, or a short message of an older format."""
    if len(rest) >= _OLD_HEADER_BYTES and rest[16] in (0, 1):
        base, length = struct.unpack_from(">qi", rest)
        if length == len(rest) - LENGTH_FROM:
            return _other_magic(base, length, rest[16], where, position)
    return TruncatedData(where, position, f"{len(rest)} bytes where a batch header of {HEADER_BYTES} should be")
