from concurrent.futures import Future

import pytest

from headwater_core.errors import TransientError
from headwater_core.partition import PartitionId
from hydration.archive.manifest_view import HeldEntries, ManifestView
from manifests.repository import Versioned
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import a_head, an_entry

HEAD = a_head(an_entry(0, 9))


class Shelf:
    held: Versioned | None = Versioned(HEAD, "tag", 1)

    def load(self, partition: PartitionId) -> Versioned | None:
        return self.held


def test_a_manifest_that_is_gone_does_not_empty_an_archive_that_was_there() -> None:
    shelf = Shelf()
    archived = ManifestView(HEAD.partition_id, shelf, HeldEntries(), ManualClock(), lambda name, work: Future())
    archived.load()
    shelf.held = None
    with pytest.raises(TransientError, match="gone"):
        archived.load()
    assert archived.entry_at(5) is not None
