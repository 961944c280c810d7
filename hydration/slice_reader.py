"""Slices for one read: from the first tier that has them, over gaps that no tier fills."""

from functools import partial

import structlog

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, OffsetOutOfRange, SourceChanged, TransientError, UnsupportedFormat
from headwater_core.segments.batches import HEADER_BYTES, read_batch_header
from hydration.answers import ReadResult, Slice
from hydration.counters import report_gap
from hydration.local.local_tier import LocalSlice
from hydration.local.scan_workers import BoundaryWorker
from hydration.local_looks import LocalLooks
from hydration.resumption import Resumable
from hydration.scope import Tier
from hydration.tiers import Tiers
from hydration.views import View, between_renames

log = structlog.get_logger()


class SliceReader:
    """Of one partition. Everything public is a generator that yields what has to be waited for (see hydration.resumption)."""

    def __init__(self, tiers: Tiers, looks: LocalLooks) -> None:
        self._tiers, self._looks = tiers, looks
        self._worker = BoundaryWorker(tiers.submit)

    def check_in_range(self, offset: int, view: View) -> Resumable[None]:
        """Raises unless `offset` is between log start and log end, in a gap maybe: OffsetOutOfRange only when that is sure."""
        scope, local = view.scope, self._tiers.local
        view.check_known(offset)
        if offset < scope.log_start or offset > scope.high_watermark:
            end = scope.high_watermark
            if offset > end and view.log is not None and local is not None:
                end = max(end, (yield from self._looks.while_same(view.log, self._worker.find(local.end_offset))))
            if not scope.log_start <= offset <= end:
                raise OffsetOutOfRange(offset, scope.log_start, end)

    def fill(self, answer: ReadResult, view: View, end: int, max_bytes: int) -> Resumable[tuple[Tier, LocalSlice | None]]:
        """Put slices below `end` into `answer`, about `max_bytes`, from the first tier that has them; which one that was, and the piece
        when it was the local one. Raises what the first tier did when none can serve them, as TransientError where that was NotFound.
        """
        scope, cursor, tier = view.scope, answer.next_offset, Tier.LOCAL
        piece: LocalSlice | None = None
        while not answer.slices and cursor < end:
            tiers = self._tiers.order(scope, cursor)
            if not tiers:
                moved = scope.next_held(cursor)
                self._skip_gap(view, cursor, moved)
                cursor = moved
                continue
            failure: HeadwaterError | None = None
            for tier in tiers:
                try:
                    if tier is Tier.LOCAL:
                        moved, piece = yield from self._fill_locally(answer, view, cursor, end, max_bytes)
                    else:
                        moved = yield from self._fill_from_archive(answer, view, cursor, end, max_bytes)
                    break
                except HeadwaterError as error:
                    failure = failure or error
                    if tier is not tiers[-1]:
                        self._report_fallback(tier, cursor, error)
            else:
                assert failure is not None
                if isinstance(failure, NotFound):
                    raise TransientError(str(failure)) from failure
                raise failure
            if moved <= cursor:
                break  # there is less than the high watermark promised
            cursor = moved
        answer.next_offset = cursor
        return tier, piece

    def _report_fallback(self, tier: Tier, offset: int, error: HeadwaterError) -> None:
        self._tiers.hydrator.counters.fallbacks += 1
        log.warning("read_fell_back", partition=str(self._tiers.partition), offset=offset, tier=tier.value, reason=str(error))

    def _fill_from_archive(self, answer: ReadResult, view: View, cursor: int, end: int, max_bytes: int) -> Resumable[int]:
        """The offset to continue with."""
        archive, scope = self._tiers.archive, view.scope
        assert archive is not None
        assert scope.archive is not None
        return (yield from archive.fill(answer, cursor, min(end, scope.archive.end), max_bytes, scope.local))

    def _fill_locally(
        self, answer: ReadResult, view: View, cursor: int, end: int, max_bytes: int
    ) -> Resumable[tuple[int, LocalSlice | None]]:
        """The offset to continue with, and what was put into `answer`."""
        scope, local, found, partition = view.scope, self._tiers.local, view.local_log, self._tiers.partition
        assert local is not None
        assert scope.local is not None
        read = partial(local.read, found, cursor, min(end, scope.local.end), max_bytes)
        piece, moved = yield from self._looks.while_same(found, self._worker.find(read, lambda answered: _release(answered[0])))
        if piece is None and moved <= cursor:
            archived = self._tiers.next_archived(scope, cursor)
            if archived == cursor:
                raise NotFound(f"{partition}: the local log ends before its high watermark, at offset {cursor}")
            if archived is not None and scope.is_local_behind:
                self._skip_gap(view, cursor, archived)  # what the archive lacks before that, the newer leadership does not have
                return archived, None
        if piece is None and moved < scope.local.end <= end and scope.local.end != found.high_watermark:
            self._skip_gap(view, cursor, scope.local.end)  # what is left crosses into the dead branch, so it is of that branch
            return scope.local.end, None
        try:
            begins = moved if piece is None else base_offset(piece.slice)
            if begins > cursor and not found.settled:
                raise between_renames(found)
            if begins > cursor and not scope.compacted:
                archived = self._tiers.next_archived(scope, cursor)
                if archived == cursor:
                    raise NotFound(f"{partition}: the local log continues with {begins}, not with {cursor}")
                if archived is not None and archived < begins:
                    self._skip_gap(view, cursor, archived)
                    _release(piece)
                    return archived, None
                self._skip_gap(view, cursor, begins)
        except BaseException:
            _release(piece)
            raise
        if piece is not None:
            answer.slices.append(piece.slice)
        return moved, piece

    def _skip_gap(self, view: View, offset: int, next_offset: int) -> None:
        view.prove_gap(offset)
        report_gap(self._tiers.hydrator.counters, view.partition, offset, next_offset)


def base_offset(piece: Slice) -> int:
    """Of its first batch. Raises SourceChanged when the file was cut after the slice was made."""
    file = piece.file
    try:
        return read_batch_header(file.read(piece.position, HEADER_BYTES), where=file.where).base_offset
    except (CorruptData, UnsupportedFormat) as error:
        raise SourceChanged(f"{file.where} was cut") from error


def _release(piece: LocalSlice | None) -> None:
    if piece is not None:
        piece.slice.file.release()
