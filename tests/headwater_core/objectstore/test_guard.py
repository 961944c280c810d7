"""A guarded store does what its inner one does, and each call passes the guard."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from headwater_core.objectstore.guard import GuardedStore
from headwater_core.objectstore.store import NewObject, ObjectStore
from tests.headwater_core.objectstore.contract import ObjectStoreContract
from tests.headwater_core.objectstore.memory import MemoryStore


class TestGuardedStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return GuardedStore(MemoryStore(), nullcontext)


def test_each_call_enters_the_guard() -> None:
    entered = 0

    @contextmanager
    def guard() -> Iterator[None]:
        nonlocal entered
        entered += 1
        yield

    store = GuardedStore(MemoryStore(), guard)
    store.put("a", io.BytesIO(b"a"), size_bytes=1)
    store.put_all([NewObject(key, io.BytesIO(b""), 0) for key in "bc"])
    store.replace("d", b"2", expected_tag=store.create("d", b"1"))
    store.get("a")
    store.read_into("a", memoryview(bytearray(1)), start=0)
    store.stat("a")
    store.delete("d")
    assert entered == 8
    assert len(list(store.list(""))) == 3
    assert entered == 8 + 1 + 4
    list(store.stream_into("a", [memoryview(bytearray(1))], start=0))
    assert entered == 14
