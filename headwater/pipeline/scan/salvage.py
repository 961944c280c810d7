"""What can still be read of a damaged piece: its sound batches."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from headwater.pipeline.scan.piece_fetcher import MissingObject, PieceFetcher
from headwater.pipeline.scan.pieces import Piece, cut
from headwater.pipeline.scan.quarantine import SplitDamage
from headwater.pipeline.scan.split_decoder import SplitDecoder
from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments.batches import read_batch_header


class SoundBytes(NamedTuple):
    """Bytes [start, end) of a piece that hold whole, sound batches."""

    start: int
    end: int


class Flaw(NamedTuple):
    """Offsets of a piece that cannot be read, both inclusive, and the byte of the object where that was noticed."""

    error: CorruptData | UnsupportedFormat
    position: int
    first_offset: int
    last_offset: int


class Salvage:
    """Reads pieces over damage. For a scan with a quarantine; without one, damage is the end of it."""

    def __init__(self, fetcher: PieceFetcher, decoder: SplitDecoder, damage: SplitDamage) -> None:
        self._fetcher, self._decoder, self._damage = fetcher, decoder, damage

    def records(self, piece: Piece, got: memoryview | CorruptData) -> Iterator[pa.RecordBatch]:
        """The wanted records of `piece`, as far as they can be read. Raises MissingObject.

        got  its bytes, or why there are none

        A sound piece streams. One that is not is fetched again, as the damage may have happened on the way; if that does
        not help, it is read batch by batch between the points of the index.
        """
        try:
            if isinstance(got, CorruptData):
                raise got
            yield from self._decoder.records(piece, got)
            return
        except (CorruptData, UnsupportedFormat) as error:
            damage = error
        try:
            with self._fetcher.piece(piece) as buffer:
                yield from self._decoder.records(piece, buffer)
            return
        except (CorruptData, UnsupportedFormat):
            pass
        first = max(piece.first_offset, self._decoder.cursor)
        examined = [(part, *self._examine(part)) for part in self._parts(piece, first)]
        flaws = [flaw for _, _, found in examined for flaw in found]
        if not flaws:  # each batch is sound, the piece as a whole is not
            self._report(piece, Flaw(damage, piece.position, first, piece.next_offset - 1))
            return
        for flaw in flaws:
            self._report(piece, flaw)
        for part, spans, _ in examined:
            for span in spans:
                yield from self._span_records(part, span)

    def _parts(self, piece: Piece, first: int) -> list[Piece]:
        """The piece, cut at the points of the index; undivided when the index cannot be read."""
        try:
            return cut(piece.entry, self._fetcher.index(piece.entry), first, piece.next_offset, None, piece_bytes=0)
        except (CorruptData, MissingObject):
            return [piece]

    def _examine(self, part: Piece) -> tuple[list[SoundBytes], list[Flaw]]:
        try:
            with self._fetcher.piece(part) as buffer:
                return sound_spans(part, buffer, partial(self._decoder.check_batches, part.entry))
        except CorruptData as error:
            return [], [_whole(part, error)]

    def _span_records(self, part: Piece, span: SoundBytes) -> Iterator[pa.RecordBatch]:
        position = part.position + span.start
        try:
            with self._fetcher.piece(replace(part, position=position, size_bytes=span.end - span.start)) as buffer:
                yield from self._decoder.batch_records(part.entry, buffer, position)
        except (CorruptData, UnsupportedFormat) as error:  # sound a moment ago
            first = max(part.first_offset, self._decoder.cursor)
            self._report(part, Flaw(error, position, first, part.next_offset - 1))

    def _report(self, piece: Piece, flaw: Flaw) -> None:
        self._damage.add(flaw.error, piece.entry.key, flaw.position, flaw.first_offset, flaw.last_offset)


def sound_spans(part: Piece, buffer: memoryview, check: Callable[[memoryview, int], None]) -> tuple[list[SoundBytes], list[Flaw]]:
    """Where in `buffer`, the bytes of `part`, sound batches lie, neighbours together; and what is wrong with the others.

    check  raises CorruptData or UnsupportedFormat for a batch and its position in the object, when it cannot be decoded
    """
    key, at, last_offset = part.entry.key, 0, part.first_offset - 1
    spans: list[SoundBytes] = []
    flaws: list[Flaw] = []
    while at < len(buffer):
        position = part.position + at
        try:
            header = read_batch_header(buffer, at, where=key)
            end = at + header.size_bytes
            if end > len(buffer):
                raise TruncatedData(key, position, f"batch of {header.size_bytes} bytes, {len(buffer) - at} are left")
        except (CorruptData, UnsupportedFormat) as error:  # it is unknown where the next batch begins
            flaws.append(Flaw(error, position, last_offset + 1, part.next_offset - 1))
            break
        if not last_offset < header.base_offset <= header.last_offset < part.next_offset or (
            at == 0 and part.by_index and header.base_offset != part.first_offset
        ):  # it is unknown which of these headers is wrong
            moved = CorruptData(key, position, f"batch at offset {header.base_offset} follows offset {last_offset}")
            return [], [*flaws, _whole(part, moved)]
        try:
            check(buffer[at:end], position)
        except (CorruptData, UnsupportedFormat) as error:
            flaws.append(Flaw(error, position, header.base_offset, header.last_offset))
        else:
            start = spans.pop().start if spans and spans[-1].end == at else at
            spans.append(SoundBytes(start, end))
        at, last_offset = end, header.last_offset
    return spans, flaws


def _whole(part: Piece, error: CorruptData) -> Flaw:
    return Flaw(error, part.position, part.first_offset, part.next_offset - 1)
