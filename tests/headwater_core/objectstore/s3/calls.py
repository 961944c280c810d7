"""What tests do with a store: every kind of write and of read."""

import random
from collections.abc import Callable

from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.objectstore.contract import put, read

PART = 5 << 20  # the smallest S3 takes


def some_bytes(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def replace_doc(store: ObjectStore) -> object:
    return store.replace("doc", b"2", expected_tag=store.get("doc")[1])


WRITES: list[Callable[[ObjectStore], object]] = [
    lambda store: put(store, "new", b"1"),
    lambda store: store.create("new", b"1"),
    replace_doc,
    lambda store: store.delete("doc"),
]
READS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.get("doc"),
    lambda store: store.stat("doc"),
    lambda store: read(store, "doc", 0, 1),
    lambda store: list(store.list("")),
]
