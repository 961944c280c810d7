"""One partition as its readers see it: local log and archive in one (design §5)."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from headwater_core.errors import (
    CorruptData,
    HeadwaterError,
    NotFound,
    OffsetOutOfRange,
    SourceChanged,
    Superseded,
    TransientError,
    UnsupportedFormat,
)
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import HEADER_BYTES, read_batch_header
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.run_scan import AbortedTransaction, OpenTransaction
from hydration.answers import Bounds, Isolation, ReadResult, Slice
from hydration.archive.archive_tier import ArchiveTier, Carried
from hydration.archive.hydrator import Hydrator
from hydration.archive.index_transactions import overlapping
from hydration.archive.manifest_view import Archived, Extent
from hydration.config import ReadPriority
from hydration.local.local_tier import LocalTier, Piece
from hydration.local.local_times import LocalTimes
from hydration.local.local_transactions import Ending, LocalTransactions, UnknownBeginning
from hydration.local.open_segment import TURN_BYTES, WALK_BYTES, Allowance, LongWalk
from hydration.local.turns import Turns
from hydration.resumption import Pending, Steps, begin, finish
from hydration.scope import Scope, Span, Tier, epoch_end, parting_offset, scope_of
from hydration.times import RecordTime

__all__ = ["Bounds", "Isolation", "PartitionLog", "Pending", "ReadResult", "Slice"]

HEAD_AGE_S = 5.0  # a reader at the end of an archive without a local log sees new entries after that
MISS_AGE_S = 1.0  # what is concluded from a manifest, that an offset is out of range say, is concluded from a younger one
MISSED_LOOK_S = 0.05  # what a look does not have is concluded from one that is younger
TIMEOUT_S = 30.0
_LOOKS = 3  # at a local log that is replaced while it is read

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _View:
    """One look at both tiers. `failure` is why one of them could not be looked at; None when both are known.

    log, extent   what `scope` was made of. Whatever an answer says of transactions comes from these two, never from a later look.
    settled       the manifest was asked for when the look at the local log had ended. Segments are dropped only after they are
                  committed, so what neither has is nowhere; from an older manifest it may just have moved.
    """

    scope: Scope
    log: LocalLog | None
    extent: Extent | None
    failure: HeadwaterError | None
    settled: bool

    @property
    def ends_with_archive(self) -> bool:
        """What the manifest says of its end holds for the view's: no dead branch was cut off, and no local log goes on, nor does
        one hold what is a gap there."""
        archive, local, extent = self.scope.archive, self.scope.local, self.extent
        if archive is None or extent is None or archive.end != extent.next_offset:
            return False
        return local is None or local.end <= (archive.end if extent.gap_from is None else extent.gap_from)

    @property
    def ends_with_cut_archive(self) -> bool:
        """The view ends in the archive, where a dead branch was cut off."""
        archive, local, extent = self.scope.archive, self.scope.local, self.extent
        return (
            archive is not None and extent is not None and archive.end < extent.next_offset and (local is None or local.end < archive.end)
        )


class _Unsettled(TransientError):
    """A hole was met in a view that cannot prove one."""


class _Unknown(TransientError):
    """Neither a log nor a head says anything of the partition: it may be another broker's, and not archived yet."""


