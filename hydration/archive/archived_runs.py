"""Plans and chunks of the entries that a manifest lists, and what it means when an object is missing."""

from headwater_core.errors import CorruptData, NotFound, TransientError
from hydration.archive.chunks import Chunk, ChunkPlan
from hydration.archive.damage import damage_of
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import ManifestView
from hydration.resumption import Resumable
from hydration.runfile import RunFile
from manifests.entry import Entry


class ArchivedRuns:
    """Of one partition. Everything public raises CorruptData for an object that is missing though the manifest lists it, and
    TransientError where the manifest, loaded again, does not: it was replaced. Both are generators (see hydration.resumption).
    """

    def __init__(self, manifest: ManifestView, hydrator: Hydrator) -> None:
        self._manifest, self._hydrator = manifest, hydrator

    def plan(self, entry: Entry) -> Resumable[ChunkPlan]:
        """How the entry's run is cut into chunks."""
        try:
            plan = yield from self._hydrator.plan(self._manifest.partition, entry)
        except NotFound as error:
            raise (yield from self._gone(entry, error, entry.base_offset)) from error
        return plan

    def chunk(self, entry: Entry, chunk: Chunk) -> Resumable[RunFile]:
        """Held for the caller."""
        try:
            file = yield from self._hydrator.chunk(self._manifest.partition, entry, chunk)
        except NotFound as error:
            raise (yield from self._gone(entry, error, chunk.first_offset)) from error
        return file

    def _gone(self, entry: Entry, error: NotFound, offset: int) -> Resumable[CorruptData | TransientError]:
        yield from self._manifest.refresh(0.0)
        if (yield from self._manifest.entry_at(entry.base_offset)) == entry:
            lost = missing(entry, error)
            self._hydrator.damage.note(damage_of(self._manifest.partition, entry, lost, offset=offset))
            return lost
        return TransientError(f"{entry.key} was replaced while it was read; ask again")


def missing(entry: Entry, error: NotFound) -> CorruptData:
    return CorruptData(entry.key, 0, f"the manifest lists it, the store does not have it ({error})")
