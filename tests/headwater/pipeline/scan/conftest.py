"""An archive of three objects, which a test may change."""

import pytest

from tests.headwater.pipeline.archives import a_copy
from tests.headwater.pipeline.scan.damageable import three_objects
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.hydration.world import PARTITION, Archive


@pytest.fixture
def store() -> MemoryStore:
    return a_copy(three_objects())


@pytest.fixture
def archive(store: MemoryStore) -> Archive:
    held = Archive(store)
    held.held = held.repository.load(PARTITION)
    held.uploads = 100
    return held
