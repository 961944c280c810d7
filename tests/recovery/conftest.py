"""The kitchen's archive: in memory, on disk, and what recovering it leaves when nothing goes wrong."""

from pathlib import Path

import pytest

import recovery
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory
from tests.recovery.interrupted import files


@pytest.fixture(scope="session")
def kitchen() -> tuple[MemoryStore, ManifestRepository]:
    """Read only."""
    return archive_in_memory(unpack("kitchen"))


@pytest.fixture(scope="session")
def kitchen_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    archive(unpack("kitchen"), DirectoryStore(root))
    return root


@pytest.fixture(scope="session")
def undisturbed(kitchen_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    into, store = tmp_path_factory.mktemp("undisturbed"), DirectoryStore(kitchen_on_disk)
    recovery.apply(recovery.plan(ManifestRepository(store), None), into, store)
    return files(into)
