"""The two tiers of one partition, and which of them may serve an offset."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from headwater_core.partition import PartitionId
from hydration.archive.archive_tier import ArchiveTier
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import ManifestView
from hydration.config import ReadPriority
from hydration.local.local_tier import LocalTier
from hydration.scope import Scope, Tier

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """A tier is None where there is none, or where the read priority leaves it out."""

    partition: PartitionId
    priority: ReadPriority
    local: LocalTier | None
    archive: ArchiveTier | None
    hydrator: Hydrator

    @property
    def manifest(self) -> ManifestView | None:
        return self.archive.manifest if self.archive is not None else None

    def order(self, scope: Scope, offset: int) -> tuple[Tier, ...]:
        """Those that may hold `offset`, the one to ask first in front. A gap of the archive is none that the local log has to share."""
        tiers = scope.order(self.priority, offset)
        if len(tiers) > 1 and self.next_archived(scope, offset) != offset:
            return (Tier.LOCAL,)
        return tiers

    def next_archived(self, scope: Scope, offset: int) -> int | None:
        """The first offset at or past `offset` that the archive has data for; None when there is none."""
        if self.manifest is None or scope.archive is None:
            return None
        end = scope.archive.end
        found = self.manifest.next_held(max(offset, scope.archive.start), end)
        return found if found < end else None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a worker read the local log's files."""
        return self.hydrator.submit(work, self.local.log_dir if self.local is not None else None)
