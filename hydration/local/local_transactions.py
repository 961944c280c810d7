"""The transactions of a local log: what its broker wrote beside its segments, and a walk over headers where that does not say it."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from headwater_core.errors import HeadwaterError, SourceChanged
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.snapshots import decode_snapshot, open_transactions
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction, Transactions, overlapping
from headwater_core.segments.txnindex import decode_txnindex
from hydration.local.file_version import FileVersion
from hydration.local.header_walk import HeaderWalk
from hydration.local.local_tier import LocalTier
from hydration.local.recovery_point import RecoveryPoint
from hydration.local.scan_budget import ScanBudget
from hydration.local.segment_states import SegmentStates, end_of, is_whole, segment_at
from hydration.scope import Span

LISTED_MAX = 1 << 16  # aborted transactions kept of those that brokers list, per partition: files of 2 MiB

log = structlog.get_logger()


class UnknownBeginning(Exception):
    """A log does not begin at offset 0, and its broker has no file that says what was open there: see LocalTransactions.begin_with."""


class Ending(NamedTuple):
    """What is open where a log ends.

    still  oldest first
    known_to  that end, or where the last batch ends when that lies before: the high watermark's checkpoint may be ahead of a cut
    """

    still: tuple[OpenTransaction, ...]
    known_to: int


class _Beginning(NamedTuple):
    """What is open where a log begins, and of which one that was said."""

    log: object
    still: tuple[OpenTransaction, ...]
    is_guess: bool


@dataclass(slots=True)
class _Segment:
    """What is known of one; None is not yet.

    open_before  transactions open at its base
    aborted      those whose markers lie in it, once it is whole
    listed       they come from the broker's own index, which can be read again
    walk         over its headers, where that is the way to know
    short_walk   over those before the end of what counts of the log, where that is not its high watermark
    """

    version: FileVersion
    open_before: tuple[OpenTransaction, ...] | None = None
    has_no_snapshot: bool = False
    aborted: tuple[AbortedTransaction, ...] | None = None
    listed: bool = False
    walk: HeaderWalk | None = None
    short_walk: HeaderWalk | None = None


class LocalTransactions:
    """Safe to use from many threads. Every method raises ScanBudgetExceeded (what was met is kept: ask again),
    UnknownBeginning, SourceChanged when the log is replaced underneath, CorruptData or UnsupportedFormat for what is no log.
    """

    def __init__(self, tier: LocalTier) -> None:
        self._tier = tier
        self._segments = SegmentStates(_Segment)
        self._recovery_point = RecoveryPoint()
        self._beginning: _Beginning | None = None
        self._judged_by: _Beginning | None = None
        self._distrusts_broker = False
        self._listed_kept = 0  # aborted transactions kept of those that brokers list, at most: some were dropped with their segments

    def begin_with(self, log: LocalLog, still: tuple[OpenTransaction, ...], *, is_guess: bool = False) -> None:
        """Set what is open where the log begins. Where the broker's own file there does not say so, its log began again in the middle of
        a transaction: none of its files knows of that then, and batches are walked.

        is_guess  no tier holds what came before, as far as is known now
        """
        self._beginning = _Beginning(_beginning_of(log), still, is_guess)

    def knows_beginning(self, log: LocalLog) -> bool:
        """Whether what is open where the log begins has been set."""
        return self._beginning is not None and self._beginning.log == _beginning_of(log)

    def forget_guess(self) -> None:
        """A tier holds what came before after all: whatever followed from the guess is found again."""
        if self._beginning is not None and self._beginning.is_guess:
            self._beginning, self._segments = None, SegmentStates(_Segment)

    def ending(self, log: LocalLog, end: int, budget: ScanBudget) -> Ending:
        """
        end   the log's high watermark, or where a dead branch begins
        """
        assert log.high_watermark is not None
        assert end <= log.high_watermark
        with self._segments.undisturbed(log, budget):
            self._judge_broker(log, budget)
            at = segment_at(log, end - 1)
            if at is None:
                return Ending((), end)
            if is_whole(log, at) and end == end_of(log, at):
                return Ending(self._open_before(log, at + 1, budget), end)
            if end < log.high_watermark:
                return Ending(self._walked_short(log, at, end, budget).transactions.open, end)
            walk = self._walked(log, at, budget)
            if walk.done_to > log.high_watermark:
                self._segments.forget(log.segments[at])  # if it was cut, no later look will have come so far either
                raise SourceChanged(f"{log.directory} was looked at again meanwhile")
            return Ending(walk.transactions.open, end if at + 1 < len(log.segments) else walk.done_to)

    def aborted(self, log: LocalLog, markers: Span, offsets: Span, budget: ScanBudget) -> tuple[list[AbortedTransaction], bool]:
        """Those that `offsets` may belong to and whose markers lie in `markers`; and whether that is all of them, wherever their
        markers are. A log of which less counts than to its high watermark, because the archive knows better, cannot show that.
        """
        assert log.high_watermark is not None
        found: list[AbortedTransaction] = []
        at = segment_at(log, markers.start)
        if at is None:
            raise SourceChanged(f"{log.directory} no longer holds offset {markers.start}")
        with self._segments.undisturbed(log, budget):
            self._judge_broker(log, budget)
            for number in range(at, len(log.segments)):
                if log.segments[number].base_offset >= markers.end:
                    break
                here = self._aborted_in(log, number, budget)
                found.extend(each for each in overlapping(here, offsets.start, offsets.end) if each.last_offset in markers)
                if markers.end == log.high_watermark and end_of(log, number) >= offsets.end:
                    still = self._known_open_at_end(log, number, budget)
                    if still is not None and all(each.first_offset >= offsets.end for each in still):
                        return found, True
            return found, False

    def _judge_broker(self, log: LocalLog, budget: ScanBudget) -> None:
        """Distrust the broker's files where its log begins with a transaction open that they do not know of."""
        begun = self._beginning if self.knows_beginning(log) else None
        if begun is self._judged_by:
            return
        distrusts = begun is not None and not set(begun.still) <= set(self._listed_open(log, 0, budget) or ())
        if distrusts and not self._distrusts_broker:
            self._segments.clear()
        self._judged_by, self._distrusts_broker = begun, distrusts

    def _aborted_in(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[AbortedTransaction, ...] | list[AbortedTransaction]:
        """Those whose markers lie in the segment, below the high watermark."""
        state = self._segments.of(log, number)
        if state.aborted is not None:
            return state.aborted
        if not is_whole(log, number):
            return self._walked(log, number, budget).transactions.aborted
        found = self._listed(log, number, budget)
        if found is None:
            return self._walk_whole(log, number, budget).aborted
        state.aborted, state.listed = found, True
        self._listed_kept += len(found)
        if self._listed_kept > LISTED_MAX:
            self._drop_lists(log, number)
        return found

    def _listed(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[AbortedTransaction, ...] | None:
        """What the broker's own .txnindex lists; None where that is not to be trusted.

        No checksum protects it, and one that is not there means that there is nothing to list. So it counts, as it does for the
        broker itself, where it was flushed together with its segment, which is below the recovery point, and where it does not
        contradict itself. A compacted log's segments are replaced file by file: theirs does not count. Raises SourceChanged when
        the segment is not there any more.
        """
        segment, end = log.segments[number], end_of(log, number)
        if self._distrusts_broker or log.topic_policy_proves_compaction or not self._recovery_point.covers(log, end, budget):
            return None
        path = segment.path.with_suffix(".txnindex")
        try:
            found = decode_txnindex(_read(path, budget), segment.base_offset, end, where=str(path))
        except FileNotFoundError:
            found = ()
        except (OSError, HeadwaterError) as error:
            _log_bypassed(path, error)
            return None
        self._tier.check_named(segment)  # brokers take away or replace a segment first, then what lies beside it
        return found

    def _open_before(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[OpenTransaction, ...]:
        """Transactions open at the segment's base: by the newest snapshot before it, and a walk from there on."""
        back = number
        while (still := self._known_open_before(log, back, budget)) is None:
            if not back:
                raise UnknownBeginning
            back -= 1
        for between in range(back, number):
            still = self._walk_whole(log, between, budget).open
        return still

    def _known_open_before(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[OpenTransaction, ...] | None:
        """The same where nothing has to be walked for it."""
        state, segment = self._segments.of(log, number), log.segments[number]
        if state.open_before is None and not segment.base_offset:
            state.open_before = ()
        if state.open_before is None and (not number or not self._distrusts_broker):
            state.open_before = self._listed_open(log, number, budget)
        if not number and self._beginning is not None and self.knows_beginning(log):
            state.open_before = Transactions([*(state.open_before or ()), *self._beginning.still]).open
        return state.open_before

    def _listed_open(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[OpenTransaction, ...] | None:
        """What the broker's own file lists of those open at the segment's base; None where there is none that can be read."""
        state, segment = self._segments.of(log, number), log.segments[number]
        if state.has_no_snapshot:
            return None
        path = segment.path.with_suffix(".snapshot")
        try:
            found = open_transactions(decode_snapshot(_read(path, budget), where=str(path)))
        except FileNotFoundError:
            state.has_no_snapshot = True
            return None
        except (OSError, HeadwaterError) as error:
            state.has_no_snapshot = True
            _log_bypassed(path, error)
            return None
        self._tier.check_named(segment)  # else it may be the snapshot of a newer branch
        return found

    def _known_open_at_end(self, log: LocalLog, number: int, budget: ScanBudget) -> tuple[OpenTransaction, ...] | None:
        if is_whole(log, number):
            return self._known_open_before(log, number + 1, budget)
        return self._walked(log, number, budget).transactions.open

    def _walk_whole(self, log: LocalLog, number: int, budget: ScanBudget) -> Transactions:
        """Learn all of a whole segment."""
        state, following = self._segments.of(log, number), self._segments.of(log, number + 1)
        transactions = self._walked(log, number, budget).transactions
        state.aborted, state.walk = tuple(transactions.aborted), None
        following.open_before = transactions.open
        return transactions

    def _walked(self, log: LocalLog, number: int, budget: ScanBudget) -> HeaderWalk:
        """A walk that has come to the segment's end or the high watermark."""
        state = self._segments.of(log, number)
        if state.walk is None:
            state.walk = HeaderWalk(log.segments[number].base_offset, self._open_before(log, number, budget))
        self._segments.grow(state.walk, self._tier, log, number, budget)
        return state.walk

    def _walked_short(self, log: LocalLog, number: int, end: int, budget: ScanBudget) -> HeaderWalk:
        """A walk that has come to an offset before those."""
        state = self._segments.of(log, number)
        if state.short_walk is None or state.short_walk.done_to > end:
            state.short_walk = HeaderWalk(log.segments[number].base_offset, self._open_before(log, number, budget))
        self._segments.grow(state.short_walk, self._tier, log, number, budget, end=end)
        return state.short_walk

    def _drop_lists(self, log: LocalLog, newest: int) -> None:
        """Those of old segments, down to half of LISTED_MAX, so that it is not soon necessary again."""
        states = [self._segments.of(log, number) for number in range(len(log.segments))]
        self._listed_kept = sum(len(state.aborted or ()) for state in states if state.listed)
        if self._listed_kept <= LISTED_MAX:
            return
        for number, state in enumerate(states):
            if self._listed_kept <= LISTED_MAX // 2:
                return
            if state.listed and state.aborted and number != newest:
                self._listed_kept -= len(state.aborted)
                state.aborted = None


def _beginning_of(log: LocalLog) -> object:
    return log.segments[0].base_offset, log.segments[0].generation.inode, log.epochs.newest


def _read(path: Path, budget: ScanBudget) -> bytes:
    """A small file beside a segment."""
    budget.take(1)
    raw = path.read_bytes()
    if budget.left_bytes is not None:
        budget.left_bytes -= len(raw)
    return raw


def _log_bypassed(path: Path, error: Exception) -> None:
    log.warning("broker_file_bypassed", path=str(path), reason=str(error))
