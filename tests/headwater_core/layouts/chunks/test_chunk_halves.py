"""No chunk is fetched twice by who reads on, and what was fetched too much is bounded and never needed."""

import io
import weakref
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import TransientError
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_halves import ChunkHalves, HalfChunk
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.testing import a_run, scanned
from tests.headwater_core.layouts.contract import new_run, stored
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

CHUNK = HalfChunk("run", "digest", 3)
RUN = a_run(60, value_bytes=900)
CHUNK_BYTES = 10_000
KEY = "chunks/cluster/node.7/orders/0/commitLog-5/chunk-0"


def archived(store: MemoryStore) -> tuple[ChunksLayout, Any]:
    layout = ChunksLayout(Variant.FIXED, CHUNK_BYTES)
    new = new_run(0, ("", ""))._replace(key=KEY, index_key=f"{KEY}.index", source=io.BytesIO(RUN), scan=scanned(RUN))
    return layout, stored(layout, new, layout.offload(store, [new], {})[0])


def read(reader: Any, start: int, size_bytes: int) -> bytes:
    content = bytearray(size_bytes)
    reader.read_into(memoryview(content), start)
    return bytes(content)


def gets(store: MeteredStore) -> Counter[str]:
    return Counter(call.key for call in store.log if call.operation in ("read_into", "stream_into"))


@given(size_bytes=st.integers(500, 30_000))
def test_who_reads_on_gets_each_chunk_once(size_bytes: int) -> None:
    inner = MemoryStore()
    layout, entry = archived(inner)
    store = MeteredStore(inner, log_calls=1000)
    reader = layout.read_offloaded(store, entry)
    content = b"".join(read(reader, at, min(size_bytes, len(RUN) - at)) for at in range(0, len(RUN), size_bytes))
    assert content == RUN
    assert set(gets(store).values()) == {1}
    assert layout._halves.used_bytes == 0, "all of it was handed out"


@pytest.mark.parametrize("ahead_first", [False, True])
def test_of_two_ranges_that_are_read_at_once_one_gets_their_chunk_for_both(ahead_first: bool) -> None:
    inner, border = MemoryStore(), 25_000
    layout, entry = archived(inner)
    store = MeteredStore(inner, log_calls=1000)
    first, ahead = bytearray(border), bytearray(len(RUN) - border)
    reader = layout.read_offloaded(store, entry)
    pieces = [memoryview(first)[:5_000], memoryview(first)[5_000:]]
    with closing(reader.stream_into(pieces, 0)) as one, closing(reader.stream_into([memoryview(ahead)], border)) as other:
        next(one)  # it has begun
        for stream in (other, one) if ahead_first else (one, other):
            next(stream)
    assert first + ahead == RUN
    assert set(gets(store).values()) == {1}


def test_a_reader_that_begins_within_a_chunk_gets_nothing_before_that() -> None:
    inner = MemoryStore()
    layout, entry = archived(inner)
    store = MeteredStore(inner, log_calls=1000)
    assert read(layout.read_offloaded(store, entry), 13_000, 2_000) == RUN[13_000:15_000]
    assert [call.start for call in store.log if call.key.endswith("-10000")] == [3_000]


def test_what_was_not_needed_does_not_fail_a_read() -> None:
    class EndsEarly(MemoryStore):
        is_bad = False

        def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
            filling = super().stream_into(key, buffers, start=start)
            if not self.is_bad or len(buffers) == 1:
                yield from filling
                return
            next(filling)
            yield
            raise TransientError("the connection was lost")

    store = EndsEarly()
    layout, entry = archived(store)
    store.is_bad = True
    reader = layout.read_offloaded(store, entry)
    assert read(reader, 0, 4_000) == RUN[:4_000]
    assert layout._halves.used_bytes == 0
    store.is_bad = False
    assert read(reader, 4_000, 4_000) == RUN[4_000:8_000]


def test_what_is_kept_is_bounded_and_what_is_oldest_goes_first() -> None:
    halves = ChunkHalves(100)
    for number in range(4):
        chunk = CHUNK._replace(number=number)
        fetched = halves.begin(chunk, 0, 10, 50)
        assert fetched == ((0, 50) if number < 2 else (0, 10)), "there is no room for more"
        halves.done(chunk, (0, 10), fetched, memoryview(b""), memoryview(bytes(fetched[1] - 10)))
        assert halves.used_bytes <= 100
    assert bytes(halves.take(CHUNK._replace(number=0), 10, 20) or b"") == bytes(10)
    assert halves.take(CHUNK._replace(number=0), 10, 20) is None, "it is handed out once"
    assert bytes(halves.take(CHUNK._replace(number=0), 20, 50) or b"") == bytes(30)
    assert halves.used_bytes == 40


def test_what_another_read_is_getting_is_waited_for_but_not_without_end() -> None:
    halves = ChunkHalves(100, wait_s=0.01)
    fetched = halves.begin(CHUNK, 0, 10, 50)
    assert halves.take(CHUNK, 10, 20) is None, "it takes too long"
    assert halves.begin(CHUNK, 10, 20, 50) == (10, 20), "then it is got again, and nothing with it"
    halves.failed(CHUNK, (0, 10), fetched)
    assert halves.used_bytes == 0


class Buffer(bytearray):
    """That can be referred to weakly."""


def test_what_is_left_of_a_buffer_does_not_hold_all_of_it() -> None:
    halves, size_bytes = ChunkHalves(1 << 20), 1 << 18
    held = list[weakref.ref[Buffer]]()
    for number in range(50):
        chunk = CHUNK._replace(number=number)
        fetched = halves.begin(chunk, 0, 1, size_bytes + 1)
        buffer = Buffer(size_bytes)
        held.append(weakref.ref(buffer))
        halves.done(chunk, (0, 1), fetched, memoryview(b""), memoryview(buffer))
        del buffer
        assert len(halves.take(chunk, 1, size_bytes - 999) or b"") == size_bytes - 1000
    assert halves.used_bytes == 50 * 1000
    assert not any(ref() for ref in held)
    assert bytes(halves.take(CHUNK._replace(number=0), size_bytes - 999, size_bytes + 1) or b"") == bytes(1000)
