"""Which transactions were aborted, and where the last stable offset is: over entries of the archive and on into the local log."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hydration.local import LocalTier
from hydration.ranges import Readable, headers
from hydration.scope import Span
from hydration.times import RecordTime, first_not_older
from model.errors import HeadwaterError, SourceChanged
from segments.log import LocalLog
from segments.markers import ABORT, COMMIT, read_marker
from segments.runindex import RunIndex
from segments.scan import RunScan, scan_run
from segments.snapshots import decode_snapshot, open_transactions
from segments.transactions import AbortedTransaction, OpenTransaction, Transactions

_SCANS_MAX = 32  # segments whose scan is kept, per partition; one takes 24 bytes for every 64 KiB of its segment


def overlapping(aborted: Iterable[AbortedTransaction], first: int, end: int) -> Iterator[AbortedTransaction]:
    """Those that some offset in [first, end) may belong to."""
    return (each for each in aborted if each.first_offset < end and each.last_offset >= first)


def follow(transactions: Transactions, file: Readable, start: int, end: int, *, up_to: int) -> None:
    """Carry `transactions` on over the batches of file[start:end] that lie below `up_to`."""
    for position, header in headers(file, start, end):
        if header.last_offset >= up_to:
            return
        if header.producer_id < 0:
            continue
        if header.is_control and header.records:
            marker = read_marker(file.read(position, header.size_bytes), where=file.where)
            if marker.type in (ABORT, COMMIT):
                transactions.marker(header.producer_id, header.base_offset, aborts=marker.type == ABORT)
        elif header.is_transactional and not header.is_control:
            transactions.data(header.producer_id, header.base_offset)


def open_at(index: RunIndex, offset: int) -> tuple[OpenTransaction, ...]:
    """Transactions begun before `offset`, which lies in the run or right behind it, and not ended by then.

    One that commits later in the run is missing: an index does not list it. It changes no answer, as its marker is
    behind `offset` and no abort.
    """
    ended_later = (each for each in index.aborted if each.first_offset < offset <= each.last_offset)
    still = [OpenTransaction(each.producer_id, each.first_offset) for each in ended_later]
    still.extend(each for each in index.open_transactions if each.first_offset < offset)
    return tuple(sorted(still, key=lambda each: each.first_offset))


@dataclass(slots=True)
class _Scanned:
    """One segment's batches from its start on, in one scan or, as it grew, several."""

    inode: int
    epoch: int | None
    pieces: list[RunScan] = field(default_factory=list)

    @property
    def end_position(self) -> int:
        return self.pieces[-1].end_position if self.pieces else 0


class LocalScans:
    """Scans of local segments below the high watermark, each byte read once for as long as its file stays the same.

    For one thread at a time. Raises what scan_run raises, and SourceChanged when the log is replaced underneath: look again.
    """

    def __init__(self, tier: LocalTier) -> None:
        self._tier = tier
        self._scanned: dict[int, _Scanned] = {}

    def open_from(self, log: LocalLog, carried: Sequence[OpenTransaction]) -> int | None:
        """First offset of the oldest transaction open at the high watermark; None when there is none.

        carried   those open at the first segment's base, for a log without a snapshot there
        """
        assert log.high_watermark is not None
        at = _segment_at(log, log.high_watermark - 1)
        still: Sequence[OpenTransaction] = carried
        if at is not None:
            scanned = self._scan(log, at, carried)
            still = scanned.pieces[-1].open_transactions if scanned.pieces else self._open_before(log, at, carried)
        return min((each.first_offset for each in still), default=None)

    def aborted(
        self, log: LocalLog, markers: Span, offsets: Span, carried: Sequence[OpenTransaction]
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those that `offsets` may belong to and whose markers lie in `markers`; and whether that is all of them, however far
        one looks. A log that ends within its own high watermark, because the archive knows better, cannot say so.
        """
        assert log.high_watermark is not None
        found: list[AbortedTransaction] = []
        at = _segment_at(log, markers.start)
        if at is None:
            raise SourceChanged(f"{log.directory} no longer holds offset {markers.start}")
        for number in range(at, len(log.segments)):
            scanned = self._scan(log, number, carried)
            for piece in scanned.pieces:
                found.extend(each for each in overlapping(piece.aborted, offsets.start, offsets.end) if each.last_offset in markers)
            if scanned.pieces and markers.end == log.high_watermark:
                last = scanned.pieces[-1]
                if last.next_offset >= offsets.end and (last.open_from is None or last.open_from >= offsets.end):
                    return found, True
        return found, False

    def first_not_older(self, log: LocalLog, timestamp_ms: int, span: Span, carried: Sequence[OpenTransaction]) -> RecordTime | None:
        """The first record in `span` that is not older than `timestamp_ms`."""
        for number in range(_segment_at(log, span.start) or 0, len(log.segments)):
            for piece in self._scan(log, number, carried).pieces:
                if piece.last_timestamp is None or piece.last_timestamp < timestamp_ms:
                    continue
                file = self._tier.open(log.segments[number])
                try:
                    start = piece.start_position + piece.index.position_for_time(timestamp_ms)
                    found = first_not_older(file, start, piece.end_position, timestamp_ms, span)
                finally:
                    file.release()
                if found is not None:
                    return found
        return None

    def _scan(self, log: LocalLog, at: int, carried: Sequence[OpenTransaction]) -> _Scanned:
        segment = log.segments[at]
        assert log.high_watermark is not None
        scanned = self._scanned.get(segment.base_offset)
        if scanned is None or (scanned.inode, scanned.epoch) != (segment.generation[0], log.epochs.newest):
            scanned = _Scanned(segment.generation[0], log.epochs.newest)
        self._scanned.pop(segment.base_offset, None)
        while len(self._scanned) >= _SCANS_MAX:
            del self._scanned[next(iter(self._scanned))]
        self._scanned[segment.base_offset] = scanned
        held = self._tier.open(segment)
        try:
            # A file of its own: scanning moves the position, and the shared descriptor is read by others meanwhile.
            with open(f"/proc/self/fd/{held.fileno()}", "rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes < scanned.end_position:
                    del self._scanned[segment.base_offset]
                    raise SourceChanged(f"{segment.path} was cut")
                while scanned.end_position < size_bytes:
                    before = scanned.pieces[-1].open_transactions if scanned.pieces else self._open_before(log, at, carried)
                    piece = scan_run(
                        file,
                        start=scanned.end_position,
                        end=size_bytes,
                        open_before=before,
                        up_to=log.high_watermark,
                        where=str(segment.path),
                    )
                    if piece is None:
                        break
                    scanned.pieces.append(piece)
        finally:
            held.release()
        return scanned

    def _open_before(self, log: LocalLog, at: int, carried: Sequence[OpenTransaction]) -> tuple[OpenTransaction, ...]:
        """Transactions open where a segment begins: the broker's own word, else what the segments before it say."""
        segment = log.segments[at]
        path = segment.path.with_suffix(".snapshot")
        try:
            return open_transactions(decode_snapshot(path.read_bytes(), where=str(path)))
        except (OSError, HeadwaterError):
            pass
        if at == 0:
            return tuple(carried)
        before = self._scan(log, at - 1, carried)
        return before.pieces[-1].open_transactions if before.pieces else self._open_before(log, at - 1, carried)


def _segment_at(log: LocalLog, offset: int) -> int | None:
    """Which segment `offset` falls into; None when it lies before the first or there is none."""
    holders = [number for number, segment in enumerate(log.segments) if segment.base_offset <= offset]
    return holders[-1] if holders else None
