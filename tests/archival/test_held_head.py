import pytest
from msgspec.structs import replace

from archival.partition.held_head import HeldHead
from headwater_core.errors import CorruptData
from manifests import keys
from manifests.head import Head
from manifests.repository import CommitLost, ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, a_head


@pytest.fixture
def repository() -> ManifestRepository:
    return ManifestRepository(MemoryStore())


def another_commit(repository: ManifestRepository) -> None:
    held = repository.load(PARTITION)
    repository.commit(held, replace(held.head, clean_to=held.head.clean_to + 1) if held else a_head())


def bucket_head(repository: ManifestRepository) -> Head | None:
    held = repository.load(PARTITION)
    return held.head if held else None


def test_it_is_read_once_until_it_is_doubted(repository: ManifestRepository) -> None:
    held = HeldHead(PARTITION, repository)
    held.load()
    another_commit(repository)
    held.load()
    assert (held.head, held.size_bytes) == (None, 0)
    held.doubt()
    held.load()
    assert held.head == bucket_head(repository)
    assert held.size_bytes > 0


def test_after_a_lost_commit_it_is_the_one_that_came_first(repository: ManifestRepository) -> None:
    held = HeldHead(PARTITION, repository)
    mine = held.commit(a_head())
    another_commit(repository)
    with pytest.raises(CommitLost):
        held.commit(mine)
    assert held.head == bucket_head(repository)


def test_one_that_was_seen_and_is_gone_is_never_none(repository: ManifestRepository) -> None:
    held = HeldHead(PARTITION, repository)
    mine = held.commit(a_head())
    repository.store.delete(keys.head(PARTITION))
    with pytest.raises(CorruptData, match="version 1 was committed and is no longer in"):
        held.commit(mine)
    with pytest.raises(CorruptData, match="version 1 was committed"):
        held.reload()
    with pytest.raises(CorruptData, match="it listed the objects below"):
        held.reload_lost(0)


def test_what_was_committed_is_the_same_when_it_is_read(repository: ManifestRepository) -> None:
    """A reader knows its digest, and a writer does not."""
    held = HeldHead(PARTITION, repository)
    held.commit(a_head())
    assert not held.reload()
    another_commit(repository)
    assert held.reload()
