"""The object that is written while it fills: what is committed is taken from the local log, place by place, and sent part by part (PIP-76).

Taking reads headers alone. Every byte is verified when it is cut into a part, and compared with that when it is sent. A file stays open
until its last byte has gone, so the broker may delete it meanwhile.
"""

import errno
import os
import weakref
from typing import BinaryIO, NamedTuple

from archival.partition.source import OpenSegment, check_unchanged
from archival.partition.stream_writers import ClosedRun, StreamWriter
from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, HeadwaterError, SourceChanged, SuspectedGap, TransientError, TruncatedData, UnsupportedFormat
from headwater_core.layouts.streaming import FileExtent, LedgerEntries, OfferResult
from headwater_core.segments import markers, runindex
from headwater_core.segments.batch_walk import headers, walk
from headwater_core.segments.batches import CONTROL, BatchHeader
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests.entry import ENTRY_EPOCHS_MAX

_FILES_MAX = 64  # open at once, of one object
_MARKER_BYTES_MAX = 4096  # of a batch that is read to see whether it is an abort marker: Kafka's have 78


class BatchPlace(NamedTuple):
    """Where the batch at `offset` begins: at which byte of which segment's file, as which of its batches, from 0."""

    ledger_id: int
    inode: int
    offset: int
    position: int
    entry_id: int