class PartitionLog:
    """Safe to use from many threads. Every method but the try_ ones may block, at most `timeout_s`; the try_ ones never
    download: they answer at once or hand back a Pending whose future answers (and raises) like the blocking form.

    Raises OffsetOutOfRange only when that is known; TransientError when it cannot be known or got now.
    """

    def __init__(
        self,
        partition: PartitionId,
        *,
        local: LocalTier | None,
        archived: Archived | None,
        hydrator: Hydrator,
        priority: ReadPriority = ReadPriority.LOCAL_FIRST,
    ) -> None:
        self.partition = partition
        self.priority = priority
        self.local = local if priority.uses_local else None
        self._left_out = local if not priority.uses_local else None  # serves nothing, but tells whether there is anything to archive
        self.archive = ArchiveTier(archived, hydrator) if archived is not None and priority.uses_archive else None
        self._hydrator = hydrator
        self._transactions = LocalTransactions(local) if local is not None else None
        self._transaction_turns = Turns(self._submit)
        self._times = LocalTimes(local) if local is not None else None
        self._time_turns = Turns(self._submit)
        self._walk_lock = threading.Lock()
        self._walk: Future[None] | None = None  # the turn under way, or the last one
        self._last_scope: tuple[LocalLog | None, Extent | None, Scope] | None = None

    @property
    def archived(self) -> Archived | None:
        """What is known of the manifest; None where the read priority leaves the archive out."""
        return self.archive.archived if self.archive is not None else None

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a worker read the local log's files."""
        return self._hydrator.submit(work, self.local.log_dir if self.local is not None else None)

    # What is asked

    def known_scope(self) -> Scope | None:
        """What both tiers held when they were last seen, without asking the store; None while one of them was never seen."""
        if self.archived is not None and not self.archived.is_known:
            return None
        found, failure, _ = self._local_log()
        if failure is None and found is None:
            failure = self._absent()
        return self._scope(found)[1] if failure is None else None

    def bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, timeout_s: float | None = TIMEOUT_S) -> Bounds:
        """last_stable_offset is filled in for READ_COMMITTED only, where it may cost a scan of the local tail."""
        return finish(self._bounds(isolation), timeout_s)

    def try_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | Pending[Bounds]:
        return begin(self._bounds(isolation))

    def known_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | None:
        """As they were last seen, without waiting: None where they were not, last_stable_offset None where it takes a scan."""
        view = self._view_now()
        if view.failure is not None:
            return None
        stable: int | None = None
        if isolation is Isolation.READ_COMMITTED:
            with suppress(HeadwaterError):
                asked = begin(self._stable_offset(view))
                if isinstance(asked, Pending):
                    asked.future.cancel()
                else:
                    stable = asked
        return self._bounds_of(view, stable)

    def try_leader_epoch(self) -> int | Pending[int]:
        """As far as it is known; waits only while nothing is. What is old is asked for in passing."""
        return begin(self._leader_epoch())

    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, timeout_s: float | None = TIMEOUT_S) -> ReadResult:
        """Whole batches from the one that holds `offset` on: about `max_bytes` of them, at least one when there is one.

        An offset between the high watermark and the log's end answers without slices. Close the result.
        """
        return finish(self._read(offset, max_bytes, isolation), timeout_s)

    def try_read(self, offset: int, max_bytes: int, isolation: Isolation) -> ReadResult | Pending[ReadResult]:
        return begin(self._read(offset, max_bytes, isolation), discard=ReadResult.close)

    def offset_for_time(self, timestamp_ms: int, *, timeout_s: float | None = TIMEOUT_S) -> RecordTime | None:
        """(offset, timestamp) of the first record at or after `timestamp_ms`; None when there is none below the high watermark."""
        return finish(self._offset_for_time(timestamp_ms), timeout_s)

    def epoch_end(self, epoch: int, *, timeout_s: float | None = TIMEOUT_S) -> tuple[int, int]:
        """(largest known leader epoch <= `epoch`, offset just past its records), (-1, -1) when undefined: OffsetForLeaderEpoch."""
        return finish(self._epoch_end(epoch), timeout_s)

    # How it is answered: generators that yield what has to be waited for

    def _bounds(self, isolation: Isolation) -> Steps[Bounds]:
        return (yield from self._in_one_view("bounds", lambda settle: self._bounds_once(isolation, settle=settle)))

    def _bounds_once(self, isolation: Isolation, *, settle: bool) -> Steps[Bounds]:
        view = yield from self._known_view(settle=settle)
        stable = (yield from self._stable_offset(view)) if isolation is Isolation.READ_COMMITTED else None
        return self._bounds_of(view, stable)

    @staticmethod
    def _bounds_of(view: _View, stable: int | None) -> Bounds:
        scope = view.scope
        return Bounds(
            log_start=scope.log_start,
            local_start=view.log.local_start if view.log is not None else None,
            last_offset=scope.archive.end - 1 if scope.archive is not None else None,
            high_watermark=scope.high_watermark,
            last_stable_offset=stable,
            leader_epoch=scope.leader_epoch,
        )

    def _leader_epoch(self) -> Steps[int]:
        view = self._view_now()
        if view.failure is not None and not isinstance(view.failure, _Unknown):
            view = yield from self._known_view()
        return view.scope.leader_epoch

    def _epoch_end(self, epoch: int) -> Steps[tuple[int, int]]:
        view = yield from self._known_view()
        return epoch_end(view.scope.epochs, epoch, view.scope.high_watermark)

    def _in_one_view(self, what: str, once: Callable[[bool], Steps[T]]) -> Steps[T]:
        """What `once` answers, from a new view when its own was overtaken: an answer never mixes two.

        once   takes whether the view has to be settled
        """
        settle = False
        for _ in range(_LOOKS - 1):
            try:
                return (yield from once(settle))
            except (SourceChanged, _Unsettled) as error:
                settle = isinstance(error, _Unsettled)
                if self.local is not None:
                    self.local.look_again()
                log.debug("read_restarted", partition=str(self.partition), what=what, reason=str(error))
        return (yield from once(settle))

    def _read(self, offset: int, max_bytes: int, isolation: Isolation) -> Steps[ReadResult]:
        return (
            yield from self._in_one_view(f"offset {offset}", lambda settle: self._read_once(offset, max_bytes, isolation, settle=settle))
        )

    def _read_once(self, offset: int, max_bytes: int, isolation: Isolation, *, settle: bool) -> Steps[ReadResult]:
        """Raises SourceChanged when the local log is replaced underneath, _Unsettled for a hole that may be none."""
        yield from self._look()
        view = self._view_now()
        at_end = offset == view.scope.high_watermark and (view.failure is None or view.scope.local is not None)
        if settle or (not view.scope.holds(offset) and not at_end):
            view = yield from self._known_view(partly=True, settle=settle)
            if not view.scope.holds(offset):
                yield from self._check_in_range(offset, view)
        scope = view.scope
        stable = (yield from self._stable_offset(view)) if isolation is Isolation.READ_COMMITTED else None
        limit = scope.high_watermark if stable is None else stable
        answer = ReadResult(high_watermark=scope.high_watermark, last_stable_offset=stable, log_start=scope.log_start, next_offset=offset)
        try:
            tier, piece = yield from self._fill(answer, view, limit, max_bytes)
            if stable is not None and answer.slices:
                first = max(offset, _base_offset(answer.slices[0]))  # a marker in a gap before it is not served, and ends nothing
                answer.aborted = yield from self._aborted(tier, view, first, answer.next_offset)
                self._check_lineage(view)
                if piece is not None and self.local is not None:
                    self.local.check(piece)  # asking for transactions may have taken long
        except BaseException:
            answer.close()
            raise
        self._hydrator.counters.reads += 1
        return answer

    def _view_now(self) -> _View:
        """What can be said without waiting. What is not known yet is asked for in passing."""
        found, failure, looked_s = self._local_log()
        archived = self.archived
        if archived is not None:
            if not archived.is_known:
                archived.refresh_soon(MISS_AGE_S)
                failure = failure or TransientError(f"the manifest of {self.partition} is not known yet")
            elif found is None:
                archived.refresh_soon(HEAD_AGE_S)
        if found is None:
            failure = failure or self._absent()
        return self._view(found, failure, looked_s)

    def _known_view(self, *, partly: bool = False, settle: bool = False) -> Steps[_View]:
        """A fresh look at both tiers, settled where there is a hole. A manifest that cannot be loaded again now counts as known.

        Raises what kept a tier from being known at all; with `partly` that is the view's failure instead.
        """
        archived, failure = self.archived, None
        yield from self._look(MISSED_LOOK_S if partly else None)
        found, local_failure, looked_s = self._local_log()
        if archived is not None:
            try:
                yield from archived.refresh(MISS_AGE_S)
                if settle or self._scope(found)[1].has_hole:
                    yield from archived.refresh_since(looked_s)
            except HeadwaterError as error:
                failure = error
        if found is None:
            local_failure = local_failure or self._absent()
        failure = local_failure or failure
        unknown = local_failure is not None or (archived is not None and not archived.is_known)
        if failure is not None and unknown and not partly:
            raise failure
        return self._view(found, failure, looked_s)

    def _view(self, found: LocalLog | None, failure: HeadwaterError | None, looked_s: float) -> _View:
        settled = self.archived is None or self.archived.was_seen_since(looked_s)  # before the extent is taken from it
        extent, scope = self._scope(found)
        return _View(scope, found, extent, failure, settled)

    def _scope(self, found: LocalLog | None) -> tuple[Extent | None, Scope]:
        """What is known of the manifest, and the scope; computed anew only when one of the two it comes from is another."""
        extent = self.archived.extent if self.archived is not None else None
        kept = self._last_scope
        if kept is None or kept[0] is not found or kept[1] is not extent:
            kept = self._last_scope = (found, extent, scope_of(found, extent, self.priority))
        return kept[1:]

    def _look(self, max_age_s: float | None = None) -> Steps[None]:
        """Have the local log looked at by a thread that may wait for its disk, unless the last look is younger than that."""
        local = self.local
        if local is None and (self.archived is None or self.archived.extent is None):
            local = self._left_out
        for _ in range(_LOOKS):  # one that was under way already may have begun too early
            if local is None or not local.needs_look(max_age_s):
                return
            yield self._hydrator.join_look(self.partition, partial(_look, local, max_age_s), local.log_dir)
            if local.last.failure is not None:
                return

    def _local_log(self) -> tuple[LocalLog | None, HeadwaterError | None, float]:
        """The local log as of the last look, why it is not known, and when that look had ended at the latest."""
        if self.local is None:
            return None, None, float("-inf")
        last = self.local.last
        if self.local.hangs:
            return None, TransientError(f"the local log of {self.partition} cannot be looked at: its disk does not answer"), last.seen_s
        if last.log is not None and not last.log.settled:
            return last.log, _between_renames(last.log), last.seen_s
        return last.log, last.failure, last.seen_s

    def _absent(self) -> TransientError | None:
        """Why a local log that is not there counts as unknown: it held more than the archive is known to hold, or nothing is known."""
        last = self.local.last_seen if self.local is not None else None
        extent = self.archived.extent if self.archived is not None else None
        if last is None or last.high_watermark is None:
            if extent is not None or (self.archived is not None and not self.archived.is_known) or self._was_never_written():
                return None
            return _Unknown(f"{self.partition} has no log here, and nothing of it is archived yet")
        if last.high_watermark <= (extent.next_offset if extent is not None else last.log_start):
            return None
        return TransientError(f"{last.directory} is gone, and the archive does not reach its high watermark {last.high_watermark}")

    def _was_never_written(self) -> bool:
        """The local log, which the read priority leaves out, says that there is nothing yet that could be archived."""
        found = self._left_out.last.log if self._left_out is not None else None
        return found is not None and found.high_watermark == 0

    def _check_in_range(self, offset: int, view: _View) -> Steps[None]:
        """Raises unless `offset` is between log start and log end, in a hole maybe. Says out of range only when sure."""
        scope = view.scope
        if isinstance(view.failure, Superseded):
            raise view.failure
        if view.failure is not None:
            raise TransientError(f"{self.partition}: whether offset {offset} exists is not known now: {view.failure}") from view.failure
        if offset < scope.log_start or offset > scope.high_watermark:
            end = scope.high_watermark
            if offset > end and view.log is not None and self.local is not None:
                end = max(end, (yield from self._of(view.log, self._walk_local(self.local.end_offset))))
            if not scope.log_start <= offset <= end:
                raise OffsetOutOfRange(offset, scope.log_start, end)

    def _fill(self, answer: ReadResult, view: _View, limit: int, max_bytes: int) -> Steps[tuple[Tier, Piece | None]]:
        """Put slices into `answer` from the first tier that has them; which one that was, and the piece when it was the local one."""
        scope, cursor, tier = view.scope, answer.next_offset, Tier.LOCAL
        piece: Piece | None = None
        while not answer.slices and cursor < limit:
            tiers = self._tiers(scope, cursor)
            if not tiers:
                moved = scope.next_held(cursor)
                self._move_over_hole(view, cursor, moved)
                cursor = moved
                continue
            failure: HeadwaterError | None = None
            for tier in tiers:
                try:
                    if tier is Tier.LOCAL:
                        moved, piece = yield from self._fill_locally(answer, view, cursor, limit, max_bytes)
                    else:
                        moved = yield from self._fill_from_archive(answer, view, cursor, limit, max_bytes)
                    break
                except HeadwaterError as error:
                    failure = failure or error
                    if tier is not tiers[-1]:
                        self._hydrator.counters.fallbacks += 1
                        log.warning("read_fell_back", partition=str(self.partition), offset=cursor, tier=tier.value, reason=str(error))
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

    def _tiers(self, scope: Scope, offset: int) -> tuple[Tier, ...]:
        """Those that may hold `offset`, the one to ask first in front. A gap of the archive is none that the local log has to share."""
        tiers = scope.order(self.priority, offset)
        if len(tiers) > 1 and self._next_archived(scope, offset) != offset:
            return (Tier.LOCAL,)
        return tiers

    def _next_archived(self, scope: Scope, offset: int) -> int | None:
        """The first offset at or past `offset` that the archive has data for."""
        if self.archive is None or scope.archive is None:
            return None
        span = Span.between(max(offset, scope.archive.start), scope.archive.end)
        found = self.archive.next_held(span) if span.start < span.end else span.end
        return found if found < span.end else None

    def _fill_from_archive(self, answer: ReadResult, view: _View, cursor: int, limit: int, max_bytes: int) -> Steps[int]:
        """The offset to go on with."""
        scope = view.scope
        assert self.archive is not None
        assert scope.archive is not None
        return (yield from self.archive.fill(answer, cursor, min(limit, scope.archive.end), max_bytes, scope.local))

    def _fill_locally(self, answer: ReadResult, view: _View, cursor: int, limit: int, max_bytes: int) -> Steps[tuple[int, Piece | None]]:
        """The offset to go on with, and what was put into `answer`."""
        scope = view.scope
        assert self.local is not None
        assert view.log is not None
        assert scope.local is not None
        read = partial(self.local.read, view.log, cursor, min(limit, scope.local.end), max_bytes)
        piece, moved = yield from self._of(view.log, self._walk_local(read, lambda found: _release(found[0])))
        if piece is None and moved <= cursor and self._next_archived(scope, cursor) == cursor:
            raise NotFound(f"{self.partition}: the local log ends before its high watermark, at offset {cursor}")
        if piece is None and moved < scope.local.end <= limit and scope.local.end != view.log.high_watermark:
            self._move_over_hole(view, cursor, scope.local.end)  # what is left crosses into the dead branch, so it is of that branch
            return scope.local.end, None
        try:
            begins = moved if piece is None else _base_offset(piece.slice)
            if begins > cursor and not view.log.settled:
                raise _between_renames(view.log)
            if begins > cursor and not scope.compacted:
                archived = self._next_archived(scope, cursor)
                if archived == cursor:
                    raise NotFound(f"{self.partition}: the local log goes on with {begins}, not with {cursor}")
                if archived is not None and archived < begins:
                    self._move_over_hole(view, cursor, archived)
                    _release(piece)
                    return archived, None
                self._move_over_hole(view, cursor, begins)
        except BaseException:
            _release(piece)
            raise
        if piece is not None:
            answer.slices.append(piece.slice)
        return moved, piece

    def _move_over_hole(self, view: _View, offset: int, next_offset: int) -> None:
        self._prove_hole(view, offset)
        self._hydrator.counters.gaps_skipped += 1
        log.warning("gap_skipped", partition=str(self.partition), offset=offset, next_offset=next_offset)

    def _prove_hole(self, view: _View, offset: int) -> None:
        """Raises unless it is sure that no tier holds `offset`: TransientError, or _Unsettled when a closer look may tell."""
        if isinstance(view.failure, Superseded):
            raise view.failure
        if view.failure is not None:
            raise TransientError(f"{self.partition}: whether offset {offset} exists is not known now: {view.failure}") from view.failure
        if not view.settled:
            raise _Unsettled(f"{self.partition}: offset {offset} is in no tier, as far as a manifest older than the look tells")

    def _of(self, looked_at: LocalLog, ask: Steps[T]) -> Steps[T]:
        """What `ask` finds in that log. What is damage to whoever reads by a look that a cut has overtaken is none: SourceChanged."""
        try:
            return (yield from ask)
        except (CorruptData, UnsupportedFormat) as error:
            assert self.local is not None
            moment_s = self._hydrator.clock.monotonic_s()
            for _ in range(_LOOKS):  # one that was under way already began too early
                if self.local.last.began_s >= moment_s and self.local.last.log is not looked_at:
                    break
                yield self._hydrator.join_look(self.partition, partial(_look, self.local, 0.0))
            now = self.local.last.log
            if now is None or _is_cut(looked_at, now):
                raise SourceChanged(f"{looked_at.directory} was cut or replaced: {error}") from error
            raise

    def _walk_local(self, ask: Callable[[Allowance], T], discard: Callable[[T], None] | None = None) -> Steps[T]:
        """What `ask` finds in the local log. Where it is far to walk, as in a segment without a usable index, workers do so, a turn
        at a time: what they meet on the way is kept, so that in the end it is near.

        discard   what to do with an answer that only showed the way
        """
        while True:
            try:
                return ask(Allowance(WALK_BYTES))
            except LongWalk:
                yield self._walk_on(ask, discard)

    def _walk_on(self, ask: Callable[[Allowance], T], discard: Callable[[T], None] | None) -> Future[None]:
        """The turn that is under way for whomever, so that a partition never has two workers; else one that walks for `ask`."""

        def turn() -> None:
            with suppress(LongWalk, HeadwaterError):  # who asks again meets the error
                found = ask(Allowance(TURN_BYTES))
                if discard is not None:
                    discard(found)

        with self._walk_lock:
            if self._walk is None or self._walk.done():
                self._walk = self._submit(turn)
            return self._walk

    # Transactions: the last stable offset and the aborted ones of an answer come from one view, and reach equally far

    def _stable_offset(self, view: _View) -> Steps[int]:
        """First offset of the oldest transaction open at the view's end, as whichever tier reaches further knows it."""
        scope, extent = view.scope, view.extent
        if view.ends_with_archive:
            assert extent is not None
            begun = [extent.open_from] if extent.open_from is not None else []
        elif view.ends_with_cut_archive:  # what the manifest says of its own end counts for nothing
            assert self.archive is not None
            begun = [each.first_offset for each in (yield from self.archive.open_at(scope.high_watermark, scope.high_watermark))]
        elif scope.local is not None:
            still, known_to = yield from self._local_ending(view)
            return scope.stable(min([*(each.first_offset for each in still), known_to]))
        else:
            return scope.stable(None)
        carried = yield from self._carried(view)
        return scope.stable(min([*begun, *(each.first_offset for each in carried.still)], default=None))

    def _carried(self, view: _View) -> Steps[Carried]:
        """What becomes in the archive of transactions that began before a gap of it, or in one, and that are open where the local log
        ends: entries behind a gap do not know of them. Nothing where the archive does not go on, or has known from their beginnings.
        """
        local, archive, extent = view.scope.local, view.scope.archive, view.extent
        if local is None or archive is None or extent is None:
            return Carried(())
        known_from = extent.knows_from(local.end)
        if local.end > archive.end or not _told(view).start < known_from <= local.end:
            return Carried(())
        still, known_to = yield from self._local_ending(view)
        unknown = tuple(each for each in still if each.first_offset < known_from and not self._is_denied(each))
        if known_to < local.end or not unknown:  # a log that has been cut: until its checkpoint says so they count as open
            return Carried(unknown)
        assert self.archive is not None
        return (yield from self.archive.carried(unknown, known_to, archive.end))

    def _is_denied(self, begun: OpenTransaction) -> bool:
        """Whether the archive has where it began, and knows nothing of it: files below a log start may be of a dead branch, and no
        history tells."""
        assert self.archive is not None
        entry = self.archive.archived.entry_at(begun.first_offset)
        return entry is not None and not entry.gap and (entry.open_from is None or entry.open_from > begun.first_offset)

    def _local_ending(self, view: _View) -> Steps[Ending]:
        assert view.scope.local is not None
        found, end = _log_of(view), view.scope.local.end
        return (yield from self._find_transactions(view, lambda known, allowance: known.ending(found, end, allowance)))

    def _aborted(self, served: Tier, view: _View, first: int, end: int) -> Steps[list[tuple[int, int]]]:
        """(producer id, first offset) of the aborted transactions that offsets in [first, end) may belong to, oldest first.

        Their markers may lie anywhere behind: every tier is asked for those that the ones before do not reach, as long as a
        transaction of these offsets is open.

        served   the tier that the offsets come from. A compacted log may lack, in one tier, what explains the other's batches.
        """
        scope, found = view.scope, set[tuple[int, int]]()
        position: int | None = first
        while position is not None and position < scope.high_watermark:
            holders = self._tiers(scope, position)
            if Tier.LOCAL not in holders and position in _told(view) and self._next_archived(scope, position) != position:
                holders = (Tier.LOCAL,)
            if not holders:
                moved = scope.next_held(position)
                if scope.archive is not None and moved == scope.archive.start:
                    raise TransientError(f"{self.partition}: the local log lacks offset {position}, where the archive begins later")
                self._prove_hole(view, position)
                position = moved
                continue
            ask = {Tier.LOCAL: self._aborted_locally, Tier.ARCHIVE: self._aborted_in_archive}[served if served in holders else holders[0]]
            more, position = yield from ask(view, position, Span(first, end))
            found.update((each.producer_id, each.first_offset) for each in more)
        carried = yield from self._carried(view)
        found.update((each.producer_id, each.first_offset) for each in overlapping(carried.aborted, first, end))
        return sorted(found, key=lambda each: (each[1], each[0]))

    def _aborted_in_archive(self, view: _View, since: int, offsets: Span) -> Steps[tuple[list[AbortedTransaction], int | None]]:
        assert self.archive is not None
        assert view.scope.archive is not None
        return (yield from self.archive.aborted(since, offsets, view.scope.archive.end, _told(view)))

    def _aborted_locally(self, view: _View, since: int, offsets: Span) -> Steps[tuple[list[AbortedTransaction], int | None]]:
        assert view.scope.local is not None
        until, found = view.scope.local.end, _log_of(view)
        more, is_all = yield from self._find_transactions(
            view, lambda known, allowance: known.aborted(found, Span(since, until), offsets, allowance)
        )
        return more, None if is_all else until

    def _find_transactions(self, view: _View, ask: Callable[[LocalTransactions, Allowance], T]) -> Steps[T]:
        """What `ask` finds in the local log; told by the archive what was open where the log begins, where its broker does not say it."""
        known, log = self._transactions, _log_of(view)
        assert known is not None
        first = log.segments[0].base_offset if log.segments else 0
        archive_knows = view.scope.archive is not None and first - 1 in view.scope.archive
        if archive_knows:
            known.forget_guess()
        while True:
            try:
                return (yield from self._of(log, self._transaction_turns.find(lambda allowance: ask(known, allowance))))
            except UnknownBeginning:
                if archive_knows:
                    assert self.archive is not None
                    assert view.scope.archive is not None
                    known.begin_with(log, (yield from self.archive.open_at(first, view.scope.archive.end)))
                else:
                    self._prove_hole(view, first - 1)
                    known.begin_with(log, (), is_guess=True)

    def _check_lineage(self, view: _View) -> None:
        """Raises SourceChanged when a manifest that came meanwhile has another branch than the view's."""
        now = self.archived.extent if self.archived is not None else None
        if view.extent is None or view.scope.archive is None or now is view.extent:
            return
        end = view.scope.archive.end
        if now is None or now.next_offset < end or parting_offset(view.extent.epochs, now.epochs, end) < end:
            raise SourceChanged(f"{self.partition}: the archive was cut while it was read")

    # Times

    def _offset_for_time(self, timestamp_ms: int) -> Steps[RecordTime | None]:
        return (
            yield from self._in_one_view(f"time {timestamp_ms}", lambda settle: self._offset_for_time_once(timestamp_ms, settle=settle))
        )

    def _offset_for_time_once(self, timestamp_ms: int, *, settle: bool) -> Steps[RecordTime | None]:
        """Archive first, as far as it goes: it knows each entry's last timestamp. What it lacks is scanned."""
        view = yield from self._known_view(settle=settle)
        scope, local = view.scope, view.scope.local
        archived, searched_to = None, scope.log_start
        if self.archive is not None and scope.archive is not None:
            try:
                archived = yield from self.archive.first_not_older(timestamp_ms, scope.archive)
                searched_to = scope.archive.end if local is None else self.archive.first_gap(Span.between(local.start, scope.archive.end))
            except HeadwaterError:
                if local is None or local.start > scope.log_start:
                    raise
        if local is None:
            return archived
        span = Span.between(max(searched_to, local.start), local.end if archived is None else min(archived.offset, local.end))
        if span.start >= span.end:
            return archived
        found, times = _log_of(view), self._times
        assert times is not None
        later = yield from self._of(
            found, self._time_turns.find(lambda allowance: times.first_not_older(found, timestamp_ms, span, allowance))
        )
        return later or archived


