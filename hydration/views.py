"""One partition as its readers see it at one moment: a look at the local log and one at the manifest, taken together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from headwater_core.errors import HeadwaterError, SourceChanged, Superseded, TransientError
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from hydration.archive.manifest_view import Extent
from hydration.local.local_tier import LocalTier
from hydration.local_looks import LOOKS_MAX, LocalLooks
from hydration.resumption import Resumable
from hydration.scope import Scope, Span, parting_offset, scope_of
from hydration.tiers import Tiers

HEAD_AGE_S = 5.0  # a reader at the end of an archive without a local log sees new entries after that
MISS_AGE_S = 1.0  # what follows from a manifest, that an offset is out of range say, follows from one that is younger
MISSED_LOOK_S = 0.05  # what a look does not have follows from one that is younger

T = TypeVar("T")
log = structlog.get_logger()


class Unsettled(TransientError):
    """A gap was met in a view that cannot prove one, or a log that cannot be read in one that does not know the archive."""


class UnknownPartition(TransientError):
    """Neither a log nor a head says anything of the partition: it may be another broker's, and not archived yet."""


@dataclass(frozen=True, slots=True)
class View:
    """One look at both tiers. `failure` is why one of them could not be looked at; None when both are known.

    log, extent   what `scope` was made of. Whatever an answer says of transactions comes from these two, never from a later look.
    settled       the manifest was requested after the look at the local log had ended. Segments are dropped only after they are
                  committed, so what neither has is nowhere; from an older manifest it may just have moved.
    """

    partition: PartitionId
    scope: Scope
    log: LocalLog | None
    extent: Extent | None
    failure: HeadwaterError | None
    settled: bool

    @property
    def local_log(self) -> LocalLog:
        """The log, where `scope.local` or `described_locally` has offsets of it."""
        assert self.log is not None
        return self.log

    @property
    def was_emptied(self) -> bool:
        """Return whether the local log has held records, and has none now: its end is true then. A log that begins at 0 may lie on a
        new disk."""
        return self.log is not None and 0 < self.log.start_offset == self.log.high_watermark

    @property
    def knows_archive(self) -> bool:
        """Whether what is archived is known, or that nothing is."""
        return self.extent is not None or self.failure is None or self.settled

    @property
    def ends_with_archive(self) -> bool:
        """What the manifest says of its end holds for the view's: no dead branch was cut off."""
        archive, extent = self.scope.archive, self.extent
        return archive is not None and extent is not None and archive.end == extent.next_offset and self._reaches_further(archive, extent)

    @property
    def ends_with_cut_archive(self) -> bool:
        """The view ends in the archive, where a dead branch was cut off."""
        archive, extent = self.scope.archive, self.extent
        if archive is None or extent is None or archive.end == extent.next_offset:
            return False
        if self.scope.local is not None and self.scope.local.end == archive.end:
            return False  # what cut the archive is the local log's newer leadership, so its word counts where both end
        return self._reaches_further(archive, extent)

    def _reaches_further(self, archive: Span, extent: Extent) -> bool:
        """Whether the archive does, or as far as the local log; not where that holds what is a gap at the archive's end."""
        local = self.scope.local
        known_to = next((gap.start for gap in extent.gaps if gap.start < archive.end <= gap.end), archive.end)
        return local is None or local.end <= known_to

    def archive_may_leave_open(self, offset: int) -> bool:
        """Whether a transaction may be open at the archive's end that began before `offset`: after a gap that end does not show it."""
        archive, extent = self.scope.archive, self.extent
        if archive is None or extent is None:
            return False
        if archive.end < extent.next_offset or extent.knows_from(archive.end) > offset:
            return True
        return extent.open_from is not None and extent.open_from < offset

    @property
    def described_locally(self) -> Span:
        """Offsets of which the local log says who wrote what: its files may begin before its log start, and be all that there is of it.
        Empty without a local log, and where all that it offers is of a dead branch; but where the archive ends with a gap, and nothing
        contradicts the log before that, its files say what became in the gap of transactions, whatever counts of what comes after."""
        local, found = self.scope.local, self.log
        if found is None or found.high_watermark is None:
            return Span(0, 0)
        if local is not None:
            return Span(min(found.local_start, local.start), local.end)
        if found.high_watermark <= found.start_offset:
            return Span.between(found.local_start, found.high_watermark)
        archive, extent = self.scope.archive, self.extent
        if archive is None or extent is None or archive.end > found.start_offset or extent.lists(archive.end - 1):
            return Span(0, 0)
        return Span.between(found.local_start, archive.end)

    def with_local_end(self, end: int) -> "View":
        """As if the local log's high watermark had promised no more than the log holds: after a cut its checkpoint may, for a while."""
        scope, local, archive = self.scope, self.scope.local, self.scope.archive
        assert local is not None
        ends = [end, archive.end] if archive is not None else [end]
        cut = Span(local.start, end) if local.start < end else None
        return replace(self, scope=replace(scope, local=cut, high_watermark=max(ends)))

    def check_known(self, offset: int) -> None:
        """Raises unless both tiers are known, so that the view says whether `offset` exists: TransientError, or Superseded."""
        if isinstance(self.failure, Superseded):
            raise self.failure
        if self.failure is not None:
            raise TransientError(f"{self.partition}: whether offset {offset} exists is not known now: {self.failure}") from self.failure

    def prove_gap(self, offset: int) -> None:
        """Raises unless it is sure that no tier holds `offset`: as check_known does, or Unsettled when a newer view may prove it."""
        self.check_known(offset)
        if not self.settled:
            raise Unsettled(f"{self.partition}: offset {offset} is in no tier, but the manifest is older than the look at the local log")


