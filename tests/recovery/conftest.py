"""The kitchen's archive: in memory, on disk, and what recovering it leaves when nothing goes wrong."""

import os
import shutil
from pathlib import Path

import pytest

import recovery
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan, encode_plan
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory
from tests.recovery.kill_walk import FIRST, applied, contents


@pytest.fixture(scope="session")
def kitchen() -> tuple[MemoryStore, ManifestRepository]:
    """Read only."""
    return archive_in_memory(unpack("kitchen"))


@pytest.fixture(scope="session")
def kitchen_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    archive(unpack("kitchen"), DirectoryStore(root))
    return root


@pytest.fixture
def kitchen_bucket(kitchen_on_disk: Path, tmp_path: Path) -> Path:
    """A copy, to be written to."""
    return Path(shutil.copytree(kitchen_on_disk, tmp_path / "bucket", copy_function=os.link))  # nothing is written in place


@pytest.fixture(scope="session")
def kitchen_plan(kitchen_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a plan of everything."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_bytes(encode_plan(recovery.plan(ManifestRepository(DirectoryStore(kitchen_on_disk)), None)))
    return path


@pytest.fixture(scope="session")
def undisturbed(kitchen_on_disk: Path, kitchen_plan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What carrying it out leaves, begun as FIRST."""
    into, plan = tmp_path_factory.mktemp("undisturbed"), decode_plan(kitchen_plan.read_bytes())
    applied(plan, into, DirectoryStore(kitchen_on_disk), FIRST, recorded=False)
    return contents(into)
