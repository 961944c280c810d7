"""The records of one partition by their time, over both tiers."""

from headwater_core.errors import HeadwaterError
from hydration.archive.archive_times import ArchiveTimes
from hydration.local.local_times import LocalTimes
from hydration.local.scan_workers import ScanWorker
from hydration.local_looks import LocalLooks
from hydration.resumption import Resumable
from hydration.scope import Span
from hydration.tiers import Tiers
from hydration.times import RecordTime
from hydration.views import View


class PartitionTimes:
    """Archive first, as far as it reaches: it knows the last timestamp of each entry. What it lacks is scanned in the local log."""

    def __init__(self, tiers: Tiers, looks: LocalLooks) -> None:
        self._archive = ArchiveTimes(tiers.manifest, tiers.hydrator) if tiers.manifest is not None else None
        self._looks = looks
        self._known = LocalTimes(tiers.local) if tiers.local is not None else None
        self._worker = ScanWorker(tiers.submit)

    def first_not_older(self, view: View, timestamp_ms: int, now_ms: int | None = None) -> Resumable[RecordTime | None]:
        """The first record of the view that is not older than `timestamp_ms`; None when there is none.

        now_ms  records that are dated later than they were published, or than this in the local log, are passed over; None: none is
        """
        scope, local = view.scope, view.scope.local
        archived, searched_to = None, scope.log_start
        if self._archive is not None and scope.archive is not None:
            try:
                archived = yield from self._archive.first_not_older(timestamp_ms, scope.archive, passes_late=now_ms is not None)
                searched_to = scope.archive.end if local is None else self._archive.manifest.first_gap(local.start, scope.archive.end)
            except HeadwaterError:
                if local is None or local.start > scope.log_start:
                    raise
        if local is None:
            return archived
        span = Span.between(max(searched_to, local.start), local.end if archived is None else min(archived.offset, local.end))
        if span.start >= span.end:
            return archived
        found, known = view.local_log, self._known
        assert known is not None
        search = self._worker.find(lambda budget: known.first_not_older(found, timestamp_ms, span, budget, now_ms))
        return (yield from self._looks.while_same(found, search)) or archived
