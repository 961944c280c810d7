import pytest

from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.contract import ObjectStoreContract
from tests.headwater_core.objectstore.memory import MemoryStore


class TestMemoryStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore(ManualClock())


def test_an_object_carries_the_time_of_its_writing() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    store.create("a", b"")
    clock.advance(5000)
    store.create("b", b"")
    assert store.stat("b").modified_ms - store.stat("a").modified_ms == 5000