def _look(local: LocalTier, max_age_s: float | None) -> None:
    with suppress(HeadwaterError):  # it is published with the look
        local.log(local.max_age_s if max_age_s is None else max_age_s)


def _between_renames(found: LocalLog) -> SourceChanged:
    """What a compaction has made is under its own name not yet, and what it replaces no more: offsets that seem to be gone are not."""
    return SourceChanged(f"{found.directory}: a compaction is in the middle of its renames")


def _told(view: _View) -> Span:
    """Of which offsets the local log tells who wrote what: its files may begin before its log start. Empty when there is none."""
    local, found = view.scope.local, view.log
    if local is None or found is None:
        return Span(0, 0)
    return Span(min(found.local_start, local.start), local.end)


def _log_of(view: _View) -> LocalLog:
    assert view.log is not None
    return view.log


def _is_cut(before: LocalLog, now: LocalLog) -> bool:
    """Whether the broker has cut its log, or replaced files of it."""
    sizes = {each.generation[0]: each.size_bytes for each in now.segments}
    return before.epochs != now.epochs or any(sizes.get(each.generation[0], -1) < each.size_bytes for each in before.segments)


def _release(piece: Piece | None) -> None:
    if piece is not None:
        piece.slice.file.release()


def _base_offset(piece: Slice) -> int:
    """Of its first batch. Raises SourceChanged when it was cut just now."""
    file = piece.file
    try:
        return read_batch_header(file.read(piece.position, HEADER_BYTES), where=file.where).base_offset
    except (CorruptData, UnsupportedFormat) as error:
        raise SourceChanged(f"{file.where} was cut") from error
