import pytest

from headwater_core.errors import NotFound
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.objectstore.contract import ObjectStoreContract, put, read
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import Call, MeteredStore


class TestMeteredStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MeteredStore(MemoryStore())


def test_calls_and_bytes_are_counted() -> None:
    store = MeteredStore(MemoryStore(), log_calls=3)
    put(store, "a", b"0123456789")
    read(store, "a", 2, 3)
    with pytest.raises(NotFound):
        store.get("b")
    store.stat("a")
    assert store.calls == {"put": 1, "read_into": 1, "get": 1, "stat": 1}
    assert store.failures == {"get NotFound": 1}
    assert (store.bytes_written, store.bytes_read) == (10, 3)
    assert list(store.log) == [Call("read_into", "a", 2, 3), Call("get", "b", 0, 0), Call("stat", "a", 0, 0)]
    store.reset()
    assert (store.calls, store.bytes_read, list(store.log)) == ({}, 0, [])


def test_nothing_is_logged_unless_requested() -> None:
    store = MeteredStore(MemoryStore())
    put(store, "a", b"")
    assert list(store.log) == []