class SegmentStream:
    """One object, or one segment of chunks, from its first byte to its last.

    size_bytes    of all that was taken; next_offset: the offset after it
    epochs        where each leader epoch begins in that
    place         where the next batch is expected, so that the next object need not search it
    is_full       it takes nothing more
    is_before_damage  because what follows may not be archived
    lacks_room    the last look found more than the budget had room for
    cannot_begin  no batch begins right where it is to begin, or one of an older leader epoch than `newest_epoch`

    What it raises ends it, then it is to be given up; after a TransientError other than SourceChanged the same call may be repeated.
    """

    def __init__(
        self,
        writer: StreamWriter,
        *,
        newest_epoch: int,
        open_segment: OpenSegment,
        place: BatchPlace | None = None,
        verifies: bool = False,
    ) -> None:
        """verifies: every batch already when it is taken, to find out which one is damaged."""
        self.pending, self.place, self._open_segment = writer.pending, place, open_segment
        self._writer, self._handle = writer, writer.handle
        self.uids = {writer.pending.uid}  # of what it becomes, and of itself
        self._files: dict[int, BinaryIO] = {}  # by ledger
        weakref.finalize(self, _close_all, self._files)
        self._newest_epoch, self._verifies = newest_epoch, verifies
        self.next_offset = writer.pending.base_offset
        self.epochs: tuple[EpochStart, ...] = ()
        self._aborts = 0  # markers that the run's index may list
        self.is_full = self.is_before_damage = self.cannot_begin = self.lacks_room = False

    @property
    def size_bytes(self) -> int:
        return self._handle.offered_bytes

    @property
    def stored_bytes(self) -> int | None:
        """See StreamWriter."""
        return self._writer.stored_bytes

    @property
    def failed(self) -> str:
        return self._writer.failed

    @property
    def is_closed(self) -> bool:
        return self._handle.is_closed

    def covers(self, offset: int) -> bool:
        return self.pending.base_offset <= offset < self.next_offset

    def take(self, log: LocalLog, end: int, bytes_max: int) -> None:
        """Take what is committed below `end`, until there are `bytes_max`, or one larger batch; less where the budget is used up.

        What may not be archived ends the object before it; so do too many open files, when sending closes none.
        Raises SuspectedGap, CorruptData and UnsupportedFormat where it comes first.
        """
        self.lacks_room = False
        self._seal_last(log)
        try:
            for segment, sealed_at in log.segments_from(self.next_offset):
                if self.is_full or self.next_offset >= end or segment.base_offset > self.next_offset:
                    return
                if not self._has_file(segment) or not self._take_from(segment, sealed_at, end, bytes_max):
                    return
                if sealed_at is None or self.next_offset < sealed_at:
                    return
                self._seal(segment)
        except (SuspectedGap, CorruptData, UnsupportedFormat):
            if not self.size_bytes:
                raise
            self.is_full = self.is_before_damage = True

    def _take_from(self, segment: LocalSegment, sealed_at: int | None, end: int, bytes_max: int) -> bool:
        """Whether all was taken that must be there below `end`. Raises what is wrong after what it has taken."""
        file, where, due = self._files[segment.base_offset], str(segment.path), end if sealed_at is None else min(end, sealed_at)
        size_bytes = check_unchanged(segment, file)
        begin = self._locate(segment, file, size_bytes)
        if begin is None:
            return False
        count, position, next_offset = 0, begin.position, self.next_offset
        taken = epochs, aborts = self.epochs, self._aborts
        bytes_max = min(bytes_max, self._handle.run_bytes_max)
        wrong: HeadwaterError | None = None
        try:
            batches = walk if self._verifies else headers
            for at, header in batches(file, begin.position, size_bytes, where=where):
                batch_end = at + header.size_bytes
                if header.base_offset != next_offset:
                    raise _gap(segment, next_offset, header.base_offset)
                if header.last_offset >= end or (batch_end > size_bytes and segment.is_active):
                    break
                if sealed_at is not None and header.last_offset >= sealed_at:
                    raise CorruptData(where, at, f"its last offset is {header.last_offset}, the next segment begins with {sealed_at}")
                if batch_end > size_bytes:
                    raise TruncatedData(where, at, f"batch of {header.size_bytes} bytes, {size_bytes - at} are there")
                begins_epoch = header.leader_epoch >= 0 and (not epochs or epochs[-1].epoch != header.leader_epoch)
                if begins_epoch:
                    epochs = (*epochs, EpochStart(header.leader_epoch, header.base_offset))
                aborts += _may_abort(file, at, header)
                size_then = self.size_bytes + batch_end - begin.position
                is_beyond = size_then > bytes_max or len(epochs) > ENTRY_EPOCHS_MAX or aborts > runindex.ABORTED_MAX
                if is_beyond and (count or self.size_bytes):
                    self.is_full = True
                    break
                count, position, next_offset, taken = count + 1, batch_end, header.last_offset + 1, (epochs, aborts)
                if next_offset == due:
                    break
            else:
                if sealed_at is not None:
                    wrong = _gap(segment, next_offset, due)
        except (SuspectedGap, CorruptData, UnsupportedFormat) as error:
            if not (segment.is_active and isinstance(error, TruncatedData)):  # a batch that is still being written
                wrong = error
        if count:
            extent = FileExtent(file.fileno(), begin.position, position - begin.position)
            done = self._handle.offer(LedgerEntries(segment.base_offset, begin.entry_id, extent, count))
            if done is not OfferResult.SUCCESS:
                self.is_full, self.lacks_room = done is OfferResult.FAIL_SEGMENT_CLOSED, done is OfferResult.FAIL_BUFFER_FULL
                return False
            self.next_offset, (self.epochs, self._aborts) = next_offset, taken
            self.place = begin._replace(offset=next_offset, position=position, entry_id=begin.entry_id + count)
        if wrong is not None:
            raise wrong
        return self.next_offset == due and not self.is_full

    def _locate(self, segment: LocalSegment, file: BinaryIO, size_bytes: int) -> BatchPlace | None:
        """The batch that is due in `segment`; None when there is none yet, or none begins there. Raises SuspectedGap for a gap."""
        known, where = self.place, str(segment.path)
        inode = segment.generation.inode
        if known is not None and (known.inode, known.offset) == (inode, self.next_offset) and known.position <= size_bytes:
            return known
        count = 0
        try:
            for position, header in headers(file, 0, size_bytes, where=where):
                if header.base_offset > self.next_offset:
                    raise _gap(segment, self.next_offset, header.base_offset)
                if header.last_offset >= self.next_offset:
                    if header.base_offset != self.next_offset or header.leader_epoch < self._newest_epoch:
                        if self.size_bytes:
                            raise SourceChanged(f"{where}: no batch begins at offset {self.next_offset} any more")
                        self.cannot_begin = True
                        return None
                    return BatchPlace(segment.base_offset, inode, self.next_offset, position, count)
                count += 1
        except TruncatedData:
            if not segment.is_active:
                raise
            return None
        if not segment.is_active:
            raise SuspectedGap(f"{where} holds nothing at or past offset {self.next_offset}, and nothing proves compaction")
        return None

    def _has_file(self, segment: LocalSegment) -> bool:
        """Is its file open, or was there room for one more? Sends what is taken where there was none."""
        if segment.base_offset in self._files:
            return True
        if len(self._files) >= _FILES_MAX:
            self.send()
        try:
            if len(self._files) < _FILES_MAX:
                self._files[segment.base_offset] = self._open_segment(segment)
                return True
        except TransientError as error:
            if not self.size_bytes or not lacks_descriptors(error):
                raise
        self.is_full = True  # its files are closed with it
        return False

    def _seal_last(self, log: LocalLog) -> None:
        """All of a segment may have been taken while it was active, and now another one follows it."""
        if self.place is not None:
            found = next(log.segments_from(self.place.ledger_id), None)
            if found is not None and (found.segment.generation.inode, found.end) == (self.place.inode, self.place.offset):
                self._seal(found.segment)

    def _seal(self, segment: LocalSegment) -> None:
        if self.place is not None:
            closed_ms = segment.generation.modified_ns // 1_000_000
            self._handle.seal_ledger(segment.base_offset, entries=self.place.entry_id, size_bytes=segment.size_bytes, closed_ms=closed_ms)

    def send(self) -> None:
        """Every part that is full, and close what is not wanted any more."""
        while self._handle.send_part():
            pass
        unsent = self._handle.unsent_from
        for ledger_id in [each for each in self._files if unsent is None or each < unsent.ledger_id]:
            if self.place is None or ledger_id != self.place.ledger_id:
                self._files.pop(ledger_id).close()

    def close(self, now_ms: int) -> tuple[ClosedRun, ...]:
        """Send the rest, make the objects, index last. What is to be listed, in order."""
        self._handle.close(last_offset=self.next_offset - 1, offloaded_ms=now_ms)
        closed = self._writer.finish(self.next_offset - 1)
        expected = self.pending.base_offset
        for entry, scan in closed:
            if (scan.base_offset, scan.first_gap) != (expected, None):
                raise SourceChanged(f"{self.pending.uid}: offsets from {expected} on were taken, {scan.base_offset} is there")
            expected = entry.next_offset
            self.uids.add(entry.uid)
        if (expected, closed[-1].scan.last_offset) != (self.next_offset, self.next_offset - 1):
            raise SourceChanged(f"{self.pending.uid}: offsets up to {self.next_offset - 1} were taken, {expected - 1} is there")
        return closed

    def give_up(self) -> bool:
        """Drop what was sent, and close all files. False where the store does not let it be dropped now: then garbage collection finds
        it."""
        try:
            self._handle.abort()
        except HeadwaterError:
            return False
        finally:
            self.release()
        return True

    def release(self) -> None:
        """Close all files."""
        _close_all(self._files)


def _close_all(files: dict[int, BinaryIO]) -> None:
    while files:
        files.popitem()[1].close()


def lacks_descriptors(error: BaseException | None) -> bool:
    """Does `error` come of too many open files, here or on the whole machine?"""
    while error is not None and getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE):
        error = error.__cause__ or error.__context__
    return error is not None


def _gap(segment: LocalSegment, first: int, end: int) -> SuspectedGap:
    return SuspectedGap(f"{segment.path} goes from offset {first - 1} to {end}, and nothing proves compaction")


def _may_abort(file: BinaryIO, position: int, header: BatchHeader) -> bool:
    """May the index of the run list an aborted transaction for this batch? True as well where that cannot be told."""
    if not header.attributes & CONTROL:
        return False
    if header.size_bytes > _MARKER_BYTES_MAX:
        return True
    try:
        return markers.read_marker(os.pread(file.fileno(), header.size_bytes, position)).type == markers.ABORT
    except HeadwaterError:  # it is verified when it is cut
        return True