class Views:
    """Of one partition. `scope` is computed again only when the look or the manifest is another."""

    def __init__(self, tiers: Tiers, looks: LocalLooks, left_out: LocalTier | None) -> None:
        """left_out   the local tier, where the read priority leaves it out: it shows whether there is anything to archive"""
        self._partition, self._priority = tiers.partition, tiers.priority
        self._local, self._manifest = tiers.local, tiers.manifest
        self._looks, self._left_out = looks, left_out
        self._last_scope: tuple[LocalLog | None, Extent | None, Scope] | None = None

    def in_one(self, what: str, once: Callable[[bool], Resumable[T]]) -> Resumable[T]:
        """What `once` answers, from a new view when its own was overtaken: an answer never mixes two.

        once   takes whether the view has to be settled
        """
        settle = False
        for _ in range(LOOKS_MAX - 1):
            try:
                return (yield from once(settle))
            except (SourceChanged, Unsettled) as error:
                settle = isinstance(error, Unsettled)
                if self._local is not None:
                    self._local.look_again()
                log.debug("read_restarted", partition=str(self._partition), what=what, reason=str(error))
        return (yield from once(settle))

    def look(self, max_age_s: float | None = None, *, is_read: bool = True) -> Resumable[None]:
        """Have the local log looked at, unless the last look is younger than that.

        is_read  somebody reads the partition: it will be looked at without a request for a while
        """
        local = self._local
        if local is None and (self._manifest is None or self._manifest.extent is None):
            local = self._left_out
        for _ in range(LOOKS_MAX):  # one that was in flight already may have begun too early
            if local is None or not local.needs_look(max_age_s, is_read=is_read):
                return
            yield self._looks.join(local, max_age_s)
            if local.last.failure is not None:
                return

    def now(self) -> View:
        """What can be said without waiting. What is not known yet is requested in passing."""
        found, failure, looked_s = self._local_log()
        manifest = self._manifest
        if manifest is not None:
            if not manifest.is_known:
                manifest.refresh_soon(MISS_AGE_S)
                failure = failure or TransientError(f"the manifest of {self._partition} is not known yet")
            elif found is None or found.high_watermark != self._scope(found)[1].high_watermark:
                manifest.refresh_soon(HEAD_AGE_S)  # where the log does not say where it ends, nothing else asks for what comes after
        if found is None:
            failure = failure or self._absent()
        return self._view(found, failure, looked_s)

    def known(self, *, partly: bool = False, settle: bool = False, is_read: bool = True) -> Resumable[View]:
        """A fresh look at both tiers, settled where there is a gap between them. A manifest that cannot be loaded again now counts as
        known.

        Raises what kept a tier from being known at all; with `partly` that is the view's failure instead.
        """
        manifest, failure = self._manifest, None
        yield from self.look(MISSED_LOOK_S if partly else None, is_read=is_read)
        found, local_failure, looked_s = self._local_log()
        if manifest is not None:
            try:
                yield from manifest.refresh(MISS_AGE_S)
                if settle or self._scope(found)[1].has_gap:
                    yield from manifest.refresh_since(looked_s)
            except HeadwaterError as error:
                failure = error
        if found is None:
            local_failure = local_failure or self._absent()
        failure = local_failure or failure
        unknown = local_failure is not None or (manifest is not None and not manifest.is_known)
        if failure is not None and unknown and not partly:
            raise failure
        return self._view(found, failure, looked_s)

    def known_scope(self) -> Scope | None:
        """What both tiers held when they were last seen, without a request; None while one of them was never seen."""
        if self._manifest is not None and not self._manifest.is_known:
            return None
        found, failure, _ = self._local_log()
        if failure is None and found is None:
            failure = self._absent()
        return self._scope(found)[1] if failure is None else None

    def check_lineage(self, view: View) -> None:
        """Raises SourceChanged when a manifest that came since has another branch than the view's."""
        now = self._manifest.extent if self._manifest is not None else None
        if view.extent is None or view.scope.archive is None or now is view.extent:
            return
        end = view.scope.archive.end
        if now is None or now.next_offset < end or parting_offset(view.extent.epochs, now.epochs, end) < end:
            raise SourceChanged(f"{self._partition}: the archive was cut while it was read")

    def _view(self, found: LocalLog | None, failure: HeadwaterError | None, looked_s: float) -> View:
        settled = self._manifest is None or self._manifest.was_seen_since(looked_s)  # before the extent is taken from it
        extent, scope = self._scope(found)
        return View(self._partition, scope, found, extent, failure, settled)

    def _scope(self, found: LocalLog | None) -> tuple[Extent | None, Scope]:
        """What is known of the manifest, and the scope."""
        extent = self._manifest.extent if self._manifest is not None else None
        kept = self._last_scope
        if kept is None or kept[0] is not found or kept[1] is not extent:
            kept = self._last_scope = (found, extent, scope_of(found, extent, self._priority))
        return kept[1:]

    def _local_log(self) -> tuple[LocalLog | None, HeadwaterError | None, float]:
        """The local log as of the last look, why it is not known, and when that look had ended at the latest (monotonic seconds)."""
        if self._local is None:
            return None, None, float("-inf")
        last = self._local.last
        if self._local.hangs:
            return None, TransientError(f"the local log of {self._partition} cannot be looked at: its disk does not answer"), last.seen_s
        if last.log is not None and not last.log.settled:
            return last.log, between_renames(last.log), last.seen_s
        return last.log, last.failure, last.seen_s

    def _absent(self) -> TransientError | None:
        """Why a local log that is not there counts as unknown: it held more than the archive is known to hold, or nothing is known."""
        last = self._local.last_seen if self._local is not None else None
        extent = self._manifest.extent if self._manifest is not None else None
        if last is None or last.high_watermark is None:
            if extent is not None or (self._manifest is not None and not self._manifest.is_known) or self._was_never_written():
                return None
            return UnknownPartition(f"{self._partition} has no log here, and nothing of it is archived yet")
        if last.high_watermark <= (extent.next_offset if extent is not None else last.log_start):
            return None
        return TransientError(f"{last.directory} is gone, and the archive does not reach its high watermark {last.high_watermark}")

    def _was_never_written(self) -> bool:
        """The local log, which the read priority leaves out, shows that there is nothing yet to archive."""
        found = self._left_out.last.log if self._left_out is not None else None
        return found is not None and found.high_watermark == 0


def between_renames(found: LocalLog) -> SourceChanged:
    """Offsets that seem to be missing are not: a compaction's new segment does not have its own name yet, and the segments that it
    replaces have theirs no more."""
    return SourceChanged(f"{found.directory}: a compaction is in the middle of its renames")
