"""Records of one partition's archive by their time: entries say their last timestamp, indexes where in a run to begin."""

from hydration.archive.archived_runs import ArchivedRuns
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import ManifestView
from hydration.resumption import Resumable
from hydration.scope import Span
from hydration.times import RecordTime, first_not_older
from manifests.entry import Entry


class ArchiveTimes:
    """Of one partition."""

    def __init__(self, manifest: ManifestView, hydrator: Hydrator) -> None:
        self.manifest, self._runs = manifest, ArchivedRuns(manifest, hydrator)

    def first_not_older(self, timestamp_ms: int, span: Span, *, passes_late: bool = False) -> Resumable[RecordTime | None]:
        """The first record in `span` that is not older than `timestamp_ms`.

        passes_late  records that are dated later than they were published are passed over
        """
        entry = yield from self.manifest.entry_for_time(timestamp_ms)
        while entry is not None and entry.base_offset < span.end:
            newest = entry.newest_ms if passes_late else entry.last_timestamp_ms
            if newest is not None and newest >= timestamp_ms and entry.next_offset > span.start:
                found = yield from self._first_in(entry, timestamp_ms, span, entry.published_ms if passes_late else None)
                if found is not None:
                    return found
            entry = yield from self.manifest.entry_at(entry.next_offset)
        return None

    def _first_in(self, entry: Entry, timestamp_ms: int, span: Span, latest_ms: int | None) -> Resumable[RecordTime | None]:
        plan = yield from self._runs.plan(entry)
        position = plan.index.position_for_time(timestamp_ms)
        for chunk in plan.chunks:
            if chunk.end <= position:
                continue
            file = yield from self._runs.chunk(entry, chunk)
            try:
                found = first_not_older(file, max(position - chunk.position, 0), chunk.size_bytes, timestamp_ms, span, latest_ms)
            finally:
                file.release()
            if found is not None:
                return found
        return None
