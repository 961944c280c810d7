"""An object read piece by piece is the object, and what goes wrong on the way is said."""

import io
import threading
from collections import deque
from collections.abc import Mapping
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipeline.scrub.object_file import ObjectFile
from headwater_core.errors import CorruptData, TransientError, TruncatedData
from headwater_core.segments.run_scan import scan_run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_batch
from tests.manifests.builders import an_entry

MIB = 1 << 20


def stored(content: bytes) -> tuple[MeteredStore, ObjectFile]:
    store, entry = MeteredStore(MemoryStore(), log_calls=100), an_entry(0, 9, size_bytes=len(content), live_bytes=len(content))
    store.create(entry.key, content)
    return store, ObjectFile(store, entry, piece_bytes=MIB)


@given(sizes=st.lists(st.sampled_from([100, 60_000, MIB // 2, MIB - 100, 3 * MIB]), min_size=1, max_size=12))
def test_a_scan_finds_the_same_as_of_a_file_and_asks_for_each_byte_once(sizes: list[int]) -> None:
    content = b"".join(a_batch(number, [bytes(size)]) for number, size in enumerate(sizes))
    store, run = stored(content)
    with run:
        found = scan_run(cast(BinaryIO, run), start=0, end=len(content), where="run")
    assert found == scan_run(io.BytesIO(content), start=0, end=len(content), where="run")
    assert store.bytes_read == len(content)
    assert store.calls["read_into"] == -(-len(content) // MIB)


def test_the_threads_are_gone_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    _, run = stored(bytes(5 * MIB))
    with run:
        assert len(run.read(2 * MIB)) > 0
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before


def test_what_was_dropped_cannot_be_read_again() -> None:
    _, run = stored(bytes(5 * MIB))
    with run:
        while run.read(MIB):
            pass
        run.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            run.read(1)


@pytest.mark.parametrize("there", [None, 0, MIB, 2 * MIB + 7])
def test_an_object_that_is_gone_or_short_is_damage(there: int | None) -> None:
    entry = an_entry(0, 9, size_bytes=3 * MIB, live_bytes=3 * MIB)
    store = MemoryStore()
    if there is not None:
        store.create(entry.key, bytes(there))
    wanted = CorruptData if there is None else TruncatedData
    with ObjectFile(store, entry, piece_bytes=MIB) as run, pytest.raises(wanted, match=entry.key):
        deque(iter(lambda: run.read(MIB), b""))


class Failing(MemoryStore):
    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        raise TransientError("timed out")


def test_what_the_store_raises_is_raised() -> None:
    with (
        ObjectFile(Failing(), an_entry(0, 9, size_bytes=2 * MIB, live_bytes=2 * MIB), piece_bytes=MIB) as run,
        pytest.raises(TransientError),
    ):
        run.read(1)
