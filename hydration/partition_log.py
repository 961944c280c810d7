"""One partition as its readers see it: local log and archive in one (design §5)."""

from contextlib import suppress

from headwater_core.errors import HeadwaterError, SourceChanged
from headwater_core.partition import PartitionId
from hydration.answers import Bounds, Isolation, ReadResult, Slice
from hydration.archive.archive_tier import ArchiveTier
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import ManifestView
from hydration.config import ReadPriority
from hydration.local.local_tier import LocalTier
from hydration.local_looks import LocalLooks
from hydration.partition_times import PartitionTimes
from hydration.partition_transactions import PartitionTransactions
from hydration.resumption import Pending, Resumable, run_blocking, start
from hydration.scope import EpochEnd, Scope, Span, epoch_end
from hydration.slice_reader import SliceReader, base_offset
from hydration.tiers import Tiers
from hydration.times import RecordTime
from hydration.views import UnknownPartition, Unsettled, View, Views

__all__ = ["Bounds", "Isolation", "PartitionLog", "Pending", "ReadResult", "Slice"]

TIMEOUT_S = 30.0


class PartitionLog:
    """Safe to use from many threads. Every method but the try_ and known_ ones may block, at most `timeout_s` seconds; the try_ ones never
    download: they answer at once or return a Pending whose future answers (and raises) like the blocking form.

    Raises OffsetOutOfRange only when that is known; TransientError when it cannot be known, or the data cannot be had, now;
    CorruptData for what is damaged in every tier that has it.
    """

    def __init__(
        self,
        partition: PartitionId,
        *,
        local: LocalTier | None,
        archive: ArchiveTier | None,
        hydrator: Hydrator,
        priority: ReadPriority = ReadPriority.LOCAL_FIRST,
    ) -> None:
        """local, archive   every tier there is, also one that the priority leaves out"""
        self._both = local, archive
        self.partition = partition
        self.priority = priority
        self._tiers = Tiers(
            partition=partition,
            priority=priority,
            local=local if priority.uses_local else None,
            archive=archive if priority.uses_archive else None,
            hydrator=hydrator,
        )
        looks = LocalLooks(self._tiers)
        self._views = Views(self._tiers, looks, left_out=local if not priority.uses_local else None)
        self._slices = SliceReader(self._tiers, looks)
        self._transactions = PartitionTransactions(self._tiers, looks)
        self._times = PartitionTimes(self._tiers, looks)

    @property
    def local(self) -> LocalTier | None:
        """None where there is no local log, or the read priority leaves it out."""
        return self._tiers.local

    @property
    def manifest(self) -> ManifestView | None:
        """What is known of the manifest; None where the read priority leaves the archive out."""
        return self._tiers.manifest

    def with_priority(self, priority: ReadPriority) -> "PartitionLog":
        """The same partition, read by another priority: over the same tiers, so that what they know, hold and download is shared. A read
        that has begun ends with the priority that it began with."""
        if priority is self.priority:
            return self
        local, archive = self._both
        return PartitionLog(self.partition, local=local, archive=archive, hydrator=self._tiers.hydrator, priority=priority)

    # The public forms

    def known_scope(self) -> Scope | None:
        """What both tiers held when they were last seen, without a request; None while one of them was never seen."""
        return self._views.known_scope()

    def bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, timeout_s: float | None = TIMEOUT_S) -> Bounds:
        """last_stable_offset is filled in for READ_COMMITTED only, where it may cost a scan of the local tail."""
        return run_blocking(self._bounds(isolation), timeout_s)

    def try_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | Pending[Bounds]:
        """As `bounds`, without blocking."""
        return start(self._bounds(isolation))

    def known_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | None:
        """As they were last seen, without waiting: None where they were not, last_stable_offset None where it takes a scan."""
        view = self._views.now()
        if view.failure is not None:
            return None
        stable: int | None = None
        if isolation is Isolation.READ_COMMITTED:
            with suppress(HeadwaterError):
                found = start(self._transactions.stable_offset(view))
                if isinstance(found, Pending):
                    found.future.cancel()
                else:
                    stable = found
        return self._bounds_of(view, stable)

    def try_leader_epoch(self) -> int | Pending[int]:
        """The newest that is known, -1 when there is none; waits only while a tier was never seen. What is old is refreshed in passing."""
        return start(self._leader_epoch())

    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, timeout_s: float | None = TIMEOUT_S) -> ReadResult:
        """Whole batches from the one that holds `offset` on: about `max_bytes` of them, at least one when there is one. Those of offsets
        that no tier has are skipped.

        An offset between the high watermark and the log's end answers without slices. Close the result.
        """
        return run_blocking(self._read(offset, max_bytes, isolation), timeout_s)

    def try_read(self, offset: int, max_bytes: int, isolation: Isolation) -> ReadResult | Pending[ReadResult]:
        """As `read`, without blocking. A cancelled answer is closed."""
        return start(self._read(offset, max_bytes, isolation), discard=ReadResult.close)

    def offset_for_time(self, timestamp_ms: int, *, now_ms: int | None = None, timeout_s: float | None = TIMEOUT_S) -> RecordTime | None:
        """The first record at or after `timestamp_ms`; None when there is none below the high watermark.

        now_ms  a record that is dated later than it was published, or than this where it is not archived, does not count: its time does
                not say when it was written. None: each counts, as in Kafka's ListOffsets
        """
        return run_blocking(self._offset_for_time(timestamp_ms, now_ms), timeout_s)

    def epoch_end(self, epoch: int, *, timeout_s: float | None = TIMEOUT_S) -> EpochEnd:
        """Where the largest known leader epoch that is not larger than `epoch` ends: OffsetForLeaderEpoch."""
        return run_blocking(self._epoch_end(epoch), timeout_s)

    # How they are answered: generators that yield what has to be waited for

    def _bounds(self, isolation: Isolation) -> Resumable[Bounds]:
        return (yield from self._views.in_one("bounds", lambda settle: self._bounds_once(isolation, settle=settle)))

    def _bounds_once(self, isolation: Isolation, *, settle: bool) -> Resumable[Bounds]:
        view = yield from self._views.known(settle=settle)
        stable = (yield from self._transactions.stable_offset(view)) if isolation is Isolation.READ_COMMITTED else None
        return self._bounds_of(view, stable)

    @staticmethod
    def _bounds_of(view: View, stable: int | None) -> Bounds:
        scope = view.scope
        return Bounds(
            log_start=scope.log_start,
            local_start=view.log.local_start if view.log is not None else None,
            last_offset=scope.archive.end - 1 if scope.archive is not None else None,
            high_watermark=scope.high_watermark,
            last_stable_offset=stable,
            leader_epoch=scope.leader_epoch,
        )

    def _leader_epoch(self) -> Resumable[int]:
        view = self._views.now()
        if view.failure is not None and not isinstance(view.failure, UnknownPartition):
            view = yield from self._views.known(is_read=False)
        return view.scope.leader_epoch

    def _epoch_end(self, epoch: int) -> Resumable[EpochEnd]:
        view = yield from self._views.known()
        return epoch_end(view.scope.epochs, epoch, view.scope.high_watermark)

    def _read(self, offset: int, max_bytes: int, isolation: Isolation) -> Resumable[ReadResult]:
        return (
            yield from self._views.in_one(f"offset {offset}", lambda settle: self._read_once(offset, max_bytes, isolation, settle=settle))
        )

    def _read_once(self, offset: int, max_bytes: int, isolation: Isolation, *, settle: bool) -> Resumable[ReadResult]:
        """Raises SourceChanged when the local log is replaced underneath, Unsettled for a gap that may be none, and while the archive may
        have what the local log could not give."""
        yield from self._views.look()
        view = self._views.now()
        at_end = offset == view.scope.high_watermark and (view.failure is None or view.scope.local is not None or view.was_emptied)
        if settle or (not view.scope.holds(offset) and not at_end):
            view = yield from self._views.known(partly=True, settle=settle)
            if not view.scope.holds(offset):
                yield from self._slices.check_in_range(offset, view)
        try:
            return (yield from self._answer(view, offset, max_bytes, isolation))
        except (SourceChanged, Unsettled):
            raise
        except HeadwaterError as error:
            if view.knows_archive:
                raise
            raise Unsettled(f"{error}; whether the archive has offset {offset} is not known yet") from error

    def _answer(self, view: View, offset: int, max_bytes: int, isolation: Isolation) -> Resumable[ReadResult]:
        scope = view.scope
        stable = (yield from self._transactions.stable_offset(view)) if isolation is Isolation.READ_COMMITTED else None
        end = scope.high_watermark if stable is None else stable
        answer = ReadResult(high_watermark=scope.high_watermark, last_stable_offset=stable, log_start=scope.log_start, next_offset=offset)
        try:
            tier, piece = yield from self._slices.fill(answer, view, end, max_bytes)
            if end <= offset < scope.high_watermark and scope.local is None:
                view.check_known(offset)  # a log that could not be looked at may hold what ends the transaction
            if stable is not None and answer.slices:
                first = max(offset, base_offset(answer.slices[0]))  # a marker in a gap before it is not served, and ends nothing
                answer.aborted = yield from self._transactions.aborted(tier, view, Span(first, answer.next_offset))
                self._views.check_lineage(view)
                if piece is not None and self._tiers.local is not None:
                    self._tiers.local.check(piece)  # the transactions may have taken long
        except BaseException:
            answer.close()
            raise
        self._tiers.hydrator.counters.reads += 1
        return answer

    def _offset_for_time(self, timestamp_ms: int, now_ms: int | None) -> Resumable[RecordTime | None]:
        def once(settle: bool) -> Resumable[RecordTime | None]:
            view = yield from self._views.known(settle=settle)
            return (yield from self._times.first_not_older(view, timestamp_ms, now_ms))

        return (yield from self._views.in_one(f"time {timestamp_ms}", once))
